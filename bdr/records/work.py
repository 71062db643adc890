"""How much of a run's work is done, and how long the rest will take, in images that pass through training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any, NamedTuple

from bdr.records.reader import Run

RECENT = 10  # epochs that the speed is taken from
MAIN = "main"  # the stage that most of the time goes to
STEADY = 3  # epochs before there is one: the median of three is none that had to compile first


class Work(NamedTuple):
    """Images that have passed through training, all that will, and seconds for the rest: None while that is unknown."""

    done: int
    total: int
    left: float | None

    @property
    def share(self) -> float:
        return self.done / self.total if self.total else 0.0


def work_of(run: Run) -> Work | None:
    """By what the run planned before it began; None for records that do not say."""
    planned = run.info.get("work")
    if not planned:
        return None
    total = images_of_phases(planned)
    done = total if run.done else images_done(run, planned)
    each = seconds_an_image(epochs_told(run.epochs, stages_planned(planned)))
    return Work(done, total, None if each is None else (total - done) * each)


def epochs_of(run: Run, phase: int, stage: str) -> int:
    """How many a stage has; 0 where a run does not say."""
    planned = run.info.get("work") or []
    stages = planned[phase] if phase < len(planned) else []
    return next((each["epochs"] for each in stages if each["stage"] == stage), 0)


def images_of(stage: dict[str, Any]) -> int:
    """That pass through training in all epochs of a stage as it is planned."""
    images: int = stage["images"] * stage["epochs"]
    return images


def images_of_phases(planned: list[list[dict[str, Any]]]) -> int:
    return sum(images_of(stage) for stages in planned for stage in stages)


def images_done(run: Run, planned: list[list[dict[str, Any]]]) -> int:
    """Those of phases that are over, and of the epochs since."""
    now = len(run.phases)
    trained = Counter(line.get("stage") for line in run.epochs if line["phase"] == now)
    done = images_of_phases(planned[:now])
    for stage in planned[now] if now < len(planned) else []:
        epochs = min(stage["epochs"], trained[stage["stage"]])
        trained[stage["stage"]] -= epochs  # two stages may have one name
        done += epochs * stage["images"]
    return done


def stages_planned(planned: list[list[dict[str, Any]]]) -> set[str]:
    """By name; what alternates with a stage is in no plan."""
    return {stage["stage"] for stages in planned for stage in stages}


def epochs_told(lines: Iterable[dict[str, Any]], stages: set[str]) -> list[tuple[float, float]]:
    """Images and seconds of each epoch of these stages; other lines are turns between them."""
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
    """What alternates with a stage took so long after its last epoch: that counts, its images do not."""
    if epochs:
        images, before = epochs[-1]
        epochs[-1] = images, before + seconds


def seconds_an_image(epochs: Sequence[tuple[float, float]]) -> float | None:
    """By the last epochs, of which images and seconds are given; None while there are too few.

    Their median: the first epoch of a stage, and the first after a stop, may take a hundred times as long as others.
    """
    recent = [seconds / images for images, seconds in epochs[-RECENT:] if images]
    return median(recent) if len(recent) >= STEADY else None
