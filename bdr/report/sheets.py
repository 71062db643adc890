"""Tables without a form of output, and their forms: for the terminal (rich), as plain text, as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

# Words of headings to hyphenate, since the numbers below them are narrower
HYPHENATED = {"forgetting": "forget-\nting", "destruction": "destruc-\ntion"}


@dataclass(frozen=True)
class Sheet:
    """A table without a form of output. All cells are text: words in the columns `texts`, numbers in the others."""

    title: str
    header: list[str]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)
    texts: tuple[int, ...] = (0,)  # indices of columns that hold words, which are set to the left


def transposed(sheet: Sheet) -> Sheet:
    """The sheet with columns as rows, for few methods and a narrow terminal."""
    columns = [[name, *(row[index] for row in sheet.rows)] for index, name in enumerate(sheet.header)]
    return Sheet(sheet.title, columns[0], columns[1:], sheet.notes)


def stacked(sheet: Sheet) -> Sheet:
    """The sheet with header words below each other and spreads below means, for many methods and a narrow terminal."""
    header = [name if column in sheet.texts else _in_lines(name) for column, name in enumerate(sheet.header)]
    return replace(sheet, header=header, rows=[[cell.replace(" ± ", "\n±") for cell in row] for row in sheet.rows])


def _in_lines(name: str) -> str:
    return "\n".join(HYPHENATED.get(word, word) for word in name.split())


def unchanged(sheet: Sheet) -> Sheet:
    return sheet


def width_of(sheet: Sheet) -> int:
    """The width in characters of the widest cells of all columns side by side, as `as_rich` sets them."""
    return 1 + sum(1 + max(map(_width, column)) for column in zip(sheet.header, *sheet.rows, strict=True))


def _widths(sheet: Sheet) -> list[tuple[int, int]]:
    """For each column, its least width, with columns of words broken at every blank, and its width without breaks."""
    liked = [max(map(_width, column)) for column in zip(sheet.header, *sheet.rows, strict=True)]
    words = [_longest_word(column) for column in zip(sheet.header, *sheet.rows, strict=True)]
    return [(words[at] if at in sheet.texts else width, width) for at, width in enumerate(liked)]


def fitted_widths(sheet: Sheet, width: int | None) -> list[int]:
    """Widths of the columns: the one with most to gain from line breaks shrinks first, until all fits or none can."""
    least, now = (list(each) for each in zip(*_widths(sheet), strict=True))
    while width is not None and 1 + sum(1 + each for each in now) > width and now != least:
        most = max(range(len(now)), key=lambda at: now[at] - least[at])
        now[most] -= 1
    return now


def _longest_word(column: Sequence[str]) -> int:
    return max((len(word) for cell in column for word in cell.split()), default=0)


def _width(cell: str) -> int:
    return max((len(line) for line in cell.replace(" ± ", "±").split("\n")), default=0)


def form_for(sheets: Sequence[Sheet], width: int | None) -> Callable[[Sheet], Sheet]:
    """One form for all sheets, since they are read together: unchanged, transposed or stacked."""
    if width is None or max(map(width_of, sheets)) <= width:
        return unchanged
    return transposed if max(width_of(transposed(sheet)) for sheet in sheets) <= width else stacked


def as_rich(sheet: Sheet) -> Table:
    """The sheet as a table for a terminal of any width."""
    return as_rich_tables([sheet])[0]


def as_rich_tables(sheets: Sequence[Sheet], width: int | None = None) -> list[Table]:
    """Sheets that are read together as tables of the same form. Print them uncropped, since words are not broken."""
    form = form_for(sheets, width)
    return [_rich_table(form(sheet), width) for sheet in sheets]


def _rich_table(sheet: Sheet, width: int | None) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    caption = Text("\n".join(sheet.notes)) if sheet.notes else None
    table = Table(title=Text(sheet.title), caption=caption, caption_justify="left", box=box.SIMPLE_HEAD, padding=0)
    for index, name in enumerate(sheet.header):
        words = index in sheet.texts
        table.add_column(Text(name), justify="left" if words else "right", overflow="fold", no_wrap=not words)
    for column, (least, _), wide in zip(table.columns, _widths(sheet), fitted_widths(sheet, width), strict=True):
        column.min_width, column.width = least, None if width is None else wide
    if width is not None:
        table.width = 1 + sum(1 + wide for wide in fitted_widths(sheet, width))  # too wide rather than numbers broken
    for row in sheet.rows:
        # Text, since a class may be called "[red]"; no space around ±, since a terminal would break the line there
        table.add_row(*(Text(cell.replace(" ± ", "±")) for cell in row))
    return table


def as_text(sheet: Sheet) -> str:
    """Plain text in aligned columns."""
    lines = [sheet.header, *sheet.rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(sheet.header))]
    body = ["  ".join(_aligned(line, widths, sheet.texts)).rstrip() for line in lines]
    rule = "-" * max(len(line) for line in body)
    return "\n".join([sheet.title, "", body[0], rule, *body[1:], *([""] if sheet.notes else []), *sheet.notes]) + "\n"


def _aligned(cells: list[str], widths: list[int], texts: tuple[int, ...]) -> list[str]:
    pairs = enumerate(zip(cells, widths, strict=True))
    return [cell.ljust(width) if column in texts else cell.rjust(width) for column, (cell, width) in pairs]


def as_markdown(sheet: Sheet) -> str:
    """A Markdown table, with the notes as a list below it."""
    rule = [":---" if column in sheet.texts else "---:" for column in range(len(sheet.header))]
    lines = [
        [_markdown(cell) for cell in sheet.header],
        rule,
        *([_markdown(cell) for cell in row] for row in sheet.rows),
    ]
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    notes = "".join(f"- {_markdown(note)}\n" for note in sheet.notes)
    return f"### {_markdown(sheet.title)}\n\n{table}\n" + (f"\n{notes}" if notes else "")


def _markdown(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
