"""What every tracker can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from bdr.records import Run
from bdr.trackers.points import Point


class Tracker(ABC):
    """The log of one run, opened by its record: begun, or gone on with. It is used by one thread."""

    @abstractmethod
    def __init__(self, run: Run) -> None: ...

    @abstractmethod
    def add(self, points: Sequence[Point]) -> None:
        """Takes points in the order of their steps; always from the first one on, also where it holds some already."""

    @abstractmethod
    def close(self, done: bool) -> None: ...
