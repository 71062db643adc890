"""Figure 4: destruction and reconstruction in one phase, epoch by epoch, without and with BDR."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bdr.errors import UsageError
from bdr.metrics import by_step, steps_per_epoch
from bdr.report.paper_figures import style
from bdr.report.paper_figures.captions import unlike
from bdr.report.paper_figures.drawing import Asked, Drawing, Row
from bdr.report.paper_figures.pairs import Pair, Side, facts_of, name_of, pairs_of, panel_titles
from bdr.report.paper_figures.series import (
    NAMES,
    by_epoch,
    chosen_series,
    few_points,
    incremental_phases,
    series_differs,
    series_note,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ABOUT = "the distillation loss in the second incremental phase, epoch by epoch, without and with BDR"
NEEDS = "runs of a method without and with BDR; any records do"
SECOND = 2
MOST_COLUMNS = 4
ORDINALS = {1: "first", 2: "second", 3: "third"}


def draw(asked: Asked) -> Drawing:
    pairs, notes = pairs_of(asked.runs, "4")
    runs, phase = [run for pair in pairs for run in pair.runs], asked.phase or SECOND
    check_phase(pairs, phase)
    name = chosen_series(runs, "4")
    figure, rows, steps = paint_all(pairs, phase, name, asked)
    facts: dict[str, Any] = {"data": ["CIFAR-100"], "base": [50], "step": [10, 5, 2], "memory": ["20/class"]}
    shown = ["ucir+cwd", "ucir+cwd+bdr", "ucir+aanet", "ucir+aanet+bdr"]
    return Drawing(
        figure,
        f"The {NAMES[name]} in the {ORDINALS.get(phase, f'{phase}-th')} incremental phase, without and with BDR: the "
        "mean of each epoch, and a band from its least to its largest iteration. The highest epoch is marked. The thin "
        "line is the mean over an epoch up to each iteration, within the first epoch over the iterations so far.",
        runs,
        rows,
        [series_note(runs, name), "Over several seeds: mean of the means, least of the least, largest.", *notes],
        [
            *unlike(runs, "CwD and AANet on CIFAR-100, B = 50, S = 10, 5 and 2", title=shown, **facts),
            *series_differs(name),
            "The axis of epochs is logarithmic here.",
            "The thin line is not in the paper: the loss rises within the first epoch, which its mean hides.",
        ],
        {"steps": steps},
    )


def paint_all(pairs: list[Pair], phase: int, name: str, asked: Asked) -> tuple[Figure, list[Row], list[Row]]:
    """A panel a pair; returns the figure and the numbers in it, by epoch and by step."""
    grid = arranged(pairs)
    figure = style.blank(width_of(grid), 0.3 + 1.75 * len(grid))
    cells = figure.subplots(len(grid), len(grid[0]), squeeze=False, sharex=True)
    titles = dict(zip(map(id, pairs), panel_titles([pair.run for pair in pairs], asked.printed), strict=True))
    rows: list[Row] = []
    steps: list[Row] = []
    for axes, pair in zip(cells.flat, (pair for line in grid for pair in line), strict=True):
        axes.set_visible(pair is not None)
        if pair is not None:
            where = {"panel": titles[id(pair)]}
            steps += [where | row for row in rises(axes, pair, phase, name, asked)]
            rows += [where | row for row in panel(axes, pair, phase, name, asked)]
            axes.set_title(titles[id(pair)])
    name_axes(cells, NAMES[name])
    style.shared_legend(figure, next(axes for axes in cells.flat if axes.get_visible()))
    return figure, rows, steps


def name_axes(cells: np.ndarray, loss: str) -> None:
    """At the first panel of a row and the last of a column that are there."""
    for line in cells:
        next(axes for axes in line if axes.get_visible()).set_ylabel(loss)
    for column in cells.T:
        lowest = [axes for axes in column if axes.get_visible()][-1]
        style.epochs_axis(lowest)
        lowest.tick_params(labelbottom=True)


def check_phase(pairs: list[Pair], phase: int) -> None:
    for run in (run for pair in pairs for run in pair.runs):
        if phase not in incremental_phases(run):
            last = max(incremental_phases(run), default=0)
            raise UsageError(f"{run.path} has no incremental phase {phase}, its last one is {last}: use --phase {last}")


def arranged(pairs: list[Pair]) -> list[list[Pair | None]]:
    """A row a method and a column a scenario, if that leaves no row long and few places empty; else line by line."""
    methods = list(dict.fromkeys(pair.method for pair in pairs))
    scenarios = list(dict.fromkeys(str(facts_of(pair.run, ("data", "base", "step", "memory"))) for pair in pairs))
    found = {(pair.method, str(facts_of(pair.run, ("data", "base", "step", "memory")))): pair for pair in pairs}
    if len(scenarios) <= MOST_COLUMNS and len(found) == len(pairs):
        return [[found.get((method, scenario)) for scenario in scenarios] for method in methods]
    padded: list[Pair | None] = [*pairs, *[None] * (-len(pairs) % MOST_COLUMNS)]
    return [padded[place : place + MOST_COLUMNS] for place in range(0, len(padded), MOST_COLUMNS)]


def width_of(grid: list[list[Pair | None]]) -> float:
    return style.COLUMN if len(grid[0]) == 1 else style.PAGE


def rises(axes: Axes, pair: Pair, phase: int, name: str, asked: Asked) -> list[Row]:
    """The thin lines: what happens within the first epochs, which means of epochs hide."""
    rows: list[Row] = []
    for side in pair.sides():
        run = side.group.runs[0]
        curves = [by_step(each, phase, name) for each in side.group.runs]
        length = min(map(len, curves))
        mean = np.array([curve[:length] for curve in curves]).mean(axis=0)
        places = few_points(length)
        epochs = (places + 1) / steps_per_epoch(run, phase)
        axes.plot(epochs, mean[places], color=side.colour, linewidth=0.6, alpha=0.75)
        told = {"method": name_of(run, asked.printed), "phase": phase}
        rows += [told | {"epoch": at, "moving_mean": mean[p]} for at, p in zip(epochs, places, strict=True)]
    return rows


def panel(axes: Axes, pair: Pair, phase: int, name: str, asked: Asked) -> list[Row]:
    rows: list[Row] = []
    peaks: list[tuple[float, int, Side]] = []
    for side in pair.sides():
        curves = [by_epoch(run, phase, name) for run in side.group.runs]
        length = min(map(len, curves))
        means, least, largest = np.array([curve[:length] for curve in curves]).transpose(2, 0, 1)
        mean, low, high = means.mean(axis=0), least.min(axis=0), largest.max(axis=0)
        paint(axes, side, mean, low, high)
        peaks.append((mean.max(), int(mean.argmax()) + 1, side))
        method = name_of(side.group.runs[0], asked.printed)
        rows += [
            {"method": method, "phase": phase, "epoch": epoch + 1, "mean": mean[epoch], "min": low[epoch]}
            | {"max": high[epoch], "seeds": len(curves)}
            for epoch in range(length)
        ]
    axes.set_ylim(bottom=0)
    mark_peaks(axes, peaks)
    return rows


def paint(axes: Axes, side: Side, mean: np.ndarray, low: np.ndarray, high: np.ndarray) -> None:
    epochs = np.arange(1, len(mean) + 1)
    axes.fill_between(epochs, low, high, color=side.colour, alpha=0.15, linewidth=0)
    axes.plot(epochs, mean, color=side.colour, linestyle=side.dashes, label=side.label)


def mark_peaks(axes: Axes, peaks: list[tuple[float, int, Side]]) -> None:
    """Dots on the curves, and their heights in the corner that a falling curve leaves free."""
    for line, (height, epoch, side) in enumerate(peaks):
        axes.plot(epoch, height, side.marker, color=side.colour, markersize=3.5)
        place: dict[str, Any] = {"transform": axes.transAxes, "ha": "right", "va": "top", "fontsize": 7}
        axes.text(0.99, 0.98 - 0.11 * line, f"peak {height:.3f}", color=side.colour, **place)
