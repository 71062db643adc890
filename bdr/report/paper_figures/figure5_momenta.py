"""Figure 5: average accuracy over BDR's m and m'."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import numpy as np

from bdr.errors import UsageError
from bdr.metrics import OverSeeds, spread
from bdr.records import Run
from bdr.report.defaults import recorded_settings, written_out
from bdr.report.groups import Group, group_runs, of_common_seeds
from bdr.report.paper_figures import style
from bdr.report.paper_figures.captions import unlike
from bdr.report.paper_figures.drawing import Asked, Drawing, Row
from bdr.report.paper_figures.pairs import is_balanced, name_of
from bdr.report.paper_figures.retyping import keeps_exemplars, sweep_for
from bdr.report.plots import SHADES
from bdr.report.protocols import settings_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ABOUT = "heat map of average accuracy over BDR's m and m', the best cell framed"
NEEDS = "runs of one method with BDR at two or more values of bdr.m or bdr.m_prime (bdr sweep with a grid)"
DEFAULTS = {"bdr.m": 0.8, "bdr.m_prime": 0.8}  # the first records lack what was not set
CONSTANT = "cr"  # constant rebalancing, which is m = m' = 1
Cell = tuple[float, float]


def draw(asked: Asked) -> Drawing:
    families = by_family([group for group in group_runs(asked.runs) if is_balanced(group.runs[0])])
    chosen = max(families, key=len, default={})
    if len(chosen) < 2:
        raise too_few(asked.runs, chosen)
    common, further = of_common_seeds(list(chosen.values()))
    chosen = dict(zip(chosen, common, strict=True))
    runs = [run for group in chosen.values() for run in group.runs]
    title = f"{name_of(runs[0], asked.printed)}, {next(iter(chosen.values())).protocol}"
    found = {cell: spread([each["average"] for each in group.summaries]) for cell, group in chosen.items()}
    across, upwards = axes_of(found)
    figure = style.blank(style.COLUMN, 0.6 + (style.COLUMN - 0.45) * len(upwards) / len(across))
    axes = figure.subplots()
    best = paint(axes, found)
    axes.set_title(f"{name_of(runs[0], asked.printed)}: average accuracy (%)")
    left_out = sum(map(len, families)) - len(chosen)
    return Drawing(
        figure,
        f"Average incremental accuracy (%) of {title} over BDR's m (across) and m' (upwards). The best cell is framed; "
        "hatched cells have no run.",
        runs,
        table(found, best),
        [
            f"The best cell is m = {best[0]:g}, m' = {best[1]:g}. At m = m' = 1 BDR is logit adjustment.",
            *seeds_note(common, further),
            *([f"Left out: {left_out} groups of runs that differ in more than m and m'."] if left_out else []),
        ],
        [
            *unlike(
                runs,
                "AANet+CwD on ImageNet-Subset, B = 50, S = 10",
                data=["ImageNet-Subset"],
                base=[50],
                step=[10],
                title=["ucir+aanet+cwd+bdr"],
            ),
            "The values of m and m' in the paper's grid are not printed.",
        ],
    )


def cell_of(run: Run) -> Cell:
    given = DEFAULTS | recorded_settings(run) | settings_of(run)
    if given.get("bdr.components") == CONSTANT:
        return 1.0, 1.0
    return float(given["bdr.m"]), float(given["bdr.m_prime"])


def besides(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings without m and m', also where these are given as constant rebalancing."""
    rest = {name: value for name, value in settings.items() if name not in DEFAULTS}
    return {name: value for name, value in rest.items() if (name, value) != ("bdr.components", CONSTANT)}


def by_family(groups: list[Group]) -> list[dict[Cell, Group]]:
    """Families of groups that differ in m and m' alone, each by its (m, m')."""
    families: dict[str, dict[Cell, Group]] = {}
    for group, settings in zip(groups, written_out([group.told_best for group in groups]), strict=True):
        key = json.dumps([group.protocol, group.runs[0].title, besides(settings)], sort_keys=True, default=str)
        mine, cell = families.setdefault(key, {}), cell_of(group.told_best)
        if cell not in mine or "bdr.components" not in settings:  # one that was given m and m' themselves comes first
            mine[cell] = group
    return list(families.values())


def seeds_note(groups: Collection[Group], further: int) -> list[str]:
    """A note if cells differ in their seeds: a seed may have a larger effect than m and m'."""
    if further:
        return [f"Left out, since not all cells have a run of the same seed: runs of other seeds, {further} in all."]
    alike = len({frozenset(group.by_seed()) for group in groups}) == 1
    return [] if alike else ["No seed is common to all cells: they differ in their seeds, too."]


def too_few(runs: list[Run], chosen: dict[Cell, Group]) -> UsageError:
    found = "; ".join(f"m = {m:g}, m' = {other:g}" for m, other in chosen) or "none with BDR"
    example = next((run for run in runs if is_balanced(run)), runs[0])
    title = example.title if is_balanced(example) else f"{example.title}+bdr"
    alike = [example, *(run for run in runs if run.title == example.title and run.protocol == example.protocol)]
    memory = {} if keeps_exemplars(example) else {"memory": "20/class"}
    command = sweep_for(["grid.yaml"], alike, title, memory, *DEFAULTS, "bdr.components")
    return UsageError(
        f"figure 5 needs runs with BDR at several values of m and m', and there is {found}: write the two lines "
        f"'runs: [{title}]' and 'grid: {{bdr.m: [0.2, 0.6, 1], bdr.m_prime: [0.2, 0.6, 1]}}' into grid.yaml, and make "
        f"them with: {command}"
    )


def axes_of(found: dict[Cell, OverSeeds]) -> tuple[list[float], list[float]]:
    return sorted({m for m, _ in found}), sorted({other for _, other in found})


def table(found: dict[Cell, OverSeeds], best: Cell) -> list[Row]:
    """One row per cell of the grid, including cells without runs."""
    across, upwards = axes_of(found)
    nothing = OverSeeds(None, None, 0)
    return [
        {"m": m, "m_prime": other, **found.get((m, other), nothing)._asdict(), "best": int((m, other) == best)}
        for m in across
        for other in upwards
    ]


def paint(axes: Axes, found: dict[Cell, OverSeeds]) -> Cell:
    """Draw the cells in shades from the worst to the best, with their numbers; return the best."""
    from matplotlib.colors import LinearSegmentedColormap

    across, upwards = axes_of(found)
    means = np.full((len(upwards), len(across)), np.nan)
    for (m, other), each in found.items():
        means[upwards.index(other), across.index(m)] = np.nan if each.mean is None else each.mean
    axes.set_facecolor(style.FAINT)
    axes.patch.set(hatch="////", edgecolor=style.RULE)
    shades = LinearSegmentedColormap.from_list("shades", SHADES)
    axes.pcolormesh(np.ma.masked_invalid(means), cmap=shades, edgecolor="white", linewidth=1.5)
    write_numbers(axes, means)
    top, right = np.unravel_index(int(np.nanargmax(means)), means.shape)
    frame(axes, int(right), int(top))
    axes.set_xticks(np.arange(len(across)) + 0.5, [f"{value:g}" for value in across])
    axes.set_yticks(np.arange(len(upwards)) + 0.5, [f"{value:g}" for value in upwards])
    axes.set(xlabel="m", ylabel="m'", aspect="equal")
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    return across[right], upwards[top]


def write_numbers(axes: Axes, means: np.ndarray) -> None:
    low, high = np.nanmin(means), np.nanmax(means)
    size = 8 if means.shape[1] <= 6 else 6
    for (row, column), value in np.ndenumerate(means):
        missing = not np.isfinite(value)
        dark = not missing and value > low + 0.75 * (high - low) and high > low
        text = "–" if missing else f"{value:.2f}"  # noqa: RUF001
        ink = "white" if dark else style.SOFT if missing else style.INK
        axes.text(column + 0.5, row + 0.5, text, ha="center", va="center", color=ink, fontsize=size)


def frame(axes: Axes, column: int, row: int) -> None:
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((column, row), 1, 1, fill=False, edgecolor=style.BALANCED, linewidth=2.2, clip_on=False))
