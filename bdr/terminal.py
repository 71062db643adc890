"""The two streams of a terminal, what was typed at it, and what cannot be typed together."""

from __future__ import annotations

import shlex
import sys
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager

from rich.console import Console

from bdr.errors import UsageError

Stoppable = Callable[[], AbstractContextManager[Callable[[], bool]]]
out = Console(highlight=False, emoji=False)  # `bad:Boom` is a name
err = Console(stderr=True, highlight=False, emoji=False)
# what libraries and data sets warn of, in the words they chose and nothing else
warnings.showwarning = lambda message, *_, **__: err.print(f"warning: {message}", markup=False)


def command_line() -> str:
    return shlex.join(["bdr", *sys.argv[1:]])


def refuse_contradictions(check: bool, dry_run: bool, as_json: bool, markdown: bool) -> None:
    """Of commands that may only look, and print in one form or another."""
    for one, other, names in ((check, dry_run, "--check and --dry-run"), (as_json, markdown, "--json and --markdown")):
        if one and other:
            raise UsageError(f"{names} exclude each other: use one of them")
