"""What a sweep shows: a live table on a terminal, plain lines elsewhere, the list of a dry run, and failures."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from textwrap import shorten
from typing import NamedTuple

from rich import box
from rich.console import Console, JustifyMethod
from rich.live import Live
from rich.table import Table
from rich.text import Text

from bdr.display import clock, duration
from bdr.errors import BdrError, shortened
from bdr.records import Run, work_of
from bdr.sweep.crew import WAITING, Crew, has_first_phase
from bdr.sweep.plan import Planned
from bdr.sweep.work import images_left, in_millions, seconds_left, sharing

COLUMNS = ("#", "run", "seed", "state", "phase", "accuracy", "images/s", "left")
ON_WIDE_TERMINALS = {"images/s": 80, "accuracy": 70}  # terminal widths from which on these columns are shown
COLUMNS_OF_LIST = ("#", "run", "seed", "state", "first phase", "images", "folder")
FOLDERS_FROM = 110  # the width of a terminal from which on the list shows folders
NUMBERS = ("#", "seed", "phase", "accuracy", "images/s", "left", "images")
WRAPPED = ("run", "first phase", "the last line of its log", "log")  # the others are short and must not be broken
LONGEST_WORDS = 160  # characters of an error in the table of failures; the log has all of it


class Progress(NamedTuple):
    """How far a run is according to its records, as texts for the table."""

    phase: str = ""
    accuracy: str = ""
    speed: str = ""
    left: str = ""


def progress_of(run: Planned) -> Progress:
    # Records cannot be read while the run cuts them back; they are read again a second later.
    with contextlib.suppress(BdrError, OSError):
        return read_progress(Run.open(run.path)) if run.begun else Progress()
    return Progress()


def read_progress(there: Run) -> Progress:
    finished, phases = len(there.phases), len(there.info["phases"])
    accuracy = "" if there.last_accuracy is None else f"{there.last_accuracy:.2f}"
    where = f"{min(finished, phases - 1)} of 0..{phases - 1}"
    if there.done or not there.epochs:
        return Progress(where, accuracy)
    speed, work = there.epochs[-1]["images_per_second"], work_of(there)
    left = "" if work is None or work.left is None else clock(work.left)
    return Progress(where, accuracy, f"{speed:,.0f}", left)


class Lines:
    """The plain view: a line when something happens, and now and then one with the counts and the time left."""

    def __init__(self, console: Console, every: float = 60.0) -> None:
        self.console, self.every, self.told_at = console, every, time.monotonic()

    @property
    def is_time(self) -> bool:
        """Whether it is time to show the state of all runs again; if so, the interval starts anew."""
        if over := time.monotonic() - self.told_at >= self.every:
            self.told_at = time.monotonic()
        return over

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: object) -> None: ...

    def tell(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def update(self, crew: Crew) -> None:
        if self.is_time:
            self.tell(counts(crew))


class LiveTable(Lines):
    """The view on a terminal: a table of runs under way and to come, above which the lines scroll by."""

    def __init__(self, console: Console, every: float = 1.0) -> None:
        super().__init__(console, every)
        self.live = Live(console=console, auto_refresh=False, transient=True)
        self.told_at = 0.0

    def __enter__(self) -> Lines:
        self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.live.stop()

    def update(self, crew: Crew) -> None:
        if self.is_time:
            table = live_table(crew, max(3, self.console.height - 9), self.console.width)
            self.live.update(table, refresh=True)


def view(console: Console) -> Lines:
    return LiveTable(console) if console.is_terminal else Lines(console)


def new_table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=Text(title), box=box.SIMPLE_HEAD, padding=0)
    for column in columns:
        justify: JustifyMethod = "right" if column in NUMBERS else "left"
        table.add_column(column, justify=justify, overflow="fold", no_wrap=column not in WRAPPED)
    return table


def live_table(crew: Crew, rows: int, width: int = FOLDERS_FROM) -> Table:
    """The table of running, then failed, then waiting runs; those that are done are only counted in the title."""
    shown = [*crew.of_state("running"), *crew.of_state("failed", "stopped", "left out"), *crew.of_state(*WAITING)]
    columns = [column for column in COLUMNS if width >= ON_WIDE_TERMINALS.get(column, 0)]
    table = new_table(counts(crew), columns)
    for run in shown[:rows]:
        about = str(crew.numbers[run]), run.label, str(run.seed), state_in(crew, run), *progress_of(run)
        cells = dict(zip(COLUMNS, about, strict=True))
        table.add_row(*(Text(cells[column]) for column in columns))
    if len(shown) > rows:
        table.caption = f"and {len(shown) - rows} more"
    return table


def state_in(crew: Crew, run: Planned) -> str:
    if crew.states[run] != "held":
        return crew.states[run]
    holder = crew.holder_of(run)
    return f"waits for #{crew.numbers[holder]}" if holder else "waiting"


def counts(crew: Crew) -> str:
    alone = {name: (name,) for name in ("running", "failed", "stopped", "left out")}
    groups: dict[str, tuple[str, ...]] = {"done": ("done", "already done"), **alone, "waiting": WAITING}
    numbers = {name: len(crew.of_state(*states)) for name, states in groups.items()}
    told = ", ".join(f"{number} {name}" for name, number in numbers.items() if number)
    seconds = seconds_left(crew)
    return f"{of_runs(crew.runs)}: {told}" + (f"; about {duration(seconds)} left" if seconds else "")


def of_runs(runs: Sequence[object]) -> str:
    return f"{len(runs)} run{'' if len(runs) == 1 else 's'}"


def list_table(runs: Sequence[Planned], width: int = FOLDERS_FROM) -> Table:
    """The list that a dry run prints: every run with its state, first phase, images to train on and folder."""
    todo = sum(not run.done for run in runs)
    columns = COLUMNS_OF_LIST if width >= FOLDERS_FROM else COLUMNS_OF_LIST[:-1]
    table = new_table(f"{of_runs(runs)}, {todo} to do", columns)
    for number, run in enumerate(runs, 1):
        images = "" if run.done else in_millions(sum(images_left(run, runs)))
        about = str(number), run.label, str(run.seed), state_of(run), first_phase_of(run, runs), images
        table.add_row(*map(Text, (*about, "/".join(run.path.parts[-3:]))[: len(columns)]))
    return table


def folders_untold(runs: Path, width: int) -> str | None:
    """A sentence on where runs go, if the terminal is too narrow for the folders in the list."""
    if width >= FOLDERS_FROM:
        return None
    return f"Each run has a folder of its own in {runs}; with COLUMNS={FOLDERS_FROM} set, the list has them."


def state_of(run: Planned) -> str:
    if run.done:
        return "done"
    return f"in phase {progress_of(run).phase}" if run.begun else "new"


def first_phase_of(run: Planned, runs: Sequence[Planned]) -> str:
    """Where a run's first phase will come from, in words; other runs are named by their number in the list."""
    if run.begun:
        return "" if run.done else "begun"
    if has_first_phase(run):
        return "trained before"
    first, *others = [runs.index(other) + 1 for other in sharing(run, runs)] or [runs.index(run) + 1]
    if runs[first - 1] is not run:
        return f"as {first}"
    return f"trained, also for {shortened(others)}" if others else "trained"


def failures_table(crew: Crew) -> Table:
    table = new_table("Failed", ("run", "the last line of its log", "log"))
    for run in crew.of_state("failed"):
        words = shorten(crew.last_words(run), LONGEST_WORDS, placeholder=" ...")
        table.add_row(*map(Text, (run.name, words, str(crew.log_of(run)))))
    return table
