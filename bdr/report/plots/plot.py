"""A plot: its drawing as SVG, and the numbers in it as CSV."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass, field, replace

from bdr.report.html import Html, tag

Cell = str | float | None
DIGITS = 4  # significant digits of a number in the CSV: more than any plot shows


@dataclass(frozen=True)
class Plot:
    """A drawing that takes its colours from the style sheet around it, and the data that it was drawn from."""

    name: str  # the name of its files, such as `ce-old-phase-01`
    title: str
    size: tuple[float, float]
    shapes: Html
    header: list[str]
    rows: list[list[Cell]] = field(default_factory=list)
    whose: tuple[int, str] | None = None  # index and label of its group, if there is only one

    @property
    def svg(self) -> Html:
        width, height = self.size
        attributes = {"xmlns": "http://www.w3.org/2000/svg", "viewBox": f"0 0 {width:g} {height:g}", "role": "img"}
        return tag("svg", tag("title", self.title), self.shapes, class_="plot", **attributes)

    @property
    def csv(self) -> str:
        """The data, one row per point; a cell without a value is empty."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.header)
        writer.writerows([[told(cell) for cell in row] for row in self.rows])
        return text.getvalue()

    @property
    def stored_csv(self) -> str:
        """The same with the first cell filled only where it changes: a label would be repeated hundreds of times."""
        said = [row[0] for row in self.rows]
        first = [None if before == now else now for before, now in zip([None, *said], said, strict=False)]
        return replace(self, rows=[[cell, *row[1:]] for cell, row in zip(first, self.rows, strict=True)]).csv


def told(cell: Cell) -> str:
    if isinstance(cell, str):
        # a class may have any name, and a spreadsheet takes what begins like a formula for one
        return f"'{cell}" if cell[:1] in "=@\t" else cell
    return "" if cell is None or not math.isfinite(cell) else f"{cell:.{DIGITS}g}"
