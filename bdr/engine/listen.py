"""Who wants to know how a run goes: a terminal, a log, nobody; and what an epoch tells them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from bdr.types import Phase, Stage


class EpochLog(NamedTuple):
    """What an epoch came to: a value a step for every term and all that is watched, read from the device once."""

    epoch: int
    rate: float
    names: tuple[str, ...]
    values: np.ndarray  # (steps, names)
    weights: dict[str, float]  # of every term, which is what is minimised
    seconds: float
    images: int

    @property
    def loss(self) -> float:
        """What is minimised, with its weights, on the mean over the epoch."""
        return sum(weight * self.mean(name) for name, weight in self.weights.items())

    def mean(self, name: str) -> float:
        """Over the steps that have such a value; NaN where none has, as in an epoch without any old-class sample."""
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
    """Hears of everything and does nothing; displays override what they show."""

    def run_begins(self, title: str, phases: list[Phase], place: str, work: list[list[int]]) -> None:
        """`work` are the images that pass through training, of every stage of every phase."""

    def stage_begins(self, phase: Phase, number: int, stage: Stage, first_epoch: int) -> None: ...

    def steps_end(self, phase: Phase, stage: Stage, epoch: int, step: int, steps: int) -> None:
        """So many steps of an epoch are on their way: a GPU may have some of them to do yet. Once a second at most."""

    def epoch_ends(self, phase: Phase, stage: Stage, log: EpochLog) -> None: ...

    def turn_ends(self, phase: Phase, stage: Stage, log: EpochLog) -> None:
        """An epoch of a stage that alternates with another, after each of that one: its images are in no `work`."""

    def phase_ends(self, line: dict[str, Any]) -> None: ...

    def note(self, text: str) -> None: ...

    def run_ends(self) -> None: ...


class Several(Listener):
    """Tells all of them, in their order, whatever there is for a listener to hear."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self.listeners = listeners
        for name in (name for name in vars(Listener) if not name.startswith("_")):
            setattr(self, name, partial(self.tell, name))

    def tell(self, name: str, *said: Any) -> None:
        for each in self.listeners:
            getattr(each, name)(*said)
