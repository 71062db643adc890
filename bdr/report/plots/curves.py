"""Lines over the phases: accuracy on all classes, on old and on new ones, and what was forgotten."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bdr.metrics import forgetting_max, matrix
from bdr.report.groups import Group
from bdr.report.html import Html, join
from bdr.report.plots.choice import common, evenly, mean_and_spread, short_names
from bdr.report.plots.frame import Frame, frame
from bdr.report.plots.marks import band, line, marker, names, series
from bdr.report.plots.plot import Cell, Plot
from bdr.report.plots.scale import EVERYWHERE, PERCENT, Span, briefly, limits

NUMBERS = (6, 5, 4)  # how many numbers may stand below an axis, the preferred first


@dataclass(frozen=True)
class Curves:
    """A group's curves (seeds, points) over the same places, with its mean and spread."""

    x: np.ndarray
    seeds: np.ndarray

    @property
    def mean(self) -> np.ndarray:
        return mean_and_spread(self.seeds)[0]

    @property
    def spread(self) -> np.ndarray:
        return mean_and_spread(self.seeds)[1]


def over_phases(groups: Sequence[Group], values: Sequence[Sequence[Sequence[float]]]) -> list[Curves]:
    """For each group, the values of its runs over the number of classes seen, one point per phase."""
    found = []
    for group, of_runs in zip(groups, values, strict=True):
        seeds = common(of_runs)
        seen = [line["seen"] for line in group.runs[0].phases][: seeds.shape[1]]
        found.append(Curves(np.array(seen, float), seeds[:, : len(seen)]))
    return found


def accuracy_curve(groups: Sequence[Group]) -> Plot:
    """Accuracy on all classes seen so far: mean, spread, and one thin line per seed."""
    curves = over_phases(groups, [group.per_phase("accuracy") for group in groups])
    return line_plot("accuracy", "Accuracy on all classes seen so far", "accuracy (%)", groups, curves, within=PERCENT)


def part_curve(groups: Sequence[Group], part: str) -> Plot:
    """Accuracy on the "old" or on the "new" classes of each phase."""
    curves = over_phases(groups, [group.per_phase(f"accuracy_{part}") for group in groups])
    told = {"old": "classes of earlier phases", "new": "classes that just arrived"}[part]
    return line_plot(f"accuracy-{part}", f"Accuracy on {told}", "accuracy (%)", groups, curves, within=PERCENT)


def forgetting_curve(groups: Sequence[Group]) -> Plot:
    """How much was lost on earlier phases after each phase: the mean of the best accuracy so far minus the current."""
    curves = over_phases(groups, [[_forgetting(each["matrix"]) for each in group.summaries] for group in groups])
    return line_plot("forgetting", "Points lost on earlier classes (forgetting, max)", "points", groups, curves, 0.0)


def _forgetting(rows: Sequence[Sequence[float]]) -> list[float]:
    found = [forgetting_max(matrix(rows[:end])) for end in range(1, len(rows) + 1)]
    return [np.nan if value is None else value for value in found]


def line_plot(
    name: str,
    title: str,
    measure: str,
    groups: Sequence[Group],
    curves: Sequence[Curves],
    least: float | None = None,
    within: Span = EVERYWHERE,
) -> Plot:
    """Curves of several groups with their bands, markers, and names at their ends."""
    labels = short_names(groups)
    extent = [each.seeds for each in curves] + [each.mean + each.spread for each in curves]
    extent += [each.mean - each.spread for each in curves]
    paper = frame(limits([each.x for each in curves], pad=0.03), limits(extent, least, within=within), labels)
    drawn = [
        _drawn(paper, each, index, group.label) for index, (group, each) in enumerate(zip(groups, curves, strict=True))
    ]
    ends = [(index, _last(each.mean), label) for index, (each, label) in enumerate(zip(curves, labels, strict=True))]
    shapes = join(paper.axes("classes seen", measure, _places(curves)), *drawn, names(paper, ends))
    header = ["method", "classes_seen", "mean", "spread", "seeds"]
    return Plot(name, title, paper.size, shapes, header, _rows(groups, curves))


def _places(curves: Sequence[Curves]) -> list[tuple[float, str]]:
    """Numbers for the axis, at the points themselves, as many as fit: fewer of them rather than uneven steps."""
    seen = sorted({float(x) for each in curves for x in each.x})
    steps = len(seen) - 1
    most = next((count for count in NUMBERS if steps % (count - 1) == 0), NUMBERS[0])
    return [(x, briefly(x)) for x in evenly(seen, most)]


def _last(mean: np.ndarray) -> float:
    finite = mean[np.isfinite(mean)]
    return float(finite[-1]) if len(finite) else np.nan


def _drawn(paper: Frame, curves: Curves, index: int, label: str) -> Html:
    mean, spread = curves.mean, curves.spread
    thin = [line(paper, curves.x, seed, index, "thin", "") for seed in curves.seeds] if len(curves.seeds) > 1 else []
    dots = [
        marker(paper, x, y, index, f"{label}: {y:.2f} at {x:g} classes") for x, y in zip(curves.x, mean, strict=True)
    ]
    return series(
        index, band(paper, curves.x, mean - spread, mean + spread), *thin, line(paper, curves.x, mean, index), *dots
    )


def _rows(groups: Sequence[Group], curves: Sequence[Curves]) -> list[list[Cell]]:
    return [
        [group.label, x, mean, spread, len(each.seeds)]
        for group, each in zip(groups, curves, strict=True)
        for x, mean, spread in zip(each.x, each.mean, each.spread, strict=True)
        if np.isfinite(mean)
    ]
