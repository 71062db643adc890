"""What is drawn on the paper: lines, bands, markers, and names at the ends of lines."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bdr.report.html import Html, join, tag
from bdr.report.plots.frame import Frame, units

# Shapes and dashes tell lines apart for those who do not see the colours, and in print
SHAPES = ("circle", "square", "up", "diamond", "down", "cross", "ring", "bar")
DASHES = ("", "7 3", "2 3", "9 3 2 3", "12 4", "4 2", "1 3", "14 3 2 3 2 3")
MOST = len(SHAPES)  # lines in one plot
LEAST_GAP = 15.0  # between the names of two lines
BEYOND = 9.0  # from the end of a line to its name
NEAR = ((0, -13), (36, -3), (-36, -3), (36, 12), (-36, 12), (0, 16))  # where a peak's height may stand, in order
FARTHER = ((-18, -14), (-18, 17), (-36, -18), (-36, 27), (0, -28), (0, 31), (-56, -8), (-56, 17), (-36, -33))
WIDE, HIGH = 38.0, 13.0  # the room that the text of a height takes
REACH = 5.0  # half the size of a marker
OUTLINES = {
    "square": "M-3.6-3.6h7.2v7.2h-7.2z",
    "up": "M0-4.6L4.4 3.4H-4.4z",
    "down": "M0 4.6L4.4-3.4H-4.4z",
    "diamond": "M0-5L4.4 0 0 5-4.4 0z",
    "cross": "M-1.5-4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z",
    "circle": "M-4 0a4 4 0 1 1 8 0a4 4 0 1 1-8 0z",
    "ring": "M-4 0a4 4 0 1 1 8 0a4 4 0 1 1-8 0zM-1.8 0a1.8 1.8 0 1 0 3.6 0a1.8 1.8 0 1 0-3.6 0z",
    "bar": "M-4.6-2h9.2v4h-9.2z",
}


def series(index: int, *shapes: str) -> Html:
    """All shapes that belong to one line, in its colour; the page hides and shows them by the line's index."""
    return tag("g", *shapes, class_=f"s{index % MOST}")


def path(frame: Frame, x: np.ndarray, y: np.ndarray) -> str:
    """Straight lines from point to point, with gaps where there is no value."""
    places = zip(frame.x(x), frame.y(y), np.isfinite(y), strict=True)
    pieces, pen_is_down = [], False
    for across, up, there in places:
        if there:
            pieces.append(f"{'L' if pen_is_down else 'M'}{units(across)} {units(up)}")
        pen_is_down = bool(there)
    return "".join(pieces)


def line(frame: Frame, x: np.ndarray, y: np.ndarray, index: int, kind: str = "line", dash: str | None = None) -> Html:
    dashes = DASHES[index % MOST] if dash is None else dash
    return tag("path", d=path(frame, x, y), class_=kind, **({"stroke_dasharray": dashes} if dashes else {}))


def band(frame: Frame, x: np.ndarray, low: np.ndarray, high: np.ndarray) -> Html:
    """The filled area between two lines, where both have values."""
    there = np.isfinite(low) & np.isfinite(high)
    if not there.any():
        return Html("")
    edges = frame.y.low, frame.y.high
    x, low, high = x[there], np.clip(low[there], *edges), np.clip(high[there], *edges)
    around = path(frame, np.concatenate([x, x[::-1]]), np.concatenate([high, low[::-1]]))
    return tag("path", d=f"{around}z", class_="band")


def marker(frame: Frame, x: float, y: float, index: int, said: str = "") -> Html:
    """A group's marker at a place; `said` is shown under the pointer."""
    if not np.isfinite(y):
        return Html("")
    where = f"translate({units(float(frame.x(x)))} {units(float(frame.y(y)))})"
    told = [tag("title", said)] if said else []
    return tag("path", *told, d=OUTLINES[SHAPES[index % MOST]], transform=where, class_="dot")


def spread_out(places: Sequence[float], low: float, high: float, gap: float = LEAST_GAP) -> list[float]:
    """The places, moved just enough to be `gap` apart, and kept between `low` and `high` if there is room."""
    order = np.argsort(places, kind="stable")
    moved = np.array(places, float)[order]
    for _ in range(100):
        close = np.maximum(gap - np.diff(moved), 0)
        if not close.any():
            break
        moved[:-1] -= close / 2
        moved[1:] += close / 2
        moved += max(0.0, low - moved[0]) - max(0.0, moved[-1] - high)
    back = np.empty_like(moved)
    back[order] = moved
    return back.tolist()


def apart(frame: Frame, ends: Sequence[tuple[int, float, str]]) -> list[tuple[int, float, str]]:
    """Where the names of lines stand, moved apart: (index, y, name) of those whose end has a value."""
    there = [each for each in ends if np.isfinite(each[1])]
    moved = spread_out([float(frame.y(value)) for _, value, _ in there], frame.y.end, frame.y.start)
    return [(index, y, name) for (index, _, name), y in zip(there, moved, strict=True)]


def names(frame: Frame, ends: Sequence[tuple[int, float, str]]) -> Html:
    """The names at the right ends of the lines; `ends` are (index, value, name)."""
    x = units(frame.x.end + BEYOND)
    told = apart(frame, ends)
    return join(*(series(index, tag("text", name, x=x, y=units(y + 4), class_="name")) for index, y, name in told))


def heights(
    frame: Frame, tops: Sequence[tuple[int, float, float, str]], ends: Sequence[tuple[int, float, str]] = ()
) -> Html:
    """The height of each peak, where neither another text nor a marker stands, else above it.

    `tops` are (index, x, y, text), and `ends` what `names` was given.
    """
    markers = [(float(frame.x(x)), float(frame.y(y))) for _, x, y, _ in tops]
    named = [y for _, y, _ in apart(frame, ends)]
    texts: list[tuple[float, float]] = []
    shapes = []
    for index, x, y, text in sorted(tops, key=lambda each: -each[2]):
        across, up = float(frame.x(x)), float(frame.y(y))
        spots = [(across + dx, up + dy) for dx, dy in NEAR + FARTHER]
        inside = [spot for spot in spots if not _on_a_name(spot, frame.x.end, named)] or spots
        place = next((spot for spot in inside if _free(spot, texts, markers)), inside[0])
        texts.append(place)
        shapes.append(series(index, tag("text", text, x=units(place[0]), y=units(place[1] + 4), class_="peak mid")))
    return join(*shapes)


def _on_a_name(spot: tuple[float, float], end: float, named: Sequence[float]) -> bool:
    return spot[0] + WIDE / 2 > end + BEYOND and any(abs(spot[1] - y) < HIGH for y in named)


def _free(
    spot: tuple[float, float], texts: Sequence[tuple[float, float]], markers: Sequence[tuple[float, float]]
) -> bool:
    clear = all(abs(spot[0] - x) > WIDE / 2 + REACH or abs(spot[1] - y) > HIGH / 2 + REACH for x, y in markers)
    return clear and all(abs(spot[0] - x) > WIDE or abs(spot[1] - y) > HIGH for x, y in texts)
