"""Student's t, from `math` alone: how likely a paired difference this large is if there is no real one."""

from __future__ import annotations

import math

from bdr.metrics import OverSeeds

FEWEST = 3  # pairs: two give a t of one degree of freedom, which says next to nothing
LEAST_ERROR = 1e-9  # points: below it, the differences are equal up to rounding
MOST_TERMS = 10_000
TINY = 1e-300  # stands for zero where a continued fraction would divide by it


def paired_p(difference: OverSeeds) -> float | None:
    """Two-sided p of a mean difference with its standard error; None for too few pairs or equal differences."""
    mean, error, n = difference
    if n < FEWEST or mean is None or error is None or error < LEAST_ERROR:
        return None
    return two_sided_p(mean / error, n - 1)


def two_sided_p(t: float, freedom: int) -> float:
    """P(|T| >= |t|) of Student's distribution."""
    square = t * t
    if square < freedom:  # where p is near 1, its complement loses no digits
        return 1 - incomplete_beta(square / (freedom + square), 0.5, freedom / 2)
    return incomplete_beta(freedom / (freedom + square), freedom / 2, 0.5)


def incomplete_beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function I_x(a, b)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # the fraction converges quickly on the other side only
        return 1 - incomplete_beta(1 - x, b, a)
    scale = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(scale) / (a * _fraction(x, a, b))


def _fraction(x: float, a: float, b: float) -> float:
    """1 + d1/(1 + d2/(1 + ...)) of the incomplete beta function, by Lentz's method."""
    value, above, below = 1.0, 1.0, 0.0
    for term in range(1, MOST_TERMS):
        step = _coefficient(term, x, a, b)
        below = 1 / ((1 + step * below) or TINY)
        above = (1 + step / above) or TINY
        value *= above * below
        if abs(above * below - 1) < 1e-15:
            break
    return value


def _coefficient(term: int, x: float, a: float, b: float) -> float:
    half = term // 2
    if term % 2:
        return -(a + half) * (a + b + half) * x / ((a + 2 * half) * (a + 2 * half + 1))
    return half * (b - half) * x / ((a + 2 * half - 1) * (a + 2 * half))


def told_p(p: float | None) -> str:
    """p as text: `0.034`, `< 0.001`, or nothing."""
    if p is None:
        return ""
    return "< 0.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"
