"""Rows that the paper does not have: one of its own with a plug-in more, in the same protocol."""

from __future__ import annotations

from collections.abc import Sequence

from bdr.paper.cells import Cell, load_cells
from bdr.paper.mapping import ADDITIONS, SETTING


def printed_name(plugin: str) -> str:
    """How the paper writes a plug-in, if it does."""
    return next((part for part, (name, settings) in ADDITIONS.items() if name == plugin and not settings), plugin)


def beside(cells: Sequence[Cell], plugins: Sequence[str]) -> list[Cell]:
    """The cells, and after each accuracy those of the same row with one of the plug-ins more."""
    found = list(cells)
    for cell in cells:
        further = [other for plugin in plugins if (other := with_plugin(cell, plugin)) and other not in cells]
        place = found.index(cell) + 1
        found[place:place] = further
    return found


def with_plugin(cell: Cell, plugin: str) -> Cell | None:
    """The paper's cell where it has one; none for a row that does not take it, or whose own number is a dash.

    What is a dash is not run, and there would be nothing to compare it with.
    """
    part = printed_name(plugin)
    if not cell.is_accuracy or cell.value is None or not takes_plugins(cell):
        return None
    printed = (one for one in load_cells() if is_same(one, cell) and one.parts == [*cell.parts, part])
    return next(printed, cell.adding(part))


def takes_plugins(cell: Cell) -> bool:
    """Bare rows do; not the bound, which has all images of all classes, nor ablations, which take BDR apart."""
    bare = len(cell.parts) == 1 and cell.base != "Bound"
    return bare and cell.table not in ("T5", "T7") and not cell.get("split")


def is_same(other: Cell, cell: Cell) -> bool:
    """Whether two rows have their setting and their number in common."""
    return all(getattr(other, name) == getattr(cell, name) for name in ("table", *SETTING))
