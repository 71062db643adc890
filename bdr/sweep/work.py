"""How many images a sweep still has to train on, and how long that takes."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median

from bdr.display import duration
from bdr.errors import BdrError
from bdr.records import Run, Work, work_of
from bdr.records.speed import Speed, finished_runs, measured
from bdr.sweep.crew import WAITING, Crew, has_first_phase
from bdr.sweep.plan import Planned


def images_left(run: Planned, runs: Sequence[Planned]) -> list[int]:
    """The images, by phase, that a run itself still has to train on.

    For a run that has begun, all of them count as images of later phases, which most of them are.
    """
    if run.done:
        return [0, 0]
    if work := work_begun(run):
        return [0, work.total - work.done]
    return [0, *run.images[1:]] if takes_first_phase(run, runs) else list(run.images)


def work_begun(run: Planned) -> Work | None:
    there = record_of(run)
    return work_of(there) if there else None


def record_of(run: Planned) -> Run | None:
    """The record of a run, with its epochs read; None if it has not begun or cannot be read."""
    # Records cannot be read while the run cuts them back; they are read again another time.
    with contextlib.suppress(BdrError, OSError):
        if run.begun:
            there = Run.open(run.path)
            _ = there.epochs
            return there
    return None


def takes_first_phase(run: Planned, runs: Sequence[Planned]) -> bool:
    """Whether a run takes its first phase from an earlier run, or from the first of those to do that share it."""
    return has_first_phase(run) or next(sharing(run, runs), run) is not run


def sharing(run: Planned, runs: Iterable[Planned]) -> Iterator[Planned]:
    """The runs to do that have the same first phase, including this one; none if it shares none."""
    return (other for other in runs if run.shared and other.shared == run.shared and not other.done)


def seconds_left(crew: Crew) -> float | None:
    """The seconds left of the whole sweep, at the speed of the runs under way; None while that is unknown."""
    running, waiting = crew.of_state("running"), crew.of_state(*WAITING)
    works = [work for run in running if (work := work_begun(run)) and work.left]
    if not works:
        return None
    each = sum((work.total - work.done) / work.left for work in works if work.left) / len(works)
    images = sum(sum(images_left(run, crew.runs)) for run in [*running, *waiting])
    apart = len(waiting) * seconds_besides_epochs(crew)
    return max((images / each + apart) / len(running), *(work.left for work in works if work.left))


def seconds_besides_epochs(crew: Crew) -> float:
    """The median time that finished runs took to start, compile and evaluate, most of a short run; 0 if none."""
    besides = [max(0.0, took - seconds_of_epochs(run, crew.begins_at[run])) for run, took in crew.took.items()]
    return median(besides) if besides else 0.0


@functools.cache  # finished runs do not change, and a sweep may have hundreds
def seconds_of_epochs(run: Planned, first: int) -> float:
    """The seconds of all epochs of a finished run from phase `first` on."""
    record = record_of(run)
    return sum(line.get("seconds", 0.0) for line in record.epochs if line["phase"] >= first) if record else 0.0


def time_note(runs: Sequence[Planned], folder: Path, jobs: int) -> str:
    """A sentence on how much there is to do, and how long it takes by the records of runs in the folder."""
    todo = [run for run in runs if not run.done]
    if not todo:
        return "Nothing is to do."
    images = {run: images_left(run, runs) for run in todo}
    records = finished_runs(folder)
    speeds = {run: measured(records, run.title, run.setup, jobs) for run in todo}
    timed = {run: speed for run, speed in speeds.items() if speed}
    unknown = sorted({f"{run.setup.net} on {run.setup.device}" for run in todo if run not in timed})
    seconds = sum(speed.seconds(images[run]) / (speed.beside or 1) for run, speed in timed.items())
    amount = f"{in_millions(sum(map(sum, images.values())))} images to train on"
    about = [f"about {duration(seconds)} of training{measured_how(timed.values())}"] if timed else []
    lacking = [f"no record of {', '.join(unknown)} in {folder} says how long they take"] if unknown else []
    return f"{amount}: {'; '.join([*about, *lacking])}."


def measured_how(speeds: Iterable[Speed]) -> str:
    """The words for one after the other or side by side, if all speeds were measured in the same way; else none."""
    ways = {speed.circumstances for speed in speeds}
    return f" {ways.pop()}" if len(ways) == 1 else ""


def in_millions(images: int) -> str:
    return f"{images / 1e6:,.1f} M" if images >= 1e6 else f"{images:,}"
