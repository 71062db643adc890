"""How the rows of a comparison were trained: what is said of it, and when a difference is none of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bdr.records import Run
from bdr.report.protocols import TRAINING, settings_of

STAGE = "stage."  # what the names of their settings begin with
SCALED = ("stage.drops", "stage.warmup")  # in proportion to the epochs, unless they are set too


def method_of(run: Run) -> str:
    return run.title.split("+")[0]


def training_of(run: Run) -> dict[str, Any]:
    """The settings of its stages, by their dotted names: epochs, batch, schedule and the like."""
    return {name: value for name, value in settings_of(run).items() if name.startswith(STAGE)}


def training_apart(one: Run, other: Run) -> list[str]:
    """What two runs differ in of their training: settings of stages; words where the records have facts alone."""
    facts = [words for fact, words in TRAINING.items() if one.protocol.get(fact) != other.protocol.get(fact)]
    return sorted(training_told([one, other])) or facts


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
