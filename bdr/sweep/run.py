"""A sweep from the command to the result: its runs are planned, trained side by side and stopped in time."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bdr.errors import BdrError, Interrupted, UsageError
from bdr.planning.describe import SIDE_BY_SIDE, side_by_side
from bdr.records import Run, open_whole
from bdr.sweep import mps
from bdr.sweep.crew import WAITING, Crew
from bdr.sweep.grid import grids_of, wishes_of
from bdr.sweep.limit import Limit
from bdr.sweep.plan import Planned, plan_sweep
from bdr.sweep.view import Lines, failures_table, folders_untold, list_table, view
from bdr.sweep.work import time_note
from bdr.terminal import Conditions, command_line, needs_a_reader, out, print_comparison, say, stoppable, tell

PAUSE = 0.2  # seconds between two looks at the runs
GRACE = 60.0  # seconds that stopped runs have to save themselves
UNDER_MPS = 3  # runs at a time if MPS is available: more of them gain little
UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0}


@dataclass(frozen=True)
class Asked:
    """What was typed for all runs: fields, overridden by --set, and seeds, if any."""

    typed: Mapping[str, Any] = field(default_factory=dict)
    seeds: Sequence[int] | None = None


def run_sweep(what: Sequence[str], asked: Asked, conditions: Conditions, *, dry_run: bool = False) -> None:
    """Train every run of the grids that is not done yet."""
    end = end_of(conditions.until)
    planned = plan_runs(what, asked, conditions.runs)
    if dry_run:
        say_what_is_to_do(planned, conditions)
        return
    crew, reason = train_all(planned, conditions, end)
    conclude(crew, planned, reason, conditions.until)


def say_what_is_to_do(planned: Sequence[Planned], conditions: Conditions) -> None:
    jobs = checked_jobs(conditions.jobs, any(run.cuda for run in planned))
    out.print(list_table(planned, out.width))
    if where := folders_untold(conditions.runs, out.width):
        say(where)
    say(time_note(planned, conditions.runs, jobs))


def train_all(planned: Sequence[Planned], conditions: Conditions, end: float) -> tuple[Crew, str]:
    """Train until all runs have ended, or a stop is asked for, or time is up; return the crew and why it ended."""
    cuda = any(run.cuda for run in planned)
    jobs = checked_jobs(conditions.jobs, cuda)
    at_once = min(jobs, sum(not run.done for run in planned))
    others, only = side_by_side(), conditions.only_what_ends
    limit = Limit(end, max(others, at_once), conditions.runs, only, others)
    again = f"go on by typing the same again: {command_line()}"
    with needs_a_reader(lambda: again), stoppable() as stopping, view(out) as lines:
        surroundings = environment(min(jobs, len(planned)), at_once, cuda)
        crew = Crew(planned, jobs, logs_folder(conditions.runs), surroundings, lines.tell, limit.sort_out)
        say_what_is_done(crew, lines)
        with mps.side_by_side(cuda and at_once > 1, lines.tell):
            return crew, work(crew, lines, stopping, limit)


def plan_runs(what: Sequence[str], asked: Asked, runs: Path) -> list[Planned]:
    """Plan and check every run, and print what was adapted."""
    return said(plan_sweep(wishes_of(grids_of(what), asked.typed, asked.seeds), runs))


def said(planned: list[Planned]) -> list[Planned]:
    """Print what was adapted in the runs, equal notes once, and return the runs."""
    for note in dict.fromkeys(note for run in planned for note in run.notes):
        tell(note)
    return planned


def end_of(until: str | None) -> float:
    """The moment (`time.monotonic`) at which to stop; infinity without --until."""
    return math.inf if until is None else time.monotonic() + parse_duration(until)


def parse_duration(text: str) -> float:
    """`26m`, `1h30m`, `90s` in seconds."""
    parts = re.findall(r"(\d+(?:\.\d+)?)([hms])", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise UsageError(f"--until '{text}' is not like 26m, 90s or 1h30m")
    return sum(float(number) * UNITS[unit] for number, unit in parts)


def checked_jobs(jobs: int | None, cuda: bool) -> int:
    """The number of jobs asked for; by default one, or UNDER_MPS on a GPU that can really run them side by side."""
    if jobs is None:
        return UNDER_MPS if cuda and mps.installed() else 1
    if jobs < 1:
        raise UsageError(f"--jobs {jobs} is not allowed: it is 1 or more")
    return jobs


def environment(jobs: int, at_once: int, cuda: bool) -> dict[str, str]:
    """The environment of the runs: how many are side by side, which they record, and on a CPU how many cores each has.

    If each used all cores, they would be slower than one after the other. The share is the same for the last runs and
    for those that go on after a stop, since another number of threads changes the last digits. Whoever starts several
    sweeps can set the variable SIDE_BY_SIDE to the number of runs that they have together.
    """
    cores = max(1, usable_cores() // jobs)
    divided = {"OMP_NUM_THREADS": str(cores)} if jobs > 1 and not cuda else {}
    return divided | os.environ | {SIDE_BY_SIDE: str(max(side_by_side(), at_once))}


def usable_cores() -> int:
    """The cores that this process may use, of which the machine may have more."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def logs_folder(runs: Path) -> Path:
    folder = runs / "sweep-logs"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BdrError(f"cannot make {folder}: {error.strerror}; name another folder with --runs") from None
    return folder


def say_what_is_done(crew: Crew, lines: Lines) -> None:
    for run in crew.of_state("already done"):
        code = ", before the library changed" if run.other_library else ""
        if run.other_code:
            code = f", with other code of {', '.join(run.other_code)}: remove it to train it anew"
        lines.tell(f"already done {run.name} -> {run.path}{code}")


def work(crew: Crew, lines: Lines, stopping: Callable[[], bool], limit: Limit) -> str:
    """Run the crew; return "" if all runs have ended, "asked" if a stop was asked for, "until" if time is up."""
    try:
        while crew.busy:
            if stopping() or limit.is_over:
                wind_down(crew, lines)
                return "asked" if stopping() else "until"
            crew.step()
            lines.update(crew)
            time.sleep(PAUSE)
        return ""
    finally:
        crew.end()  # whatever happened, nothing is left running


def wind_down(crew: Crew, lines: Lines) -> None:
    crew.ask()
    end = time.monotonic() + GRACE
    while crew.children and time.monotonic() < end:
        crew.reap()
        lines.update(crew)
        time.sleep(PAUSE)
    for run in crew.children:
        lines.tell(f"{run.name} did not leave within {GRACE:.0f} s and is ended; its last checkpoint is kept")


def conclude(crew: Crew, planned: Sequence[Planned], reason: str, until: str | None) -> None:
    """Print the averages in the order that was typed, then the failures and how to go on."""
    show_averages(readable([run for run in planned if crew.states[run] in ("done", "already done")]))
    say_what_is_left(crew, reason, until)


def say_what_is_left(crew: Crew, reason: str, until: str | None) -> None:
    failed, left = crew.of_state("failed"), crew.of_state("stopped", "left out", *WAITING)
    if failed:
        out.print(failures_table(crew))
    again = f"go on by typing the same again: {command_line()}"
    if reason == "asked":
        raise Interrupted(f"stopped with {len(left)} of {len(crew.runs)} runs to go, and saved; {again}")
    if left:
        say(f"stopped by --until {until} with {len(left)} of {len(crew.runs)} runs to go; {again}")
    if failed:
        raise BdrError(f"{len(failed)} of {len(crew.runs)} runs failed; mend what their logs say, and {again}")


def readable(runs: Sequence[Planned]) -> list[Run]:
    """The records of the runs; a damaged one is skipped with a warning."""
    found = []
    for run in runs:
        try:
            found.append(open_whole(run.path))
        except BdrError as error:
            tell(f"warning: {error}")
    return found


def show_averages(runs: list[Run]) -> None:
    from bdr import report

    if runs:
        print_comparison(report.compare(runs), "Finished runs")
