"""How a run looks while it is under way: a bar with the time left on a terminal, plain lines elsewhere or in a log."""

from __future__ import annotations

import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from bdr.engine.listen import EpochLog, Listener
from bdr.records.work import add_turn, seconds_an_image
from bdr.types import Phase, Stage

LOG = logging.getLogger("bdr")  # by the name that a user knows
BAR = 20  # columns of a terminal
BESIDE = BAR + len(" 123:45:67 left 1:23:45 ")  # columns beside the words, which are shortened to leave it room
UNKNOWN = "?"  # the time left, until it can be estimated


class Workload:
    """How much of a run is done, counted in images that pass through training, and how long the rest will take."""

    def __init__(self, amounts: Sequence[Sequence[int]]) -> None:
        self.amounts = [list(of_phase) for of_phase in amounts]  # of every stage of every phase
        self.done = 0
        self.epochs: list[tuple[float, float]] = []  # images and seconds of each
        self.an_epoch = 0.0  # images in one epoch of the stage
        self.within: tuple[int, float] | None = None  # images done in the epoch under way, and when this was reported
        self.parts: list[tuple[float, float]] = []  # images and seconds between two reports within an epoch

    def enter(self, phase: int, stage: int, epoch: int, epochs: int) -> None:
        """A stage begins, or goes on after `epoch` of its epochs."""
        before = sum(map(sum, self.amounts[:phase])) + sum(self.amounts[phase][:stage])
        self.an_epoch = self.amounts[phase][stage] / epochs
        self.done, self.within = before + round(epoch * self.an_epoch), None

    def reach(self, share: float, now: float) -> None:
        """This share of an epoch is done. Its first part is not timed: it compiles, and fills the queue of a GPU."""
        images = round(share * self.an_epoch)
        if self.within is not None:
            before, then = self.within
            self.parts.append((images - before, now - then))
        self.within = images, now

    def add(self, images: int, seconds: float) -> None:
        self.done, self.within = self.done + images, None
        self.epochs.append((images, seconds))

    def add_turn(self, seconds: float) -> None:
        add_turn(self.epochs, seconds)

    @property
    def total(self) -> int:
        return max(1, sum(map(sum, self.amounts)))

    @property
    def reached(self) -> int:
        """The images done, those of the epoch under way included."""
        return self.done + (0 if self.within is None else self.within[0])

    @property
    def seconds_each(self) -> float | None:
        """Seconds per image (or None), by the last epochs: later phases, with a teacher, are slower than the first.

        Until there are enough epochs, which takes an hour if one takes twenty minutes, parts of an epoch are used.
        """
        by_epochs = seconds_an_image(self.epochs)
        return seconds_an_image(self.parts) if by_epochs is None else by_epochs

    @property
    def left(self) -> float | None:
        each = self.seconds_each
        return None if each is None else max(0, self.total - self.reached) * each


def clock(seconds: float) -> str:
    whole = round(seconds)
    return (
        f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
        if whole >= 3600
        else f"{whole // 60}:{whole % 60:02d}"
    )


def duration(seconds: float) -> str:
    """`56 min` or `23 h 59 min`, for where `56:00` could mean hours or minutes."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


class Spoken(Listener, ABC):
    """A listener that speaks in sentences: one for each phase, and one every few seconds, also within an epoch."""

    def __init__(self, every: float = 10.0) -> None:
        self.every = every
        self.said_at = time.monotonic()

    @abstractmethod
    def say(self, text: str) -> None: ...

    def run_begins(self, title: str, phases: list[Phase], place: str, work: list[list[int]]) -> None:
        self.phases, self.workload = phases, Workload(work)
        all_phases = f"{len(phases)} phase{'' if len(phases) == 1 else 's'}"
        self.say(f"{title}: {all_phases}, {phases[-1].seen} classes -> {place}")

    def stage_begins(self, phase: Phase, number: int, stage: Stage, first_epoch: int) -> None:
        self.workload.enter(phase.index, number, first_epoch, stage.epochs)

    def steps_end(self, phase: Phase, stage: Stage, epoch: int, step: int, steps: int) -> None:
        self.workload.reach(step / steps, time.monotonic())
        self.say_at_times(self.place_within(phase, stage, epoch, f"step {step}/{steps}"))

    def epoch_ends(self, phase: Phase, stage: Stage, log: EpochLog) -> None:
        self.workload.add(log.images, log.seconds)
        self.say_at_times(self.place(phase, stage, log))

    def say_at_times(self, text: str) -> None:
        if time.monotonic() - self.said_at >= self.every:
            self.said_at = time.monotonic()
            left = self.workload.left
            self.say(text + ("" if left is None else f", {clock(left)} left"))

    def turn_ends(self, phase: Phase, stage: Stage, log: EpochLog) -> None:
        self.workload.add_turn(log.seconds)

    def place(self, phase: Phase, stage: Stage, log: EpochLog, room: float = math.inf) -> str:
        """Where a run is, its loss and its speed; in less room, only what matters most."""
        where, brief = self.names_of(phase, stage, log.epoch)
        loss, speed = f"loss {log.loss:.3f}", f"{log.images / log.seconds:,.0f} images/s"
        forms = (f"{where}, {loss}, {speed}", f"{where}, {loss}", f"{brief}, {loss}", brief)
        return next((form for form in forms if len(form) <= room), f"phase {phase.index}")

    def place_within(self, phase: Phase, stage: Stage, epoch: int, told: str, room: float = math.inf) -> str:
        """The same within an epoch, without the loss: it is on the device, and reading it would hold the device up."""
        where, brief = self.names_of(phase, stage, epoch)
        forms = (f"{where}, {told}", f"{brief}, {told}", brief)
        return next((form for form in forms if len(form) <= room), f"phase {phase.index}")

    def names_of(self, phase: Phase, stage: Stage, epoch: int) -> tuple[str, str]:
        """An epoch's name, in full and short."""
        where = f"phase {phase.index} of 0..{len(self.phases) - 1}, {stage.name} epoch {epoch + 1}/{stage.epochs}"
        return where, f"phase {phase.index}, {stage.name} {epoch + 1}/{stage.epochs}"

    def phase_ends(self, line: dict[str, Any]) -> None:
        self.say(phase_line(line, len(self.phases)))

    def note(self, text: str) -> None:
        self.say(text)


class Lines(Spoken):
    """Plain lines on a terminal, or wherever the output goes instead."""

    def __init__(self, console: Console, every: float = 10.0) -> None:
        super().__init__(every)
        self.console = console

    def say(self, text: str) -> None:
        self.console.print(text, markup=False, emoji=False, highlight=False, soft_wrap=True)


class Logged(Spoken):
    """For a run without a listener: the sentences go to Python's log, which shows warnings in any case."""

    def say(self, text: str) -> None:
        LOG.log(logging.WARNING if text.startswith("warning: ") else logging.INFO, "%s", text)


class Bar(Lines):
    """A progress bar; the finished phases scroll by above it."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(BAR),
            TextColumn("{task.fields[left]} left"),
            TimeElapsedColumn(),
        )
        self.progress = Progress(*columns, console=console, transient=True)
        self.task: TaskID | None = None
        self.epoch_at = -math.inf  # when the last epoch ended: its words say more than a step's, and stay a while

    def run_begins(self, title: str, phases: list[Phase], place: str, work: list[list[int]]) -> None:
        super().run_begins(title, phases, place, work)
        self.progress.start()
        self.task = self.progress.add_task("starting", total=self.workload.total, left=UNKNOWN)

    def steps_end(self, phase: Phase, stage: Stage, epoch: int, step: int, steps: int) -> None:
        now = time.monotonic()
        self.workload.reach(step / steps, now)
        about = self.place_within(phase, stage, epoch, f"step {step}/{steps}", self.room)
        self.show(about if now - self.epoch_at >= self.every else None)

    def epoch_ends(self, phase: Phase, stage: Stage, log: EpochLog) -> None:
        self.workload.add(log.images, log.seconds)
        self.epoch_at = time.monotonic()
        self.show(self.place(phase, stage, log, self.room))

    @property
    def room(self) -> int:
        return self.console.width - BESIDE

    def show(self, about: str | None) -> None:
        """Update the bar and the words beside it; None keeps the words that are there."""
        if self.task is not None:
            left = self.workload.left
            told = UNKNOWN if left is None else clock(left)
            self.progress.update(self.task, completed=self.workload.reached, description=about, left=told)

    def run_ends(self) -> None:
        self.close()

    def close(self) -> None:
        self.progress.stop()


def accuracy_text(line: dict[str, Any], readout: str) -> str:
    """`cnn 73.28 % (old 73.36, new 72.90)`; in the first phase, without the brackets."""
    every, old, new = (line[key].get(readout) for key in ("accuracy", "accuracy_old", "accuracy_new"))
    parts = "" if old is None else f" (old {old:.2f}, new {new:.2f})"
    return f"{readout} {every:.2f} %{parts}"


def phase_line(line: dict[str, Any], phases: int) -> str:
    accuracies = ", ".join(accuracy_text(line, name) for name in line["accuracy"])
    held = ", ".join(f"{name} {value:.2f} %" for name, value in line.get("val", {}).items())
    val = f", held out: {held}" if held else ""
    where = f"phase {line['phase']} of 0..{phases - 1}"
    return f"{where}: {line['seen']} classes, {accuracies}{val}, {clock(line['seconds'])}"


def display(console: Console) -> Lines:
    return Bar(console) if console.is_terminal else Lines(console)
