"""Which code a run was trained with: run.json has the versions at the beginning and every later change."""

from __future__ import annotations

from typing import Any

LIBRARY, OWN = "code", "own_code"  # version, and {module: version}
SINCE = "_since"  # "own_code_since": [{"phase": 2, "own_code": {module: version}}]; "code_since" likewise


def trained_last(info: dict[str, Any], which: str) -> Any:
    """The version or versions that a run was last trained with; None if its records do not say."""
    return [info.get(which), *(change[which] for change in info.get(which + SINCE, []))][-1]


def other_code(info: dict[str, Any], here: dict[str, str]) -> list[str]:
    """The user's modules that have changed since the run last trained; none if its records do not say."""
    there = trained_last(info, OWN) or {}
    return sorted(module for module, version in here.items() if there.get(module, version) != version)


def other_library(info: dict[str, Any], here: str) -> str | None:
    """A message if the library has changed since the run last trained; None if it has not, or if that is unknown."""
    there = trained_last(info, LIBRARY)
    known = there is not None and there != here
    return f"the library has changed since the run was trained (code {there} then, {here} now)" if known else None


def begun_with(info: dict[str, Any], own: dict[str, str], library: str) -> dict[str, Any]:
    """The content of run.json for a run that begins anew: all of its phases are trained with this code."""
    told = {name: value for name, value in info.items() if name not in (OWN, OWN + SINCE, LIBRARY + SINCE)}
    return told | {LIBRARY: library} | ({OWN: own} if own else {})


def with_code(info: dict[str, Any], own: dict[str, str], library: str, phase: int) -> dict[str, Any]:
    """The content of run.json for a run that goes on with this code in a phase.

    Changes recorded for later phases are dropped, because those phases were cut off.
    """
    info = without_later(without_later(info, OWN, phase), LIBRARY, phase)
    if other_code(info, own):
        info = changed_to(info, OWN, own, phase)
    return changed_to(info, LIBRARY, library, phase) if other_library(info, library) else info


def without_later(info: dict[str, Any], which: str, phase: int) -> dict[str, Any]:
    kept = [change for change in info.get(which + SINCE, []) if change["phase"] <= phase]
    cut = {name: value for name, value in info.items() if name != which + SINCE}
    return cut | ({which + SINCE: kept} if kept else {})


def changed_to(info: dict[str, Any], which: str, here: Any, phase: int) -> dict[str, Any]:
    return info | {which + SINCE: [*info.get(which + SINCE, []), {"phase": phase, which: here}]}
