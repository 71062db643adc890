"""A grid as a LaTeX table."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from bdr.paper.grid import Entry, Grid, Line
from bdr.paper.layout import Names
from bdr.report.latex import WIDE, escaped, in_a_float, row
from bdr.report.tables import NOTHING, number


def as_latex(grid: Grid) -> str:
    marked = [f"$^{{{mark}}}$ {escaped(text)}" for mark, text in grid.footnotes.items()]
    notes = [*map(escaped, grid.notes), *marked]
    return in_a_float(
        tabular(grid), escaped(grid.title), f"bdr-{grid.table.lower()}", notes, wide=len(grid.columns) > WIDE
    )


def tabular(grid: Grid) -> list[str]:
    names = len(grid.heads) + 1  # one more column says what a line shows
    body = [text for line in grid.lines for text in rows_of(line)]
    return [
        f"\\begin{{tabular}}{{{'l' * names}{'c' * len(grid.columns)}}}",
        r"\toprule",
        *header(grid, names),
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
    ]


def header(grid: Grid, names: int) -> list[str]:
    """One line for each level of names; groups span their columns, with a thin rule below."""
    *groups, last = range(len(grid.columns[0]))
    lines = []
    for level in groups:
        spans = spans_of(grid.columns, level)
        cells = [f"\\multicolumn{{{count}}}{{c}}{{{escaped(name)}}}" for name, count in spans]
        lines += [row([*[""] * names, *cells]), rules(spans, names)]
    own = [*grid.heads, "", *(column[last] for column in grid.columns)]
    return [*lines, row([escaped(name) for name in own])]


def spans_of(columns: Sequence[Names], level: int) -> list[tuple[str, int]]:
    """The groups of a level, and how many columns each has."""
    return [(group[-1], len(list(some))) for group, some in groupby(column[: level + 1] for column in columns)]


def rules(spans: Sequence[tuple[str, int]], names: int) -> str:
    """A thin rule below each group that has a name."""
    drawn, at = [], names + 1
    for name, count in spans:
        drawn += [f"\\cmidrule(lr){{{at}-{at + count - 1}}}"] if name else []
        at += count
    return " ".join(drawn)


def rows_of(line: Line) -> list[str]:
    cells = [*map(escaped, line.heads), escaped(line.what), *map(entry_text, line.entries)]
    above = [r"\midrule"] if line.ruled else [r"\addlinespace[2pt]"] if any(line.heads) else []
    return [*above, row(cells)]


def entry_text(entry: Entry) -> str:
    if entry.value is None:
        return ""
    mark = f"$^{{{entry.mark}}}$" if entry.mark else ""
    text = number(entry.value.mean, entry.digits, entry.sign).replace("−", "-")  # noqa: RUF001
    if text == NOTHING:
        return f"--{mark}"
    spread = entry.value.spread
    below = "" if spread is None else f"_{{\\pm {number(spread, entry.digits)}}}"
    count = f"\\,({entry.value.n})" if entry.value.n else ""
    return f"${text}{below}${count}{mark}"
