"""What a row of a comparison is held against, and how: over the seeds that both have."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from bdr.errors import unknown
from bdr.metrics import SCALARS, OverSeeds, spread
from bdr.report.defaults import settings_in_full
from bdr.report.groups import Group, by_protocol
from bdr.report.training import method_of, trained_alike


def references_of(groups: list[Group], wanted: str | None) -> list[Group | None]:
    """For each group what it is built on, or the wanted one, under its protocol: another's gain is no method's."""
    sharing = {each[0].protocol: each for each in by_protocol(groups)}
    if wanted is None:
        return [built_on(group, sharing[group.protocol]) for group in groups]
    found = {protocol: named(wanted, each) for protocol, each in sharing.items()}
    if not any(found.values()):
        raise unknown("row", wanted, {group.label for group in groups})
    return [found[group.protocol] for group in groups]


def built_on(group: Group, groups: list[Group]) -> Group | None:
    """The method with fewer of its plug-ins, the last one left out first; else the first row with no more of them.

    Rows of another training are passed over: a difference to them is no plug-in's.
    """
    method, *plugins = group.runs[0].title.split("+")
    alike = [other for other in groups if trained_alike(group.runs[0], other.runs[0])]
    for kept in reversed(range(len(plugins))):
        title = "+".join([method, *plugins[:kept]])
        if fewer := [other for other in alike if other.runs[0].title == title]:
            left_out = plugins[kept:]
            return min(fewer, key=lambda other: (apart(group, other, left_out), len(other.label)))
    of_method = [other for other in alike if method_of(other.runs[0]) == method]
    return next(other for other in of_method if other.runs[0].title.count("+") <= len(plugins))


def apart(group: Group, other: Group, left_out: Sequence[str]) -> int:
    """In how many settings two groups differ, those of plug-ins that only one of them has aside."""
    mine, theirs = settings_in_full([group.told_best, other.told_best])
    names = [name for name in {**mine, **theirs} if name.partition(".")[0] not in left_out]
    return sum(mine.get(name) != theirs.get(name) for name in names)


def named(wanted: str, groups: list[Group]) -> Group | None:
    """The group of this label; else the only one of this method."""
    of_method = [group for group in groups if group.runs[0].title == wanted]
    exact = [group for group in groups if group.label == wanted]
    return next(iter(exact or (of_method if len(of_method) == 1 else [])), None)


def paired_differences(group: Group, base: Group) -> dict[str, OverSeeds]:
    """Mean difference to the base over the seeds that both have, with its standard error in place of the spread."""
    return {key: _paired([(a[key], b[key]) for a, b in common_seeds(group, base)]) for key in SCALARS}


def common_seeds(group: Group, base: Group) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The summaries of both, a pair for every seed that both have."""
    ours, theirs = group.by_seed(), base.by_seed()
    return [(ours[seed], theirs[seed]) for seed in ours if seed in theirs]


def _paired(pairs: Sequence[tuple[float | None, float | None]]) -> OverSeeds:
    found = spread([a - b for a, b in pairs if a is not None and b is not None])
    error = None if found.spread is None else found.spread / math.sqrt(found.n)
    return OverSeeds(found.mean, error, found.n)
