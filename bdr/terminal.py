"""The two streams of a terminal, what is typed at it, before and meanwhile, how a command goes about it, and tables."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from rich.console import Console

from bdr.errors import BdrError, UsageError

if TYPE_CHECKING:
    from bdr.report import Comparison
    from bdr.report.sheets import Sheet


class Output(Console):
    """Says so where nobody reads any more: who trains is to say how to go on, and rich would leave without a word."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left would fail at the end
        raise BrokenPipeError("nobody reads the output any more")


out = Output(highlight=False, emoji=False)  # `bad:Boom` is a name
err = Console(stderr=True, highlight=False, emoji=False)


def say(text: str) -> None:
    """A sentence, in one line however long: a path or a command that breaks inside a word cannot be copied."""
    out.print(text, markup=False, soft_wrap=True)


def tell(text: str) -> None:
    """The same beside the output."""
    err.print(text, markup=False, soft_wrap=True)


def command_line() -> str:
    return shlex.join(["bdr", *sys.argv[1:]])


@contextmanager
def stoppable() -> Iterator[Callable[[], bool]]:
    """Ctrl-C and SIGTERM ask the run to save itself; a second Ctrl-C leaves at once."""
    asked: list[int] = []

    def ask(number: int, _: Any) -> None:
        if asked:
            print("bdr: left at once; the last checkpoint is kept", file=sys.stderr)
            raise SystemExit(130)  # typer would take a KeyboardInterrupt for itself
        asked.append(number)
        below = "\n" if sys.stderr.isatty() else ""  # the bar, and ^C behind it
        print(f"{below}stopping after this step, and saving ... (once more to leave at once)", file=sys.stderr)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def needs_a_reader(go_on: Callable[[], str]) -> Iterator[None]:
    """Inside, output that nobody reads any more (`| head -1`) ends what is done, in a sentence."""
    try:
        yield
    except BrokenPipeError:
        raise BdrError(f"stopped, since nobody reads the output any more; {go_on()}") from None


def print_comparison(comparison: Comparison, title: str = "Comparison") -> None:
    """A table a protocol."""
    from bdr import report  # which is slow to import, and not for every command

    print_sheets(report.comparison_sheets(comparison, title))


def print_sheets(sheets: Sequence[Sheet]) -> None:
    """Tables that are read together, uncropped, since a number without its end is another; the notes of the last below.

    Not as captions, which would be as narrow as the last table.
    """
    from bdr.report import as_rich_tables

    for table in as_rich_tables([replace(sheet, notes=[]) for sheet in sheets], out.width):
        out.print(table, crop=False)
    for note in sheets[-1].notes:
        say(fill(note, out.width, break_long_words=False, break_on_hyphens=False))  # a path is whole, however long


@dataclass(frozen=True)
class Conditions:
    """Where runs go, how many of them at a time, for how long, and whether to start what cannot end by then."""

    runs: Path
    jobs: int | None
    until: str | None
    only_what_ends: bool = False

    def __post_init__(self) -> None:
        if self.only_what_ends and self.until is None:
            raise UsageError("--only-what-ends needs a time to end by: add --until 26m, or leave it out")


@dataclass(frozen=True, kw_only=True)
class Manner:
    """How a command goes about it that may only look, and print in one form or another."""

    check: bool = False
    dry_run: bool = False
    as_json: bool = False
    markdown: bool = False

    @property
    def form(self) -> str | None:
        """The option that asks for another form than that of a terminal."""
        return "--json" if self.as_json else "--markdown" if self.markdown else None

    def refuse_contradictions(self) -> None:
        if self.check and self.dry_run:
            raise UsageError("--check and --dry-run exclude each other: use one of them")
        if self.as_json and self.markdown:
            raise UsageError("--json and --markdown exclude each other: use one of them")

    def refuse_mixed_output(self, missing: int, instead: str) -> None:
        """What runs say of themselves is neither JSON nor Markdown."""
        if self.form:
            raise UsageError(
                f"{missing} runs are missing, and their display would be mixed with the output of {self.form}: run "
                f"without it first, {instead}"
            )
