"""The lines of epochs.jsonl as columns: how far a run is, and how long the rest will take."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from bdr.records import Run, epochs_of, work_of
from bdr.records.work import MAIN


@dataclass(frozen=True)
class Epochs:
    """One value per epoch: unlike the lines themselves, small enough to be kept for hundreds of runs."""

    phase: np.ndarray
    loss: np.ndarray
    images: np.ndarray
    seconds: np.ndarray
    stages: list[str]
    number: int  # of the last epoch within its stage; -1 before the first

    def __len__(self) -> int:
        return len(self.phase)

    def of(self, phase: int) -> int:
        """How many epochs of a phase there are so far."""
        return int((self.phase == phase).sum())


def columns(lines: list[dict[str, Any]]) -> Epochs:
    def column(value: Callable[[dict[str, Any]], float | None]) -> np.ndarray:
        found = [value(line) for line in lines]
        return np.array([math.nan if each is None else each for each in found], np.float64)

    seconds = column(lambda line: line.get("seconds"))
    images = seconds * column(lambda line: line.get("images_per_second"))
    phase = np.array([line["phase"] for line in lines], np.int64)
    number = int(lines[-1].get("epoch", -1)) if lines else -1
    stages = [str(line.get("stage", MAIN)) for line in lines]
    return Epochs(phase, column(lambda line: line.get("loss")), images, seconds, stages, number)


class Progress(NamedTuple):
    """Where a run is: phase, stage, epoch out of `epochs` (0: not known), the share that is done, the seconds left."""

    phase: int
    stage: str
    epoch: int
    epochs: int
    share: float
    left: float | None


def progress_of(run: Run, epochs: Epochs) -> Progress:
    phases = len(run.info["phases"])
    if run.done:
        return Progress(phases - 1, "", 0, 0, 1.0, 0.0)
    now = min(len(run.phases), phases - 1)
    begun = bool(epochs.of(now)) and len(run.phases) < phases
    stage = epochs.stages[-1] if begun else ""
    share, left = share_and_left(run)
    return Progress(now, stage, epochs.number + 1 if begun else 0, epochs_of(run, now, stage), share, left)


def share_and_left(run: Run) -> tuple[float, float | None]:
    """The share of work done and the seconds left; the share of phases and None if the work is not recorded."""
    work = work_of(run)
    return (len(run.phases) / len(run.info["phases"]), None) if work is None else (work.share, work.left)
