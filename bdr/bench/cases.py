"""What is timed: a stage of a method in its first or a later phase, on random images, in any engine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from bdr.assemble import plan_run
from bdr.config import Config, changed
from bdr.data.augment import Augment
from bdr.data.images import DataSet
from bdr.data.pool import Pool
from bdr.data.sets import from_arrays
from bdr.engine.checkpoint import Position
from bdr.engine.fit import Fit
from bdr.engine.run import Experiment
from bdr.engine.step import eager_between_steps
from bdr.recipes import DIGITS_NETS, KEPT, OWN_NETS, cifar100
from bdr.types import Phase, Stage

NOWHERE = Path("bench-writes-nothing")
UNTRAINED = {"vit-b16": {"weights": "random"}}  # what weights know does not change how fast they are


@dataclass(frozen=True)
class Shape:
    """The random data set of a benchmark: CIFAR-100's by default, with fewer images a class."""

    classes: int = 100
    base: int = 50
    step: int = 10
    images: int = 100  # of each class
    pixels: int = 32
    memory: str = "20/class"


SMALL = Shape(classes=25, base=10, step=5, images=20, pixels=16, memory="4/class")  # for a CPU


@dataclass(frozen=True)
class Timing:
    """What a case came to."""

    case: str
    engine: str
    phase: str  # "first" or "later"
    batch: int
    images_per_second: float
    ms_per_step: float
    first_step_seconds: float  # compiling and capturing included
    memory_gib: float | None
    teraflops: float  # of useful work a second

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def random_images(shape: Shape) -> DataSet:
    rng = np.random.default_rng(0)
    count = shape.classes * shape.images
    x = rng.integers(0, 256, (count, shape.pixels, shape.pixels, 3), dtype=np.uint8)
    y = np.arange(count) % shape.classes
    few = slice(0, 2 * shape.classes)
    return from_arrays(x, y, x[few], y[few], augment=Augment(4, True), name="random")


def plain_net(device: torch.device) -> str:
    return "resnet18" if device.type == "cuda" else "small"


def net_of(method: str, device: torch.device) -> str:
    """What a method runs on: its own network where it brings one."""
    own = OWN_NETS if device.type == "cuda" else DIGITS_NETS
    return own.get(method, plain_net(device))


def configuration(what: str, shape: Shape, fields: dict[str, Any]) -> Config:
    method, *plugins = what.split("+")
    memory = KEPT.get(method, shape.memory)
    fields = {"net": net_of(method, torch.device(fields["device"]))} | fields
    about = {"data": "random", "base": shape.base, "step": shape.step, "memory": memory, "share": False}
    settings = {net: each for net, each in UNTRAINED.items() if net == fields["net"]}
    return changed(cifar100(method, *plugins), about | {"order": "seed-1993", "settings": settings} | fields)


def experiment_of(config: Config, data: DataSet) -> Experiment:
    return plan_run(config, NOWHERE, NOWHERE, data).experiment


def begun(experiment: Experiment, later: bool) -> tuple[Phase, Pool]:
    """An untrained network at the start of its first phase, or of its second with memory and teacher in place."""
    experiment.settle()
    first, second = experiment.phases[:2]
    pool = experiment.begin_phase(first)
    if not later:
        return first, pool
    experiment.select(first, pool)
    experiment.method.end(first, pool, experiment.memory.rows(experiment.device))
    experiment.position = Position(1)
    return second, experiment.begin_phase(second)


def fit_of(experiment: Experiment, later: bool) -> Fit:
    """The first stage of that phase, ready to step."""
    phase, pool = begun(experiment, later)
    stage: Stage = experiment.stages[phase.index][0]
    experiment.begin_stage(phase, pool, 0, stage)
    return experiment.open_fits(phase, pool, 0, stage)["optimizer"]


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    synchronise(device)
    started = time.perf_counter()
    work()
    synchronise(device)
    return time.perf_counter() - started


def steps_of(fit: Fit, count: int) -> None:
    """Steps as epochs make them, the draws included."""
    for place in range(count):
        if place % fit.steps == 0:
            fit.step.open(fit.plan(place // fit.steps), None)
            fit.clock.step.zero_()
        fit.step()


def flops_of_step(config: Config, data: DataSet, later: bool) -> int:
    """Multiplications and additions of one eager step, forward and backward, teacher included."""
    experiment = experiment_of(changed(config, {"engine": "eager"}), data)
    fit = fit_of(experiment, later)
    with FlopCounterMode(display=False) as counter:
        steps_of(fit, 1)
    return int(counter.get_total_flops())


def time_case(what: str, later: bool, shape: Shape, data: DataSet, steps: int, fields: dict[str, Any]) -> Timing:
    config = configuration(what, shape, fields)
    experiment = experiment_of(config, data)
    device = experiment.device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with eager_between_steps(experiment.engine):
        fit = fit_of(experiment, later)
        first = seconds_of(lambda: steps_of(fit, 1), device)
        steps_of(fit, min(5, steps))
        each = min(seconds_of(lambda: steps_of(fit, steps), device) for _ in range(3)) / steps
    peak = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None
    batch = fit.pool.batch_size(fit.stage, 0)
    work = flops_of_step(config, data, later) / each / 1e12
    phase = "later" if later else "first"
    return Timing(what, experiment.engine, phase, batch, batch / each, 1000 * each, first, peak, work)
