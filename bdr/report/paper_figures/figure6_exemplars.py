"""Figure 6: average accuracy against exemplars a class, without and with BDR, beside the paper's numbers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from bdr.errors import UsageError
from bdr.metrics import OverSeeds, spread
from bdr.records import Run, differences
from bdr.report.groups import Group
from bdr.report.paper_figures import style
from bdr.report.paper_figures.captions import unlike
from bdr.report.paper_figures.drawing import Anchor, Asked, Drawing, Row
from bdr.report.paper_figures.pairs import Pair, Side, name_of, pairs_of, panel_titles
from bdr.report.paper_figures.retyping import sweep_for
from bdr.report.protocols import IN_A_WORD, rank

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ABOUT = "average accuracy against exemplars a class, without and with BDR, with the paper's numbers as hollow marks"
NO_SCENARIO = ("memory", "order")  # facts in which runs of one curve may differ
MOST_COLUMNS = 3  # as many as the paper has steps: one row per method
NEEDS = "runs without and with BDR at two or more memories a class (--memory 5/class, 20/class, ...)"


def draw(asked: Asked) -> Drawing:
    pairs, notes = pairs_of(asked.runs, "6")
    told = [pair for pair in pairs if exemplars(pair.run) is not None]
    others = [f"{pair.method} ({pair.without.protocol})" for pair in pairs if pair not in told]
    notes += [f"Left out, since their memory is a total: {', '.join(others)}."] if others else []
    panels, single = curves_and_points(scenarios(told))
    if not panels:
        raise too_few_memories(pairs)
    points = [f"{panel[0].method} ({panel[0].without.protocol})" for panel in single]
    notes += [f"Left out, since there is no other memory to set them against: {', '.join(points)}."] if points else []
    runs = [run for panel in panels for pair in panel for run in pair.runs]
    figure, rows = paint_all(panels, asked)
    facts: dict[str, Any] = {"data": ["CIFAR-100"], "base": [50], "step": [10, 5]}
    shown = "CwD on CIFAR-100, B = 50, S = 10 and 5, of R = 5 to 40"
    return Drawing(
        figure,
        "Average incremental accuracy against the number of exemplars kept of each class, without and with BDR. "
        "Filled marks are these runs, with their standard deviation over seeds where there are several; hollow marks "
        "are the numbers of the paper's tables.",
        runs,
        rows,
        notes,
        unlike(runs, shown, title=["ucir+cwd", "ucir+cwd+bdr"], memory=["5/class", "20/class", "40/class"], **facts),
    )


def paint_all(panels: list[list[Pair]], asked: Asked) -> tuple[Figure, list[Row]]:
    """Draw one panel per method and scenario; return the figure and the numbers in it."""
    lines, columns = -(-len(panels) // MOST_COLUMNS), min(MOST_COLUMNS, len(panels))
    width = style.COLUMN if columns < 3 else style.PAGE
    figure = style.blank(width, 0.75 + 1.85 * lines)
    cells = figure.subplots(lines, columns, squeeze=False, sharey=True)
    titles = panel_titles([panel[0].run for panel in panels], asked.printed, untold=("memory",))
    rows: list[Row] = []
    for axes, panel, title in zip(cells.flat, panels, titles, strict=False):
        rows += [{"panel": title} | row for row in paint_panel(axes, panel, asked)]
        axes.set(title=style.wrapped(title, width / columns), xlabel="exemplars a class")
    for axes in cells.flat[len(panels) :]:
        axes.set_visible(False)
    for line in cells:
        line[0].set_ylabel("average accuracy (%)")
    style.shared_legend(figure, cells[0][0], columns=2)
    return figure, rows


def exemplars(run: Run) -> int | None:
    """The exemplars per class: 20 for `20/class`; None if the memory is a total."""
    count, _, kind = str(run.protocol.get("memory")).partition("/")
    return int(count) if kind == "class" and count.isdigit() else None


def curves_and_points(panels: list[list[Pair]]) -> tuple[list[list[Pair]], list[list[Pair]]]:
    """Panels with two or more memories, and panels with only one, which show no trend."""
    several = [panel for panel in panels if len({exemplars(pair.run) for pair in panel}) > 1]
    return several, [panel for panel in panels if panel not in several]


def too_few_memories(pairs: list[Pair]) -> UsageError:
    first = pairs[0]
    others = [pair for pair in pairs if pair.method == first.method and memory_of(pair) != memory_of(first)]
    if others:
        both = f"at {memory_of(first)} and at {memory_of(others[0])}"
        here = f"{first.method} {both} differs in {besides_memory(first, others[0])}, too"
    elif (count := exemplars(first.run)) is not None:
        here = f"{first.method} has only {count} a class"
    else:
        here = f"{first.method} has a memory of {memory_of(first)}"
    return UsageError(f"figure 6 needs runs at two or more memories a class, and {here}; {how_to_make_others(first)}")


def how_to_make_others(pair: Pair) -> str:
    """What to type for runs like these with another memory per class, or with two if theirs is not per class."""
    what = pair.without.runs[0].title, pair.balanced.runs[0].title
    fewer, more = "5/class", "20/class"
    memory = more if memory_of(pair) == fewer else fewer
    again = f", the second time with --memory {more}," if exemplars(pair.run) is None else ""
    runs = [*pair.balanced.runs, *pair.without.runs]  # the first one has the settings of both sides
    return f"make others{again} with: {sweep_for(what, runs, what[1], {'memory': memory})}"


def memory_of(pair: Pair) -> str:
    return str(pair.run.protocol.get("memory"))


def besides_memory(one: Pair, other: Pair) -> str:
    """What else differs between runs of two memories, so that they are not one curve: `base, network`"""
    facts = [fact for fact in differences([one.run, other.run]) if fact not in NO_SCENARIO]
    return ", ".join(IN_A_WORD.get(fact, fact.replace("_", " ")) for fact in facts)


def scenarios(pairs: list[Pair]) -> list[list[Pair]]:
    """Panels of pairs that differ in the memory alone, smallest memory first; panels of one method stand together."""
    found: dict[str, list[Pair]] = {}
    for pair in pairs:
        facts = {fact: value for fact, value in pair.run.protocol.items() if fact not in NO_SCENARIO}
        found.setdefault(json.dumps([pair.method, facts], sort_keys=True, default=str), []).append(pair)
    panels = [sorted(each, key=lambda pair: rank(exemplars(pair.run))) for each in found.values()]
    return sorted(panels, key=lambda panel: panel[0].method)


def paint_panel(axes: Axes, pairs: list[Pair], asked: Asked) -> list[Row]:
    rows: list[Row] = []
    for index in (0, 1):
        sides = [pair.sides()[index] for pair in pairs]
        ours = [(exemplars(side.group.runs[0]) or 0, averages(side.group)) for side in sides]
        printed = anchors_of(sides[0].group.runs[0], asked)
        paint(axes, sides[0], ours, printed)
        method = name_of(sides[0].group.runs[0], asked.printed)
        rows += [{"method": method, "exemplars": r, "from": "runs", **found._asdict()} for r, found in ours]
        rows += [
            {"method": method, "exemplars": each.exemplars, "from": "paper", "mean": each.average}
            | {"spread": each.deviation}
            for each in printed
        ]
    ticks = sorted({int(row["exemplars"]) for row in rows})
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.margins(x=0.1, y=0.12)
    return rows


def averages(group: Group) -> OverSeeds:
    return spread([each["average"] for each in group.summaries])


def anchors_of(run: Run, asked: Asked) -> list[Anchor]:
    """What the paper prints for this method under this protocol, by rising memory; it is an average over all phases."""
    if run.info["phases"][-1][1] < len(run.info["classes"]):  # the run has the first phases alone
        return []
    facts = tuple(run.protocol.get(fact) for fact in ("data", "base", "step"))
    mine = [each for each in asked.printed.anchors if each.title == run.title]
    return sorted((e for e in mine if (e.data, e.base, e.step) == facts), key=lambda each: each.exemplars)


def paint(axes: Axes, side: Side, ours: list[tuple[int, OverSeeds]], printed: list[Anchor]) -> None:
    places, means = [r for r, _ in ours], [found.mean or np.nan for _, found in ours]
    bars = [found.spread or np.nan for _, found in ours]
    line: dict[str, Any] = {"color": side.colour, "marker": side.marker}
    axes.errorbar(places, means, yerr=bars, linestyle="", capsize=2, color=side.colour, zorder=3)
    axes.plot(places, means, linestyle=side.dashes, label=side.label, zorder=3, **line)
    if printed:
        hollow: dict[str, Any] = {"linestyle": ":", "linewidth": 0.8, "markerfacecolor": "none", "markersize": 6.5}
        label = f"{side.label}, paper"
        axes.plot([e.exemplars for e in printed], [e.average for e in printed], label=label, **hollow, **line)
