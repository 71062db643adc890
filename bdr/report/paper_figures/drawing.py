"""What is asked of a figure, and what it returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bdr.records import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = dict[str, Any]


@dataclass(frozen=True)
class Anchor:
    """An average incremental accuracy that the paper prints."""

    title: str  # as in the records of a run
    data: str
    base: int | None
    step: int | None
    exemplars: int  # per class
    average: float
    deviation: float | None


@dataclass(frozen=True)
class Printed:
    """What the paper prints: its names of methods, by the names used here, and its accuracies."""

    names: dict[str, str] = field(default_factory=dict)
    anchors: tuple[Anchor, ...] = ()


@dataclass(frozen=True)
class Asked:
    """The runs to draw from, which phase of them, what the paper prints, and a function that announces slow work."""

    runs: list[Run]
    phase: int | None = None
    printed: Printed = Printed()
    tell: Callable[[str], None] = lambda _: None


@dataclass(frozen=True)
class Drawing:
    """A figure with the numbers in it, and what its caption must say."""

    figure: Figure
    about: str
    runs: list[Run]
    rows: list[Row]
    notes: list[str] = field(default_factory=list)  # how it was made, what is not in it
    differs: list[str] = field(default_factory=list)  # how it differs from the paper's
    further: dict[str, list[Row]] = field(default_factory=dict)  # more files of numbers, by the end of their names
