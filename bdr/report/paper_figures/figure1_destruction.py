"""Figure 1: destruction and reconstruction in one phase, as a curve and as old classes on a plane."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bdr.errors import UsageError
from bdr.metrics import first_stage, short_window, smoothed, steps_per_epoch
from bdr.records import Run
from bdr.report.groups import group_runs
from bdr.report.paper_figures import style
from bdr.report.paper_figures.captions import unlike
from bdr.report.paper_figures.drawing import Asked, Drawing, Row
from bdr.report.paper_figures.embedding import (
    Cloud,
    class_colours,
    class_legend,
    embedded,
    explained,
    fix_limits,
    no_snapshots,
    phases_with,
    rows_of,
    scatter,
)
from bdr.report.paper_figures.pairs import is_balanced, name_of
from bdr.report.paper_figures.series import (
    NAMES,
    chosen_series,
    few_points,
    series_differs,
    series_note,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ABOUT = "the loss curve of one phase with its peak, and t-SNE of old classes at the start, the peak and the end"
NEEDS = "a run with --analyse; draws the one without BDR if there are several"
MOMENTS = ("start", "peak", "end")
BACKGROUND = 120  # images per class besides the exemplars: more take minutes, and hide each other
ROOM_BELOW = 0.16  # of the axis, that a label below a dot takes
LETTERS = dict(zip(MOMENTS, "abc", strict=True))


def draw(asked: Asked) -> Drawing:
    run, phase = chosen(asked)
    name = chosen_series([run], "1")
    asked.tell(f"t-SNE of phase {phase} of {run.path}")
    cloud = embedded(run, phase, MOMENTS, BACKGROUND)
    figure = style.blank(style.COLUMN, 3.2)
    grid = figure.add_gridspec(2, 3, height_ratios=(1.15, 1))
    curve = paint_curve(figure.add_subplot(grid[0, :]), run, phase, name, cloud)
    colours = paint_planes([figure.add_subplot(grid[1, place]) for place in range(3)], cloud)
    class_legend(figure, run, colours, columns=5)
    others = sum(bool(phases_with(each, MOMENTS)) for each in asked.runs) - 1
    have = "more run has" if others == 1 else "more runs have"
    return Drawing(
        figure,
        f"The {NAMES[name]} of {name_of(run, asked.printed)} over the iterations of phase {phase}, and the embeddings "
        f"of {len(colours)} old classes (a) at its start, (b) at its peak and (c) at its end. Large dots are the "
        "exemplars, small ones other training images of these classes, which training does not see any more.",
        [run],
        rows_of(cloud, run),
        [
            series_note([run], name),
            "The thin line is every iteration, the thick one the moving mean over a quarter of an epoch.",
            f"One {explained(BACKGROUND)} It is shared by the three panels: their axes are the same.",
            *([f"{others} {have} snapshots; name one alone to see it."] if others > 0 else []),
        ],
        [
            *unlike([run], "CwD", title=["ucir+cwd"]),
            *series_differs(name),
            "The paper does not say which phase and which classes it shows, nor whether its panels share a t-SNE.",
            "The axis of iterations is logarithmic here.",
        ],
        {"curve": curve},
    )


def chosen(asked: Asked) -> tuple[Run, int]:
    """The run to show, one without BDR if possible, and the phase asked for or else its first with snapshots."""
    runs = [run for group in group_runs(asked.runs) for run in group.runs]
    able = sorted((run for run in runs if phases_with(run, MOMENTS)), key=is_balanced)
    if not able:
        raise no_snapshots("1", min(runs, key=is_balanced))
    phases = phases_with(able[0], MOMENTS)
    if asked.phase is not None and asked.phase not in phases:
        known = ", ".join(map(str, phases))
        raise UsageError(f"{able[0].path} has no snapshots of phase {asked.phase}; there are those of {known}")
    return able[0], asked.phase or phases[0]


def paint_planes(cells: list[Axes], cloud: Cloud) -> dict[int, str]:
    """Draw one panel per moment; return the colours of the classes."""
    colours = class_colours(list(cloud.labels))
    for axes, moment in zip(cells, MOMENTS, strict=True):
        scatter(axes, cloud, moment, colours)
        axes.set_title(f"({LETTERS[moment]}) {moment}", fontsize=7.5)
    fix_limits(cells, cloud)
    return colours


def paint_curve(axes: Axes, run: Run, phase: int, name: str, cloud: Cloud) -> list[Row]:
    series = np.asarray(first_stage(run, phase, name), float)
    means = smoothed(series, short_window(steps_per_epoch(run, phase)))
    colour = style.BALANCED if is_balanced(run) else style.WITHOUT
    places = few_points(len(series))
    axes.plot(np.arange(1, len(series) + 1), series, color=colour, alpha=0.25, linewidth=0.5, rasterized=True)
    axes.plot(places + 1, means[places], color=colour)
    axes.set(ylabel=NAMES[name], xlim=(0.9, 1.15 * len(series)))
    style.epochs_axis(axes, "iteration")
    axes.set_ylim(0, 1.22 * np.nanmax(series))
    for moment in MOMENTS:
        mark(axes, moment, min(max(cloud.steps[moment], 1), len(series)), means, colour)
    return [{"iteration": int(p) + 1, "loss": series[p], "moving_mean": means[p]} for p in places]


def mark(axes: Axes, moment: str, step: int, means: np.ndarray, colour: str) -> None:
    """Mark a step on the curve with a dot, and with the letter and the name of its panel where the curve is not."""
    from matplotlib.patheffects import withStroke

    axes.plot(step, means[step - 1], "o", color=colour, markeredgecolor="white", markersize=5.5, zorder=4)
    side = {"start": "left", "peak": "center", "end": "right"}[moment]
    # the curve rises from the start and falls to the end: below it is room, unless the loss is almost zero
    below = moment != "peak" and means[step - 1] > ROOM_BELOW * axes.get_ylim()[1]
    axes.annotate(
        f"({LETTERS[moment]}) {moment}",
        (step, means[step - 1]),
        xycoords="data",
        textcoords="offset points",
        xytext=(0, -7 if below else 9 if moment != "peak" else 12),
        ha=side,
        va="top" if below else "baseline",
        fontsize=7.5,
        fontweight="bold",
        path_effects=[withStroke(linewidth=2, foreground="white")],
    )
