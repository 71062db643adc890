"""The accuracy matrix as a heat map: what is kept of each phase's classes after every later one."""

from __future__ import annotations

import numpy as np

from bdr.report.colours import DARKER_FROM, SHADES
from bdr.report.groups import Group
from bdr.report.html import Html, join, tag
from bdr.report.plots.frame import units
from bdr.report.plots.plot import Plot

SIDE, LEFT, TOP = 250.0, 34.0, 26.0
MOST_NUMBERS = 12


def mean_matrix(group: Group) -> np.ndarray:
    """(T + 1, T + 1) a_ij, mean over seeds; NaN above the diagonal."""
    size = min(len(each["matrix"]) for each in group.summaries)
    tables = np.full((len(group.summaries), size, size), np.nan)
    for table, each in zip(tables, group.summaries, strict=True):
        for i, row in enumerate(each["matrix"][:size]):
            table[i, : len(row)] = row
    return tables.mean(axis=0)


def accuracy_matrix(group: Group, number: int = 0) -> Plot:
    """Accuracy on each phase's classes (columns) after each phase (rows), mean over seeds."""
    mean = mean_matrix(group)
    cell = (SIDE - LEFT - 4) / len(mean)
    shapes = join(_cells(mean, cell), _numbers(mean, cell), _axes(len(mean), cell))
    rows = [[i, j, value] for (i, j), value in np.ndenumerate(mean) if np.isfinite(value)]
    size = (SIDE, TOP + len(mean) * cell + 44)
    title = f"Accuracy on the classes of each phase after every phase, {group.label}"
    return Plot(
        f"matrix-{number}",
        title,
        size,
        shapes,
        ["after_phase", "classes_of_phase", "accuracy"],
        rows,
        (number, group.label),
    )


def shade_of(accuracy: float) -> int:
    return min(len(SHADES) - 1, max(0, int(accuracy / 100 * len(SHADES))))


def _cells(mean: np.ndarray, cell: float) -> Html:
    """The cells as one path per shade: a matrix of 26 phases would be 351 rectangles."""
    paths: dict[int, str] = {}
    for (i, j), value in np.ndenumerate(mean):
        if np.isfinite(value):
            shade = shade_of(value)
            corner = f"M{units(LEFT + j * cell)} {units(TOP + i * cell)}"
            paths[shade] = paths.get(shade, "") + f"{corner}h{units(cell)}v{units(cell)}h-{units(cell)}z"
    return join(*(tag("path", d=each, class_=f"h{shade}") for shade, each in sorted(paths.items())))


def _numbers(mean: np.ndarray, cell: float) -> Html:
    if len(mean) > MOST_NUMBERS:
        return Html("")
    return join(
        *(
            tag(
                "text",
                f"{value:.0f}",
                x=units(LEFT + (j + 0.5) * cell),
                y=units(TOP + (i + 0.5) * cell + 4),
                class_=f"mid {'on-dark' if shade_of(value) >= DARKER_FROM else 'on-light'}",
            )
            for (i, j), value in np.ndenumerate(mean)
            if np.isfinite(value)
        )
    )


def _axes(size: int, cell: float) -> Html:
    step = max(1, round(size / 10))
    below = TOP + size * cell
    names = []
    for phase in range(0, size, step):
        middle = (phase + 0.5) * cell
        names.append(tag("text", str(phase), x=units(LEFT - 7), y=units(TOP + middle + 4), class_="tick end"))
        names.append(tag("text", str(phase), x=units(LEFT + middle), y=units(below + 16), class_="tick mid"))
    up = tag("text", "after phase", x="2", y="14", class_="axis")
    return join(*names, up, tag("text", "classes of phase", x=units(SIDE - 4), y=units(below + 36), class_="axis end"))
