"""A lock that lets one process at a time train in a run's folder; the system releases it when that process dies."""

from __future__ import annotations

import contextlib
import os
import platform
from pathlib import Path
from typing import IO, Any

from bdr.errors import BdrError
from bdr.records.files import writing

try:
    import fcntl
except ImportError:  # a system without such locks: nothing is locked there
    fcntl = None  # type: ignore[assignment]

LOCK = "training.lock"  # present while a run is under way, or after it was killed; not part of its records


class Lock:
    """A lock on a folder, held from its construction until it is released or its process ends in any way."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOCK
        self.file: IO[bytes] | None = None
        while self.file is None and fcntl is not None:
            self.file = self._taken()

    def _taken(self) -> IO[bytes] | None:
        """The file, locked and naming this process; None if its last owner has just removed it; raises if taken."""
        with writing(self.path):
            file = self.path.open("a+b")
            if not is_free(file):
                with file:
                    raise _taken_by(_owner(file), self.path.parent)
            if not _is_at(self.path, file):
                file.close()
                return None
            file.truncate(0)
            file.write(f"process {os.getpid()} on {platform.node()}".encode())
            file.flush()
        return file

    def release(self) -> None:
        """Release the lock; the file is removed before that, so that whoever locks it next can see that it is gone."""
        if self.file is not None:
            with self.file, contextlib.suppress(OSError):
                self.path.unlink(missing_ok=True)
            self.file = None


def is_free(file: IO[Any]) -> bool:
    """Whether nobody else holds a lock on the file; if so, this process holds it from now until the file is closed.

    Also true if the system or the disk has no locks.
    """
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def is_being_trained(folder: Path) -> bool:
    """Whether any process, here or on another machine that shares the disk, is training in the folder."""
    try:
        with (folder / LOCK).open("r+b") as file:
            return not is_free(file)
    except OSError:  # there is no such file, or this user may not open it
        return False


def _taken_by(owner: str, folder: Path) -> BdrError:
    return BdrError(f"{folder} is being trained by {owner}: wait for it, or end it first")


def _owner(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace").removesuffix(f" on {platform.node()}") or "another process"


def _is_at(path: Path, file: IO[bytes]) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False
