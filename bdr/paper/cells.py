"""Every number of every table of the paper as a frozen value, and what its rows and data sets are called here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from bdr.errors import unknown

TABLES = ("T1", "T2", "T3", "T4", "T5", "T6", "T7", "T8", "T9")
EXTRA = ("beta", "CR", "DC", "momentum", "split")
ACCURACIES = ("avg_acc_top1", "last_acc_top1", "avg_acc_top5", "last_acc_top5", "final_accuracy")
LOSSES = ("initial_loss", "convergence_loss")

# What each row of a table is called here. A row is "not in this version" if it is not listed here, or if its parts are
# not all in METHODS and PLUGINS.
SPECS = {
    "UCIR": "ucir",
    "CwD": "ucir+cwd",
    "AANet": "ucir+aanet",
    "AANet+CwD": "ucir+aanet+cwd",
    "iCaRL": "icarl",
    "BiC": "bic",
    "WA": "wa",
    "PODNet": "podnet",
    "RPSNet": "rpsnet",
    "Bound": "joint",
    "DER w/o P": "der",
    "DER": "der",
    "simple-DER": "simple-der",
    "DyTox": "dytox",
    "DyTox+": "dytox+mixup",
}
DATA = {"CIFAR-100": "cifar100"}


@dataclass(frozen=True, slots=True)
class Cell:
    """A number that the paper prints, a dash (value None) or one that it does not have, with all that defines it."""

    table: str
    method: str  # as printed
    dataset: str
    B: int | None  # classes of the first phase; 0: as many as S
    S: int | None  # classes that each later phase brings
    R: int | None  # exemplars a class; None: a total is given
    memory: str | None  # in the form that --memory takes
    metric: str
    value: float | None
    std: float | None
    extra: tuple[tuple[str, Any], ...] = ()
    printed: bool = True

    @property
    def parts(self) -> list[str]:
        """The parts of the method: "CwD + BDR" and "CwD w BDR" are both CwD and BDR; a star marks a footnote."""
        return self.method.replace(" w ", " + ").replace("*", "").split(" + ")

    @property
    def base(self) -> str:
        return self.parts[0]

    @property
    def balanced(self) -> bool:
        """Whether this is BDR with all its components."""
        return "BDR" in self.parts or bool(self.get("momentum"))

    def adding(self, part: str) -> Cell:
        """The same cell with one more part, for a combination that the paper does not have."""
        return replace(self, method=f"{self.method} + {part}", value=None, std=None, printed=False)

    def get(self, name: str) -> Any:
        return dict(self.extra).get(name)

    @property
    def is_accuracy(self) -> bool:
        return self.metric in ACCURACIES


def cell_of(row: dict[str, Any]) -> Cell:
    extra = tuple((name, row[name]) for name in EXTRA if name in row)
    plain = {name: row[name] for name in ("method", "dataset", "B", "S", "R", "metric", "value", "std")}
    return Cell(table=row["table"].partition("_")[0], memory=memory_of(row.get("memory")), extra=extra, **plain)


def memory_of(text: str | None) -> str | None:
    """`per_class=20` -> `20/class`, `total=2000` -> `2000`"""
    kind, _, count = (text or "").partition("=")
    return {"per_class": f"{count}/class", "total": count}.get(kind)


@cache
def load_tables() -> dict[str, Any]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times faster, if libyaml is installed
    return yaml.load(files("bdr.paper").joinpath("tables.yaml").read_text(encoding="utf-8"), Loader=loader)


@cache
def load_cells() -> tuple[Cell, ...]:
    return tuple(cell_of(row) for row in load_tables()["rows"])


def cells_of(tables: list[str]) -> list[Cell]:
    """The cells of the named tables, such as T4, or of all."""
    names = [name.upper() for name in tables]
    for given, name in zip(tables, names, strict=True):
        if name not in (*TABLES, "ALL"):
            raise unknown("table", given, [*TABLES, "all"])
    return [cell for cell in load_cells() if cell.table in names or "ALL" in names]
