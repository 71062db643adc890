"""Rows that the paper does not have: one of its rows with one more plug-in, in the same protocol."""

from __future__ import annotations

from collections.abc import Sequence

from bdr.paper.cells import Cell, load_cells
from bdr.paper.mapping import ADDITIONS, SETTING


def printed_name(plugin: str) -> str:
    """The paper's name of a plug-in, or the plug-in's own name if the paper has none."""
    return next((part for part, (name, settings) in ADDITIONS.items() if name == plugin and not settings), plugin)


def beside(cells: Sequence[Cell], plugins: Sequence[str]) -> list[Cell]:
    """The cells, each accuracy followed by the cells of the same row with one of the plug-ins added."""
    found = list(cells)
    for cell in cells:
        further = [other for plugin in plugins if (other := with_plugin(cell, plugin)) and other not in cells]
        place = found.index(cell) + 1
        found[place:place] = further
    return found


def with_plugin(cell: Cell, plugin: str) -> Cell | None:
    """The cell of the same row with a plug-in added: the paper's if it has one, else a new one.

    None for rows that take no plug-in, and for cells that are a dash: these are not run, so nothing could be compared.
    """
    part = printed_name(plugin)
    if not cell.is_accuracy or cell.value is None or not takes_plugins(cell):
        return None
    printed = (one for one in load_cells() if is_same(one, cell) and one.parts == [*cell.parts, part])
    return next(printed, cell.adding(part))


def takes_plugins(cell: Cell) -> bool:
    """Whether a row takes plug-ins: bare rows do, except the bound, which keeps all images, and ablations of BDR."""
    bare = len(cell.parts) == 1 and cell.base != "Bound"
    return bare and cell.table not in ("T5", "T7") and not cell.get("split")


def is_same(other: Cell, cell: Cell) -> bool:
    """Whether two cells have the same table, setting and metric."""
    return all(getattr(other, name) == getattr(cell, name) for name in ("table", *SETTING))
