"""Pairs of a method without and with BDR: which runs form a pair, and what it is called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from bdr.errors import UsageError, shortened
from bdr.records import Run
from bdr.report.groups import MOST_NAMED, Group, by_protocol, group_runs, of_common_seeds
from bdr.report.labels import settings_told
from bdr.report.pairing import apart
from bdr.report.paper_figures.drawing import Printed
from bdr.report.paper_figures.retyping import MODULE, keeps_exemplars, retyped
from bdr.report.paper_figures.style import BALANCED, WITHOUT
from bdr.report.protocols import PROPER_NAMES, settings_of

FACTS = {"data": "{}", "base": "B = {}", "step": "S = {}", "memory": "R = {}", "net": "{}"}  # in titles of panels


@dataclass(frozen=True)
class Side:
    """One side of a pair, as it is drawn."""

    group: Group
    label: str
    colour: str
    marker: str
    dashes: Any  # a line style as matplotlib takes it


@dataclass(frozen=True)
class Pair:
    """A method without and with BDR, under one protocol and with the same settings otherwise."""

    method: str  # the title without BDR
    without: Group
    balanced: Group

    @property
    def run(self) -> Run:
        return self.without.runs[0]

    @property
    def runs(self) -> list[Run]:
        return [*self.without.runs, *self.balanced.runs]

    def sides(self) -> tuple[Side, Side]:
        return (
            Side(self.without, "without BDR", WITHOUT, "o", (0, (4, 1.2))),
            Side(self.balanced, "with BDR", BALANCED, "s", "-"),
        )


def is_balanced(run: Run) -> bool:
    return MODULE in run.title.split("+")


def method_of(run: Run) -> str:
    """The title without BDR."""
    return "+".join(part for part in run.title.split("+") if part != MODULE)


def name_of(run: Run, printed: Printed) -> str:
    """The method as the paper calls it (`CwD`), else as it was typed, with `+ BDR` if it has BDR."""
    method = method_of(run)
    return printed.names.get(method, method) + (" + BDR" if is_balanced(run) else "")


def own_settings(group: Group) -> list[str]:
    """The settings of BDR that a group was given; a group with none has BDR as it is."""
    given = settings_of(group.runs[0]).items()
    return [f"{name} = {value}" for name, value in given if name.startswith(f"{MODULE}.")]


def pairs_of(runs: list[Run], figure: str) -> tuple[list[Pair], list[str]]:
    """All pairs, and notes on the groups that are in none of them and on the seeds that only one side has."""
    groups = group_runs(runs)
    found = [pair for group in groups if (pair := _pair(group, groups)) is not None]
    if not found:
        raise _no_pair(groups, figure)
    used = {id(group) for pair in found for group in (pair.without, pair.balanced)}
    notes = [*changed(found), *left_out([group for group in groups if id(group) not in used], found)]
    paired = [of_same_seeds(pair) for pair in found]
    return [pair for pair, _ in paired], [*notes, *(note for _, told in paired for note in told)]


def _pair(group: Group, groups: list[Group]) -> Pair | None:
    """A group without BDR paired with one that differs in BDR alone, as for a gain in a table; None if none does."""
    alike = [other for other in other_halves(group, groups) if not apart(group, other)]
    if is_balanced(group.runs[0]) or not alike:
        return None
    return Pair(method_of(group.runs[0]), group, min(alike, key=lambda other: len(own_settings(other))))


def of_same_seeds(pair: Pair) -> tuple[Pair, list[str]]:
    """The pair cut to the seeds that both sides have, as for a gain in a table, and a note if their seeds differ."""
    (without, balanced), further = of_common_seeds([pair.without, pair.balanced])
    names = f"{without.label} and {balanced.label} ({without.protocol})"
    alone = f"Left out, since not both of {names} have the seed: {further} run{'' if further == 1 else 's'}."
    told = [alone] if further else []
    if not without.by_seed().keys() & balanced.by_seed().keys():
        told = [f"No seed is common to {names}."]
    return replace(pair, without=without, balanced=balanced), told


def other_halves(group: Group, groups: list[Group]) -> list[Group]:
    """The groups of the same method and protocol that have BDR if this one does not, or lack it if it has it."""
    run = group.runs[0]
    across = [other for other in groups if is_balanced(other.runs[0]) != is_balanced(run)]
    return [each for each in across if (each.protocol, method_of(each.runs[0])) == (group.protocol, method_of(run))]


def changed(pairs: list[Pair]) -> list[str]:
    """A note on the pairs whose BDR is not as it is, with its settings; titles and legends do not tell them."""
    found = [(pair, own) for pair in pairs if (own := own_settings(pair.balanced))]
    told = [f"{pair.method} with {', '.join(own)} ({pair.without.protocol})" for pair, own in found]
    return [f"Shown is BDR with settings of its own: {'; '.join(told)}."] if told else []


def left_out(groups: list[Group], pairs: list[Pair]) -> list[str]:
    """Notes on variants of BDR, by what was drawn in their place, and on methods that have no other half."""
    drawn = {(pair.without.protocol, pair.method): own_settings(pair.balanced) for pair in pairs}
    reasons: dict[str, list[str]] = {}
    for group in groups:
        own = drawn.get((group.protocol, method_of(group.runs[0])))
        if own is None or not own_settings(group):
            reason, name = "there is nothing to pair them with", f"{group.label} ({group.protocol})"
        else:
            reason, name = "one setting of BDR is drawn" if own else "BDR as it is was there too", group.label
        reasons.setdefault(reason, []).append(name)
    return [f"Left out, since {reason}: {', '.join(names)}." for reason, names in sorted(reasons.items())]


def _no_pair(groups: list[Group], figure: str) -> UsageError:
    said = f"figure {figure} sets a method beside itself with BDR, and"
    able = [group for group in groups if can_be_paired(group.runs[0])]
    if not able:
        why = "BDR is for runs that keep some exemplars and extend no other run; make two with"
        return UsageError(f"{said} {all_there_is(groups)}: {why}: bdr compare ucir+cwd --with none,bdr")
    group = next((each for each in able if other_halves(each, groups)), able[0])
    there = group.runs[0]
    if halves := other_halves(group, groups):
        near = min(halves, key=lambda other: len(apart(group, other)))
        why = f"{near.label} differs from {group.label} in {', '.join(apart(group, near))} ({group.protocol})"
        advice = "make its own other half"
    else:
        why, advice = all_there_is(groups), "name the other's run too, or make it"
    missing = method_of(there) if is_balanced(there) else f"{there.title}+{MODULE}"
    return UsageError(f"{said} {why}: {advice} with: {retyped(there, missing)}")


def can_be_paired(run: Run) -> bool:
    """Whether a run can have an other half: BDR needs exemplars, and an extended run belongs to the run it extends."""
    return keeps_exemplars(run) and "extends" not in run.info


def all_there_is(groups: list[Group]) -> str:
    """All groups in a few words: `there is only ucir, wa (digits B4 S2, 3/class); lwf (digits B4 S2, 0)`"""
    labels = {each[0].protocol: [group.label for group in each] for each in by_protocol(groups)}
    told = [f"{shortened(mine, MOST_NAMED)} ({protocol})" for protocol, mine in labels.items()]
    return f"there is only {'; '.join(told)}"


def panel_titles(runs: Sequence[Run], printed: Printed, untold: Sequence[str] = ()) -> list[str]:
    """Titles such as `CwD, S = 10`, one for each run, with every further fact that tells them apart."""
    values = {fact: {str(run.protocol.get(fact)) for run in runs} for fact in FACTS if fact not in untold}
    told = [fact for fact, each in values.items() if fact == "step" or len(each) > 1]
    titles = [", ".join([plain_name(run, printed), *facts_of(run, told)]) for run in runs]
    alike = [[other for other, its in zip(runs, titles, strict=True) if its == title] for title in titles]
    return [
        ", ".join([title, *settings_apart(run, others)]) for run, title, others in zip(runs, titles, alike, strict=True)
    ]


def settings_apart(run: Run, others: Sequence[Run]) -> list[str]:
    """What tells a run from others of the same title, itself among them: settings, else its fingerprint."""
    told = settings_told(others)
    if [told[other.path] for other in others].count(told[run.path]) > 1:
        return [f"[{run.fingerprint}]"]
    return [f"{name} = {value}" for name, value in told[run.path].items()]


def plain_name(run: Run, printed: Printed) -> str:
    return printed.names.get(method_of(run), method_of(run))


def facts_of(run: Run, facts: Sequence[str]) -> list[str]:
    shown = run.protocol | {"data": PROPER_NAMES.get(str(run.protocol.get("data")), run.protocol.get("data"))}
    shown["memory"] = str(run.protocol.get("memory")).removesuffix("/class")
    return [FACTS[fact].format(shown[fact]) for fact in facts if run.protocol.get(fact) is not None]
