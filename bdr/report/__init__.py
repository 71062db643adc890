"""Tables, plots and one page, made from run directories and nothing else."""

from __future__ import annotations

from bdr.report.figures import write_figures
from bdr.report.groups import Group, group_runs, protocol_notes
from bdr.report.page import write_page
from bdr.report.tables import (
    Comparison,
    Sheet,
    as_json,
    as_markdown,
    as_rich,
    as_text,
    compare,
    comparison_sheet,
    run_sheet,
    seeds_sheet,
)

__all__ = [
    "Comparison",
    "Group",
    "Sheet",
    "as_json",
    "as_markdown",
    "as_rich",
    "as_text",
    "compare",
    "comparison_sheet",
    "group_runs",
    "protocol_notes",
    "run_sheet",
    "seeds_sheet",
    "write_figures",
    "write_page",
]
