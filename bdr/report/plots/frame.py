"""The paper of a plot: axes, grid and labels, in units that are pixels if a panel is shown at its drawn width."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bdr.report.html import Html, join, tag
from bdr.report.plots.scale import Scale, briefly

WIDTH, HEIGHT = 440.0, 290.0
LEFT, RIGHT, TOP, BOTTOM = 42.0, 14.0, 30.0, 44.0
LETTER = 8.9  # about the width of a letter of a label on a phone, which sets it larger


def units(value: float) -> str:
    """A coordinate as text, with no more digits than the eye needs."""
    return f"{value:.1f}".removesuffix(".0")


@dataclass(frozen=True)
class Frame:
    """The two scales of a plot, and its size."""

    x: Scale
    y: Scale
    size: tuple[float, float] = (WIDTH, HEIGHT)

    def axes(self, across: str, up: str, names: Sequence[tuple[float, str]] | None = None, ticks: int = 5) -> Html:
        """Grid lines, numbers and the names of both axes; `names` are (place, text) that replace the numbers below."""
        below = names if names is not None else [(tick, briefly(tick)) for tick in self.x.ticks(ticks)]
        return join(
            *(self._line_at(tick) for tick in self.y.ticks()),
            *(self._name_at(place, text) for place, text in below),
            tag("text", up, x="2", y="15", class_="axis"),
            tag("text", across, x=units(self.x.end), y=units(self.size[1] - 6), class_="axis end"),
        )

    def borders(self, places: Sequence[float] | np.ndarray) -> Html:
        """Dotted vertical lines at these places, where phases end."""
        ground, top = units(self.y.start), units(self.y.end)
        return tag("path", d="".join(f"M{units(float(self.x(x)))} {ground}V{top}" for x in places), class_="border")

    def _line_at(self, tick: float) -> Html:
        y = float(self.y(tick))
        rule = tag("path", d=f"M{units(self.x.start)} {units(y)}H{units(self.x.end)}", class_="grid")
        return join(rule, tag("text", briefly(tick), x=units(self.x.start - 7), y=units(y + 4), class_="tick end"))

    def _name_at(self, place: float, text: str) -> Html:
        return tag("text", text, x=units(float(self.x(place))), y=units(self.y.start + 17), class_="tick mid")


def frame(
    x: tuple[float, float], y: tuple[float, float], labels: Sequence[str] = (), log_x: bool = False, log_y: bool = False
) -> Frame:
    """A frame for data within these limits, with room on the right for the names of the lines."""
    right = max((LETTER * len(label) + 16 for label in labels), default=RIGHT)
    across = Scale(*x, LEFT, WIDTH - max(right, RIGHT), log_x)
    return Frame(across, Scale(*y, HEIGHT - BOTTOM, TOP, log_y))
