"""Series with as many points as can be seen: what a page draws, and all that is kept of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from bdr.metrics import first_stage
from bdr.records import Run
from bdr.records.steps import CE_OLD
from bdr.watch.epochs import Epochs

MOST_EPOCHS = 400  # points of a loss curve
MOST_STEPS = 120  # points of a destruction curve


def rounded(values: np.ndarray) -> list[float | None]:
    """Four digits, and null where there is none."""
    values = np.asarray(values, np.float64)
    usual = np.isfinite(values) & (values != 0)
    size = 10.0 ** (3 - np.floor(np.log10(np.abs(values, where=usual, out=np.ones_like(values)))))
    short = np.where(usual, np.round(values * size) / size, values).tolist()
    return [value if math.isfinite(value) else None for value in short]


def loss_curve(epochs: Epochs) -> dict[str, Any]:
    """The loss over all epochs of a run, counted from 1, and after which epoch each phase is over."""
    count = len(epochs)
    chosen = np.unique(np.linspace(0, max(0, count - 1), min(count, MOST_EPOCHS)).round().astype(int))
    ends = np.flatnonzero(np.diff(epochs.phase)) + 1
    return {"epochs": (chosen + 1).tolist(), "loss": rounded(epochs.loss[chosen]), "ends": ends.tolist()}


def trailing_mean(series: np.ndarray, window: int) -> np.ndarray:
    """The mean of the last `window` finite values up to each step; of fewer before there are as many."""
    finite = np.isfinite(series)
    sums = np.concatenate([[0.0], np.cumsum(np.where(finite, series, 0.0), dtype=np.float64)])
    counts = np.concatenate([[0], np.cumsum(finite)])
    end = np.arange(1, len(series) + 1)
    start = np.maximum(0, end - window)
    number = counts[end] - counts[start]
    return np.divide(sums[end] - sums[start], number, out=np.full(len(series), np.nan), where=number > 0)


def steps_per_epoch(run: Run, epochs: Epochs, phase: int, steps: int) -> int:
    """As recorded; while a phase is under way, from how far it is."""
    line = next((line for line in run.phases if line["phase"] == phase), {})
    if told := int(line.get("steps_per_epoch") or 0):
        return told
    stages = [epochs.stages[place] for place in np.flatnonzero(epochs.phase == phase)]
    return max(1, round(steps / max(1, stages.count(stages[0]) if stages else 1)))


def destruction_curve(run: Run, epochs: Epochs, phase: int) -> dict[str, Any] | None:
    """The loss on old classes over the first stage of a phase: a mean over one epoch, more finely at the beginning."""
    series = first_stage(run, phase, CE_OLD)
    if not np.isfinite(series).any():
        return None
    window = steps_per_epoch(run, epochs, phase, len(series))
    points = np.unique(np.geomspace(1, len(series), MOST_STEPS).round().astype(int))
    values = trailing_mean(series, window)[points - 1]
    return {"phase": phase, "epochs": rounded(points / window), "loss": rounded(values)}


def destruction_curves(run: Run, epochs: Epochs) -> list[dict[str, Any]]:
    phases = range(1, len(run.info["phases"]))
    return [curve for curve in (destruction_curve(run, epochs, phase) for phase in phases) if curve]
