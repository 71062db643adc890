"""How a run looks while it is under way: a bar with the time left on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from bdr.engine.listen import EpochLog, Listener
from bdr.records.work import add_turn, seconds_an_image
from bdr.types import Phase, Stage

BAR = 20  # columns of a terminal
BESIDE = BAR + len(" 123:45:67 left 1:23:45 ")  # what stands beside the words, which get shorter rather than it
UNKNOWN = "?"  # the time left, before epochs tell it


class Workload:
    """How much of a run is done, in images that pass through training, and how long the rest will take."""

    def __init__(self, amounts: Sequence[Sequence[int]]) -> None:
        self.amounts = [list(of_phase) for of_phase in amounts]  # of every stage of every phase
        self.done = 0
        self.epochs: list[tuple[float, float]] = []  # images and seconds of each

    def enter(self, phase: int, stage: int, share: float) -> None:
        """A stage begins, or goes on where this share of it is done."""
        before = sum(map(sum, self.amounts[:phase])) + sum(self.amounts[phase][:stage])
        self.done = before + round(share * self.amounts[phase][stage])

    def add(self, images: int, seconds: float) -> None:
        self.done += images
        self.epochs.append((images, seconds))

    def add_turn(self, seconds: float) -> None:
        add_turn(self.epochs, seconds)

    @property
    def total(self) -> int:
        return max(1, sum(map(sum, self.amounts)))

    @property
    def left(self) -> float | None:
        """By the last epochs alone: a later phase, with its teacher, is slower than the first one. None: not known."""
        each = seconds_an_image(self.epochs)
        return None if each is None else max(0, self.total - self.done) * each


def clock(seconds: float) -> str:
    whole = round(seconds)
    return (
        f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
        if whole >= 3600
        else f"{whole // 60}:{whole % 60:02d}"
    )


def duration(seconds: float) -> str:
    """`56 min`, `23 h 59 min`: where a clock could mean hours or minutes."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


class Lines(Listener):
    """Plain lines: one a phase, and one at least every few seconds."""

    def __init__(self, console: Console, every: float = 10.0) -> None:
        self.console, self.every = console, every
        self.said_at = time.monotonic()

    def say(self, text: str) -> None:
        self.console.print(text, markup=False, emoji=False, highlight=False, soft_wrap=True)

    def run_begins(self, title: str, phases: list[Phase], place: str, work: list[list[int]]) -> None:
        self.phases, self.workload = phases, Workload(work)
        self.say(f"{title}: {len(phases)} phases, {phases[-1].seen} classes -> {place}")

    def stage_begins(self, phase: Phase, number: int, stage: Stage, first_epoch: int) -> None:
        self.workload.enter(phase.index, number, first_epoch / stage.epochs)

    def epoch_ends(self, phase: Phase, stage: Stage, log: EpochLog) -> None:
        self.workload.add(log.images, log.seconds)
        if time.monotonic() - self.said_at >= self.every:
            self.said_at = time.monotonic()
            left = self.workload.left
            self.say(self.place(phase, stage, log) + ("" if left is None else f", {clock(left)} left"))

    def turn_ends(self, phase: Phase, stage: Stage, log: EpochLog) -> None:
        self.workload.add_turn(log.seconds)

    def place(self, phase: Phase, stage: Stage, log: EpochLog, room: float = math.inf) -> str:
        """Where a run is, how it goes and how fast; in less room, what matters most of it."""
        where = f"phase {phase.index} of 0..{len(self.phases) - 1}, {stage.name} epoch {log.epoch + 1}/{stage.epochs}"
        brief = f"phase {phase.index}, {stage.name} {log.epoch + 1}/{stage.epochs}"
        loss, speed = f"loss {log.loss:.3f}", f"{log.images / log.seconds:,.0f} images/s"
        forms = (f"{where}, {loss}, {speed}", f"{where}, {loss}", f"{brief}, {loss}", brief)
        return next((form for form in forms if len(form) <= room), f"phase {phase.index}")

    def phase_ends(self, line: dict[str, Any]) -> None:
        self.say(phase_line(line, len(self.phases)))

    def note(self, text: str) -> None:
        self.say(text)


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

    def run_begins(self, title: str, phases: list[Phase], place: str, work: list[list[int]]) -> None:
        super().run_begins(title, phases, place, work)
        self.progress.start()
        self.task = self.progress.add_task("starting", total=self.workload.total, left=UNKNOWN)

    def epoch_ends(self, phase: Phase, stage: Stage, log: EpochLog) -> None:
        self.workload.add(log.images, log.seconds)
        if self.task is not None:
            room = self.console.width - BESIDE
            about, left = self.place(phase, stage, log, room), self.workload.left
            told = UNKNOWN if left is None else clock(left)
            self.progress.update(self.task, completed=self.workload.done, description=about, left=told)

    def run_ends(self) -> None:
        self.close()

    def close(self) -> None:
        self.progress.stop()


def accuracy_text(line: dict[str, Any], readout: str) -> str:
    """`cnn 73.28 % (old 73.36, new 72.90)`; a first phase has nothing old."""
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
