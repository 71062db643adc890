"""Figure 3: how the loss on old knowledge is distributed in every phase, without and with BDR."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from bdr.metrics import first_stage
from bdr.report.groups import Group
from bdr.report.paper_figures import style
from bdr.report.paper_figures.captions import unlike
from bdr.report.paper_figures.drawing import Asked, Drawing, Row
from bdr.report.paper_figures.pairs import Side, name_of, pairs_of
from bdr.report.paper_figures.series import (
    Panel,
    incremental_phases,
    loss_shown,
    panels_of,
    series_differs,
    series_notes,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ABOUT = "box plots of the distillation loss in every phase, without and with BDR"
NEEDS = "runs of a method without and with BDR; any records do"
MOST_ROWS, MOST_COLUMNS = 5, 3  # of panels: five below each other fill a page
MOST_TICKS = 27  # ticks across the width of a page
WIDTH = 0.34  # the width of a box, where phases are 1 apart
DENSE = -1  # the layer of the points, below all others


def draw(asked: Asked) -> Drawing:
    pairs, notes = pairs_of(asked.runs, "3")
    runs = [run for pair in pairs for run in pair.runs]
    panels = panels_of(pairs, "3", asked.printed)
    figure, rows = paint_all(panels, asked)
    facts: dict[str, Any] = {"data": ["CIFAR-100"], "base": [50], "step": [5, 2], "memory": ["20/class"]}
    return Drawing(
        figure,
        f"The {loss_shown(panels)} in every incremental phase, without and with BDR. A box spans the quartiles of all "
        "iterations of a phase, its line is the median, whiskers reach 1.5 times the height of the box, and every "
        "iteration beyond them is a point.",
        runs,
        rows,
        [*series_notes(panels, asked.printed), "Iterations of several seeds are in one box.", *notes],
        [
            *unlike(runs, "CwD on CIFAR-100, B = 50, S = 5 and 2", title=["ucir+cwd", "ucir+cwd+bdr"], **facts),
            *series_differs(*(panel.series for panel in panels)),
            "The paper does not say whether its boxes are over iterations or over epochs; these are over iterations.",
        ],
        {"extremes": [{key: row[key] for key in ("panel", "method", "phase", "max", "min")} for row in rows]},
    )


def paint_all(panels: list[Panel], asked: Asked) -> tuple[Figure, list[Row]]:
    """Draw the panels below each other if they fit on a page, else side by side; return the figure and its numbers."""
    columns = min(MOST_COLUMNS, math.ceil(len(panels) / MOST_ROWS))
    grid = style.in_lines(panels, columns)
    titles = {panel.title: style.wrapped(panel.title, style.PAGE / columns) for panel in panels}
    figure = style.blank(style.PAGE, 0.35 + style.height_of([*titles.values()], 1.75) * len(grid))
    cells = figure.subplots(len(grid), columns, squeeze=False)
    rows: list[Row] = []
    for axes, panel in style.filled(cells, grid):
        rows += [panel.told | row for row in distributions(axes, panel, columns, asked)]
        axes.set(title=titles[panel.title], ylabel=panel.loss)
    for column in cells.T:
        [axes for axes in column if axes.get_visible()][-1].set_xlabel("phase")
    style.shared_legend(figure, cells[0][0])
    return figure, rows


def distributions(axes: Axes, panel: Panel, columns: int, asked: Asked) -> list[Row]:
    rows = []
    for place, side in zip((-0.5, 0.5), panel.pair.sides(), strict=True):
        phases = incremental_phases(side.group.runs[0])
        boxes = [box(side.group, phase, panel.series) for phase in phases]
        paint(axes, side, np.array(phases) + place * (WIDTH + 0.06), boxes)
        method = name_of(side.group.runs[0], asked.printed)
        rows += [{"method": method, "phase": phase, **numbers(each)} for phase, each in zip(phases, boxes, strict=True)]
    axes.set_xlim(0.4, len(phases) + 0.6)
    axes.set_xticks(phases[:: math.ceil(len(phases) * columns / MOST_TICKS)])
    axes.set_ylim(bottom=0)
    return rows


def box(group: Group, phase: int, name: str) -> dict[str, Any]:
    """Quartiles, whiskers and what is beyond them, of a phase's iterations over all seeds."""
    from matplotlib.cbook import boxplot_stats

    values = np.concatenate([first_stage(run, phase, name) for run in group.runs]).astype(float)
    values = values[np.isfinite(values)]
    extremes = {"n": len(values), "max": values.max(initial=0), "min": values.min(initial=np.inf)}
    return {**boxplot_stats(values, whis=1.5)[0], **extremes}


def numbers(each: dict[str, Any]) -> Row:
    kept = {"n": "n", "min": "min", "whislo": "whisker_low", "q1": "quartile_1", "med": "median", "q3": "quartile_3"}
    kept |= {"whishi": "whisker_high", "max": "max"}
    return {new: each[old] for old, new in kept.items()} | {"outliers": len(each["fliers"])}


def paint(axes: Axes, side: Side, places: np.ndarray, boxes: list[dict[str, Any]]) -> None:
    line = {"color": side.colour, "linewidth": 0.7}
    drawn = axes.bxp(
        boxes,
        positions=places,
        widths=WIDTH,
        patch_artist=True,
        manage_ticks=False,
        boxprops={"facecolor": f"{side.colour}38", "edgecolor": side.colour, "linewidth": 0.7},
        medianprops={"color": side.colour, "linewidth": 1.4, "solid_capstyle": "butt"},
        whiskerprops=line,
        capprops=line,
        flierprops={"marker": ".", "markersize": 1.8, "markerfacecolor": side.colour, "zorder": DENSE}
        | {"markeredgewidth": 0, "alpha": 0.45},
    )
    # thousands of points take little space as one picture, but megabytes as shapes
    axes.set_rasterization_zorder(DENSE + 1)
    drawn["boxes"][0].set_label(side.label)
