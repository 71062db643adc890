"""The settings that runs were made with, defaults included: a default may have changed between two runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bdr.records import Run
from bdr.report.protocols import dotted, settings_of


def recorded_settings(run: Run) -> dict[str, Any]:
    """All recorded settings of method, plug-ins and net, defaults written out; empty for records older than these."""
    return dotted(run, run.info.get("settings") or {})


def settings_in_full(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """For each run, the settings it was given and the defaults it was made with.

    If a record lacks a setting, the earliest recorded default is taken: the record is older than the first that has it.
    """
    first: dict[str, Any] = {}
    for run in sorted(runs, key=lambda run: str(run.info.get("created") or "")):
        first = defaults_of(run) | first
    return [{**of_its_parts(run, first), **settings_of(run), **recorded_settings(run)} for run in runs]


def defaults_of(run: Run) -> dict[str, Any]:
    """The recorded settings that a run was not given, and so took from the defaults."""
    given = settings_of(run)
    return {name: value for name, value in recorded_settings(run).items() if name not in given}


def of_its_parts(run: Run, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings that belong to parts that the run has."""
    return {name: value for name, value in settings.items() if has_part_of(run, name)}


def has_part_of(run: Run, setting: str) -> bool:
    """Whether a setting belongs to the method, a plug-in or the net of a run, or to its stages, which every run has."""
    parts = [part.rpartition(":")[2] for part in (*run.title.split("+"), str(run.protocol.get("net")))]
    return setting.partition(".")[0] in (*parts, "stage")


def changed_defaults(runs: Sequence[Run]) -> set[str]:
    """The names of settings whose recorded default is not the same in all runs."""
    every = [default for run in runs for default in defaults_of(run).items()]
    found = dict(every)
    return {name for name, value in every if found[name] != value}


def written_out(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """For each run, the settings it was given, and its defaults for those whose default changed between the runs."""
    changed, full = changed_defaults(runs), settings_in_full(runs)
    told = [{name: mine[name] for name in mine if name in changed} for mine in full]
    return [mine | settings_of(run) for run, mine in zip(runs, told, strict=True)]
