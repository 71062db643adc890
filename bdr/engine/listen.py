"""Listeners, which follow how a run goes (a terminal, a log, nobody), and what they get to know of an epoch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from bdr.types import Phase, Stage


class EpochLog(NamedTuple):
    """The values of an epoch: one per step for every term and all that is watched, read from the device once."""

    epoch: int
    rate: float
    names: tuple[str, ...]
    values: np.ndarray  # (steps, names)
    weights: dict[str, float]  # of every term; what is only watched has none
    seconds: float
    images: int

    @property
    def loss(self) -> float:
        """What is minimised: the weighted sum of the terms' means over the epoch."""
        return sum(weight * self.mean(name) for name, weight in self.weights.items())

    def mean(self, name: str) -> float:
        """The mean over the steps that have a value; NaN if none has, as in an epoch without any old-class sample."""
        values = self.term(name)
        if np.isnan(values).all():
            return math.nan
        with np.errstate(all="ignore"):  # a loss may grow beyond what a float holds
            return float(np.nanmean(values))

    def term(self, name: str) -> np.ndarray:
        if name not in self.names:
            return np.full(len(self.values), np.nan, np.float32)
        return self.values[:, self.names.index(name)]


class Listener:
    """Is told everything and does nothing; displays override what they show."""

    def run_begins(self, title: str, phases: list[Phase], place: str, work: list[list[int]]) -> None:
        """`work` has the number of images that pass through training, for every stage of every phase."""

    def stage_begins(self, phase: Phase, number: int, stage: Stage, first_epoch: int) -> None: ...

    def steps_end(self, phase: Phase, stage: Stage, epoch: int, step: int, steps: int) -> None:
        """`step` of an epoch's `steps` are launched, though a GPU may not have done them all. At most once a second."""

    def epoch_ends(self, phase: Phase, stage: Stage, log: EpochLog) -> None: ...

    def turn_ends(self, phase: Phase, stage: Stage, log: EpochLog) -> None:
        """An epoch of `stage` has ended, which alternates with another one; its images are not in `work`."""

    def phase_ends(self, line: dict[str, Any]) -> None: ...

    def note(self, text: str) -> None: ...

    def run_ends(self) -> None: ...


class Several(Listener):
    """Passes everything that a listener is told on to several listeners, in their order."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self.listeners = listeners
        for name in (name for name in vars(Listener) if not name.startswith("_")):
            setattr(self, name, partial(self.tell, name))

    def tell(self, name: str, *said: Any) -> None:
        for each in self.listeners:
            getattr(each, name)(*said)
