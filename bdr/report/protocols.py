"""Which runs share a protocol, what it is called in few words, and in which order its methods are read."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from bdr.records import Run, differences

PROPER_NAMES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
NAMED_FIRST = {"data": "{}", "base": "B{}", "step": "S{}"}
ALWAYS_NAMED = (*NAMED_FIRST, "memory")
# what decides a fact as a rule: where it does, a title that names those need not name the fact too
DECIDED_BY = {
    "phases": ("data", "base", "step"),
    "herding": ("data", "memory"),
    "source": ("data", "size"),
}


# How a method trains is part of it: such facts do not part methods, and a note names those that differ.
TRAINING = {"epochs": "epochs", "batch": "batch", "optimizer": "learning rate or schedule"}
SCALED = ("stage.drops", "stage.warmup")  # in proportion to the epochs, unless they are set too
# Fields that stages got after the first records were made, with the values at which nothing is different.
LATER_FIELDS = {"alternate": None, "floor": 0.0, "repeat": 1}
ITS_OWN = ("order", "readout", *TRAINING)  # a class order is a seed of its own kind; a label names the readout


def protocol_key(run: Run) -> str:
    """Equal for runs that can be compared."""
    facts = {fact: value for fact, value in run.protocol.items() if fact not in ITS_OWN and value is not None}
    # 0 and 0.0 are one value, however a version writes it
    plain = {fact: float(value) if isinstance(value, int | float) else value for fact, value in facts.items()}
    return json.dumps(plain, sort_keys=True, default=str)


def protocol_titles(runs: Sequence[Run]) -> list[str]:
    """`CIFAR-100 B50 S10, 20/class` for one run of each protocol, with every further fact that tells them apart."""
    different = [fact for fact in differences(list(runs)) if fact not in (*ALWAYS_NAMED, *ITS_OWN)]
    further = [fact for fact in different if not is_decided(fact, runs)]
    return [title_of(run.protocol, further) for run in runs]


def title_of(facts: dict[str, Any], further: Sequence[str]) -> str:
    named = facts | {"data": PROPER_NAMES.get(str(facts.get("data")), facts.get("data"))}
    first = " ".join(form.format(named[fact]) for fact, form in NAMED_FIRST.items() if facts.get(fact) is not None)
    memory = [str(facts["memory"])] if "memory" in facts else []
    return ", ".join([*([first] if first else []), *memory, *(f"{fact} {facts.get(fact)}" for fact in further)])


def file_name(protocol: str) -> str:
    """`cifar-100-b50-s10-20-class`"""
    return re.sub(r"[^a-z0-9.]+", "-", protocol.lower()).strip("-.")


def is_decided(fact: str, runs: Sequence[Run]) -> bool:
    """Runs that agree in what decides a fact as a rule agree in the fact."""
    found: dict[str, set[str]] = {}
    for run in runs:
        deciding = [run.protocol.get(name) for name in DECIDED_BY.get(fact, ("data",))]
        found.setdefault(str(deciding), set()).add(str(run.protocol.get(fact)))
    return all(len(values) == 1 for values in found.values())


def settings_of(run: Run) -> dict[str, Any]:
    """The settings of method, plug-ins and stages that a run was given, by their dotted names."""
    config = run.info.get("config") or {}
    stages = {f"stage.{name}": mine for name, mine in (config.get("stages") or {}).items()}
    stage = {name: value for name, value in (config.get("stage") or {}).items() if not is_unsaid(name, value)}
    owners = {**(config.get("settings") or {}), "stage": stage, **stages}
    found = {f"{owner}.{name}": value for owner, mine in owners.items() for name, value in (mine or {}).items()}
    if run.protocol.get("weights"):  # a checksum says which they are, wherever the file lay
        found.pop(f"{run.protocol.get('net')}.weights", None)
    return found


def method_of(run: Run) -> str:
    return run.title.split("+")[0]


def training_of(run: Run) -> dict[str, Any]:
    """The settings of its stages, by their dotted names: epochs, batch, schedule and the like."""
    return {name: value for name, value in settings_of(run).items() if name.startswith("stage.")}


def trained_alike(one: Run, other: Run) -> bool:
    """Whether a difference between two runs of a method is none of their training."""
    facts = all(one.protocol.get(fact) == other.protocol.get(fact) for fact in TRAINING)
    return facts and training_of(one) == training_of(other)


def training_told(runs: Sequence[Run]) -> set[str]:
    """Settings of stages that not all runs share; not those that are scaled with the epochs, where these tell."""
    given = [training_of(run) for run in runs]
    names = {name for each in given for name in each if any(other.get(name) != each[name] for other in given)}
    return {name for name in names if name not in SCALED or not _follows(name, "stage.epochs", given)}


def _follows(name: str, leader: str, given: Sequence[dict[str, Any]]) -> bool:
    """Runs that share the one share the other."""
    found: dict[str, set[str]] = {}
    for each in given:
        found.setdefault(str(each.get(leader)), set()).add(str(each.get(name)))
    return all(len(values) == 1 for values in found.values())


def is_unsaid(field: str, value: Any) -> bool:
    return field in LATER_FIELDS and value == LATER_FIELDS[field]


def natural_order(run: Run) -> tuple[Any, ...]:
    """A key to sort by: easier protocols first, a method before itself with plug-ins, defaults before settings."""
    facts = run.protocol
    # larger steps are fewer phases, and come first in papers
    scenario = rank(facts.get("data")), rank(facts.get("base")), rank(facts.get("step"), -1), rank(facts.get("memory"))
    method, *plugins = run.title.split("+")
    settings = [(name, rank(value)) for name, value in sorted(settings_of(run).items())]
    return *scenario, method, len(plugins), plugins, len(settings), settings


def rank(value: Any, sign: int = 1) -> tuple[int, float, list[str | int]]:
    """Numbers by size, then words, with the numbers in them by size too: 5/class before 20/class."""
    if isinstance(value, int | float):
        return 0, sign * float(value), []
    return 1, 0.0, [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", str(value))]
