"""Files that are either whole or absent: atomic writes, strict JSON, arrays, and errors that name the file."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import stat
import sys
import zipfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from bdr.errors import BdrError, UsageError

STANDARD_OUTPUT = 1


def now() -> str:
    """The current time, as records write it."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a failure of the disk into an error that names the file and the reason."""
    try:
        yield
    except OSError as error:
        raise BdrError(f"cannot write {path}: {error.strerror or error}") from error


def check_folder_of(file: Path) -> None:
    """Raise if the folder for a file is missing; called before the content is made."""
    if not file.parent.is_dir():
        raise UsageError(f"cannot write {file}: there is no folder {file.parent}")


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write beside, sync, rename: a reader sees the old file or the new one, never a part.

    A link stays a link, and its target is written. Devices, pipes and standard output (`flows`) are written directly,
    because a renamed file would replace them.
    """
    path = Path(path)
    refuse_unwritable(path)
    data = content.encode() if isinstance(content, str) else content
    with writing(path):
        if flows(path):
            pour(path, data)
        else:
            replace_file(Path(os.path.realpath(path)), data)


def refuse_unwritable(path: Path) -> None:
    there = mode_of(path)
    kinds = {"folder": stat.S_ISDIR, "socket": stat.S_ISSOCK, "disk": stat.S_ISBLK}
    kind = next((name for name, is_one in kinds.items() if is_one(there)), None)
    if kind is not None and not is_standard_output(path):
        raise BdrError(f"cannot write {path}: it is a {kind}")


def mode_of(path: Path) -> int:
    """The mode (`st_mode`) of the file that a path leads to, links followed; 0 if there is none."""
    try:
        return path.stat().st_mode
    except OSError:
        return 0


def flows(path: Path) -> bool:
    """Whether a path leads to a device such as /dev/null, to a pipe, or to wherever standard output goes."""
    there = mode_of(path)
    return stat.S_ISCHR(there) or stat.S_ISFIFO(there) or is_standard_output(path)


def is_standard_output(path: Path) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(STANDARD_OUTPUT))
    except OSError:
        return False


def pour(path: Path, data: bytes) -> None:
    if not is_standard_output(path):
        path.write_bytes(data)
        return
    sys.stdout.flush()  # written through the open descriptor: if it is a file, opening it again would truncate it
    with open(STANDARD_OUTPUT, "wb", closefd=False) as stream:
        stream.write(data)


def replace_file(path: Path, data: bytes) -> None:
    # with the process id in the name, two runs that fill the same cache do not write into each other's file
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    # some file systems cannot sync a folder; the rename itself has already happened
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def plain(value: Any) -> Any:
    """The value in types that strict JSON knows: numpy becomes Python, NaN and infinity become None."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


def to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(plain(value), allow_nan=False, ensure_ascii=False, indent=indent) + "\n"


def to_npz(arrays: dict[str, np.ndarray]) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BdrError(f"cannot read {path}: {error.strerror or error}") from error


def damaged(path: Path, error: object) -> BdrError:
    return BdrError(f"{path} is damaged: {error}")


def load_npz(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return {key: file[key] for key in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise damaged(path, error) from error


def json_lines(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a file; a half-written line that a killed process left at its end is skipped."""
    content = path.read_bytes() if path.exists() else b""
    lines = content[: content.rfind(b"\n") + 1].splitlines()
    return [json_object(line, f"{path}, line {number}") for number, line in enumerate(lines, 1)]


def ends_half_written(path: Path) -> bool:
    """Whether a file ends in half a line, left by a killed process or one that is still writing."""
    if not path.exists() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() != b"\n"


def json_object(content: bytes, source: str) -> dict[str, Any]:
    try:
        value = json.loads(content)
    except ValueError as error:
        raise BdrError(f"{source} is damaged: {error}") from error
    if not isinstance(value, dict):
        raise BdrError(f"{source} is damaged: not a JSON object")
    return value
