"""The lines of epochs.jsonl as columns: how far a run is, and how long the rest will take."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from bdr.records import Run

RECENT = 10  # epochs that the speed is taken from


@dataclass(frozen=True)
class Epochs:
    """A value an epoch: small enough to be kept for hundreds of runs, as the lines themselves are not."""

    phase: np.ndarray
    loss: np.ndarray
    images: np.ndarray
    seconds: np.ndarray
    stages: list[str]
    number: int  # of the last epoch within its stage; -1 before the first

    def __len__(self) -> int:
        return len(self.phase)

    def of(self, phase: int) -> int:
        """How many epochs of a phase there are."""
        return int((self.phase == phase).sum())


def columns(lines: list[dict[str, Any]]) -> Epochs:
    def column(value: Callable[[dict[str, Any]], float | None]) -> np.ndarray:
        found = [value(line) for line in lines]
        return np.array([math.nan if each is None else each for each in found], np.float64)

    seconds = column(lambda line: line.get("seconds"))
    images = seconds * column(lambda line: line.get("images_per_second"))
    phase = np.array([line["phase"] for line in lines], np.int64)
    number = int(lines[-1].get("epoch", -1)) if lines else -1
    stages = [str(line.get("stage", "main")) for line in lines]
    return Epochs(phase, column(lambda line: line.get("loss")), images, seconds, stages, number)


class Progress(NamedTuple):
    """Where a run is: a phase, an epoch of so many (0: not known), the share that is done, seconds that are left."""

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
    share, left = work_left(run, epochs)
    of = epochs_asked(run) if stage == "main" else 0
    return Progress(now, stage, epochs.number + 1 if begun else 0, of, share, left)


def epochs_asked(run: Run) -> int:
    """Of the first stage, as configured; 0 where a run does not say."""
    stage = (run.info.get("config") or {}).get("stage") or {}
    return int(stage.get("epochs") or run.protocol.get("epochs") or 0)


def epochs_expected(run: Run, epochs: Epochs, phase: int) -> int:
    """A later phase has as many as the one before it: methods with several stages have more than are configured."""
    done = len(run.phases)
    if phase < done:
        return epochs.of(phase)
    before = epochs.of(done - 1) if done > 1 else 0
    return max(1, before or epochs_asked(run), epochs.of(phase))


def images_expected(run: Run, epochs: Epochs, phase: int) -> float:
    """Of an epoch: as recorded, or the new classes' images and the exemplars."""
    recorded = epochs.images[epochs.phase == phase]
    if len(recorded) and np.isfinite(recorded[-1]):
        return float(recorded[-1])
    old, seen = run.info["phases"][phase]
    first = epochs.images[epochs.phase == 0]
    per_class = float(first[0]) / run.info["phases"][0][1] if len(first) and np.isfinite(first[0]) else 1.0
    return (seen - old) * per_class + exemplars(str(run.protocol.get("memory")), old, per_class)


def exemplars(memory: str, old: int, per_class: float) -> float:
    """Images that `20/class` or `2000` keeps of the old classes."""
    number = re.match(r"\d+", memory)
    if number is None:
        return old * per_class if memory == "all" else 0.0
    return float(number[0]) * (old if "class" in memory else min(1, old))


def work_left(run: Run, epochs: Epochs) -> tuple[float, float | None]:
    """The share of all images that have passed through training, and the seconds for those that are left."""
    if not len(epochs):
        return 0.0, None
    phases = range(len(run.info["phases"]))
    whole = [epochs_expected(run, epochs, each) * images_expected(run, epochs, each) for each in phases]
    now = len(run.phases)
    here = min(1.0, epochs.of(now) / epochs_expected(run, epochs, now)) * whole[now] if now < len(whole) else 0.0
    done, total = sum(whole[:now]) + here, sum(whole)
    images, seconds = np.nansum(epochs.images[-RECENT:]), np.nansum(epochs.seconds[-RECENT:])
    left = float((total - done) * seconds / images) if images > 0 else None
    return (done / total if total else 0.0), left
