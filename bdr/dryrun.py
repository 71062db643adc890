"""What a run would be: its phases, images, time and disk, before anything trains."""

from __future__ import annotations

import copy
import time
from dataclasses import replace

from rich.console import Group
from rich.table import Table

from bdr.display import duration
from bdr.engine.fit import Fit
from bdr.plan import Plan

TIMED_STEPS = 3
TEACHER = 4 / 3  # a step is forward and twice that backward; a teacher adds one forward


def estimate(plan: Plan) -> Group:
    amounts = [sum(of_phase) for of_phase in plan.workload()]
    table = Table(title=f"{plan.config.title}, seed {plan.config.seed} -> {plan.experiment.path}")
    for column in ("phase", "classes", "new images", "exemplars", "images x epochs"):
        table.add_column(column, justify="right")
    for phase, amount in zip(plan.learner.phases, amounts, strict=True):
        classes, new = f"{phase.old}..{phase.seen - 1}", plan.new_images(phase)
        table.add_row(str(phase.index), classes, str(new), str(plan.exemplars(phase.old)), str(amount))
    each = seconds_per_image(plan)
    total = each * (amounts[0] + TEACHER * sum(amounts[1:]))
    said = f"about {duration(total)} of training, judging by {TIMED_STEPS} eager steps here ({1 / each:,.0f} images/s)"
    return Group(table, said, f"about {disk(plan) / 2**20:,.0f} MiB of disk")


def seconds_per_image(plan: Plan) -> float:
    """A few real steps of the first phase on a copy that is thrown away."""
    real, phase = plan.learner, plan.learner.phases[0]
    stage = replace(real.stages[0][0], alternate=None)
    trial = replace(real, method=copy.deepcopy(real.method), plugins=(), stages=[[stage]], engine="eager")
    with trial.at_work():
        pool = trial.begin_phase(phase)
        trial.begin_stage(phase, pool, 0)
        return seconds_of_steps(trial.open_fits(phase, pool, 0).main)


def seconds_of_steps(fit: Fit) -> float:
    """Of an image, in a few steps after one that does not count."""
    epoch = fit.plan(0)
    fit.step.open(epoch, None)
    fit.step()
    started = time.perf_counter()
    for _ in range(TIMED_STEPS):
        fit.clock.step.zero_()
        fit.step()
    fit.step.log.cpu()
    return (time.perf_counter() - started) / (TIMED_STEPS * epoch.rows.shape[1])


def disk(plan: Plan) -> float:
    """Two checkpoints of method, teacher and moments; the kept models; predictions."""
    method = plan.learner.method
    sizes = {name: 4 * kept.numel() for name, kept in method.state_dict().items()}
    model = sum(size for name, size in sizes.items() if not method.is_for_training(name))
    models = {"none": 0, "last": 1, "all": len(plan.learner.phases)}[plan.config.keep]
    images = sum(len(plan.experiment.test.of_classes(0, phase.seen)) for phase in plan.learner.phases)
    return 2 * 1.5 * sum(sizes.values()) + models * model + 20 * images
