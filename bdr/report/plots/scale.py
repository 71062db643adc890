"""From data to places on paper: scales, their ticks, and long series cut down to what the eye can see."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

ROUND = (1.0, 2.0, 2.5, 5.0, 10.0)

Span = tuple[float, float]
EVERYWHERE = (-math.inf, math.inf)
PERCENT = (0.0, 100.0)


@dataclass(frozen=True)
class Scale:
    """Data from `low` to `high` lie between `start` and `end` on paper, evenly or by their logarithms."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, values: float | np.ndarray) -> np.ndarray:
        low, high, there = (self._even(np.asarray(value, float)) for value in (self.low, self.high, values))
        return self.start + (there - low) / (high - low) * (self.end - self.start)

    def _even(self, values: np.ndarray) -> np.ndarray:
        return np.log10(np.maximum(values, 1e-12)) if self.log else values

    def ticks(self, about: int = 5) -> list[float]:
        """Round numbers between low and high."""
        if self.log:
            return self._powers(about)
        step = round_step((self.high - self.low) / about)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [round(place * step, 10) for place in range(first, last + 1)]

    def _powers(self, about: int) -> list[float]:
        """Powers of ten, with 2 and 5 times each of them if the powers alone are too few to read the axis by."""
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        marks = [each * 10.0**power for power in powers for each in (1, 2, 5)]
        inside = [place for place, mark in enumerate(marks) if self.low * 0.999 <= mark <= self.high * 1.001]
        whole = [place for place in inside if place % 3 == 0]
        return [marks[place] for place in (whole if len(whole) > about // 2 else inside)]


def round_step(least: float) -> float:
    """The smallest of 1, 2, 2.5, 5 times a power of ten that is at least `least`."""
    power = 10.0 ** math.floor(math.log10(least)) if least > 0 else 1.0
    return next(each * power for each in ROUND if each * power >= least * (1 - 1e-9)) if least > 0 else 1.0


def limits(
    values: Iterable[np.ndarray], least: float | None = None, pad: float = 0.06, within: Span = EVERYWHERE
) -> Span:
    """Lowest and highest finite value with some air around; data that lie above `least` are shown from `least` on.

    The air does not reach beyond `within`, the span of possible values.
    """
    finite = np.concatenate([np.ravel(each)[np.isfinite(np.ravel(each))] for each in values] or [np.zeros(0)])
    if not len(finite):
        return 0.0, 1.0
    low, high = float(finite.min()), float(finite.max())
    air = pad * (high - low) or max(abs(high) * 0.1, 0.5)
    below = low - air if least is None else min(least, low - air if low < least else least)
    return max(below, min(low, within[0])), min(high + air, max(high, within[1]))


def thinned(values: np.ndarray, most: int, log: bool = False) -> np.ndarray:
    """The places of at most `most` points to draw: the first, the last, and the lowest and highest of each stretch."""
    count = len(values)
    if count <= most:
        return np.arange(count)
    stretches = max(1, (most - 2) // 2)
    edges = np.geomspace(1, count, stretches + 1) - 1 if log else np.linspace(0, count, stretches + 1)
    bounds = np.unique(np.append(edges.round().astype(int), count))
    kept = {0, count - 1}
    for start, end in pairwise(bounds):
        kept |= _extremes(values[start:end], int(start))
    return np.array(sorted(kept))


def _extremes(part: np.ndarray, start: int) -> set[int]:
    if not np.isfinite(part).any():
        return {start}
    low, high = (np.where(np.isnan(part), other, part) for other in (np.inf, -np.inf))
    return {start + int(low.argmin()), start + int(high.argmax())}


def briefly(value: float) -> str:
    """A number on an axis, with a proper minus; thousands are written as `2k`, since there is little room."""
    text = f"{value / 1000:g}k" if abs(value) >= 1000 else f"{value:g}"
    return text.replace("-", "−")  # noqa: RUF001
