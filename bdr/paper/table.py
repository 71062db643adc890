"""`bdr table`: a table of the paper with our results beside it, as LaTeX, Markdown or CSV."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from bdr.balance import FORMULAS
from bdr.commands.looking import hand_over
from bdr.errors import unknown
from bdr.paper.cells import EXTRA
from bdr.paper.found import gather
from bdr.paper.grid import Entry, Grid, grid_of
from bdr.paper.latex import as_latex
from bdr.paper.reproduce import chosen, say_if_nothing_is_there, usual_folders
from bdr.paper.sheets import digits_of
from bdr.paper.verdicts import Judged, judge
from bdr.report.forms import as_csv, form_of, rounded
from bdr.report.sheets import Sheet, as_markdown
from bdr.report.tables import number
from bdr.terminal import tell

FORMS = ("latex", "markdown", "csv")


def write_table(
    table: str,
    folders: Sequence[Path] = (),
    form: str | None = None,
    only: str | None = None,
    formula: str = "corrected",
    file: Path | None = None,
) -> None:
    """Print a table of the paper, or write it to a file; the file's name may decide the form."""
    if formula not in FORMULAS:
        raise unknown("formula", formula, FORMULAS)
    cells = chosen([table], only)
    searched = folders or usual_folders()
    say_if_nothing_is_there(searched, f"as in: bdr table {table} DIR")
    results = gather(searched)
    for warning in results.warnings:
        tell(f"warning: {warning}")
    judged = judge(cells, results, formula, tolerance=0.0)
    if searched and not any(each.values for each in judged):
        where = ", ".join(map(str, searched))
        tell(f"note: no run of {table} is in {where}: name folders, as in bdr table {table} DIR")
    hand_over(made(judged, formula, form or form_of(file, FORMS, usual="markdown")), file)


def made(judged: Sequence[Judged], formula: str, form: str) -> str:
    if form == "csv":
        return as_csv([plain_row(each) for each in judged])
    grids = [grid_of(list(some), formula) for _, some in groupby(judged, lambda each: each.cell.table)]
    write = {"latex": as_latex, "markdown": grid_as_markdown}[form]
    return "\n".join(write(grid) for grid in grids)


def grid_as_markdown(grid: Grid) -> str:
    """A grid as Markdown: group and column names are joined in one heading; footnotes are listed below."""
    header = [*grid.heads, "", *(" ".join(part for part in column if part) for column in grid.columns)]
    rows = [[*line.heads, line.what, *map(entry_text, line.entries)] for line in grid.lines]
    footnotes = [f"{mark}: {text}" for mark, text in grid.footnotes.items()]
    texts = tuple(range(len(grid.heads) + 1))
    return as_markdown(Sheet(grid.title, header, rows, [*grid.notes, *footnotes], texts))


def entry_text(entry: Entry) -> str:
    if entry.value is None:
        return ""
    spread = "" if entry.value.spread is None else f" ± {number(entry.value.spread, entry.digits)}"
    count = f" ({entry.value.n})" if entry.value.n else ""
    mark = f" [{entry.mark}]" if entry.mark else ""
    return f"{number(entry.value.mean, entry.digits, entry.sign)}{spread}{count}{mark}"


def plain_row(judged: Judged) -> dict[str, Any]:
    """A judged cell as one row of the CSV table."""
    cell, ours, gain = judged.cell, judged.ours, judged.gain
    digits = digits_of(cell) + 2  # two more than a table shows: enough to calculate with
    return {
        **{name: getattr(cell, name) for name in ("table", "method", "dataset", "B", "S", "R", "memory", "metric")},
        **{name: cell.get(name) for name in EXTRA},
        "paper": cell.value,
        "paper_std": cell.std,
        "ours": rounded(ours.mean, digits),
        "std": rounded(ours.spread, digits),
        "n": len(judged.values),
        "difference": rounded(judged.difference, digits),
        "gain_paper": gain.paper if gain else None,
        "gain_ours": rounded(gain.ours.mean, digits) if gain else None,
        "gain_standard_error": rounded(gain.ours.spread, digits) if gain else None,
        "gain_n": gain.ours.n if gain else None,
        "reason": judged.reason.text if judged.reason else None,
        "records": ";".join(str(run.path) for run in judged.runs.values()),
    }
