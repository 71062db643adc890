"""Which rows, phases and names a plot has room for: a table can hold fifty methods, a plot about eight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from bdr.report.groups import Group
from bdr.report.pairing import built_on
from bdr.report.plots.marks import MOST

Thing = TypeVar("Thing")
LONGEST_NAME = 14


def shown_groups(groups: Sequence[Group], most: int = MOST) -> list[Group]:
    """All groups if they fit, in their order; else the best of those without settings of their own.

    Each comes with the groups that it is built on, since a gain is seen only beside these. A group is left out if there
    is no room for them.
    """
    if len(groups) <= most:
        return list(groups)
    plain = [group for group in groups if not has_own_settings(group)]
    chosen = plain if len(plain) > 1 else list(groups)
    kept: set[str] = set()  # labels, which are unique under a protocol
    for group in sorted(chosen, key=average_of, reverse=True):
        together = kept | {each.label for each in with_bases(group, chosen)}
        kept = together if len(together) <= most else kept
    return [group for group in groups if group.label in kept]


def with_bases(group: Group, groups: list[Group]) -> list[Group]:
    """The group, what it is built on, what that is built on, and so on."""
    base = built_on(group, groups)
    return [group] if base is None else [group, *with_bases(base, groups)]


def has_own_settings(group: Group) -> bool:
    """Whether its label names settings, which it does if another row of the same method has others."""
    return any("=" in word for word in group.label.split()[1:])


def average_of(group: Group) -> float:
    return float(np.mean([each["average"] for each in group.summaries]))


def short_names(groups: Sequence[Group]) -> list[str]:
    """Short names for the ends of lines: without a method that all share, and with settings without their owner."""
    methods = {group.label.split()[0].split("+")[0] for group in groups}
    shared = len(methods) == 1 and len(groups) > 1
    told = [_settings(group.label) for group in groups]
    return [
        _short(group.label, shared, "" if told.count(mine) > 1 else mine)
        for group, mine in zip(groups, told, strict=True)
    ]


def _settings(label: str) -> str:
    return " ".join(_without_owner(each) for each in label.split()[1:] if "=" in each)


def _short(label: str, shared: bool, settings: str) -> str:
    """The settings alone if they are given, since no other row has them; else the title and what follows it."""
    title, *rest = label.split()
    further = [_without_owner(each) if "=" in each else each for each in rest]
    name = settings or " ".join([title[title.find("+") :] if shared and "+" in title else title, *further])
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"


def _without_owner(setting: str) -> str:
    key, _, value = setting.partition("=")
    return f"{key.rpartition('.')[2]}={value}"


def later_phases(groups: Sequence[Group]) -> list[int]:
    """The incremental phases that any run has finished."""
    return sorted({line["phase"] for group in groups for run in group.runs for line in run.phases if line["phase"] > 0})


def evenly(phases: Sequence[Thing], most: int) -> list[Thing]:
    """All of them, or at most `most` evenly spaced ones with the first and the last."""
    if not phases:
        return []
    places = np.unique(np.linspace(0, len(phases) - 1, min(most, len(phases))).round().astype(int))
    return [phases[place] for place in places]


def common(series: Sequence[Sequence[float] | np.ndarray]) -> np.ndarray:
    """The series as one array (seeds, points), cut to the length of the shortest."""
    length = min((len(each) for each in series), default=0)
    return np.array([np.asarray(each[:length], float) for each in series]).reshape(len(series), length)


def mean_and_spread(curves: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(points,) mean and sample standard deviation over seeds, where there are values; NaN elsewhere."""
    there = np.isfinite(curves)
    counts = there.sum(axis=0)
    nothing = np.full(curves.shape[1], np.nan)
    mean = np.divide(np.where(there, curves, 0).sum(axis=0), counts, out=nothing.copy(), where=counts > 0)
    squares = np.where(there, (curves - mean) ** 2, 0).sum(axis=0)
    return mean, np.sqrt(np.divide(squares, counts - 1, out=nothing, where=counts > 1))
