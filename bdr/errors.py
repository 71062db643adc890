"""Errors that end a command early: wrong usage (exit code 2), a failure while working (1), a requested stop (130)."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterable, Sequence

ALIKE = 0.65  # the least similarity of a suggestion: 'nne' and 'nme' have it, 'icarl' and 'focal' do not


class BdrError(Exception):
    """Something failed while working: a file, a disk, a device, a loss."""

    exit_code = 1


class UsageError(BdrError):
    """The request is impossible: an unknown name, a wrong value, a protocol that does not split."""

    exit_code = 2


class Interrupted(BdrError):
    """The run was asked to stop, and saved itself."""

    exit_code = 130


def unknown(kind: str, given: str, allowed: Iterable[str], own: bool = False) -> UsageError:
    """The error for an unknown name, such as `no plug-in 'bdrr'; there are bdr, cwd, la: did you mean 'bdr'?`

    With `own`, the user's own may be meant, `package.module:Name`, and typed with a dot instead of the colon.
    """
    names = sorted(allowed)
    near = nearest(given, names, ALIKE)
    module, _, name = given.rpartition(".")
    of_own = f"; one of your own is typed {module}:{name}" if own and module and "/" not in module else ""
    hint = of_own or (f": did you mean '{near}'?" if near else "")
    return UsageError(f"no {kind} '{given}'; there are {', '.join(names) or 'none'}{hint}")


def nearest(given: str, names: Iterable[str], alike: float) -> str | None:
    """The name that is spelt most like the given one; None if no similarity reaches `alike` (from 0 to 1)."""
    lowered = {name.lower(): name for name in names}
    found = difflib.get_close_matches(given.lower(), lowered, n=1, cutoff=alike)
    return lowered[found[0]] if found else None


def shortened(names: Sequence[object], most: int = 5) -> str:
    """A list such as `cat, dog, fox, hen, owl and 45 more`; if only one would be left out, it is named too."""
    rest = len(names) - most
    shown = ", ".join(map(str, names if rest <= 1 else names[:most]))
    return shown if rest <= 1 else f"{shown} and {rest} more"


def as_word(path: object) -> str:
    """A path as one word of a command that is to be typed."""
    return shlex.quote(str(path))


def check_more_than_zero(**settings: float) -> None:
    for name, value in settings.items():
        if not value > 0:
            raise ValueError(f"{name} = {value} is not allowed: it is more than 0")


def check_one_or_more(**settings: float) -> None:
    for name, value in settings.items():
        if not value >= 1:
            raise ValueError(f"{name} = {value} is not allowed: it is 1 or more")


def check_below_one(**settings: float) -> None:
    for name, value in settings.items():
        if not 0 <= value < 1:
            raise ValueError(f"{name} = {value} is not allowed: it is 0 or more, and less than 1")


def check_not_negative(**settings: float) -> None:
    """Refuse negative values of settings such as weights: with them, a loss would pull the other way."""
    for name, value in settings.items():
        if not value >= 0:
            raise ValueError(f"{name} = {value} is not allowed: it is 0 or more")
