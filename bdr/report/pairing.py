"""Which row each row of a comparison is compared with, and how: over the seeds that both have."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from bdr.errors import unknown
from bdr.metrics import SCALARS, OverSeeds, paired
from bdr.report.defaults import has_part_of, settings_in_full
from bdr.report.groups import MOST_NAMED, Group, by_protocol
from bdr.report.training import STAGE, method_of, training_apart


def references_of(groups: list[Group], wanted: str | None) -> list[Group | None]:
    """For each group, the row it is built on, or itself; with `wanted`, that row of the same protocol, or None."""
    sharing = {each[0].protocol: each for each in by_protocol(groups)}
    if wanted is None:
        return [built_on(group, sharing[group.protocol]) or group for group in groups]
    found = {protocol: named(wanted, each) for protocol, each in sharing.items()}
    if not any(found.values()):
        raise unknown("row", wanted, {group.label for group in groups})
    return [found[group.protocol] for group in groups]


def built_on(group: Group, groups: list[Group]) -> Group | None:
    """The row of the method that lacks as few of the last plug-ins as possible and differs in nothing else, or None.

    The difference to any other row would be due to settings or training, not to a plug-in.
    """
    return next((other for other in with_fewer_plugins(group, groups) if not apart(group, other)), None)


def with_fewer_plugins(group: Group, groups: list[Group]) -> list[Group]:
    """Rows of the same method with only its first plug-ins or none; those with the most plug-ins come first."""
    method, *plugins = group.runs[0].title.split("+")
    titles = ["+".join([method, *plugins[:kept]]) for kept in reversed(range(len(plugins)))]
    return [other for title in titles for other in groups if other.runs[0].title == title]


def apart(group: Group, other: Group) -> list[str]:
    """The settings in which two rows differ: those of parts that both have, and those of their training."""
    one, two = group.told_best, other.told_best
    mine, theirs = settings_in_full([one, two])
    shared = [name for name in {**mine, **theirs} if has_part_of(one, name) and has_part_of(two, name)]
    different = [name for name in shared if not name.startswith(STAGE) and mine.get(name) != theirs.get(name)]
    return [*sorted(different), *training_apart(one, two)]


def all_alike(groups: Sequence[Group]) -> bool:
    """Whether rows of the same method differ in nothing but their plug-ins."""
    pairs = itertools.combinations(groups, 2)
    return not any(apart(one, two) for one, two in pairs if method_of(one.runs[0]) == method_of(two.runs[0]))


def unpaired_notes(groups: list[Group], references: Sequence[Group | None]) -> list[str]:
    """Notes on rows that have no gain although rows with fewer plug-ins exist, and on how these differ."""
    sharing = {each[0].protocol: each for each in by_protocol(groups)}
    alone = [group for group, base in zip(groups, references, strict=True) if base is group]
    nearest = [(group, found) for group in alone if (found := nearest_to(group, sharing[group.protocol]))]
    if len(nearest) < MOST_NAMED:
        return [
            f"{group.label} has no gain: {other.label} differs from it in {', '.join(apart(group, other))}."
            for group, other in nearest
        ]
    names = dict.fromkeys(name for group, other in nearest for name in apart(group, other))
    return [f"{len(nearest)} rows have no gain: those without their plug-ins differ in {', '.join(names)}."]


def together_notes(groups: list[Group], references: Sequence[Group | None]) -> list[str]:
    """Notes on gains of several plug-ins at once: no row lacks only the last one and has the same settings."""
    told = [
        (f"The gain of {group.label} is over {base.label}", added)
        for group, base in zip(groups, references, strict=True)
        if base and len(added := group.runs[0].title.split("+")[len(base.runs[0].title.split("+")) :]) > 1
    ]
    if len(told) < MOST_NAMED:
        return [f"{start}, that of {' and '.join(added)} together." for start, added in told]
    return [f"In {len(told)} rows the gain is that of several plug-ins together."]


def nearest_to(group: Group, groups: list[Group]) -> Group | None:
    """Of the rows with fewer plug-ins, the one that differs in the fewest settings; None if there is no such row."""
    return min(with_fewer_plugins(group, groups), key=lambda other: len(apart(group, other)), default=None)


def named(wanted: str, groups: list[Group]) -> Group | None:
    """The group with this label, with or without the readout, else the only one with this title; None if neither."""
    of_method = [group for group in groups if group.runs[0].title == wanted]
    exact = [group for group in groups if wanted in (group.label, group.name)]
    return next(iter(exact or (of_method if len(of_method) == 1 else [])), None)


def paired_differences(group: Group, base: Group) -> dict[str, OverSeeds]:
    """For each number, the mean difference to the base over common seeds, with its standard error as the spread."""
    return {key: paired([(a[key], b[key]) for a, b in common_seeds(group, base)]) for key in SCALARS}


def common_seeds(group: Group, base: Group) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The summaries of both groups, as one pair for each seed that both have."""
    ours, theirs = group.by_seed(), base.by_seed()
    return [(ours[seed], theirs[seed]) for seed in ours if seed in theirs]
