"""Tables, plots and one page, made from run directories and nothing else."""

from __future__ import annotations

from bdr.report.figures import write_figures
from bdr.report.forms import SUFFIXES, comparison_as, form_of, run_as, write_text
from bdr.report.gather import gather
from bdr.report.page import write_page
from bdr.report.protocols import natural_order
from bdr.report.sheets import as_markdown, as_rich, as_rich_tables, as_text
from bdr.report.tables import Comparison, as_json, compare, comparison_sheets, run_sheet

__all__ = [
    "SUFFIXES",
    "Comparison",
    "as_json",
    "as_markdown",
    "as_rich",
    "as_rich_tables",
    "as_text",
    "compare",
    "comparison_as",
    "comparison_sheets",
    "form_of",
    "gather",
    "natural_order",
    "run_as",
    "run_sheet",
    "write_figures",
    "write_page",
    "write_text",
]
