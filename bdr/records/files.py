"""Files that are whole or not there: atomic writes, strict JSON, arrays, and errors that name the file."""

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
    """The time as records have it."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """A failing disk becomes an error that names the file and the reason."""
    try:
        yield
    except OSError as error:
        raise BdrError(f"cannot write {path}: {error.strerror or error}") from error


def check_folder_of(file: Path) -> None:
    """Before anything is made that is to be written there."""
    if not file.parent.is_dir():
        raise UsageError(f"cannot write {file}: there is no folder {file.parent}")


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write beside, sync, rename: a reader sees the old file or the new one, never a part.

    A link stays one, and its target is written. What flows takes its content as it comes: no file may take its place.
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
    """What kind of file a path leads to, links followed; 0 where there is none."""
    try:
        return path.stat().st_mode
    except OSError:
        return 0


def flows(path: Path) -> bool:
    """Whether it leads into a device such as /dev/null, a pipe, or to wherever standard output goes."""
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
    sys.stdout.flush()  # it may be a file that would be cut if it were opened once more
    with open(STANDARD_OUTPUT, "wb", closefd=False) as stream:
        stream.write(data)


def replace_file(path: Path, data: bytes) -> None:
    # the process id keeps two runs that fill the same cache from writing into each other's file
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
    # some file systems let no folder be synced; the rename itself has already happened
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def plain(value: Any) -> Any:
    """The value in strict JSON's own types: numpy becomes Python, NaN and infinity become null."""
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
    """The whole lines of a file; what a killed process left half-written at its end is left out."""
    content = path.read_bytes() if path.exists() else b""
    lines = content[: content.rfind(b"\n") + 1].splitlines()
    return [json_object(line, f"{path}, line {number}") for number, line in enumerate(lines, 1)]


def ends_half_written(path: Path) -> bool:
    """Whether a killed process, or one that is just writing, left half a line at the end of a file."""
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
