"""Which runs can still end before the time of a sweep is up, judged by the speed of similar runs."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from bdr.display import duration
from bdr.errors import BdrError
from bdr.records import Run
from bdr.records.speed import Speed, finished_runs, measured
from bdr.records.work import STEADY
from bdr.sweep.crew import WAITING, Crew
from bdr.sweep.plan import Planned
from bdr.sweep.work import images_left, record_of, seconds_besides_epochs

APART = 5.0  # seconds between two judgements, each of which reads the records of all runs of the sweep


class Limit:
    """The moment at which a sweep stops, and which of its runs cannot end before it.

    Such late runs start last but are not left out (except with `only_what_ends`): their work is kept, and runs longer
    than any limit could not be swept otherwise. They do not delay the others, which are judged at the speed of as many
    side by side as there will be.
    """

    def __init__(
        self, end: float, at_once: int, folder: Path, only_what_ends: bool = False, of_others: int = 1
    ) -> None:
        """`of_others` is the number of runs that share the device anyway, whatever this sweep does."""
        self.end, self.at_once, self.folder, self.only_what_ends = end, at_once, folder, only_what_ends
        self.of_others = of_others
        self.judged_at = -math.inf

    @cached_property
    def earlier(self) -> list[Run]:
        return finished_runs(self.folder)

    @property
    def left(self) -> float:
        return self.end - time.monotonic()

    @property
    def is_over(self) -> bool:
        return self.left <= 0

    def sort_out(self, crew: Crew) -> None:
        """Tell the crew which runs are late, while it may start any; with `only_what_ends` they are left out."""
        if math.isinf(self.end) or not crew.may_start or time.monotonic() - self.judged_at < APART:
            return
        self.judged_at = time.monotonic()
        late = self.too_long(crew)
        crew.late = set(late)
        for run, seconds in late.items() if self.only_what_ends else ():
            crew.leave_out(run, f"it takes about {duration(seconds)}, {duration(self.left)} are left")

    def too_long(self, crew: Crew) -> dict[Planned, float]:
        """The waiting runs that cannot end in time, with their seconds; a run of unknown speed is not among them."""
        known, waiting = [*self.earlier, *steady_records(crew)], crew.of_state(*WAITING)
        besides, company = seconds_besides_epochs(crew), self.company(crew)
        late: dict[Planned, float] = {}
        for run in waiting:
            # A late run does not count as training a first phase for others.
            others = [*crew.of_state("running"), *(other for other in waiting if other not in late)]
            seconds = self.seconds_of(run, others, known, company)
            if seconds is not None and seconds + besides > self.left:
                late[run] = seconds + besides
        return late

    def company(self, crew: Crew) -> int:
        """How many runs will be side by side from now on; near the end of a sweep these are fewer than it may run."""
        return max(self.of_others, min(self.at_once, len(crew.of_state("running", *WAITING))))

    def seconds_of(self, run: Planned, others: Sequence[Planned], known: Sequence[Run], company: int) -> float | None:
        with suppress(BdrError, OSError):  # damaged records tell nothing, but must not stop a sweep
            if speed := measured(known, run.title, run.setup, self.at_once):
                return fewest_seconds(speed, images_left(run, others), company)
        return None


def fewest_seconds(speed: Speed, images: Sequence[int], company: int) -> float:
    """The least seconds for so many images: a speed measured in more company than there will be is scaled up."""
    return speed.seconds(images) / max(1.0, (speed.beside or 1) / company)


def steady_records(crew: Crew) -> list[Run]:
    """The sweep's own runs, finished or not, that have come far enough to show the speed of later phases."""
    own = (record_of(run) for run in crew.runs if crew.states[run] != "already done")
    return [run for run in own if run and (run.done or sum(line["phase"] > 0 for line in run.epochs) >= STEADY)]
