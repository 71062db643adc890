"""What changes while classes are learned: the offsets of old and new classes, and the ratio of their gradients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from bdr.metrics import smoothed, steps_per_epoch
from bdr.records import Run
from bdr.records.steps import GRADIENTS
from bdr.report.groups import Group
from bdr.report.html import Html, join, tag
from bdr.report.plots.choice import common, evenly, mean_and_spread, short_names
from bdr.report.plots.frame import Frame, frame, units
from bdr.report.plots.marks import band, line, names, series
from bdr.report.plots.plot import Cell, Plot
from bdr.report.plots.scale import limits, thinned

PARTS = ("old", "new")
MOST_NAMED = 10  # phases that are named on an axis


def offsets_of(run: Run) -> dict[str, np.ndarray]:
    """The mean offsets of old and new classes over the incremental phases, with their epochs; {} if none were recorded.

    There is one value per epoch, and one for the start of each phase, half an epoch after the end of the phase before:
    the offsets that training starts with soon change.
    """
    places, told = list[float](), list[dict[str, Any]]()
    for mine, start in _each_phase(run):
        if start:
            places.append(_epochs(places) + 0.5)
            told.append(start)
        places += [_epochs(places) + number for number in range(1, len(mine) + 1)]
        told += mine
    found = {part: np.array([each[f"offset_{part}"] for each in told], float) for part in PARTS}
    return found | {"epoch": np.array(places)} if told else {}


def _epochs(places: Sequence[float]) -> int:
    """How many whole epochs have passed at the last of these places."""
    return int(places[-1]) if places else 0


def _each_phase(run: Run) -> list[tuple[list[dict[str, Any]], dict[str, Any]]]:
    """For each incremental phase, the offsets recorded after each of its epochs, and those before its first step."""
    starts = {line["phase"]: _offsets(line.get("plugins_at_start")) for line in run.phases}
    after: dict[int, list[dict[str, Any]]] = {}
    for epoch in run.epochs:
        if epoch.get("phase") and (told := _offsets(epoch.get("plugins"))):
            after.setdefault(epoch["phase"], []).append(told)
    return [(told, starts.get(phase, {})) for phase, told in sorted(after.items())]


def _offsets(plugins: dict[str, Any] | None) -> dict[str, Any]:
    """The values of the first plug-in that recorded offsets, since only one sets the prior; {} if none did."""
    return next((each for each in (plugins or {}).values() if isinstance(each, dict) and _has_offsets(each)), {})


def _has_offsets(told: dict[str, Any]) -> bool:
    return all(isinstance(told.get(f"offset_{part}"), int | float) for part in PARTS)


def epochs_a_phase(run: Run) -> list[int]:
    """How many epochs with offsets each incremental phase has."""
    return [len(told) for told, _ in _each_phase(run)]


def borders_of(group: Group) -> np.ndarray:
    """Where each incremental phase begins and the last one ends, in epochs of the first run that recorded offsets."""
    told = next(epochs for run in group.runs if (epochs := epochs_a_phase(run)))
    return np.cumsum([0, *told]) + 0.5


def _phases(epochs: np.ndarray, borders: np.ndarray) -> np.ndarray:
    """Places in epochs converted to places in phases: 2.5 is half-way through the second."""
    return np.interp(epochs, borders, np.arange(1, len(borders) + 1))


def offset_plot(groups: Sequence[Group], points: int = 200) -> Plot | None:
    """Offsets of new classes (above) and old ones (below); None if no run has any.

    They are drawn over epochs, or over phases if the methods' phases differ in length and would not line up otherwise.
    """
    found = {key: curves for index, group in enumerate(groups) for key, curves in _offset_curves(index, group)}
    if not found:
        return None
    labels = _offset_names(groups, found)
    borders = {index: borders_of(groups[index]) for index, _ in found}
    by_phase = len({max(np.diff(each)) for each in borders.values()}) > 1
    across = {key: _phases(found[key][0], borders[key[0]]) if by_phase else found[key][0] for key in found}
    extent = min(places[0] for places in across.values()), max(places[-1] for places in across.values())
    heights = limits([curves for _, curves in found.values()])
    paper = frame((extent[0], max(2, extent[1])), heights, list(labels.values()))
    drawn, rows, ends = [], [], []
    for (index, part), (places, curves) in found.items():
        dash = "5 3" if part == "old" else ""
        shape, data, end = _drawn(paper, across[index, part], places, curves, index, points, dash)
        drawn.append(shape)
        rows += [[groups[index].label, part, *row] for row in data]
        ends.append((index, end, labels[index, part]))
    longest = max(borders.values(), key=len)
    between = np.arange(2, len(longest)) if by_phase else longest[1:-1]
    middles = [(phase + 0.5, str(phase)) for phase in evenly(range(1, len(longest)), MOST_NAMED)] if by_phase else None
    axes = paper.axes("phase" if by_phase else "epoch, all phases after the first", "mean offset", middles)
    shapes = join(axes, paper.borders(between), *drawn, names(paper, ends))
    header = ["method", "classes", "epoch", "mean", "spread"]
    title = "Offsets of new (solid) and old (dashed) classes"
    return Plot("offsets", title, paper.size, shapes, header, rows)


Curves = tuple[np.ndarray, np.ndarray]  # places (N,), and the values of each run there (runs, N)


def _offset_curves(index: int, group: Group) -> list[tuple[tuple[int, str], Curves]]:
    told = [each for run in group.runs if (each := offsets_of(run))]
    if not told:
        return []
    places = common([each["epoch"] for each in told])[0]
    return [((index, part), (places, common([each[part] for each in told]))) for part in PARTS]


def _offset_names(groups: Sequence[Group], found: Iterable[tuple[int, str]]) -> dict[tuple[int, str], str]:
    """Names such as `+bdr new`; `new` alone if there is only one group."""
    short = short_names(groups)
    return {(index, part): f"{short[index]} {part}" if len(groups) > 1 else part for index, part in found}


def _drawn(
    paper: Frame, x: np.ndarray, epochs: np.ndarray, curves: np.ndarray, index: int, points: int, dash: str
) -> tuple[Html, list[list[Cell]], float]:
    mean, spread = mean_and_spread(curves)
    kept = thinned(mean, points)
    around = [band(paper, x[kept], (mean - spread)[kept], (mean + spread)[kept])] if len(curves) > 1 else []
    rows: list[list[Cell]] = [[float(epochs[at]), mean[at], spread[at]] for at in kept]
    finite = mean[np.isfinite(mean)]
    end = float(finite[-1]) if len(finite) else np.nan
    return series(index, *around, line(paper, x[kept], mean[kept], index, dash=dash)), rows, end


def ratio_of(run: Run, phase: int) -> np.ndarray:
    """New over old gradient norm, both averaged over an epoch, one value per step; empty if nothing was analysed."""
    found = run.analysis(phase)
    if not set(GRADIENTS) <= found.keys():
        return np.zeros(0)
    # a batch may have hardly any gradient of old classes, and would dominate a mean of ratios
    old, new = (smoothed(found[name], steps_per_epoch(run, phase)) for name in GRADIENTS)
    return np.divide(new, old, out=np.full(len(old), np.nan), where=(old > 0) & (new > 0))


def ratio_plot(groups: Sequence[Group], phase: int, points: int = 200) -> Plot | None:
    """The ratio over one phase on logarithmic axes, the geometric mean over seeds; None if no run was analysed."""
    found = {index: curve for index, group in enumerate(groups) if (curve := _mean_ratio(group, phase)) is not None}
    if not found:
        return None
    windows = {index: steps_per_epoch(groups[index].runs[0], phase) for index in found}
    labels = short_names(groups)
    low, high = limits([np.log10(curve) for curve in found.values()])
    first, last = 1 / max(windows.values()), max(len(curve) / windows[index] for index, curve in found.items())
    extents = (first, max(last, 1.01 * first)), (10 ** min(low, -0.1), 10 ** max(high, 0.1))
    paper = frame(*extents, [labels[index] for index in found], log_x=True, log_y=True)
    drawn, rows, ends = [_even_line(paper)], [], []
    for index, curve in found.items():
        kept = thinned(curve, points, log=True)
        epochs = (kept + 1) / windows[index]
        drawn.append(series(index, line(paper, epochs, curve[kept], index)))
        rows += [[groups[index].label, epoch, curve[place]] for epoch, place in zip(epochs, kept, strict=True)]
        ends.append((index, float(curve[np.isfinite(curve)][-1]), labels[index]))
    shapes = join(paper.axes("epoch", "new / old gradient norm"), *drawn, names(paper, ends))
    title = f"Gradient of new classes over that of old ones, phase {phase}"
    return Plot(f"gradient-ratio-phase-{phase:02d}", title, paper.size, shapes, ["method", "epoch", "ratio"], rows)


def _mean_ratio(group: Group, phase: int) -> np.ndarray | None:
    ratios = [ratio for run in group.runs if np.isfinite(ratio := ratio_of(run, phase)).any()]
    return np.exp(mean_and_spread(np.log(common(ratios)))[0]) if ratios else None


def _even_line(paper: Frame) -> Html:
    """The line on which old and new classes weigh the same."""
    y = units(float(paper.y(1.0)))
    return tag("path", d=f"M{units(paper.x.start)} {y}H{units(paper.x.end)}", class_="even")
