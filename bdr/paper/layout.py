"""How each table of the paper is laid out: the names of its rows and columns, and where its rules are drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bdr.paper.cells import Cell

Names = tuple[str, ...]
YES = "✓"


@dataclass(frozen=True)
class Layout:
    """A table's layout: cells with equal names share a row or column; a rule is drawn where the block changes."""

    about: str
    heads: Names  # the headings of the columns that name a row
    row: Callable[[Cell], Names]
    column: Callable[[Cell], Names]  # from the widest group down to the column itself
    block: Callable[[Cell], Any]


def method(cell: Cell) -> Names:
    return (cell.method,)


def method_and_data(cell: Cell) -> Names:
    return (f"{cell.method} ({cell.dataset})",)


def method_and_task(cell: Cell) -> Names:
    return cell.method, str(cell.get("split")).capitalize()


def method_and_components(cell: Cell) -> Names:
    setting = f"{cell.method} (B={cell.B}, S={cell.S})"
    return setting, *(YES if cell.get(name) else "" for name in ("CR", "DC", "momentum"))


def step(cell: Cell) -> Names:
    return f"{cell.dataset} (B={cell.B})", f"Avg (S={cell.S})"


def memory_and_step(cell: Cell) -> Names:
    return f"{cell.dataset} (B={cell.B}, R={cell.R})", f"Avg (S={cell.S})"


def size_and_average(cell: Cell) -> Names:
    return f"{cell.dataset} (B={cell.B})", f"S={cell.S}", short_name(cell)


def average_and_last(cell: Cell) -> Names:
    return f"{cell.dataset} (B={cell.B}, S={cell.S})", short_name(cell)


def top_1_and_top_5(cell: Cell) -> Names:
    kind = {"1": "top-1", "5": "top-5"}.get(cell.metric[-1], "")
    return f"{cell.dataset} (B={cell.B}, S={cell.S})", kind, short_name(cell)


def momentum(cell: Cell) -> Names:
    return "β", f"{cell.get('beta'):g}"


def loss_or_accuracy(cell: Cell) -> Names:
    names = {"initial_loss": "Initial", "convergence_loss": "Convergence", "final_accuracy": "Final Acc"}
    return (names[cell.metric],)


def short_name(cell: Cell) -> str:
    return {"params": "#p", "avg": "Avg", "last": "Last"}[cell.metric.partition("_")[0]]


def bounds_apart(cell: Cell) -> str:
    """The block of a cell: the upper bound above, BDR below, all others between them."""
    return "bound" if cell.base == "Bound" else "bdr" if cell.balanced else "others"


def by_base(cell: Cell) -> str:
    return cell.base


def by_method(cell: Cell) -> str:
    return cell.method


LIMITS = Layout(
    "losses and accuracies (%) of old and new classes", ("Method", "Task"), method_and_task, loss_or_accuracy, by_method
)
AVERAGE = "average incremental accuracy (%)"
LAYOUTS = {
    "T1": LIMITS,
    "T2": Layout(f"{AVERAGE} and million parameters (#p)", ("Method",), method, size_and_average, bounds_apart),
    "T3": Layout("top-1 and top-5 accuracy (%)", ("Method",), method, top_1_and_top_5, bounds_apart),
    "T4": Layout(f"{AVERAGE}, 20 exemplars a class", ("Method",), method, step, by_base),
    "T5": Layout(
        f"{AVERAGE} by components of BDR, ImageNet-Subset",
        ("Method", "CR", "DC", "Momentum"),
        method_and_components,
        lambda cell: ("Avg",),
        by_method,
    ),
    "T6": Layout(f"{AVERAGE}, 5 and 40 exemplars a class", ("Method",), method, memory_and_step, by_base),
    "T7": Layout(f"{AVERAGE} by the momentum of BDR, B=50, S=10", ("Method",), method_and_data, momentum, by_base),
    "T8": Layout("average and last accuracy (%)", ("Method",), method, average_and_last, bounds_apart),
    "T9": LIMITS,
}


def distinct(names: Sequence[Names]) -> list[Names]:
    """The names, each once; columns of a group are adjacent, and groups come in the order of their first column."""
    found = list(dict.fromkeys(names))
    for level in range(len(found[0]) - 1, 0, -1):
        groups = list(dict.fromkeys(name[:level] for name in found))
        found.sort(key=lambda name, level=level, groups=groups: groups.index(name[:level]))  # type: ignore[misc]
    return found
