"""What ends a command before its time: usage (exit code 2), failures on the way (exit code 1), a wish (130)."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

ALIKE = 0.65  # 'nne' is so much like 'nme', and 'icarl' less like 'focal'


class BdrError(Exception):
    """Something failed while working: a file, a disk, a device, a loss."""

    exit_code = 1


class UsageError(BdrError):
    """What was asked for cannot be: an unknown name, a wrong value, a protocol that does not split."""

    exit_code = 2


class Interrupted(BdrError):
    """The run was asked to stop, and saved itself."""

    exit_code = 130


def unknown(kind: str, given: str, allowed: Iterable[str]) -> UsageError:
    """`no plug-in 'bdrr'; there are bdr, cwd, la: did you mean 'bdr'?`"""
    names = sorted(allowed)
    near = nearest(given, names, ALIKE)
    hint = f": did you mean '{near}'?" if near else ""
    return UsageError(f"no {kind} '{given}'; there are {', '.join(names) or 'none'}{hint}")


def nearest(given: str, names: Iterable[str], alike: float) -> str | None:
    """The name that is spelt most like what was given, if any is so much like it (from 0 to 1)."""
    lowered = {name.lower(): name for name in names}
    found = difflib.get_close_matches(given.lower(), lowered, n=1, cutoff=alike)
    return lowered[found[0]] if found else None


def shortened(names: Sequence[object], most: int = 5) -> str:
    """`cat, dog, fox, hen, owl and 45 more`; one that would be left alone is named too."""
    rest = len(names) - most
    shown = ", ".join(map(str, names if rest <= 1 else names[:most]))
    return shown if rest <= 1 else f"{shown} and {rest} more"


def check_more_than_zero(**settings: float) -> None:
    for name, value in settings.items():
        if not value > 0:
            raise ValueError(f"{name} = {value} is not allowed: it is more than 0")


def check_not_negative(**settings: float) -> None:
    """Weights and the like: less than nothing would make a loss pull the other way."""
    for name, value in settings.items():
        if not value >= 0:
            raise ValueError(f"{name} = {value} is not allowed: it is 0 or more")
