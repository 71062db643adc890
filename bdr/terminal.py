"""The two streams of a terminal, and what was typed at it."""

from __future__ import annotations

import shlex
import sys
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager

from rich.console import Console

Stoppable = Callable[[], AbstractContextManager[Callable[[], bool]]]
out = Console(highlight=False, emoji=False)  # `bad:Boom` is a name
err = Console(stderr=True, highlight=False, emoji=False)
# what libraries and data sets warn of, in the words they chose and nothing else
warnings.showwarning = lambda message, *_, **__: err.print(f"warning: {message}", markup=False)


def command_line() -> str:
    return shlex.join(["bdr", *sys.argv[1:]])
