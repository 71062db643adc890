"""Many files at once: read side by side, in their order, and how far it is goes to the log of the package."""

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
AT_ONCE, PART = 128, 4  # files that are read ahead of whoever takes them; of these, how many a thread takes at a time
FIRST, EVERY = 3.0, 10.0  # seconds until how far it is is told first, and between two tellings


def side_by_side(files: Sequence[Path], read: Callable[[Path], R]) -> Iterator[R]:
    """What `read` makes of each file; decoders take long, and leave Python's lock to others."""
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
        crew.shutdown(cancel_futures=True)  # who leaves with Ctrl-C does not wait for what is read ahead


class Pace:
    """How many of all files are read, told now and then where that takes long; threads share it."""

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
