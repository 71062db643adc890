"""Comparisons and single runs as text for use elsewhere: LaTeX, Markdown, CSV, JSON, plain text."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from bdr.errors import UsageError
from bdr.metrics import OverSeeds
from bdr.records import Run, write_atomically
from bdr.records.files import check_folder_of, plain
from bdr.report.latex import as_latex
from bdr.report.sheets import Sheet, as_markdown, as_text
from bdr.report.tables import COLUMNS, Comparison, as_json, comparison_sheets, run_sheet

SUFFIXES = {".tex": "latex", ".md": "markdown", ".csv": "csv", ".json": "json", ".txt": "text"}
OF_SHEETS: dict[str, Callable[[Sheet], str]] = {"latex": as_latex, "markdown": as_markdown, "text": as_text}
OF_A_PHASE = {"accuracy": "accuracy", "top5": "top5", "accuracy_old": "old", "accuracy_new": "new"}
DIGITS = 4  # two more than a table shows: enough to calculate with


def form_of(file: Path | None, forms: Collection[str], usual: str) -> str:
    """The form that the ending of the file stands for; `usual` if there is no file or no ending."""
    if file is None or not file.suffix:
        return usual
    endings = {suffix: form for suffix, form in SUFFIXES.items() if form in forms}
    if file.suffix.lower() not in endings:
        raise UsageError(
            f"{file} ends with {file.suffix}, and a table is written to {', '.join(endings)}: "
            "use one of these endings, or say the form with --format"
        )
    return endings[file.suffix.lower()]


def comparison_as(form: str, comparison: Comparison) -> str:
    if form == "json":
        return json.dumps(as_json(comparison), indent=2) + "\n"
    if form == "csv":
        return as_csv([_group_row(comparison, place) for place in range(len(comparison.groups))])
    return "\n".join(OF_SHEETS[form](sheet) for sheet in comparison_sheets(comparison, title=None))


def run_as(form: str, run: Run, readout: str | None) -> str:
    """One run as text in this form, with one row per phase."""
    if form == "csv":
        told = readout or run.told_readout()
        return as_csv([_phase_row(line, told) for line in run.phases])
    return OF_SHEETS[form](run_sheet(run, readout))


def as_csv(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as CSV, with numbers as they are and empty cells for missing ones."""
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _group_row(comparison: Comparison, place: int) -> dict[str, Any]:
    group, base, gains = comparison.groups[place], comparison.references[place], comparison.differences[place]
    gain = gains["average"] if gains else OverSeeds(None, None, 0)
    values = comparison.values[place]
    return {
        "protocol": group.protocol,
        "method": group.name,
        "readout": group.told_readout,
        "seeds": len(group.runs),
        **{f"{key}{end}": number for key in COLUMNS for end, number in _mean_and_std(values[key]).items()},
        "gain": rounded(gain.mean),
        "gain_standard_error": rounded(gain.spread),
        "gain_n": gain.n if gains else None,
        "reference": base.name if gains and base else None,
        "runs": ";".join(str(run.path) for run in group.runs),
    }


def _mean_and_std(value: OverSeeds) -> dict[str, float | None]:
    return {"": rounded(value.mean), "_std": rounded(value.spread)}


def _phase_row(line: dict[str, Any], readout: str) -> dict[str, Any]:
    accuracies = {name: (line.get(key) or {}).get(readout) for key, name in OF_A_PHASE.items()}
    sizes = {key: line.get(key) for key in ("seconds", "parameters")}
    return {"phase": line["phase"], "seen": line["seen"], "readout": readout} | {
        name: rounded(value) for name, value in (accuracies | sizes).items()
    }


def rounded(value: float | None, digits: int = DIGITS) -> float | None:
    found: float | None = plain(value)
    return None if found is None else round(found, digits)


def write_text(file: Path, text: str) -> None:
    check_folder_of(file)
    write_atomically(file, text)
