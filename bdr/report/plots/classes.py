"""Accuracy of every class at the end, as one bar each."""

from __future__ import annotations

import numpy as np

from bdr.errors import BdrError
from bdr.metrics import per_class
from bdr.records import Run
from bdr.report.groups import Group
from bdr.report.html import join, tag
from bdr.report.plots.choice import common, mean_and_spread
from bdr.report.plots.frame import Frame, frame, units
from bdr.report.plots.marks import series
from bdr.report.plots.plot import Cell, Plot

MOST_NAMES = 12


def last_per_class(group: Group) -> np.ndarray:
    """(classes,) accuracy on each class after the last phase that all runs have, mean over seeds."""
    last = min(len(run.phases) for run in group.runs) - 1
    values = [_per_class_of(run, last, group.readout or run.told_readout()) for run in group.runs]
    return mean_and_spread(common(values))[0]


def _per_class_of(run: Run, phase: int, readout: str) -> np.ndarray:
    line = run.phases[phase]
    stored = run.predictions(line["phase"])
    try:
        return per_class(stored["labels"], stored[f"{readout}_ids"], line["seen"])
    except (KeyError, ValueError) as error:
        raise BdrError(f"the predictions of {run.path} are not as bdr writes them: {error!r}") from error


def class_bars(group: Group, index: int = 0) -> Plot:
    """One bar per class in order of arrival; dotted lines separate the phases."""
    heights = last_per_class(group)
    run = group.runs[0]
    classes = [str(name) for name in run.info["classes"][: len(heights)]]
    paper = frame((-0.7, len(heights) - 0.3), (0.0, 100.0))
    below = [(float(place), name) for place, name in enumerate(classes)] if _fit(classes) else None
    borders = paper.borders([line["old"] - 0.5 for line in run.phases[1:] if line["old"] < len(heights)])
    axes = paper.axes("class, in order of arrival", "accuracy (%)", below)
    shapes = join(axes, series(index, tag("path", d=_bars(paper, heights), class_="bars")), borders)
    rows: list[list[Cell]] = [[name, value] for name, value in zip(classes, heights, strict=True)]
    title = f"Accuracy of each class at the end, {group.label}"
    return Plot(f"classes-{index}", title, paper.size, shapes, ["class", "accuracy"], rows, (index, group.label))


def _fit(names: list[str]) -> bool:
    return len(names) <= MOST_NAMES and max(map(len, names), default=0) <= 4


def _bars(paper: Frame, heights: np.ndarray) -> str:
    width = 0.8 * float(paper.x(1.0) - paper.x(0.0))
    ground = units(paper.y.start)
    lefts, tops = paper.x(np.arange(len(heights))) - width / 2, paper.y(np.nan_to_num(heights))
    pairs = zip(lefts, tops, strict=True)
    return "".join(f"M{units(x)} {ground}V{units(y)}h{units(width)}V{ground}z" for x, y in pairs)
