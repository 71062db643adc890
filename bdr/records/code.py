"""Which code of one's own a run was trained with: run.json says it as it was at the beginning, and when it changed."""

from __future__ import annotations

from typing import Any

FIRST, SINCE = "own_code", "own_code_since"  # {module: version}, and [{"phase": 2, "own_code": {module: version}}]


def other_code(info: dict[str, Any], here: dict[str, str]) -> list[str]:
    """The modules that are others now than when the run trained last; none for records that do not say."""
    there = info.get(FIRST, {})
    for change in info.get(SINCE, []):
        there = change[FIRST]
    return sorted(module for module, version in here.items() if there.get(module, version) != version)


def with_code(info: dict[str, Any], here: dict[str, str], phase: int) -> dict[str, Any]:
    """What run.json says when a run goes on with this code in a phase: what it was in later ones was cut off."""
    kept = [change for change in info.get(SINCE, []) if change["phase"] <= phase]
    cut = {name: value for name, value in info.items() if name != SINCE} | ({SINCE: kept} if kept else {})
    return cut | {SINCE: [*kept, {"phase": phase, FIRST: here}]} if other_code(cut, here) else cut
