"""What is asked of a figure, and what it gives back."""

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

    title: str  # as a run has it
    data: str
    base: int | None
    step: int | None
    exemplars: int  # a class
    average: float
    deviation: float | None


@dataclass(frozen=True)
class Printed:
    """What the paper prints: its names of methods, by ours, and its accuracies."""

    names: dict[str, str] = field(default_factory=dict)
    anchors: tuple[Anchor, ...] = ()


@dataclass(frozen=True)
class Asked:
    """The runs to draw from, which phase of them, what the paper prints, and whom to tell of slow work."""

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
    differs: list[str] = field(default_factory=list)  # from the paper's
    further: dict[str, list[Row]] = field(default_factory=dict)  # more files of numbers, by what is in them
