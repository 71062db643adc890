"""Destruction and reconstruction: a loss on old classes over one phase, with its peak marked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bdr.metrics import by_step, destruction, first_stage, steps_per_epoch
from bdr.report.groups import Group
from bdr.report.html import Html, join
from bdr.report.plots.choice import common, mean_and_spread, short_names
from bdr.report.plots.frame import Frame, frame
from bdr.report.plots.marks import band, heights, line, marker, names, series
from bdr.report.plots.plot import Cell, Plot
from bdr.report.plots.scale import limits, thinned

SERIES_NAMES = {"ce_old": "loss on old classes", "distillation": "distillation term"}


def has_series(groups: Sequence[Group], phase: int, name: str) -> bool:
    """Whether any run recorded this series in this phase."""
    return any(np.isfinite(run.steps(phase)[name]).any() for group in groups for run in group.runs)


def peak_of(group: Group, phase: int, name: str) -> float:
    """How far the series rises above its first value, mean over seeds."""
    found = [destruction(first_stage(run, phase, name), steps_per_epoch(run, phase)) for run in group.runs]
    return float(np.mean([each.peak for each in found if each])) if any(found) else np.nan


@dataclass(frozen=True)
class Course:
    """A group's series over one phase: mean and spread over seeds, and the points that are drawn (`kept`).

    From the step `full` on, each point is the mean of a whole epoch; `top` is the highest of these points.
    """

    epochs: np.ndarray
    mean: np.ndarray
    spread: np.ndarray
    full: int
    top: int
    peak: float
    kept: np.ndarray


def course_of(group: Group, phase: int, name: str, points: int) -> Course | None:
    """The course of a series over a phase, drawn with about `points` points; None if no run recorded it."""
    found = [curve for run in group.runs if np.isfinite(curve := by_step(run, phase, name)).any()]
    if not found:
        return None
    curves = common(found)  # an unfinished run may not have reached this phase
    window = steps_per_epoch(group.runs[0], phase)
    mean, spread = mean_and_spread(curves)
    epochs = np.arange(1, len(mean) + 1) / window
    full = min(window, len(mean)) - 1
    top = _top(mean, full)
    kept = np.union1d(thinned(mean, points, log=True), [full, top])
    return Course(epochs, mean, spread, full, top, peak_of(group, phase, name), kept)


def _top(mean: np.ndarray, full: int) -> int:
    """The step at which the mean is highest once a window is full: earlier values are means of few steps."""
    return full + int(np.nanargmax(mean[full:])) if np.isfinite(mean[full:]).any() else int(np.nanargmax(mean))


def destruction_curve(groups: Sequence[Group], phase: int, name: str = "ce_old", points: int = 200) -> Plot:
    """A series ("ce_old" or "distillation") over one phase, on a logarithmic time axis, since it all happens early."""
    found = {index: each for index, group in enumerate(groups) if (each := course_of(group, phase, name, points))}
    labels = {index: label for index, label in enumerate(short_names(groups)) if index in found}
    first, last = min(each.epochs[0] for each in found.values()), max(each.epochs[-1] for each in found.values())
    high = limits([each.mean + np.nan_to_num(each.spread) for each in found.values()], least=0.0, pad=0.14)
    paper = frame((first, max(last, first * 1.01)), high, list(labels.values()), log_x=True)
    measure = SERIES_NAMES[name]
    tops = [(index, each.epochs[each.top], each.mean[each.top], signed(each.peak)) for index, each in found.items()]
    ends = [(index, _end(each.mean), labels[index]) for index, each in found.items()]
    shapes = join(
        paper.axes("epoch", measure),
        *(_drawn(paper, each, index) for index, each in found.items()),
        names(paper, ends),
        heights(paper, tops, ends),
    )
    rows = [[groups[index].label, *row] for index, each in found.items() for row in _rows(each)]
    title = f"{measure.capitalize()} during phase {phase}"
    header = ["method", "epoch", "mean", "spread", "peak"]
    return Plot(f"{name.replace('_', '-')}-phase-{phase:02d}", title, paper.size, shapes, header, rows)


def signed(value: float) -> str:
    return f"{value:+z.{2 if abs(value) >= 0.1 else 3}f}".replace("-", "−")  # noqa: RUF001


def _end(mean: np.ndarray) -> float:
    return float(mean[np.isfinite(mean)][-1])


def _drawn(paper: Frame, course: Course, index: int) -> Html:
    kept = course.kept
    x, mean, spread = course.epochs[kept], course.mean[kept], course.spread[kept]
    top = float(course.epochs[course.top])
    said = f"peak: {signed(course.peak)} above the first value, at epoch {top:.2g}, of the means over a whole epoch"
    early, whole = kept <= course.full, kept >= course.full
    around = band(paper, x, mean - spread, mean + spread)
    growing = line(paper, x[early], mean[early], index, kind="line early")
    smooth = line(paper, x[whole], mean[whole], index)
    return series(index, around, growing, smooth, marker(paper, top, course.mean[course.top], index, said))


def _rows(course: Course) -> list[list[Cell]]:
    return [
        [course.epochs[place], course.mean[place], course.spread[place], course.peak if place == course.top else None]
        for place in course.kept
    ]
