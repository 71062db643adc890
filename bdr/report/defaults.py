"""What runs were made with besides what they were given: a default may have changed between two of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bdr.records import Run
from bdr.report.protocols import dotted, settings_of


def recorded_settings(run: Run) -> dict[str, Any]:
    """All settings of method, plug-ins and net, defaults written out; none in records of before they were kept."""
    return dotted(run, run.info.get("settings") or {})


def settings_in_full(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """What each was given, and what else it was made with; where its record does not say, what the first default was.

    A record that does not have a setting is from before the first that has it.
    """
    first: dict[str, Any] = {}
    for run in sorted(runs, key=lambda run: str(run.info.get("created") or "")):
        first = defaults_of(run) | first
    return [{**of_its_parts(run, first), **settings_of(run), **recorded_settings(run)} for run in runs]


def defaults_of(run: Run) -> dict[str, Any]:
    """The recorded settings that a run was not given."""
    given = settings_of(run)
    return {name: value for name, value in recorded_settings(run).items() if name not in given}


def of_its_parts(run: Run, settings: dict[str, Any]) -> dict[str, Any]:
    """Those of the parts that a run has."""
    return {name: value for name, value in settings.items() if has_part_of(run, name)}


def has_part_of(run: Run, setting: str) -> bool:
    """Whether the method, a plug-in or the net of a run is what a setting belongs to; every run has stages."""
    parts = [part.rpartition(":")[2] for part in (*run.title.split("+"), str(run.protocol.get("net")))]
    return setting.partition(".")[0] in (*parts, "stage")


def changed_defaults(runs: Sequence[Run]) -> set[str]:
    """Settings that some runs were not given, and yet were not all made with the same."""
    every = [default for run in runs for default in defaults_of(run).items()]
    found = dict(every)
    return {name for name, value in every if found[name] != value}


def written_out(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """What each run was given, and of what it was not given that of which the default has changed between them."""
    changed, full = changed_defaults(runs), settings_in_full(runs)
    told = [{name: mine[name] for name in mine if name in changed} for mine in full]
    return [mine | settings_of(run) for run, mine in zip(runs, told, strict=True)]
