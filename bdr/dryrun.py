"""What a run would be: its phases, images, time and disk, before anything trains."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import NamedTuple

from rich.console import Group
from rich.table import Table

from bdr.display import duration
from bdr.engine.fit import Fit
from bdr.engine.learner import Learner
from bdr.planning.plan import Plan, setup_of
from bdr.planning.rehearsal import on_few_images
from bdr.records import Run
from bdr.records.speed import Speed, measured
from bdr.types import Phase

TIMED_STEPS = 2
LEAST = 20  # images of each class: describing a class may take several of them


def speed_of(plan: Plan, finished: Sequence[Run]) -> Speed | None:
    """The speed of finished runs of the same method in the same setup; None if there are none."""
    return measured(finished, plan.config.title, setup_of(plan), any_method=False)


def estimate(plan: Plan, speed: Speed | None) -> Group:
    """A table of the phases, the disk space, and the time, judged by earlier runs or else by a few steps taken now."""
    amounts = [sum(of_phase) for of_phase in plan.workload()]
    table = Table(title=f"{plan.config.title}, seed {plan.config.seed} -> {plan.experiment.path}")
    for column in ("phase", "classes", "new images", "exemplars", "images x epochs"):
        table.add_column(column, justify="right")
    for phase, amount in zip(plan.learner.phases, amounts, strict=True):
        classes, new = f"{phase.old}..{phase.seen - 1}", plan.new_images(phase)
        table.add_row(str(phase.index), classes, str(new), str(plan.exemplars(phase.old)), str(amount))
    said = by_steps(plan) if speed is None else by_records(speed, amounts)
    return Group(table, said, f"about {disk(plan) / 2**20:,.0f} MiB of disk")


def by_records(speed: Speed, amounts: Sequence[int]) -> str:
    beside = f", {speed.beside} side by side" if (speed.beside or 1) > 1 else ""
    return f"about {duration(speed.seconds(amounts))} of training, judging by {speed.told}{beside}"


def by_steps(plan: Plan) -> str:
    each, own = step_times(plan), plan.learner.phases[plan.experiment.taken_over :]
    seconds = sum(each[min(phase.index, 1)].seconds(plan, phase) for phase in own)
    images = sum(map(sum, plan.workload()))
    eager = " eager, which is several times slower" if plan.experiment.device.type == "cuda" else ""
    here = f"{TIMED_STEPS} steps of each stage here ({images / seconds:,.0f} images/s{eager})"
    return f"about {duration(seconds)} of training, judging by {here}"


class StepTimes(NamedTuple):
    """Seconds per image in each stage of a phase, and in the stage that alternates with each."""

    main: list[float]
    aside: list[float]

    def seconds(self, plan: Plan, phase: Phase) -> float:
        total = 0.0
        for number, stage in enumerate(plan.learner.stages[phase.index]):
            at = min(number, len(self.main) - 1)
            total += self.main[at] * plan.drawn(phase, stage) * stage.epochs
            if stage.alternate is not None:
                total += self.aside[at] * plan.drawn(phase, stage.alternate) * stage.epochs
        return total


def step_times(plan: Plan) -> list[StepTimes]:
    """The times of the first phase and of a later one, taken on a throw-away copy with enough images for a batch."""
    phases, batch = plan.learner.phases[:2], plan.config.stage.batch
    trial = on_few_images(plan.learner, max(LEAST, math.ceil(batch / min(phase.new for phase in phases))))
    with trial.at_work():
        return [times_of(trial, phase) for phase in phases]


def times_of(trial: Learner, phase: Phase) -> StepTimes:
    times = StepTimes([], [])
    pool = trial.begin_phase(phase)
    for fits in trial.each_stage(phase, pool):
        times.main.append(seconds_of_steps(fits.main))
        times.aside.append(0.0 if fits.aside is None else seconds_of_steps(fits.aside))
    trial.end_phase(phase, pool)
    return times


def seconds_of_steps(fit: Fit) -> float:
    """Seconds per image, over a few steps after one that does not count."""
    fit.wake()
    epoch = fit.open(0)
    fit.step()
    fit.eager.log.cpu()  # on a GPU, a step returns before it is done
    started = time.perf_counter()
    for _ in range(TIMED_STEPS):
        fit.rewind()
        fit.step()
    fit.eager.log.cpu()
    return (time.perf_counter() - started) / (TIMED_STEPS * epoch.rows.shape[1])


def disk(plan: Plan) -> float:
    """The bytes of two checkpoints with method, teacher and moments, of the kept models, and of the predictions."""
    method = plan.learner.method
    sizes = {name: 4 * kept.numel() for name, kept in method.state_dict().items()}
    model = sum(size for name, size in sizes.items() if not method.is_for_training(name))
    models = {"none": 0, "last": 1, "all": len(plan.learner.phases)}[plan.config.keep]
    images = sum(len(plan.experiment.test.of_classes(0, phase.seen)) for phase in plan.learner.phases)
    return 2 * 1.5 * sum(sizes.values()) + models * model + 20 * images
