"""The base class of all trackers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from bdr.records import Run
from bdr.trackers.points import Point


class Tracker(ABC):
    """The log of one run in a tracker. Creating it begins the log, or continues one that exists. One thread uses it."""

    @abstractmethod
    def __init__(self, run: Run) -> None: ...

    @abstractmethod
    def add(self, points: Sequence[Point]) -> None:
        """Add points in the order of their steps. They begin with the first one even if the log has some already."""

    @abstractmethod
    def close(self, done: bool) -> None: ...
