"""What figures show beside our results: the paper's method names and its accuracies, by exemplars a class."""

from __future__ import annotations

from bdr.paper.cells import DATA, SPECS, Cell, cells_of
from bdr.report.paper_figures import Anchor, Printed

BEYOND = {"e2e": "E2E", "ewc": "EWC", "lwf": "LwF", "rwalk": "RWalk", "si": "SI"}  # in no table on data that is here
TABLES = ["T4", "T6"]  # with and without BDR, at 20, 5 and 40 exemplars a class


def printed() -> Printed:
    of_tables = {title: name for name, title in SPECS.items()}  # for DER the later entry, without "w/o P", wins
    return Printed(
        BEYOND | of_tables, tuple(anchor for cell in cells_of(TABLES) if (anchor := anchor_of(cell)) is not None)
    )


def anchor_of(cell: Cell) -> Anchor | None:
    """The anchor of a printed average accuracy; None for other cells, and for data or methods not in this version."""
    known = cell.dataset in DATA and cell.base in SPECS and set(cell.parts[1:]) <= {"BDR"}
    if not known or cell.metric != "avg_acc_top1" or cell.R is None or cell.value is None:
        return None
    title = SPECS[cell.base] + ("+bdr" if cell.balanced else "")
    return Anchor(title, DATA[cell.dataset], cell.B, cell.S, cell.R, cell.value, cell.std)
