"""The terminal: its two streams, the command line, Ctrl-C and closed pipes, tables, and options of commands."""

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
    """Raises where nobody reads the output any more: rich would exit silently, and a run should say how to go on."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # flushing what is left would fail at exit
        raise BrokenPipeError("nobody reads the output any more")


out = Output(highlight=False, emoji=False)  # `bad:Boom` is a name and no emoji
err = Console(stderr=True, highlight=False, emoji=False)


def say(text: str) -> None:
    """Print a sentence in one line, however long: a path or a command that is broken inside a word cannot be copied."""
    out.print(text, markup=False, soft_wrap=True)


def tell(text: str) -> None:
    """The same on the error stream, beside the output."""
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
        below = "\n" if sys.stderr.isatty() else ""  # below the bar, and the ^C behind it
        print(f"{below}stopping after this step, and saving ... (once more to leave at once)", file=sys.stderr)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def needs_a_reader(go_on: Callable[[], str]) -> Iterator[None]:
    """Inside, output that nobody reads any more (`| head -1`) ends the work with a sentence that says how to go on."""
    try:
        yield
    except BrokenPipeError:
        raise BdrError(f"stopped, since nobody reads the output any more; {go_on()}") from None


def print_comparison(comparison: Comparison, title: str = "Comparison") -> None:
    """Print one table for each protocol."""
    from bdr import report  # slow to import, and not needed by every command

    print_sheets(report.comparison_sheets(comparison, title))


def print_sheets(sheets: Sequence[Sheet]) -> None:
    """Print tables that belong together, uncropped, since a number cut short is another; below, the notes of the last.

    The notes are not captions, because those would be as narrow as the last table.
    """
    from bdr.report import as_rich_tables

    for table in as_rich_tables([replace(sheet, notes=[]) for sheet in sheets], out.width):
        out.print(table, crop=False)
    for note in sheets[-1].notes:
        say(fill(note, out.width, break_long_words=False, break_on_hyphens=False))  # a path stays whole, however long


@dataclass(frozen=True)
class Conditions:
    """Where runs go, how many train at a time, until when, and whether to start only those that can end by then."""

    runs: Path
    jobs: int | None
    until: str | None
    only_what_ends: bool = False

    def __post_init__(self) -> None:
        if self.only_what_ends and self.until is None:
            raise UsageError("--only-what-ends needs a time to end by: add --until 26m, or leave it out")


@dataclass(frozen=True, kw_only=True)
class Manner:
    """Options of commands that may only check or plan instead of training, and that print in several forms."""

    check: bool = False
    dry_run: bool = False
    as_json: bool = False
    markdown: bool = False

    @property
    def form(self) -> str | None:
        """The option that asks for another form than the terminal's; None if there is none."""
        return "--json" if self.as_json else "--markdown" if self.markdown else None

    def refuse_contradictions(self) -> None:
        if self.check and self.dry_run:
            raise UsageError("--check and --dry-run exclude each other: use one of them")
        if self.as_json and self.markdown:
            raise UsageError("--json and --markdown exclude each other: use one of them")

    def refuse_mixed_output(self, missing: int, instead: str) -> None:
        """Refuse to train missing runs while printing JSON or Markdown: the display of runs is neither."""
        if self.form:
            raise UsageError(
                f"{missing} runs are missing, and their display would be mixed with the output of {self.form}: run "
                f"without it first, {instead}"
            )
