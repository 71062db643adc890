"""Which runs belong together: the same method under the same protocol, over seeds and class orders."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any

from bdr.metrics import summary
from bdr.records import Run, differences


@dataclass(frozen=True)
class Group:
    """Runs of one method, a seed each, under the name they have in tables and plots."""

    label: str
    runs: list[Run]
    summaries: list[dict[str, Any]]

    def by_seed(self) -> dict[Hashable, dict[str, Any]]:
        """Summaries by what makes two runs of different methods a pair: the seed and the class order."""
        return {seed_and_order(run): each for run, each in zip(self.runs, self.summaries, strict=True)}


def seed_and_order(run: Run) -> Hashable:
    return run.seed, str(run.protocol.get("order"))


def readout_of(run: Run) -> str:
    """The readout that the protocol names, else "cnn", else whatever there is."""
    names = [str(name) for name in run.phases[0]["accuracy"]]
    wanted = (str(run.protocol.get("readout")), "cnn")
    return next((name for name in wanted if name in names), names[0])


def _partition(runs: list[Run], key: Callable[[Run], Hashable]) -> list[list[Run]]:
    parts: dict[Hashable, list[Run]] = {}
    for run in runs:
        parts.setdefault(key(run), []).append(run)
    return list(parts.values())


def _facts(run: Run, names: list[str]) -> str:
    return ", ".join(f"{name} {run.protocol.get(name)}" for name in names)


# facts that follow from others: where the first of a pair differs, the second need not be named
FOLLOWS = {"epochs": "optimizer", "memory": "herding", "size": "source"}


def telling(facts: Iterable[str]) -> list[str]:
    """The facts that a label names; the class order is a seed of its own kind, and averaged over."""
    facts = list(facts)
    implied = {FOLLOWS[fact] for fact in facts if fact in FOLLOWS}
    return [fact for fact in facts if fact != "order" and fact not in implied]


def _split_title(runs: list[Run]) -> list[tuple[str, list[Run]]]:
    """Runs of one title, apart where their protocols (the class order aside) or hidden settings are not the same."""
    names = telling(differences(runs))
    parts = []
    for alike in _partition(runs, lambda run: _facts(run, names)):
        label = f"{alike[0].title} ({_facts(alike[0], names)})" if names else alike[0].title
        # under one class order, another fingerprint means another setting that the protocol does not list
        same_order = not differences(alike)
        hidden = _partition(alike, lambda run: run.fingerprint) if same_order else [alike]
        parts += [(label + _hidden_settings(each[0], hidden), each) for each in hidden]
    return parts


def _settings(run: Run) -> dict[str, Any]:
    """The settings of method, plug-ins and stages by their dotted names."""
    config = run.info.get("config") or {}
    owners = {**(config.get("settings") or {}), "stage": config.get("stage") or {}}
    return {f"{owner}.{name}": value for owner, mine in owners.items() for name, value in mine.items()}


def _hidden_settings(run: Run, parts: list[list[Run]]) -> str:
    """What tells runs of one title and protocol apart: the settings that differ, else the fingerprint."""
    if len(parts) == 1:
        return ""
    others = [_settings(part[0]) for part in parts]
    names = sorted({name for each in others for name in each if any(o.get(name) != each[name] for o in others)})
    mine = {name: _settings(run).get(name, "default") for name in names}
    return " " + (" ".join(f"{name}={value}" for name, value in mine.items()) or f"[{run.fingerprint}]")


def _one_a_seed(runs: list[Run]) -> list[Run]:
    """A seed counts once: of runs that were repeated, the one made last."""
    ordered = sorted(runs, key=lambda run: str(run.info.get("created") or ""))
    return list({seed_and_order(run): run for run in ordered}.values())


def group_runs(runs: list[Run], readout: str | None = None) -> list[Group]:
    """Groups in order of first appearance; finished runs only, unless none is finished."""
    finished = [run for run in runs if run.done] or runs
    groups = []
    for titled in _partition(finished, lambda run: run.title):
        for label, alike in _split_title(titled):
            chosen = sorted(_one_a_seed(alike), key=lambda run: run.seed)
            groups.append(Group(label, chosen, [summary(run, readout or readout_of(run)) for run in chosen]))
    return groups


def protocol_notes(groups: list[Group], runs: list[Run]) -> list[str]:
    """What a reader must know before comparing: protocols that differ, runs left out, too few seeds."""
    notes = [_protocol_note([group.runs[0] for group in groups], [group.label for group in groups])]
    used = {run.path for group in groups for run in group.runs}
    notes += [_left_out(run) for run in runs if run.path not in used]
    notes += [_unfinished(run) for group in groups for run in group.runs if not run.done]
    single = [group.label for group in groups if len(group.runs) == 1]
    if single:
        notes.append(f"One seed only, so without a spread: {', '.join(single)}.")
    return notes


def _protocol_note(firsts: list[Run], labels: list[str]) -> str:
    different = differences(firsts)
    if not different:
        return "All methods share one protocol." if len(firsts) > 1 else "One method under one protocol."
    told = [f"{fact} is {_who_has(values, labels)}" for fact, values in different.items()]
    return f"The protocols differ beyond the method: {'; '.join(told)}."


def _who_has(values: list[Any], labels: list[str]) -> str:
    """`3/class for ucir, icarl and 20/class for der`: each value once, with those that have it."""
    holders: dict[str, list[str]] = {}
    for value, label in zip(values, labels, strict=True):
        holders.setdefault(str(value), []).append(label)
    return " and ".join(f"{value} for {', '.join(names)}" for value, names in holders.items())


def _progress(run: Run) -> str:
    return f"{len(run.phases)} of {len(run.info['phases'])} phases"


def _left_out(run: Run) -> str:
    reason = "the same seed was run again later" if run.done else f"not finished ({_progress(run)})"
    return f"Left out: {run.path.name} of {run.title}, {reason}."


def _unfinished(run: Run) -> str:
    return f"Not finished: {run.path.name} of {run.title} ({_progress(run)}); its numbers are of these phases only."
