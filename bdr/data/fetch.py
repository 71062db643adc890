"""Downloads the published archives: resumable, checked, unpacked by an allow-list; with the standard library alone."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import os
import shutil
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bdr.data.published import Published, folder_of, published
from bdr.errors import BdrError, UsageError

ATTEMPTS = 4
PAUSE = 2.0  # seconds before the second attempt, twice as long before each further one
TIMEOUT = 30.0  # seconds without a byte
BLOCK = 1 << 18

Progress = Callable[[int, int | None], None]  # bytes so far, and bytes in all if the server says so


class Interrupted(Exception):
    """The connection failed in a way that another attempt may mend."""


def verify(name: str, root: str | os.PathLike[str]) -> list[tuple[str, str]]:
    """Every file of a data set with its state: "ok", "missing" or "damaged"."""
    folder = folder_of(name, root)
    return [(file, state(folder / file, md5)) for file, md5 in published(name).files.items()]


def fetch(name: str, root: str | os.PathLike[str], url: str | None = None, progress: Progress | None = None) -> str:
    """Download and unpack a data set into `root`; return "fetched", or "already there" if there is a good copy."""
    data, part = published(name), Path(root) / (published(name).archive + ".part")
    if complete(name, root):
        return "already there"
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        if state(part, data.md5) != "ok":  # "ok" if an earlier try had no room to unpack
            download(url or data.url, part, progress or (lambda done, total: None))
        check_archive(url or data.url, part, data)
        unpack(part, folder_of(name, root), data)
        part.unlink()
    except OSError as problem:
        reason = problem.strerror or problem
        raise BdrError(f"cannot write in '{root}': {reason}; make room or give another folder with --root") from problem
    return "fetched"


def complete(name: str, root: str | os.PathLike[str]) -> bool:
    return all(found == "ok" for _, found in verify(name, root))


def state(path: Path, md5: str) -> str:
    if not os.path.isfile(path):
        return "missing"
    try:
        return "ok" if md5_of_file(path) == md5 else "damaged"
    except OSError:
        return "damaged"


def md5_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def download(url: str, part: Path, progress: Progress) -> None:
    """Fill the part file, going on where an earlier attempt broke off."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return receive(url, part, progress)
        except Interrupted as problem:
            if attempt == ATTEMPTS:
                raise BdrError(
                    f"{url} could not be downloaded in {ATTEMPTS} attempts: {problem}; what has arrived is kept in "
                    f"{part}: check the connection and type the same again, or give another address with --url"
                ) from problem
            time.sleep(PAUSE * 2 ** (attempt - 1))
    return None


def receive(url: str, part: Path, progress: Progress) -> None:
    """Make one attempt: ask for the bytes that are not there yet and append them."""
    have = part.stat().st_size if part.exists() else 0
    response = connect(url, have)
    if response is None:  # the server has nothing after what we have
        return
    with response, part.open("ab") as file:
        start = start_of(response, have)
        file.truncate(start)
        length = response.headers.get("Content-Length") or ""
        done, total = start, start + int(length) if length.isdecimal() else None
        progress(done, total)
        while block := next_block(response):
            file.write(block)
            done += len(block)
            progress(done, total)
    if total is not None and done < total:
        raise Interrupted(f"the connection broke off after {done:,} of {total:,} bytes")


def connect(url: str, have: int) -> Any:
    """The open response, or None if the part file is already as long as the server's."""
    headers = {"User-Agent": "bdr"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as problem:
        problem.close()
        if problem.code == 416 and have:
            return None if whole_length(problem) in (None, have) else connect(url, 0)
        raise refused(url, problem) from problem
    except (ValueError, http.client.InvalidURL) as problem:
        raise UsageError(f"'{url}' is no address ({problem}); it must begin with https:// or http://") from problem
    except urllib.error.URLError as problem:
        raise Interrupted(f"the host cannot be reached ({problem.reason})") from problem
    except (OSError, http.client.HTTPException) as problem:
        raise Interrupted(f"the host does not answer ({problem or type(problem).__name__})") from problem


def whole_length(problem: urllib.error.HTTPError) -> int | None:
    """The length of the file from `Content-Range: bytes */LENGTH`, if the server says."""
    length = (problem.headers.get("Content-Range") or "").rpartition("/")[2]
    return int(length) if length.isdecimal() else None


def refused(url: str, problem: urllib.error.HTTPError) -> Exception:
    """The error to raise: another attempt may follow if the server is busy, but not if it refuses."""
    said = f"the server answers {problem.code} {problem.reason}"
    if problem.code in (408, 429) or problem.code >= 500:
        return Interrupted(said)
    return BdrError(f"{url} could not be downloaded: {said}; give another address with --url")


def start_of(response: Any, have: int) -> int:
    """The position of the first byte that the server sends: 0 if it ignored the range."""
    if response.status != http.HTTPStatus.PARTIAL_CONTENT:
        return 0
    said = response.headers.get("Content-Range") or ""
    if not said.startswith(f"bytes {have}-"):
        raise BdrError(f"asked for the bytes from {have} on, the server sent '{said}'; give another address with --url")
    return have


def next_block(response: Any) -> bytes:
    try:
        return response.read(BLOCK)
    except (OSError, http.client.HTTPException) as problem:
        raise Interrupted(f"the connection broke off ({problem or type(problem).__name__})") from problem


def check_archive(url: str, part: Path, data: Published) -> None:
    """Remove and refuse a download that is not the published archive: no later attempt could go on from it."""
    given, size = md5_of_file(part), part.stat().st_size
    if given != data.md5:
        part.unlink()
        raise BdrError(
            f"what {url} sent is not the published archive: its {size:,} bytes have md5 {given}, not {data.md5}; "
            "it was removed: type the same again, or give another address with --url"
        )


def unpack(archive: Path, folder: Path, data: Published) -> None:
    """Unpack the expected files and no others, and check them before they replace anything."""
    with tempfile.TemporaryDirectory(prefix=".unpack-", dir=archive.parent) as staging:
        extract(archive, Path(staging), data)
        fresh = Path(staging) / data.folder
        for file, md5 in data.files.items():
            if (found := state(fresh / file, md5)) != "ok":
                raise BdrError(f"{file} is {found} in the archive {archive}; remove it and type the same again")
        folder.mkdir(parents=True, exist_ok=True)
        for file in data.files:
            os.replace(fresh / file, folder / file)


def extract(archive: Path, staging: Path, data: Published) -> None:
    """Extract plain files whose names are expected; links, devices and all other names are left in the archive."""
    wanted = {f"{data.folder}/{file}" for file in data.files}
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                if member.isreg() and member.name in wanted:
                    copy_out(tar, member, staging / member.name)
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as problem:
        raise BdrError(f"{archive} cannot be unpacked ({problem}); remove it and type the same again") from problem


def copy_out(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    """Copy the bytes alone: no owner, no rights. (`extract` needs a filter for that, which came with Python 3.11.4.)"""
    target.parent.mkdir(parents=True, exist_ok=True)
    source = tar.extractfile(member)
    assert source is not None  # a plain file has bytes
    with source, target.open("wb") as file:
        shutil.copyfileobj(source, file)
