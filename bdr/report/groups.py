"""Which runs belong together: the same method under the same protocol, over seeds and class orders."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from bdr.metrics import summary
from bdr.records import Run, differences
from bdr.records.code import OWN, trained_last
from bdr.report.defaults import settings_in_full
from bdr.report.labels import labelled, readouts_named
from bdr.report.protocols import (
    IN_A_WORD,
    TRAINING,
    one_text,
    protocol_key,
    protocol_titles,
    telling_facts,
)
from bdr.report.training import method_of, training_apart

Thing = TypeVar("Thing")
MOST_NAMED = 5  # a note that would name this many methods gives their number instead


@dataclass(frozen=True)
class Group:
    """Runs of one method, one per seed, under the name that they have in tables and plots of their protocol."""

    label: str
    runs: list[Run]
    summaries: list[dict[str, Any]]
    protocol: str = ""  # its short title, the same for all groups under it
    readout: str | None = None  # the one that was asked for; None stands for each run's own
    repeated: dict[Path, Run] = field(default_factory=dict)  # by the path of an earlier run, the one that replaced it

    @property
    def told_best(self) -> Run:
        """The run that records most of what all were made with: the first that has its settings written out."""
        return next((run for run in self.runs if run.info.get("settings")), self.runs[0])

    @property
    def told_readout(self) -> str:
        """The readout that the group's numbers are from."""
        return self.readout or self.runs[0].told_readout()

    @property
    def name(self) -> str:
        """The label without its readout, which labels name in some tables (see `readouts_named`)."""
        return self.label.replace(f" ({self.told_readout})", "", 1)

    def by_seed(self) -> dict[Hashable, dict[str, Any]]:
        """Summaries by seed and class order, in which two runs of different methods must agree to be a pair."""
        return {seed_and_order(run): each for run, each in zip(self.runs, self.summaries, strict=True)}

    def of_seeds(self, seeds: Collection[Hashable]) -> Group:
        """The group with only its runs of these seeds."""
        places = [place for place, seed in enumerate(self.by_seed()) if seed in seeds]
        runs, summaries = [self.runs[place] for place in places], [self.summaries[place] for place in places]
        return replace(self, runs=runs, summaries=summaries)

    def per_phase(self, key: str) -> list[list[float]]:
        """For each run, a value per phase of a key of phases.jsonl, such as accuracy_old; NaN where there is none."""
        return [[_value(line, key, self.readout or run.told_readout()) for line in run.phases] for run in self.runs]


def _value(line: dict[str, Any], key: str, readout: str) -> float:
    value = (line.get(key) or {}).get(readout)
    return float("nan") if value is None else float(value)


def seed_and_order(run: Run) -> Hashable:
    return run.seed, str(run.protocol.get("order"))


def _partition(things: list[Thing], key: Callable[[Thing], Hashable]) -> list[list[Thing]]:
    parts: dict[Hashable, list[Thing]] = {}
    for thing in things:
        parts.setdefault(key(thing), []).append(thing)
    return list(parts.values())


def _alike(runs: list[Run]) -> list[list[Run]]:
    """Split runs of one title and protocol into lists that differ in nothing but seed and class order."""
    parts = []
    made_with = {run.path: one_text(mine) for run, mine in zip(runs, settings_in_full(runs), strict=True)}
    for same in _partition(runs, lambda run: made_with[run.path]):
        # Two class orders of the user's own may have the same name, so the orders themselves are compared. Fingerprints
        # would separate too much: they cover all fields, and stages may have gained one between two seeds of a table.
        parts += [same] if differences(same) else _partition(same, lambda run: str(run.info.get("order")))
    return parts


def _one_a_seed(runs: list[Run]) -> list[Run]:
    """One run per seed and class order: of repeated runs, the one made last."""
    ordered = sorted(runs, key=lambda run: str(run.info.get("created") or ""))
    return list({seed_and_order(run): run for run in ordered}.values())


def of_common_seeds(groups: Sequence[Group]) -> tuple[list[Group], int]:
    """The groups cut to the seeds that all of them have, and how many runs were left out; unchanged if none is common.

    Groups that are compared over different seeds may differ because of these alone.
    """
    seeds = [set(group.by_seed()) for group in groups]
    common = set.intersection(*seeds)
    if not common:
        return list(groups), 0
    return [group.of_seeds(common) for group in groups], sum(map(len, seeds)) - len(groups) * len(common)


def group_runs(runs: list[Run], readout: str | None = None) -> list[Group]:
    """Groups in order of first appearance, those of a protocol together; of finished runs only, if there are any."""
    finished = [run for run in runs if run.done] or runs
    sharing = _partition(finished, protocol_key)
    titles = protocol_titles([comparable[0] for comparable in sharing])
    pairs = zip(titles, sharing, strict=True)
    return [group for title, comparable in pairs for group in _under_one_protocol(title, comparable, readout)]


def _under_one_protocol(protocol: str, comparable: list[Run], readout: str | None) -> list[Group]:
    with_readout = readouts_named(comparable, readout)
    return [
        _group(label, alike, protocol, readout)
        for same_title in _partition(comparable, lambda run: run.title)
        for label, alike in labelled(_alike(same_title), with_readout, _of_method(same_title[0], comparable))
    ]


def _of_method(run: Run, comparable: list[Run]) -> list[Run]:
    return [other for other in comparable if method_of(other) == method_of(run)]


def _group(label: str, runs: list[Run], protocol: str, readout: str | None) -> Group:
    chosen = sorted(_one_a_seed(runs), key=lambda run: run.seed)
    summaries = [summary(run, readout or run.told_readout()) for run in chosen]
    counted = {seed_and_order(run): run for run in chosen}
    repeated = {run.path: counted[seed_and_order(run)] for run in runs if run not in chosen}
    return Group(label, chosen, summaries, protocol, readout, repeated)


def by_protocol(groups: list[Group]) -> list[list[Group]]:
    """The groups of each protocol; only groups of the same protocol are compared."""
    return _partition(groups, lambda group: group.protocol)


def protocol_notes(groups: list[Group], runs: list[Run]) -> list[str]:
    """What a reader must know before comparing: protocols that differ, runs left out, too few seeds."""
    used = {run.path for group in groups for run in group.runs}
    instead = {path: run for group in groups for path, run in group.repeated.items()}
    return [
        *_code_notes(groups),
        _protocol_note(groups),
        *_training_note(groups),
        *_mixed_training_note(groups),
        *(_left_out(run, instead.get(run.path)) for run in runs if run.path not in used),
        *(_unfinished(run) for group in groups for run in group.runs if not run.done),
        *_seeds_note(groups),
    ]


def _code_notes(groups: list[Group]) -> list[str]:
    """Notes on the user's own modules that changed between runs: then one name stands for different methods."""
    seeds: dict[str, dict[str, dict[str, list[int]]]] = {}  # by module, version and row
    for group in groups:
        for run in group.runs:
            for module, version in (trained_last(run.info, OWN) or {}).items():
                seeds.setdefault(module, {}).setdefault(version, {}).setdefault(group.label, []).append(run.seed)
    return [
        f"{module} was changed between these runs, so that gains and spreads are of several codes: "
        + "; ".join(f"{version[:6]} trained {_seeds_of(rows)}" for version, rows in versions.items())
        + ". Train all with one version, in a folder of their own."
        for module, versions in seeds.items()
        if len(versions) > 1
    ]


def _seeds_of(rows: dict[str, list[int]]) -> str:
    """Labels of rows with their seeds: `mm:M (seeds 1, 2)`"""
    told = {label: ", ".join(map(str, seeds)) for label, seeds in rows.items()}
    return ", ".join(f"{label} (seed{'s' if ',' in seeds else ''} {seeds})" for label, seeds in told.items())


def _protocol_note(groups: list[Group]) -> str:
    sharing = by_protocol(groups)
    orders = "The class orders are not the same for all methods: gains are over common ones only."
    if len(sharing) > 1:
        different = telling_facts([group.runs[0] for group in groups])
        named = ", ".join(IN_A_WORD.get(fact, fact.replace("_", " ")) for fact in different)
        told = f"Each table has a protocol of its own; they differ in {named}."
        return f"{told} {orders}" if any(map(_orders_differ, sharing)) else told
    if _orders_differ(groups):
        return orders
    aside = "" if _trained_alike(groups) else ", training aside"
    return f"All methods share one protocol{aside}." if len(groups) > 1 else "One method under one protocol."


def _training_note(groups: list[Group]) -> list[str]:
    """A note for readers who compare methods of one table that were not trained alike."""
    several = [each for each in by_protocol(groups) if len({method_of(group.runs[0]) for group in each}) > 1]
    own = [differences([group.runs[0] for group in comparable]) for comparable in several]
    different = [words for fact, words in TRAINING.items() if any(fact in each for each in own)]
    return [f"Their training is their own: they differ in {', '.join(different)}."] if different else []


def _mixed_training_note(groups: list[Group]) -> list[str]:
    of_methods = [part for each in by_protocol(groups) for part in _partition(each, lambda g: method_of(g.runs[0]))]
    mixed = dict.fromkeys(method_of(part[0].runs[0]) for part in of_methods if not _trained_alike(part))
    return [f"Rows of {', '.join(mixed)} differ in their training."] if mixed else []


def _trained_alike(groups: list[Group]) -> bool:
    return not any(training_apart(groups[0].runs[0], group.runs[0]) for group in groups)


def _orders_differ(groups: list[Group]) -> bool:
    return len({frozenset(str(run.protocol.get("order")) for run in group.runs) for group in groups}) > 1


def _seeds_note(groups: list[Group]) -> list[str]:
    single = [group.label for group in groups if len(group.runs) == 1]
    if not single:
        return []
    if len(groups) == 1 or (len(single) < min(len(groups), MOST_NAMED) and len(by_protocol(groups)) == 1):
        return [f"One seed only, so without a spread: {', '.join(single)}."]
    where = "all methods" if len(single) == len(groups) else f"{len(single)} of {len(groups)} methods"
    return [f"One seed only, so without a spread: {where}."]


def _progress(run: Run) -> str:
    return f"{len(run.phases)} of {len(run.info['phases'])} phases"


def _left_out(run: Run, instead: Run | None) -> str:
    """A note on a run that was left out, with its path: runs in different folders often have the same name."""
    again = f"the same seed was run again later, in {instead.path}, which is counted" if instead else None
    return f"Left out: {run.path} of {run.title}, {again or f'not finished ({_progress(run)})'}."


def _unfinished(run: Run) -> str:
    return f"Not finished: {run.path} of {run.title} ({_progress(run)}); its numbers are of these phases only."
