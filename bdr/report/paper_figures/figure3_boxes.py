"""Figure 3: how the loss on old knowledge is distributed in every phase, without and with BDR."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bdr.metrics import first_stage
from bdr.report.groups import Group
from bdr.report.paper_figures import style
from bdr.report.paper_figures.captions import unlike
from bdr.report.paper_figures.drawing import Asked, Drawing, Row
from bdr.report.paper_figures.pairs import Pair, Side, name_of, pairs_of, panel_titles
from bdr.report.paper_figures.series import NAMES, chosen_series, incremental_phases, series_differs, series_note

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ABOUT = "box plots of the distillation loss in every phase, without and with BDR"
NEEDS = "runs of a method without and with BDR; any records do"
WIDTH = 0.34  # of a box, where phases are 1 apart
DENSE = -1  # the layer of the points, below all others


def draw(asked: Asked) -> Drawing:
    pairs, notes = pairs_of(asked.runs, "3")
    runs = [run for pair in pairs for run in pair.runs]
    name = chosen_series(runs, "3")
    figure = style.blank(style.PAGE, 0.35 + 1.75 * len(pairs))
    grid = np.atleast_1d(figure.subplots(len(pairs), 1))
    rows: list[Row] = []
    for axes, pair, title in zip(grid, pairs, panel_titles([pair.run for pair in pairs], asked.printed), strict=True):
        rows += [{"panel": title} | row for row in panel(axes, pair, name, asked)]
        axes.set(title=title, ylabel=NAMES[name])
    grid[-1].set_xlabel("phase")
    style.shared_legend(figure, grid[0])
    facts: dict[str, Any] = {"data": ["CIFAR-100"], "base": [50], "step": [5, 2], "memory": ["20/class"]}
    return Drawing(
        figure,
        f"The {NAMES[name]} in every incremental phase, without and with BDR. A box spans the quartiles of all "
        "iterations of a phase, its line is the median, whiskers reach 1.5 times the height of the box, and every "
        "iteration beyond them is a point.",
        runs,
        rows,
        [series_note(runs, name), "Iterations of several seeds are in one box.", *notes],
        [
            *unlike(runs, "CwD on CIFAR-100, B = 50, S = 5 and 2", title=["ucir+cwd", "ucir+cwd+bdr"], **facts),
            *series_differs(name),
            "The paper does not say whether its boxes are over iterations or over epochs; these are over iterations.",
        ],
        {"extremes": [{key: row[key] for key in ("panel", "method", "phase", "max", "min")} for row in rows]},
    )


def panel(axes: Axes, pair: Pair, name: str, asked: Asked) -> list[Row]:
    rows = []
    for place, side in zip((-0.5, 0.5), pair.sides(), strict=True):
        phases = incremental_phases(side.group.runs[0])
        boxes = [box(side.group, phase, name) for phase in phases]
        paint(axes, side, np.array(phases) + place * (WIDTH + 0.06), boxes)
        method = name_of(side.group.runs[0], asked.printed)
        rows += [{"method": method, "phase": phase, **numbers(each)} for phase, each in zip(phases, boxes, strict=True)]
    axes.set_xlim(0.4, len(phases) + 0.6)
    axes.set_xticks(phases, [str(phase) for phase in phases])
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
    # thousands of points: as one picture they are small, as shapes they would be megabytes
    axes.set_rasterization_zorder(DENSE + 1)
    drawn["boxes"][0].set_label(side.label)
