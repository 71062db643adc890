"""Plots as SVG text, drawn without a display: text takes the colour of what surrounds it, the background is clear."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from bdr.errors import UsageError
from bdr.metrics import first_stage, moving_mean, per_class
from bdr.records import Run
from bdr.report.groups import Group, readout_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours, told apart under every common colour blindness; markers tell them apart without colour
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#b5518b", "#3f97cc", "#b27a00")
SHADES = ("#eef3f8", "#a9c9e2", "#4a8fc0", "#0a4f86")  # of the matrix, from 0 to 100 percent
MARKERS = ("o", "s", "^", "D", "v", "P")
INK = "#010203"  # stands for "the colour of the text around", which matplotlib cannot say
FONT = "system-ui, sans-serif"
MOST_POINTS = 300  # a curve is drawn with at most so many points: the eye sees no more, and the page stays small
MOST_NAMES = 20
MOST_NUMBERS = 12
SERIES_NAMES = {"ce_old": "loss on old classes", "distillation": "distillation term"}
STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.alpha": 0.15,
    "axes.linewidth": 0.8,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "legend.frameon": False,
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "grid.color"), INK),
    **dict.fromkeys(("xtick.color", "ytick.color"), INK),
}


def colour(index: int) -> str:
    """The accent of the group at this place."""
    return PALETTE[index % len(PALETTE)]


def _line_style(index: int) -> str:
    return ("-", "--", ":")[index // len(PALETTE) % 3]


def _draw(size: tuple[float, float], paint: Callable[[Axes], None], name: str) -> str:
    """Run `paint` on fresh axes and return the figure as SVG text, named for those who cannot see it."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError("plots need matplotlib, which is not installed: pip install 'bdr[report]'") from error
    buffer = io.StringIO()
    style: Any = {**STYLE, "svg.hashsalt": name}  # the salt keeps the ids of two plots on one page apart
    with matplotlib.rc_context(style):
        figure = Figure(figsize=size, layout="constrained")
        paint(figure.subplots())
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return _clean(buffer.getvalue(), name)


def _clean(svg: str, name: str) -> str:
    """Cut what only a drawing program wants: prologue, metadata, a fixed size, ids that nothing points to."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*|<style.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    svg = re.sub(r"font-family: [^;\"]*", f"font-family: {FONT}", svg).replace(INK, "currentColor")
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*" height="[^"]*"', r'\1 role="img" stroke-linejoin="round"', svg, count=1)
    return svg.replace(">", f">\n<title>{escape(name)}</title>", 1)


def _band(axes: Axes, x: np.ndarray, curves: np.ndarray, index: int, label: str, marker: str = "") -> None:
    """The mean of curves (seeds, points) as a line; with several seeds, their spread as a band."""
    mean = _nan_mean(curves)
    if len(curves) > 1:
        deviation = np.sqrt(_nan_mean((curves - mean) ** 2) * len(curves) / (len(curves) - 1))
        axes.fill_between(x, mean - deviation, mean + deviation, color=colour(index), alpha=0.16, linewidth=0)
    style: dict[str, Any] = {"linestyle": _line_style(index), "linewidth": 2.2, "marker": marker, "markersize": 6}
    axes.plot(x, mean, color=colour(index), label=label, **style)


def _nan_mean(values: np.ndarray) -> np.ndarray:
    counts = np.isfinite(values).sum(axis=0)
    return np.divide(np.nansum(values, axis=0), counts, out=np.full(values.shape[1], np.nan), where=counts > 0)


def _common(series: Sequence[Sequence[float] | np.ndarray]) -> np.ndarray:
    """Series as one array (seeds, points), as long as the shortest."""
    length = min(len(each) for each in series)
    return np.array([np.asarray(each[:length], float) for each in series])


def accuracy_curve(groups: list[Group], legend: bool = True) -> str:
    """Accuracy over the number of classes seen: mean, spread, and a thin line a seed."""

    def paint(axes: Axes) -> None:
        for index, group in enumerate(groups):
            curves = _common([each["accuracies"] for each in group.summaries])
            seen = np.array([line["seen"] for line in group.runs[0].phases])[: curves.shape[1]]
            if len(curves) > 1:
                axes.plot(seen, curves.T, color=colour(index), linewidth=0.8, alpha=0.4)
            _band(axes, seen, curves, index, group.label, MARKERS[index % len(MARKERS)])
        axes.set(xlabel="classes seen", ylabel="accuracy over all of them (%)")
        axes.locator_params(axis="x", integer=True)
        if legend:
            axes.legend()

    return _draw((6.6, 3.9), paint, "Accuracy over the number of classes seen")


def shown_phases(groups: list[Group], most: int = 5) -> list[int]:
    """The incremental phases that get a panel: all, or evenly chosen ones with the first and the last."""
    phases = [line["phase"] for line in groups[0].runs[0].phases if line["phase"] > 0]
    chosen = np.unique(np.linspace(0, len(phases) - 1, min(most, len(phases))).round().astype(int))
    return [phases[place] for place in chosen] if phases else []


def _smoothed(run: Run, phase: int, name: str) -> tuple[np.ndarray, int]:
    line = next((line for line in run.phases if line["phase"] == phase), {})
    window = int(line.get("steps_per_epoch") or 1)
    series = first_stage(run, phase, name)
    growing = [moving_mean(series[:end], end) for end in range(1, min(window, len(series)))]
    return np.concatenate([*growing, moving_mean(series, window)]), window


def has_series(groups: list[Group], phase: int, name: str) -> bool:
    """Whether any run recorded this series in this phase."""
    return any(np.isfinite(run.steps(phase)[name]).any() for group in groups for run in group.runs)


def destruction_curve(groups: list[Group], phase: int, name: str = "ce_old", legend: bool = True) -> str:
    """A series ("ce_old" or "distillation") over one incremental phase: its one-epoch moving mean.

    Before the first epoch is over, the mean of all steps so far; on a logarithmic axis, since it all happens early.
    """

    def paint(axes: Axes) -> None:
        for index, group in enumerate(groups):
            smoothed = [_smoothed(run, phase, name) for run in group.runs]
            curves = _common([series for series, _ in smoothed])
            if not np.isfinite(curves).any():
                continue
            points = np.unique(np.geomspace(1, curves.shape[1], MOST_POINTS).round().astype(int))
            _band(axes, points / smoothed[0][1], curves[:, points - 1], index, group.label)
        axes.set(xlabel="epoch", ylabel=SERIES_NAMES[name], xscale="log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter("")
        axes.set_title(f"phase {phase}", fontsize=12, loc="left", fontweight="bold")
        if legend:
            axes.set_ylim(top=1.35 * axes.get_ylim()[1])  # room for the legend above the peak
            axes.legend(loc="upper right")

    return _draw((4.2, 3.0), paint, f"{SERIES_NAMES[name].capitalize()} during phase {phase}")


def accuracy_matrix(group: Group) -> str:
    """Accuracy on each phase's classes (columns) after each phase (rows), mean over seeds."""
    size = min(len(each["matrix"]) for each in group.summaries)
    tables = np.full((len(group.summaries), size, size), np.nan)
    for table, each in zip(tables, group.summaries, strict=True):
        for i, row in enumerate(each["matrix"][:size]):
            table[i, : len(row)] = row
    mean = tables.mean(axis=0)

    def paint(axes: Axes) -> None:
        from matplotlib.colors import LinearSegmentedColormap

        shades = LinearSegmentedColormap.from_list("shades", SHADES)
        axes.pcolormesh(np.ma.masked_invalid(mean), cmap=shades, vmin=0, vmax=100)
        axes.set(xlabel="accuracy on the classes of phase", ylabel="after phase", aspect="equal")
        step = max(1, size // 10)
        axes.set_xticks(np.arange(0, size, step) + 0.5, [str(phase) for phase in range(0, size, step)])
        axes.set_yticks(np.arange(0, size, step) + 0.5, [str(phase) for phase in range(0, size, step)])
        axes.invert_yaxis()
        axes.grid(False)
        axes.spines[:].set_visible(False)
        if size <= MOST_NUMBERS:
            _write_numbers(axes, mean)

    side = 4.2 if size > 6 else 3.6
    return _draw((side, side), paint, f"Accuracy by phase, {group.label}")


def _write_numbers(axes: Axes, table: np.ndarray) -> None:
    for (i, j), value in np.ndenumerate(table):
        if np.isfinite(value):
            ink = "#ffffff" if value > 75 else "#111111"
            axes.text(j + 0.5, i + 0.5, f"{value:.0f}", ha="center", va="center", color=ink, fontsize=11)


def last_per_class(group: Group) -> np.ndarray:
    """(classes,) accuracy on each class after the last phase, mean over seeds."""
    return np.mean([_per_class_of(run) for run in group.runs], axis=0)


def _per_class_of(run: Run) -> np.ndarray:
    line = run.phases[-1]
    stored = run.predictions(line["phase"])
    return per_class(stored["labels"], stored[f"{readout_of(run)}_ids"], line["seen"])


def class_bars(group: Group, index: int = 0) -> str:
    """A bar a class after the last phase, in order of arrival; thin lines part the phases."""
    heights = last_per_class(group)
    run = group.runs[0]
    names = [str(name) for name in run.info["classes"][: len(heights)]]

    def paint(axes: Axes) -> None:
        axes.bar(np.arange(len(heights)), np.nan_to_num(heights), color=colour(index), width=0.8)
        for line in run.phases[1:]:
            axes.axvline(line["old"] - 0.5, color=INK, linewidth=0.8, alpha=0.5, linestyle=(0, (2, 3)))
        axes.set(ylabel="accuracy (%)", ylim=(0, 100), xlim=(-0.7, len(heights) - 0.3))
        if len(names) <= MOST_NAMES:
            long = max(len(name) for name in names) > 3
            axes.set_xticks(range(len(names)), names, rotation=50 if long else 0, ha="right" if long else "center")
        else:
            axes.set_xlabel("class, in order of arrival")

    return _draw((6.6, 2.9), paint, f"Accuracy of each class, {group.label}")
