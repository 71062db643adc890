"""The quantity that BDR balances: gradient norms of new classes over those of old ones, without and with BDR."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bdr.errors import UsageError
from bdr.metrics import smoothed, steps_per_epoch
from bdr.records import Run
from bdr.records.steps import GRADIENTS
from bdr.report.groups import Group
from bdr.report.paper_figures import style
from bdr.report.paper_figures.drawing import Asked, Drawing, Row
from bdr.report.paper_figures.pairs import Pair, Side, name_of, pairs_of, panel_titles
from bdr.report.paper_figures.retyping import analysed
from bdr.report.paper_figures.series import few_points, incremental_phases

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ABOUT = "the ratio of gradient norms of new and old classes, without and with BDR, in a phase and over the phases"
NEEDS = "runs without and with BDR, both with --analyse"
QUANTILES = (0.1, 0.5, 0.9)


def draw(asked: Asked) -> Drawing:
    pairs, notes = pairs_of(asked.runs, "gradients")
    able = [pair for pair in pairs if all(phases_with(run) for run in pair.runs)]
    if not able:
        raise no_gradients(pairs[0])
    others = [f"{pair.method} ({pair.without.protocol})" for pair in pairs if pair not in able]
    notes += [f"Left out, since they have no gradients: {', '.join(others)}."] if others else []
    runs = [run for pair in able for run in pair.runs]
    phase = shown_phase(runs, asked.phase)
    figure = style.blank(style.PAGE, 0.35 + 2.0 * len(able))
    cells = figure.subplots(len(able), 2, squeeze=False, width_ratios=(1.25, 1), sharey="row")
    rows, steps = [], []
    for (left, right), pair, title in zip(
        cells, able, panel_titles([pair.run for pair in able], asked.printed), strict=True
    ):
        steps += [{"panel": title} | row for row in over_steps(left, pair, phase, asked)]
        rows += [{"panel": title} | row for row in over_phases(right, pair, asked)]
        left.set(title=style.wrapped(f"{title}: phase {phase}", style.PAGE / 2), ylabel="gradient norm, new / old")
        right.set_title("over the phases")
    style.shared_legend(figure, cells[0][0])
    return Drawing(
        figure,
        "The norm of the classification loss's gradient at the last layer by the new-class images of a batch, over "
        f"that by the old-class images, without and with BDR. Left: over the iterations of phase {phase}, both norms "
        "averaged over an epoch. Right: every phase, as the median over its iterations with a bar from the 10th to the "
        "90th percentile. At 1 both contribute alike: the balance that BDR is made for.",
        runs,
        rows,
        ["Over several seeds: the geometric mean on the left, all iterations together on the right.", *notes],
        ["The paper has no such figure: it states the theorem and does not measure the ratio."],
        {"steps": steps},
    )


def phases_with(run: Run) -> list[int]:
    return [phase for phase in incremental_phases(run) if set(GRADIENTS) <= run.analysis(phase).keys()]


def shown_phase(runs: list[Run], asked: int | None) -> int:
    common = [phase for phase in phases_with(runs[0]) if all(phase in phases_with(run) for run in runs)]
    if not common:
        raise UsageError("the runs have no phase in common that has gradients: draw them one pair at a time")
    if asked is not None and asked not in common:
        known = ", ".join(map(str, common))
        raise UsageError(f"not all runs have gradients of phase {asked}; they all have those of {known}")
    return asked or common[0]


def no_gradients(pair: Pair) -> UsageError:
    run = next(run for run in pair.runs if not phases_with(run))
    return UsageError(
        f"figure gradients needs the gradient norms of old and new classes, and {run.path} has none: make them with: "
        f"{analysed(run)}"
    )


def norms(run: Run, phase: int) -> tuple[np.ndarray, np.ndarray]:
    series = run.analysis(phase)
    old, new = (np.asarray(series[name], float) for name in GRADIENTS)
    return new, old


def quotient(new: np.ndarray, old: np.ndarray) -> np.ndarray:
    """new / old; NaN where a batch has no image of one kind, or a norm is zero."""
    return np.divide(new, old, out=np.full(len(new), np.nan), where=np.isfinite(new) & (old > 0) & (new > 0))


def over_steps(axes: Axes, pair: Pair, phase: int, asked: Asked) -> list[Row]:
    rows = []
    for side in pair.sides():
        curves = [smoothed_ratio(run, phase) for run in side.group.runs]
        length = min(map(len, curves))
        each = np.log(np.array([curve[:length] for curve in curves]))
        mean, places = np.exp(each.mean(axis=0)), few_points(length)
        epochs = (places + 1) / steps_per_epoch(side.group.runs[0], phase)
        axes.plot(epochs, mean[places], color=side.colour, linestyle=side.dashes, label=side.label)
        if len(curves) > 1:
            low, high = np.exp(each.min(axis=0))[places], np.exp(each.max(axis=0))[places]
            axes.fill_between(epochs, low, high, color=side.colour, alpha=0.15, linewidth=0)
        method = name_of(side.group.runs[0], asked.printed)
        rows += [{"method": method, "phase": phase, "iteration": int(p), "ratio": mean[p]} for p in places]
    style.epochs_axis(axes)
    balanced_line(axes)
    return rows


def smoothed_ratio(run: Run, phase: int) -> np.ndarray:
    window = steps_per_epoch(run, phase)
    new, old = norms(run, phase)
    return quotient(smoothed(new, window), smoothed(old, window))


def over_phases(axes: Axes, pair: Pair, asked: Asked) -> list[Row]:
    rows = []
    for shift, side in zip((-0.12, 0.12), pair.sides(), strict=True):
        phases = phases_with(side.group.runs[0])
        low, middle, high = np.array([quantiles(side.group, phase) for phase in phases]).T
        paint_phases(axes, side, np.array(phases) + shift, low, middle, high)
        method = name_of(side.group.runs[0], asked.printed)
        rows += [
            {"method": method, "phase": phase, "percentile_10": low[i], "median": middle[i], "percentile_90": high[i]}
            for i, phase in enumerate(phases)
        ]
    axes.set_xlabel("phase")
    shown = [row["phase"] for row in rows]
    axes.set_xlim(min(shown) - 0.6, max(shown) + 0.6)
    axes.locator_params(axis="x", integer=True, min_n_ticks=1)
    balanced_line(axes)
    return rows


def quantiles(group: Group, phase: int) -> np.ndarray:
    ratios = np.concatenate([quotient(*norms(run, phase)) for run in group.runs])
    ratios = ratios[np.isfinite(ratios)]
    return np.quantile(ratios, QUANTILES) if len(ratios) else np.full(len(QUANTILES), np.nan)


def paint_phases(axes: Axes, side: Side, places: np.ndarray, low: np.ndarray, mid: np.ndarray, top: np.ndarray) -> None:
    axes.vlines(places, low, top, color=side.colour, linewidth=1.2, alpha=0.55)
    axes.plot(places, mid, color=side.colour, marker=side.marker, linestyle="", label=side.label)


def balanced_line(axes: Axes) -> None:
    """Draw the line on which old and new weigh the same; on the logarithmic axis, half and double are equally far."""
    axes.set_yscale("log")
    axes.axhline(1, color=style.SOFT, linewidth=0.8, zorder=1)
    style.log_ticks(axes.yaxis, axes.get_ylim())
