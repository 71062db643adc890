"""How much of a run's work is done, and how long the rest will take, in images that pass through training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any, NamedTuple

from bdr.records.reader import Run

RECENT = 10  # epochs from which the speed is taken
MAIN = "main"  # the stage that takes most of the time
STEADY = 3  # epochs needed for a speed: of three, the median is not the one that had to compile first


class Work(NamedTuple):
    """Images trained on so far, images in all, and seconds for the rest (None while that is unknown)."""

    done: int
    total: int
    left: float | None

    @property
    def share(self) -> float:
        return self.done / self.total if self.total else 0.0


def work_of(run: Run) -> Work | None:
    """How much of a run's planned work is done; None if its records do not have the plan."""
    planned = run.info.get("work")
    if not planned:
        return None
    total = images_of_phases(planned)
    done = total if run.done else images_done(run, planned)
    each = seconds_an_image(epochs_told(run.epochs, stages_planned(planned)))
    return Work(done, total, None if each is None else (total - done) * each)


def epochs_of(run: Run, phase: int, stage: str) -> int:
    """The number of epochs that a stage has; 0 if the run does not record it."""
    planned = run.info.get("work") or []
    stages = planned[phase] if phase < len(planned) else []
    return next((each["epochs"] for each in stages if each["stage"] == stage), 0)


def images_of(stage: dict[str, Any]) -> int:
    """The images trained on in all epochs of a planned stage."""
    images: int = stage["images"] * stage["epochs"]
    return images


def images_of_phases(planned: list[list[dict[str, Any]]]) -> int:
    return sum(images_of(stage) for stages in planned for stage in stages)


def images_done(run: Run, planned: list[list[dict[str, Any]]]) -> int:
    """The images of the phases that are over and of the epochs since."""
    now = len(run.phases)
    trained = Counter(line.get("stage") for line in run.epochs if line["phase"] == now)
    done = images_of_phases(planned[:now])
    for stage in planned[now] if now < len(planned) else []:
        epochs = min(stage["epochs"], trained[stage["stage"]])
        trained[stage["stage"]] -= epochs  # two stages may have the same name
        done += epochs * stage["images"]
    return done


def stages_planned(planned: list[list[dict[str, Any]]]) -> set[str]:
    """The names of all planned stages; a stage that alternates with another is in no plan."""
    return {stage["stage"] for stages in planned for stage in stages}


def epochs_told(lines: Iterable[dict[str, Any]], stages: set[str]) -> list[tuple[float, float]]:
    """Images and seconds of each epoch of these stages; the time of alternating stages is added to them."""
    told: list[tuple[float, float]] = []
    for line in lines:
        seconds, speed = line.get("seconds"), line.get("images_per_second")
        if not seconds or not speed:
            continue
        if line.get("stage", MAIN) in stages:
            told.append((seconds * speed, seconds))
        else:
            add_turn(told, seconds)
    return told


def add_turn(epochs: list[tuple[float, float]], seconds: float) -> None:
    """Add the seconds of an alternating stage to the last epoch; its images do not count."""
    if epochs:
        images, before = epochs[-1]
        epochs[-1] = images, before + seconds


def seconds_an_image(epochs: Sequence[tuple[float, float]]) -> float | None:
    """Seconds an image, from the last of these epochs (images, seconds); None while there are too few.

    It is their median: the first epoch of a stage, or after a stop, may take a hundred times as long as others.
    """
    recent = [seconds / images for images, seconds in epochs[-RECENT:] if images]
    return median(recent) if len(recent) >= STEADY else None
