"""A table of the paper as a grid: under each printed number ours, their difference, and the gains in both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from string import ascii_lowercase

from bdr.metrics import OverSeeds
from bdr.paper.cells import LOSSES
from bdr.paper.layout import LAYOUTS, Names, distinct
from bdr.paper.mapping import DASHED
from bdr.paper.sheets import circumstances, digits_of, formula_notes
from bdr.paper.verdicts import Judged


@dataclass(frozen=True)
class Entry:
    """A number with its spread or standard error, number of seeds and footnote mark; no value is an empty field."""

    value: OverSeeds | None = None
    digits: int = 2
    sign: bool = False
    mark: str = ""


@dataclass(frozen=True)
class Line:
    heads: Names  # empty except in the first line of a row
    what: str  # paper, ours, difference or one of the gains
    entries: list[Entry]
    ruled: bool  # a rule stands above it


@dataclass(frozen=True)
class Grid:
    table: str
    title: str
    heads: Names
    columns: list[Names]
    lines: list[Line]
    notes: list[str]
    footnotes: dict[str, str]  # by mark


def grid_of(judged: Sequence[Judged], formula: str) -> Grid:
    """The grid of some cells, all of the same table."""
    table = judged[0].cell.table
    layout = LAYOUTS[table]
    columns = distinct([layout.column(each.cell) for each in judged])
    rows: dict[Names, dict[Names, Judged]] = {}
    for each in judged:
        rows.setdefault(layout.row(each.cell), {})[layout.column(each.cell)] = each
    footnotes = marks_of(judged)
    lines: list[Line] = []
    before = None
    for heads, by_column in rows.items():
        block = layout.block(next(iter(by_column.values())).cell)
        cells = [by_column.get(column) for column in columns]
        lines += lines_of(heads, cells, footnotes, ruled=before is not None and block != before)
        before = block
    title = f"Table {table[1:]} of the BDR paper (arXiv 2308.01698), and ours: {layout.about}"
    marks = {mark: f"{text}." for text, mark in footnotes.items()}
    return Grid(table, title, layout.heads, columns, lines, notes_of(judged, formula), marks)


def marks_of(judged: Sequence[Judged]) -> dict[str, str]:
    """A letter for every reason why a number is not run as printed; a dash in the paper needs none."""
    reasons = dict.fromkeys(each.reason.text for each in judged if each.reason and each.reason.text != DASHED)
    return {text: ascii_lowercase[at % 26] * (1 + at // 26) for at, text in enumerate(reasons)}


def lines_of(heads: Names, cells: Sequence[Judged | None], marks: dict[str, str], ruled: bool) -> list[Line]:
    """The lines of a row: the paper's and ours always, differences and gains only if there are any."""
    lines = {what: [tell(each) if each else Entry() for each in cells] for what, tell in TOLD.items()}
    lines["ours"] = [marked(entry, each, marks) for entry, each in zip(lines["ours"], cells, strict=True)]
    told = [what for what, entries in lines.items() if what in ("paper", "ours") or any(e.value for e in entries)]
    blank, added = ("",) * len(heads), added_in(cells)
    return [
        Line(heads if what == "paper" else blank, what.format(added=added), lines[what], ruled and what == "paper")
        for what in told
    ]


def added_in(cells: Sequence[Judged | None]) -> str:
    """What the gain of a row is due to: BDR, or else the last part of its method."""
    cell = next(each.cell for each in cells if each)
    return "BDR" if cell.balanced else cell.parts[-1]


def marked(entry: Entry, judged: Judged | None, marks: dict[str, str]) -> Entry:
    reason = judged.reason.text if judged and judged.reason else ""
    return Entry(entry.value, entry.digits, entry.sign, marks.get(reason, ""))


def printed(judged: Judged) -> Entry:
    return Entry(OverSeeds(judged.cell.value, judged.cell.std, 0), digits_of(judged.cell))


def ours(judged: Judged) -> Entry:
    return Entry(judged.ours, digits_of(judged.cell))


def difference(judged: Judged) -> Entry:
    if judged.difference is None:
        return Entry()
    return Entry(OverSeeds(judged.difference, None, 0), digits_of(judged.cell), sign=True)


def printed_gain(judged: Judged) -> Entry:
    return Entry(OverSeeds(judged.gain.paper, None, 0), sign=True) if judged.gain else Entry()


def our_gain(judged: Judged) -> Entry:
    gain = judged.gain
    return Entry(gain.ours, sign=True) if gain and gain.ours.mean is not None else Entry()


TOLD: dict[str, Callable[[Judged], Entry]] = {
    "paper": printed,
    "ours": ours,
    "difference": difference,
    "gain of {added}, paper": printed_gain,
    "gain of {added}, ours": our_gain,
}


def notes_of(judged: Sequence[Judged], formula: str) -> list[str]:
    """How to read the grid; only notes on what occurs in it."""
    seeds = "Ours: mean ± standard deviation over training seeds, their number in parentheses."
    missing = "A dash in ours: no run yet, or the reason that its letter names."
    gain = "Gain" if any(each.gain and not each.cell.balanced for each in judged) else "Gain of BDR"
    gains = f"{gain}: over the row without it; ours is paired over common seeds, ± its standard error."
    occurring = {
        seeds: any(each.values for each in judged),
        missing: any(not each.values for each in judged),
        gains: any(each.gain for each in judged),
        "Losses are in nats.": any(each.cell.metric in LOSSES for each in judged),
    }
    own = [note for note, occurs in occurring.items() if occurs]
    return [*own, *formula_notes(judged, formula), *circumstances(judged)]
