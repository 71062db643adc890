"""Comparisons and single runs as tables: for the terminal (rich), as plain text, Markdown and JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bdr.errors import UsageError
from bdr.metrics import SCALARS, OverSeeds, over_seeds, spread, summary
from bdr.records import Run, differences
from bdr.report.groups import Group, group_runs, protocol_notes, readout_of

if TYPE_CHECKING:
    from rich.table import Table

COLUMNS = {
    "average": "average",
    "last": "last",
    "old": "old",
    "new": "new",
    "forgetting_max": "forgetting (max)",
    "destruction_peak": "destruction peak",
}
NOTHING = "–"  # noqa: RUF001


@dataclass(frozen=True)
class Sheet:
    """A table before it has a form: all cells are text; the first column is a name, the others are numbers."""

    title: str
    header: list[str]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)
    texts: tuple[int, ...] = (0,)  # columns that hold words and are set to the left


@dataclass(frozen=True)
class Comparison:
    """Groups side by side; differences are paired over common seeds, against the first group of the same protocol."""

    groups: list[Group]
    values: list[dict[str, OverSeeds]]
    differences: list[dict[str, OverSeeds] | None]  # mean, standard error, n; None for the reference itself
    notes: list[str]


def compare(runs: list[Run], readout: str | None = None) -> Comparison:
    """Group the runs by method and put the groups side by side."""
    if not runs:
        raise UsageError("there is no run to compare: name a folder that holds runs with at least one finished phase")
    groups = group_runs(runs, readout)
    bases = [base_of(group, groups) for group in groups]
    pairs = [
        None if base is group else paired_differences(group, base) for group, base in zip(groups, bases, strict=True)
    ]
    values = [over_seeds(group.summaries) for group in groups]
    return Comparison(groups, values, pairs, protocol_notes(groups, runs))


def base_of(group: Group, groups: list[Group]) -> Group:
    """The first group under the same protocol: a gain over another protocol would not be the method's."""
    return next(other for other in groups if not differences([other.runs[0], group.runs[0]]))


def paired_differences(group: Group, base: Group) -> dict[str, OverSeeds]:
    """Mean difference to the base over the seeds that both have, with its standard error in place of the spread."""
    ours, theirs = group.by_seed(), base.by_seed()
    common = [(ours[seed], theirs[seed]) for seed in ours if seed in theirs]
    return {key: _paired([(a[key], b[key]) for a, b in common]) for key in SCALARS}


def _paired(pairs: Sequence[tuple[float | None, float | None]]) -> OverSeeds:
    found = spread([a - b for a, b in pairs if a is not None and b is not None])
    error = None if found.spread is None else found.spread / math.sqrt(found.n)
    return OverSeeds(found.mean, error, found.n)


def number(value: float | None, digits: int = 2, sign: bool = False) -> str:
    """A number for a cell; a dash where there is none."""
    if value is None or not math.isfinite(value):
        return NOTHING
    return f"{value:{'+' if sign else ''}.{digits}f}".replace("-", "−")  # noqa: RUF001


def with_spread(value: OverSeeds, sign: bool = False) -> str:
    """`68.37 ± 0.21`, or the number alone for one seed."""
    text = number(value.mean, sign=sign)
    return text if value.spread is None else f"{text} ± {number(value.spread)}"


def comparison_sheet(comparison: Comparison, title: str = "Comparison") -> Sheet:
    """A row a method: mean ± spread over seeds, and the paired difference of the average to the first row."""
    several = len(comparison.groups) > 1
    header = ["method", "seeds", "average", *(["gain"] if several else []), *list(COLUMNS.values())[1:]]
    rows = []
    for group, values, pairs in zip(comparison.groups, comparison.values, comparison.differences, strict=True):
        cells = [with_spread(values[key]) for key in COLUMNS]
        gain = NOTHING if pairs is None else with_spread(pairs["average"], sign=True)
        rows.append([group.label, str(len(group.runs)), cells[0], *([gain] if several else []), *cells[1:]])
    return Sheet(title, header, rows, [*_reading(comparison), *comparison.notes])


def _reading(comparison: Comparison) -> list[str]:
    notes = ["Accuracies in percent; mean ± sample standard deviation over seeds."]
    if len(comparison.groups) > 1:
        first = "the first row" if len(comparison.groups) > 2 else comparison.groups[0].label
        notes.append(f"gain: difference in average to {first} of the same protocol, ± its standard error.")
    return notes


def seeds_sheet(comparison: Comparison) -> Sheet:
    """A row a run: what the means are made of."""
    rows = [
        [group.label, str(run.seed), *(number(each[key]) for key in COLUMNS)]
        for group in comparison.groups
        for run, each in zip(group.runs, group.summaries, strict=True)
    ]
    return Sheet("Every seed", ["method", "seed", *COLUMNS.values()], rows)


def class_names(run: Run, phase: int) -> list[str]:
    """Names of the classes that arrive in a phase."""
    old, seen = run.info["phases"][phase]
    return [str(name) for name in run.info["classes"][old:seen]]


def shortened(names: Sequence[str], most: int = 4) -> str:
    """`cat, dog, fox, hen, and 46 more`"""
    rest = len(names) - most
    return ", ".join(names) if rest <= 1 else f"{', '.join(names[:most])}, and {rest} more"


def run_sheet(run: Run, readout: str | None = None) -> Sheet:
    """A row a phase of one run."""
    readout = readout or readout_of(run)
    rows = [_phase_row(run, line, readout) for line in run.phases]
    found = summary(run, readout)
    notes = [f"Average {number(found['average'])}, last {number(found['last'])}, phase 0 included."]
    notes += [] if run.done else [f"Not finished: {len(run.phases)} of {len(run.info['phases'])} phases."]
    held = ["held out"] if has_validation(run) else []
    header = ["phase", "seen", "accuracy", *held, "top-5", "old", "new", "seconds", "new classes"]
    return Sheet(f"{run.title}, seed {run.seed} ({readout})", header, rows, notes, texts=(len(header) - 1,))


def has_validation(run: Run) -> bool:
    return any(line.get("val") for line in run.phases)


def _phase_row(run: Run, line: dict[str, Any], readout: str) -> list[str]:
    held = ("val",) if has_validation(run) else ()
    parts = ("accuracy", *held, "top5", "accuracy_old", "accuracy_new")
    cells = [number((line.get(part) or {}).get(readout)) for part in parts]
    names = shortened(class_names(run, line["phase"]))
    return [str(line["phase"]), str(line["seen"]), *cells, number(line.get("seconds"), 0), names]


def transposed(sheet: Sheet) -> Sheet:
    """Columns as rows: for few methods and a narrow terminal."""
    columns = [[name, *(row[index] for row in sheet.rows)] for index, name in enumerate(sheet.header)]
    return Sheet(sheet.title, columns[0], columns[1:], sheet.notes)


def width_of(sheet: Sheet) -> int:
    """Characters that the widest cells of all columns take side by side, as `as_rich` sets them."""
    columns = zip(sheet.header, *sheet.rows, strict=True)
    return sum(max(len(cell.replace(" ± ", "±")) for cell in column) + 1 for column in columns) + 1


def as_rich(sheet: Sheet, width: int | None = None) -> Table:
    """For a terminal; turned on its side where it would not fit into the width."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    if width is not None and width_of(sheet) > width and width_of(transposed(sheet)) < width_of(sheet):
        sheet = transposed(sheet)
    caption = Text("\n".join(sheet.notes)) if sheet.notes else None
    table = Table(title=Text(sheet.title), caption=caption, caption_justify="left", box=box.SIMPLE_HEAD, padding=0)
    for index, name in enumerate(sheet.header):
        words = index in sheet.texts
        table.add_column(Text(name), justify="left" if words else "right", overflow="fold", no_wrap=not words)
    for row in sheet.rows:
        # Text, since a class may be called "[red]"; no space around ±, where a terminal would break the line
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


def as_json(comparison: Comparison) -> dict[str, Any]:
    """All numbers, for a program; strict JSON (null where there is none)."""
    groups = []
    for group, values, pairs in zip(comparison.groups, comparison.values, comparison.differences, strict=True):
        groups.append(
            {
                "method": group.label,
                "seeds": [run.seed for run in group.runs],
                "runs": [str(run.path) for run in group.runs],
                "values": _named(values, "spread"),
                "difference_to_first": None if pairs is None else _named(pairs, "standard_error"),
                "per_seed": [_finite(each) for each in group.summaries],
            }
        )
    return {"groups": groups, "notes": comparison.notes}


def _named(values: dict[str, OverSeeds], second: str) -> dict[str, Any]:
    return {key: _finite({"mean": each.mean, second: each.spread, "n": each.n}) for key, each in values.items()}


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
