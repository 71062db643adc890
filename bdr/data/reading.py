"""Read many files in parallel, in their order, and report progress to the log of the package."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import TypeVar

R = TypeVar("R")
LOG = logging.getLogger(__name__)
THREADS = 8  # a photograph takes 40 MB while it is decoded
AT_ONCE, PART = 128, 4  # how many files are read ahead of the caller, and how many a thread takes at a time
FIRST, EVERY = 3.0, 10.0  # seconds before progress is first reported, and between two reports


def side_by_side(files: Sequence[Path], read: Callable[[Path], R]) -> Iterator[R]:
    """Yield what `read` makes of each file. Threads help because decoders take long and release Python's lock."""
    pace = Pace(len(files))

    def read_part(part: Sequence[Path]) -> list[R]:
        return [pace.counted(read(path)) for path in part]

    crew = ThreadPoolExecutor(THREADS)
    try:
        for start in range(0, len(files), AT_ONCE):
            some = files[start : start + AT_ONCE]
            for made in crew.map(read_part, [some[at : at + PART] for at in range(0, len(some), PART)]):
                yield from made
    finally:
        crew.shutdown(cancel_futures=True)  # a user who presses Ctrl-C does not wait for files that are read ahead


class Pace:
    """Counts the files that all threads have read, and reports that now and then if reading takes long."""

    def __init__(self, files: int) -> None:
        self.files, self.done, self.began, self.lock = files, 0, time.monotonic(), Lock()
        self.next = self.began + FIRST

    def counted(self, made: R) -> R:
        with self.lock:
            self.done += 1
            self.tell_if_due(time.monotonic())
        return made

    def tell_if_due(self, now: float) -> None:
        if now >= self.next and self.done < self.files:
            self.next = now + EVERY
            left = (now - self.began) / self.done * (self.files - self.done)
            LOG.info("reading pictures: %s of %s, about %.0f s left", f"{self.done:,}", f"{self.files:,}", left)
