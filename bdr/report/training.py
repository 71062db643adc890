"""How the rows of a comparison were trained, and which differences between their stage settings count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bdr.records import Run
from bdr.report.protocols import settings_of

STAGE = "stage."  # the prefix of names of stage settings
SCALED = ("stage.drops", "stage.warmup")  # scaled with the epochs, unless they are set, too


def method_of(run: Run) -> str:
    return run.title.split("+")[0]


def training_of(run: Run) -> dict[str, Any]:
    """The stage settings of a run, by their dotted names: epochs, batch, schedule and the like."""
    return {name: value for name, value in settings_of(run).items() if name.startswith(STAGE)}


def training_apart(one: Run, other: Run) -> list[str]:
    """How the training of two runs differs: names of stage settings."""
    return sorted(training_told([one, other]))


def training_told(runs: Sequence[Run]) -> set[str]:
    """Stage settings that not all runs share, except scaled ones whose differences follow from the epochs."""
    given = [training_of(run) for run in runs]
    names = {name for each in given for name in each if any(other.get(name) != each[name] for other in given)}
    return {name for name in names if name not in SCALED or not _follows(name, "stage.epochs", given)}


def _follows(name: str, leader: str, given: Sequence[dict[str, Any]]) -> bool:
    """Whether runs that agree in the setting `leader` agree in the setting `name`, too."""
    found: dict[str, set[str]] = {}
    for each in given:
        found.setdefault(str(each.get(leader)), set()).add(str(each.get(name)))
    return all(len(values) == 1 for values in found.values())
