"""How a loss is distributed over the steps of each phase: one box per method and phase."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bdr.metrics import first_stage
from bdr.report.groups import Group
from bdr.report.html import Html, join, tag
from bdr.report.plots.choice import evenly
from bdr.report.plots.destruction import SERIES_NAMES, has_series
from bdr.report.plots.frame import Frame, frame, units
from bdr.report.plots.marks import series
from bdr.report.plots.plot import Cell, Plot
from bdr.report.plots.scale import limits

MOST_BOXES = 60


class Box(NamedTuple):
    """Quartiles, whiskers at the last values within 1.5 interquartile ranges of the box, and the extremes."""

    least: float
    low: float
    first: float
    median: float
    third: float
    high: float
    most: float


def box_of(values: np.ndarray) -> Box | None:
    """The box of the finite values; None if there are none."""
    finite = np.asarray(values, float)[np.isfinite(values)]
    if not len(finite):
        return None
    first, median, third = np.percentile(finite, (25, 50, 75))
    reach = 1.5 * (third - first)
    inside = finite[(finite >= first - reach) & (finite <= third + reach)]
    return Box(*map(float, (finite.min(), inside.min(), first, median, third, inside.max(), finite.max())))


def box_plot(groups: Sequence[Group], phases: Sequence[int], name: str) -> Plot:
    """Box plots over the steps of each phase's first stage, all seeds together."""
    recorded = [
        index for index, group in enumerate(groups) if any(has_series([group], phase, name) for phase in phases)
    ]
    shown = evenly(phases, max(2, MOST_BOXES // max(1, len(recorded))))
    boxes = {(index, phase): _box(groups[index], phase, name) for index in recorded for phase in shown}
    found = [each for each in boxes.values() if each]
    paper = frame((-0.5, len(shown) - 0.5), limits([np.array(each) for each in found], least=0.0))
    width = 0.8 / len(recorded)
    drawn = [
        _drawn(paper, shown.index(phase) - 0.4 + width * (recorded.index(index) + 0.5), width, box, index)
        for (index, phase), box in boxes.items()
        if box
    ]
    every = max(1, round(len(shown) / 12))
    below = [(float(place), str(phase)) for place, phase in enumerate(shown) if place % every == 0]
    shapes = join(paper.axes("phase", SERIES_NAMES[name], below), *drawn)
    title = f"{SERIES_NAMES[name].capitalize()} over the steps of each phase"
    rows: list[list[Cell]] = [[groups[i].label, phase, *box] for (i, phase), box in boxes.items() if box]
    header = ["method", "phase", *Box._fields]
    return Plot(f"boxes-{name.replace('_', '-')}", title, paper.size, shapes, header, rows)


def _box(group: Group, phase: int, name: str) -> Box | None:
    return box_of(np.concatenate([first_stage(run, phase, name) for run in group.runs]))


def _drawn(paper: Frame, middle: float, width: float, box: Box, index: int) -> Html:
    x, half = float(paper.x(middle)), max(1.2, 0.38 * abs(float(paper.x(width) - paper.x(0.0))))
    y = Box(*(float(paper.y(value)) for value in box))
    sides = f"M{units(x - half)} {units(y.third)}h{units(2 * half)}V{units(y.first)}h{units(-2 * half)}z"
    whiskers = f"M{units(x)} {units(y.high)}V{units(y.third)}M{units(x)} {units(y.low)}V{units(y.first)}"
    ends = "".join(f"M{units(x)} {units(place)}h0" for place in (y.least, y.most))
    return series(
        index,
        tag("path", d=sides, class_="box"),
        tag("path", d=whiskers, class_="whisker"),
        tag("path", d=ends, class_="extreme"),
        tag("path", d=f"M{units(x - half)} {units(y.median)}h{units(2 * half)}", class_="median"),
    )
