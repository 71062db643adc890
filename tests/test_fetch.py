"""Downloading, against real servers on this computer: whole, resumed, broken off, wrong, hostile."""

from __future__ import annotations

import errno
import io
import tarfile
import threading
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from bdr.data import fetch as fetching
from bdr.data.fetch import fetch, verify
from bdr.data.published import PUBLISHED, md5_of
from bdr.errors import BdrError, UsageError

FILES = {"train": bytes(range(256)) * 2000, "test": b"test" * 5000, "meta": b"names"}
FOLDER = PUBLISHED["cifar100"].folder


def pack(members: list[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=0) as tar:
        for info, content in members:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def plain(files: dict[str, bytes]) -> list[tuple[tarfile.TarInfo, bytes]]:
    return [(tarfile.TarInfo(f"{FOLDER}/{file}"), content) for file, content in files.items()]


def publish(monkeypatch, archive: bytes, files: dict[str, bytes] = FILES) -> None:
    """Takes this archive and these files for the published ones."""
    checksums = {file: md5_of(content) for file, content in files.items()}
    monkeypatch.setitem(PUBLISHED, "cifar100", replace(PUBLISHED["cifar100"], md5=md5_of(archive), files=checksums))


@pytest.fixture
def archive(monkeypatch):
    packed = pack(plain(FILES))
    publish(monkeypatch, packed)
    return packed


@pytest.fixture(autouse=True)
def at_home_and_without_waiting(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(fetching, "PAUSE", 0.0)
    monkeypatch.setattr(fetching, "TIMEOUT", 5.0)


class Shop(ThreadingHTTPServer):
    """Serves one file, and remembers what was asked and how many bytes of it went out."""

    daemon_threads = True

    def __init__(self, content: bytes, ranges: bool = True, breaks: tuple[int, ...] = (), errors: tuple[int, ...] = ()):
        super().__init__(("127.0.0.1", 0), Counter)
        self.content, self.ranges = content, ranges
        self.breaks, self.errors = list(breaks), list(errors)  # one is used up by each request
        self.asked: list[str | None] = []
        self.sent: list[int] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/archive.tar.gz"


class Counter(BaseHTTPRequestHandler):
    server: Shop

    def do_GET(self) -> None:
        shop, wanted = self.server, self.headers.get("Range")
        shop.asked.append(wanted)
        if shop.errors:
            return self.send_error(shop.errors.pop(0))
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and shop.ranges else 0
        if start and start >= len(shop.content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(shop.content)}")
            self.send_header("Content-Length", "0")
            return self.end_headers()
        return self.serve(start)

    def serve(self, start: int) -> None:
        content = self.server.content
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        body = content[start:]
        if self.server.breaks:
            body = body[: self.server.breaks.pop(0)]
        self.server.sent.append(len(body))  # before: who has read the last byte looks at once
        self.wfile.write(body)

    def log_message(self, *anything) -> None:
        pass


@contextmanager
def open_shop(content: bytes, **habits):
    shop = Shop(content, **habits)
    thread = threading.Thread(target=shop.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield shop
    finally:
        shop.shutdown()
        thread.join()
        shop.server_close()


def part_of(root: Path) -> Path:
    return root / (PUBLISHED["cifar100"].archive + ".part")


def states(root: Path) -> dict[str, str]:
    return dict(verify("cifar100", root))


GOOD = dict.fromkeys(FILES, "ok")


def test_a_data_set_is_downloaded_checked_and_unpacked(tmp_path, archive):
    root = tmp_path / "a" / "new" / "folder"
    with open_shop(archive) as shop:
        assert fetch("cifar100", root, shop.url) == "fetched"
    assert states(root) == GOOD
    assert (root / FOLDER / "train").read_bytes() == FILES["train"]
    assert [path.name for path in root.iterdir()] == [FOLDER]


def test_a_good_copy_is_left_alone(tmp_path, archive):
    with open_shop(archive) as shop:
        fetch("cifar100", tmp_path, shop.url)
        assert fetch("cifar100", tmp_path, shop.url) == "already there"
        assert fetch("cifar100", tmp_path / FOLDER, shop.url) == "already there"
        assert len(shop.asked) == 1


def test_missing_and_damaged_files_are_told_and_mended(tmp_path, archive):
    with open_shop(archive) as shop:
        fetch("cifar100", tmp_path, shop.url)
        (tmp_path / FOLDER / "train").write_bytes(b"something else")
        (tmp_path / FOLDER / "meta").unlink()
        assert states(tmp_path) == {"train": "damaged", "test": "ok", "meta": "missing"}
        assert fetch("cifar100", tmp_path / FOLDER, shop.url) == "fetched"
    assert states(tmp_path) == GOOD


def test_nothing_at_all_is_missing(tmp_path):
    assert set(states(tmp_path / "nowhere").values()) == {"missing"}
    (tmp_path / "file").write_text("a regular file")
    assert set(states(tmp_path / "file" / "below").values()) == {"missing"}


def test_a_download_that_breaks_off_goes_on_where_it_stopped(tmp_path, archive):
    with open_shop(archive, breaks=(100_000, 50_000)) as shop:
        assert fetch("cifar100", tmp_path, shop.url) == "fetched"
        assert shop.asked == [None, "bytes=100000-", "bytes=150000-"]
        assert sum(shop.sent) == len(archive)
    assert states(tmp_path) == GOOD


def test_a_partial_download_is_kept_for_the_next_try(tmp_path, archive):
    with open_shop(archive, breaks=(1000, 1000, 1000, 1000)) as shop:
        with pytest.raises(BdrError, match=r"in 4 attempts: .* broke off after 4,000 of .* is kept in .*\.part"):
            fetch("cifar100", tmp_path, shop.url)
        assert part_of(tmp_path).read_bytes() == archive[:4000]
        assert fetch("cifar100", tmp_path, shop.url) == "fetched"
        assert sum(shop.sent) == len(archive)


def test_a_server_without_ranges_starts_again_cleanly(tmp_path, archive):
    with open_shop(archive, ranges=False, breaks=(100_000,)) as shop:
        assert fetch("cifar100", tmp_path, shop.url) == "fetched"
        assert shop.sent == [100_000, len(archive)]
    assert states(tmp_path) == GOOD


def test_a_part_that_is_already_whole_is_not_downloaded_again(tmp_path, archive):
    part_of(tmp_path).write_bytes(archive)
    with open_shop(archive) as shop:
        assert fetch("cifar100", tmp_path, shop.url) == "fetched"
        assert shop.asked == []


def test_a_part_longer_than_the_file_starts_again(tmp_path, archive):
    part_of(tmp_path).write_bytes(archive + b"too much")
    with open_shop(archive) as shop:
        assert fetch("cifar100", tmp_path, shop.url) == "fetched"
        assert shop.asked == [f"bytes={len(archive) + 8}-", None]


def test_a_part_as_long_as_the_file_but_wrong_is_removed(tmp_path, archive):
    part_of(tmp_path).write_bytes(bytes(len(archive)))
    with open_shop(archive) as shop:
        with pytest.raises(BdrError, match="is not the published archive"):
            fetch("cifar100", tmp_path, shop.url)
        assert fetch("cifar100", tmp_path, shop.url) == "fetched"


def test_a_wrong_checksum_is_told_and_the_download_removed(tmp_path, archive):
    sent = b"<html>log in to the network first</html>"
    told = rf"md5 {md5_of(sent)}, not {md5_of(archive)}; it was removed"
    with open_shop(sent) as shop, pytest.raises(BdrError, match=told):
        fetch("cifar100", tmp_path, shop.url)
    assert list(tmp_path.iterdir()) == []


def test_a_busy_server_is_asked_again(tmp_path, archive):
    with open_shop(archive, errors=(503, 429)) as shop:
        assert fetch("cifar100", tmp_path, shop.url) == "fetched"
        assert len(shop.asked) == 3


def test_a_server_that_says_no_is_asked_once(tmp_path, archive):
    with open_shop(archive, errors=(404,)) as shop:
        with pytest.raises(BdrError, match="answers 404 Not Found; give another address with --url"):
            fetch("cifar100", tmp_path, shop.url)
        assert len(shop.asked) == 1


def test_a_host_that_cannot_be_reached_is_a_clear_sentence(tmp_path, archive):
    with open_shop(archive) as shop:
        closed = shop.url
    with pytest.raises(BdrError, match="could not be downloaded in 4 attempts: the host cannot be reached"):
        fetch("cifar100", tmp_path, closed)


@pytest.mark.parametrize("url", ["not an address", "http://127.0.0.1:port/x", "http://a b/"])
def test_an_address_that_is_none_is_a_usage_error(tmp_path, archive, url):
    with pytest.raises(UsageError, match="is no address"):
        fetch("cifar100", tmp_path, url)


def test_an_unknown_data_set_names_those_that_can_be_fetched(tmp_path):
    with pytest.raises(
        UsageError, match="no published data set 'cifar1000'; there are cifar10, cifar100: did you mean"
    ):
        fetch("cifar1000", tmp_path)


def test_a_full_disk_is_a_clear_sentence_and_keeps_what_is_there(tmp_path, archive, monkeypatch):
    def full(*anything):
        raise OSError(errno.ENOSPC, "No space left on device")

    with open_shop(archive) as shop:
        monkeypatch.setattr(fetching, "extract", full)
        with pytest.raises(BdrError, match="No space left on device; make room"):
            fetch("cifar100", tmp_path, shop.url)
    assert [path.name for path in tmp_path.iterdir()] == [part_of(tmp_path).name]


def test_a_root_below_a_regular_file_is_a_clear_sentence(tmp_path, archive):
    (tmp_path / "file").write_text("a regular file")
    with pytest.raises(BdrError, match=r"cannot write in '.*below'"):
        fetch("cifar100", tmp_path / "file" / "below", "http://127.0.0.1:9/never-asked")


def test_progress_ends_at_the_whole(tmp_path, archive):
    seen: list[tuple[int, int | None]] = []
    with open_shop(archive, breaks=(100_000,)) as shop:
        fetch("cifar100", tmp_path, shop.url, progress=lambda done, total: seen.append((done, total)))
    assert seen[0] == (0, len(archive))
    assert seen[-1] == (len(archive), len(archive))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def hostile(name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE, link: str = "") -> tuple:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info, content


def test_only_the_expected_files_leave_the_archive(tmp_path, monkeypatch):
    extra = [
        hostile("../escaped", b"x"),
        hostile(f"{FOLDER}/../../escaped", b"x"),
        hostile(str(tmp_path / "escaped"), b"x"),
        hostile(f"{FOLDER}/unexpected", b"x"),
    ]
    packed = pack(extra + plain(FILES))
    publish(monkeypatch, packed)
    root = tmp_path / "root"
    with open_shop(packed) as shop:
        fetch("cifar100", root, shop.url)
    assert sorted(path.name for path in root.rglob("*")) == sorted([FOLDER, *FILES])
    assert [path.name for path in tmp_path.iterdir()] == ["root"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
def test_a_link_in_the_place_of_a_file_is_not_followed(tmp_path, monkeypatch, kind):
    (tmp_path / "secret").write_bytes(FILES["train"])
    rest = {file: content for file, content in FILES.items() if file != "train"}
    packed = pack([hostile(f"{FOLDER}/train", kind=kind, link=str(tmp_path / "secret")), *plain(rest)])
    publish(monkeypatch, packed)
    with open_shop(packed) as shop, pytest.raises(BdrError, match="train is missing in the archive"):
        fetch("cifar100", tmp_path / "root", shop.url)
    assert not (tmp_path / "root" / FOLDER).exists()


def test_a_folder_that_is_a_link_in_the_archive_leads_nowhere(tmp_path, monkeypatch):
    outside = tmp_path / "outside"
    outside.mkdir()
    packed = pack([hostile(FOLDER, kind=tarfile.SYMTYPE, link=str(outside)), *plain(FILES)])
    publish(monkeypatch, packed)
    with open_shop(packed) as shop:
        fetch("cifar100", tmp_path / "root", shop.url)
    assert list(outside.iterdir()) == []


def test_an_archive_that_is_none_is_a_clear_sentence(tmp_path, monkeypatch):
    publish(monkeypatch, b"no archive")
    with open_shop(b"no archive") as shop, pytest.raises(BdrError, match="cannot be unpacked"):
        fetch("cifar100", tmp_path, shop.url)


def test_files_that_are_damaged_inside_the_archive_replace_nothing(tmp_path, archive, monkeypatch):
    with open_shop(archive) as shop:
        fetch("cifar100", tmp_path, shop.url)
    (tmp_path / FOLDER / "meta").unlink()
    bad = pack(plain(FILES | {"train": b"other"}))
    publish(monkeypatch, bad)
    with open_shop(bad) as shop, pytest.raises(BdrError, match="train is damaged in the archive"):
        fetch("cifar100", tmp_path, shop.url)
    assert states(tmp_path) == {"train": "ok", "test": "ok", "meta": "missing"}
