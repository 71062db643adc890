"""Which code a run was trained with: run.json says it as it was at the beginning, and when it changed."""

from __future__ import annotations

from typing import Any

LIBRARY, OWN = "code", "own_code"  # version, and {module: version}
SINCE = "_since"  # "own_code_since": [{"phase": 2, "own_code": {module: version}}], and the same of the library


def trained_last(info: dict[str, Any], which: str) -> Any:
    """The code that a run trained with last; None for records that do not say."""
    return [info.get(which), *(change[which] for change in info.get(which + SINCE, []))][-1]


def other_code(info: dict[str, Any], here: dict[str, str]) -> list[str]:
    """The modules that are others now than when the run trained last; none for records that do not say."""
    there = trained_last(info, OWN) or {}
    return sorted(module for module, version in here.items() if there.get(module, version) != version)


def other_library(info: dict[str, Any], here: str) -> str | None:
    """What to say where the library itself is another now than when the run trained last, if that is known."""
    there = trained_last(info, LIBRARY)
    known = there is not None and there != here
    return f"the library has changed since the run was trained (code {there} then, {here} now)" if known else None


def begun_with(info: dict[str, Any], own: dict[str, str], library: str) -> dict[str, Any]:
    """What run.json says when a run begins anew: no phase was trained by anything else."""
    told = {name: value for name, value in info.items() if name not in (OWN, OWN + SINCE, LIBRARY + SINCE)}
    return told | {LIBRARY: library} | ({OWN: own} if own else {})


def with_code(info: dict[str, Any], own: dict[str, str], library: str, phase: int) -> dict[str, Any]:
    """What run.json says when a run goes on with this code in a phase: what it was in later ones was cut off."""
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
