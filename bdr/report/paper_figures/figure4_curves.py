"""Figure 4: destruction and reconstruction in one phase, epoch by epoch, without and with BDR."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bdr.errors import UsageError
from bdr.metrics import by_step, steps_per_epoch
from bdr.report.paper_figures import style
from bdr.report.paper_figures.captions import unlike
from bdr.report.paper_figures.drawing import Asked, Drawing, Row
from bdr.report.paper_figures.pairs import Pair, Side, facts_of, name_of, pairs_of
from bdr.report.paper_figures.series import (
    Panel,
    by_epoch,
    few_points,
    incremental_phases,
    loss_shown,
    of_one_loss,
    panels_of,
    series_differs,
    series_notes,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ABOUT = "the distillation loss in the second incremental phase, epoch by epoch, without and with BDR"
NEEDS = "runs of a method without and with BDR; any records do"
SECOND = 2
MOST_COLUMNS = 3  # more leave a title no room
ORDINALS = {1: "first", 2: "second", 3: "third"}


def draw(asked: Asked) -> Drawing:
    pairs, notes = pairs_of(asked.runs, "4")
    runs, phase = [run for pair in pairs for run in pair.runs], asked.phase or SECOND
    check_phase(pairs, phase)
    panels = panels_of(pairs, "4", asked.printed)
    figure, rows, steps = paint_all(panels, phase, asked)
    facts: dict[str, Any] = {"data": ["CIFAR-100"], "base": [50], "step": [10, 5, 2], "memory": ["20/class"]}
    shown = ["ucir+cwd", "ucir+cwd+bdr", "ucir+aanet", "ucir+aanet+bdr"]
    return Drawing(
        figure,
        f"The {loss_shown(panels)} in the {ORDINALS.get(phase, f'{phase}-th')} incremental phase, without and with "
        "BDR: the mean of each epoch, and a band from its least to its largest iteration. The highest epoch is marked. "
        "The thin line is the mean over an epoch up to each iteration, within the first epoch over the iterations so "
        "far.",
        runs,
        rows,
        [
            *series_notes(panels, asked.printed),
            "Over several seeds: mean of the means, least of the least, largest.",
            *notes,
        ],
        [
            *unlike(runs, "CwD and AANet on CIFAR-100, B = 50, S = 10, 5 and 2", title=shown, **facts),
            *series_differs(*(panel.series for panel in panels)),
            "The axis of epochs is logarithmic here.",
            "The thin line is not in the paper: the loss rises within the first epoch, which its mean hides.",
        ],
        {"steps": steps},
    )


def paint_all(panels: list[Panel], phase: int, asked: Asked) -> tuple[Figure, list[Row], list[Row]]:
    """Draw all panels; return the figure and the numbers in it, by epoch and by step."""
    grid = arranged(panels)
    titles = {panel.title: style.wrapped(panel.title, width_of(grid) / len(grid[0])) for panel in panels}
    figure = style.blank(width_of(grid), 0.3 + style.height_of([*titles.values()], 1.75) * len(grid))
    cells = figure.subplots(len(grid), len(grid[0]), squeeze=False, sharex=True)
    rows: list[Row] = []
    steps: list[Row] = []
    for axes, panel in style.filled(cells, grid):
        steps += [panel.told | row for row in rises(axes, panel, phase, asked)]
        rows += [panel.told | row for row in curves(axes, panel, phase, asked)]
        axes.set_title(titles[panel.title])
    name_axes(cells, grid, of_one_loss(panels))
    style.shared_legend(figure, next(axes for axes in cells.flat if axes.get_visible()))
    return figure, rows, steps


def name_axes(cells: np.ndarray, grid: list[list[Panel | None]], of_one_loss: bool) -> None:
    """Name epochs at the lowest panel of each column; name the loss at each panel, or once a row if all share it."""
    for line, panels in zip(cells, grid, strict=True):
        there = [(axes, panel) for axes, panel in zip(line, panels, strict=True) if panel is not None]
        for axes, panel in there[:1] if of_one_loss else there:
            axes.set_ylabel(panel.loss)
    for column in cells.T:
        lowest = [axes for axes in column if axes.get_visible()][-1]
        style.epochs_axis(lowest)
        lowest.tick_params(labelbottom=True)


def check_phase(pairs: list[Pair], phase: int) -> None:
    for run in (run for pair in pairs for run in pair.runs):
        if phase not in incremental_phases(run):
            last = max(incremental_phases(run), default=0)
            raise UsageError(f"{run.path} has no incremental phase {phase}, its last one is {last}: use --phase {last}")


def arranged(panels: list[Panel]) -> list[list[Panel | None]]:
    """One row per method and one column per scenario, if the columns are few enough; else line by line."""
    places = [(panel.pair.method, scenario_of(panel.pair)) for panel in panels]
    methods, scenarios = (list(dict.fromkeys(names)) for names in zip(*places, strict=True))
    found = dict(zip(places, panels, strict=True))
    if len(scenarios) <= MOST_COLUMNS and len(found) == len(panels):
        return [[found.get((method, scenario)) for scenario in scenarios] for method in methods]
    return style.in_lines(panels, MOST_COLUMNS)


def scenario_of(pair: Pair) -> str:
    return str(facts_of(pair.run, ("data", "base", "step", "memory")))


def width_of(grid: list[list[Panel | None]]) -> float:
    return style.COLUMN if len(grid[0]) == 1 else style.PAGE


def rises(axes: Axes, panel: Panel, phase: int, asked: Asked) -> list[Row]:
    """Draw the thin lines, which show what means of epochs hide within the first epochs; return their numbers."""
    rows: list[Row] = []
    for side in panel.pair.sides():
        run = side.group.runs[0]
        found = [by_step(each, phase, panel.series) for each in side.group.runs]
        length = min(map(len, found))
        mean = np.array([curve[:length] for curve in found]).mean(axis=0)
        places = few_points(length)
        epochs = (places + 1) / steps_per_epoch(run, phase)
        axes.plot(epochs, mean[places], color=side.colour, linewidth=0.6, alpha=0.75)
        told = {"method": name_of(run, asked.printed), "phase": phase}
        rows += [told | {"epoch": at, "moving_mean": mean[p]} for at, p in zip(epochs, places, strict=True)]
    return rows


def curves(axes: Axes, panel: Panel, phase: int, asked: Asked) -> list[Row]:
    """Draw the thick lines over epochs with their bands, and mark the highest epoch of each; return their numbers."""
    rows: list[Row] = []
    peaks: list[tuple[float, int, Side]] = []
    for side in panel.pair.sides():
        found = [by_epoch(run, phase, panel.series) for run in side.group.runs]
        length = min(map(len, found))
        means, least, largest = np.array([curve[:length] for curve in found]).transpose(2, 0, 1)
        mean, low, high = means.mean(axis=0), least.min(axis=0), largest.max(axis=0)
        paint(axes, side, mean, low, high)
        peaks.append((mean.max(), int(mean.argmax()) + 1, side))
        method = name_of(side.group.runs[0], asked.printed)
        rows += [
            {"method": method, "phase": phase, "epoch": epoch + 1, "mean": mean[epoch], "min": low[epoch]}
            | {"max": high[epoch], "seeds": len(found)}
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
    """Mark peaks with dots, and write their heights into the corner that a falling curve leaves free."""
    for line, (height, epoch, side) in enumerate(peaks):
        axes.plot(epoch, height, side.marker, color=side.colour, markersize=3.5)
        place: dict[str, Any] = {"transform": axes.transAxes, "ha": "right", "va": "top", "fontsize": 7}
        axes.text(0.99, 0.98 - 0.11 * line, f"peak {height:.3f}", color=side.colour, **place)
