"""Series cut down to the points that can be seen: these are what a page draws, and all that is kept."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from bdr.metrics import first_stage, smoothed, steps_per_epoch
from bdr.records import Run
from bdr.records.steps import CE_OLD
from bdr.watch.epochs import Epochs

MOST_EPOCHS = 400  # points of a loss curve
MOST_STEPS = 120  # points of a destruction curve


def rounded(values: np.ndarray) -> list[float | None]:
    """The values to four significant digits; None for those that are not finite."""
    values = np.asarray(values, np.float64)
    usual = np.isfinite(values) & (values != 0)
    size = 10.0 ** (3 - np.floor(np.log10(np.abs(values, where=usual, out=np.ones_like(values)))))
    short = np.where(usual, np.round(values * size) / size, values).tolist()
    return [value if math.isfinite(value) else None for value in short]


def loss_curve(epochs: Epochs) -> dict[str, Any]:
    """The loss over all epochs of a run, counted from 1, and the epochs after which a phase is over."""
    count = len(epochs)
    chosen = np.unique(np.linspace(0, max(0, count - 1), min(count, MOST_EPOCHS)).round().astype(int))
    ends = np.flatnonzero(np.diff(epochs.phase)) + 1
    return {"epochs": (chosen + 1).tolist(), "loss": rounded(epochs.loss[chosen]), "ends": ends.tolist()}


def steps_per_epoch_so_far(epochs: Epochs, phase: int, steps: int) -> int:
    """An estimate for an unfinished phase: its steps so far over the epochs of its first stage so far."""
    stages = [epochs.stages[place] for place in np.flatnonzero(epochs.phase == phase)]
    return max(1, round(steps / max(1, stages.count(stages[0]) if stages else 1)))


def destruction_curve(run: Run, epochs: Epochs, phase: int) -> dict[str, Any] | None:
    """The loss on old classes in a phase's first stage as a one-epoch moving mean, densest at first; or None."""
    series = first_stage(run, phase, CE_OLD)
    if not np.isfinite(series).any():
        return None
    window = steps_per_epoch(run, phase, otherwise=steps_per_epoch_so_far(epochs, phase, len(series)))
    points = np.unique(np.geomspace(1, len(series), MOST_STEPS).round().astype(int))
    values = smoothed(series, window)[points - 1]
    return {"phase": phase, "epochs": rounded(points / window), "loss": rounded(values)}


def destruction_curves(run: Run, epochs: Epochs) -> list[dict[str, Any]]:
    phases = range(1, len(run.info["phases"]))
    return [curve for curve in (destruction_curve(run, epochs, phase) for phase in phases) if curve]
