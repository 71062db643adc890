"""Timing the steps of a method in any of its phases, on random images, in any engine."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from bdr.bench.untrained import begun
from bdr.configuration.config import Config, changed
from bdr.configuration.frames import brought_by
from bdr.configuration.overrides import with_settings
from bdr.configuration.recipes import configure
from bdr.data.augment import Augment
from bdr.data.images import DataSet
from bdr.data.sets import from_arrays
from bdr.engine.analyse import watches_of
from bdr.engine.fit import Fit
from bdr.engine.learner import Learner
from bdr.engine.step import choose_engine, give_back
from bdr.planning.assemble import plan_run
from bdr.planning.parts import choose_device

NOWHERE = Path("bench-writes-nothing")
Settings = Iterable[tuple[str, Any]]
UNTRAINED = {"vit-b16": {"weights": "random"}}  # no file is needed; those of a file are cast once, and a little faster


@dataclass(frozen=True)
class Shape:
    """The shape of a benchmark's random data set and its phases; by default that of CIFAR-100."""

    classes: int = 100
    base: int = 50
    step: int = 10
    images: int = 500  # per class
    pixels: int = 32
    memory: str = "20/class"

    def up_to(self, phase: int) -> Shape:
        """This shape with enough classes to have that phase."""
        return replace(self, classes=max(self.classes, self.base + phase * self.step))

    def seen(self, as_trained: bool) -> Shape:
        """This shape; if steps are timed as they are trained on CIFAR-100, with images of that size."""
        return replace(self, pixels=Shape.pixels) if as_trained else self

    @property
    def images_told(self) -> str:
        return f"images of {self.pixels} x {self.pixels}"


SMALL = Shape(classes=25, base=10, step=5, images=20, pixels=16, memory="4/class")  # for a CPU


@dataclass(frozen=True)
class Timing:
    """What was measured of a case."""

    case: str
    engine: str
    phase: str  # "first" or "later"
    batch: int
    images_per_second: float  # images of the stage itself only, even if another alternates with it
    ms_per_step: float  # with its share of a stage that alternates with it
    first_step_seconds: float  # compiling and capturing included
    memory_gib: float | None  # the peak during steps, including all that is held at rest
    teraflops: float  # useful work per second
    number: int = 0  # the number of the phase
    parameters: int = 0  # kept for inference
    net: str = ""

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
    """The network that a method runs on by default: its own if it brings one."""
    brought = brought_by(method)
    own = brought.net if device.type == "cuda" else brought.digits.net
    return own or plain_net(device)


def usual_batch(device: torch.device) -> int:
    return 128 if device.type == "cuda" else 32


@dataclass(frozen=True, kw_only=True)
class Told:
    """The options that were given to a benchmark.

    None stands for what is usual on the device, or with `as_trained` for what `bdr run` trains on CIFAR-100.
    """

    device: str | None = None
    engine: str | None = None
    net: str | None = None
    batch: int | None = None
    steps: int | None = None
    as_trained: bool = False

    @property
    def where(self) -> torch.device:
        return choose_device(self.device or "auto")

    def fields(self, what: str) -> dict[str, Any]:
        """The fields of the configuration of a case that these options decide."""
        recipe, device = recipe_of(what), self.where
        usual = net_of(recipe.method, device), usual_batch(device)
        own_net, own_batch = (recipe.net, recipe.stage.batch) if self.as_trained else usual
        fields: dict[str, Any] = {"device": str(device), "engine": choose_engine(self.engine or "auto", device)}
        return fields | {"net": self.net or own_net, "stage": {"batch": self.batch or own_batch}}


def recipe_of(what: str) -> Config:
    """The configuration that `bdr run WHAT` trains on CIFAR-100."""
    return configure(what, "cifar100")[0]


def configuration(what: str, shape: Shape, fields: dict[str, Any], settings: Settings = ()) -> Config:
    """The recipe of a case on random images, with the fields of a benchmark laid over it, and then --set over both."""
    recipe = recipe_of(what)
    memory = brought_by(recipe.method).memory or shape.memory
    fields = {"net": net_of(recipe.method, torch.device(fields["device"]))} | fields
    about = {"data": "random", "base": shape.base, "step": shape.step, "memory": memory, "share": False}
    parts = recipe.settings | {net: each for net, each in UNTRAINED.items() if net == fields["net"]}
    return with_settings(changed(recipe, about | {"order": "seed-1993", "settings": parts} | fields), settings)[0]


def learner_of(config: Config, data: DataSet) -> Learner:
    return plan_run(config, NOWHERE, NOWHERE, data).learner


def fits_of(learner: Learner, number: int, analysed: bool = False) -> list[Fit]:
    """The fit of the first stage of that phase, ready to step, and that of a stage that alternates with it."""
    phase, pool = begun(learner, number)
    learner.begin_stage(phase, pool, 0)
    fits = learner.open_fits(phase, pool, 0, watches_of(0, analysed))
    learner.begin_epoch(fits.main, 0)
    return [fit for fit in fits if fit is not None]


def of_a_step(fits: list[Fit], value: Callable[[Fit], float]) -> float:
    """What a step of the first fit takes, plus its share of the steps of an alternating fit in the same epoch."""
    total = 0.0
    for fit in fits:
        fit.wake()
        total += fit.steps / fits[0].steps * value(fit)
    return total


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    synchronise(device)
    started = time.perf_counter()
    work()
    synchronise(device)
    return time.perf_counter() - started


def first_steps(fits: list[Fit]) -> float:
    """The seconds that the first steps take, compiling and capturing included."""
    total = 0.0
    for fit in fits:
        fit.wake()
        total += seconds_of(lambda fit=fit: steps_of(fit, 1), fit.pool.store.device)  # type: ignore[misc]
    return total


def steps_of(fit: Fit, count: int) -> None:
    """Run `count` steps as a run does in its epochs, the draws included."""
    for place in range(count):
        if place % fit.steps == 0:
            fit.open(place // fit.steps)
        fit.step()


def flops_of_step(config: Config, data: DataSet, number: int) -> int:
    """Multiplications and additions in one eager step, forward and backward, teacher included."""
    learner = learner_of(changed(config, {"engine": "eager"}), data)
    return round(of_a_step(fits_of(learner, number, config.analyse), counted_flops))


def counted_flops(fit: Fit) -> int:
    with FlopCounterMode(display=False) as counter:
        steps_of(fit, 1)
    return int(counter.get_total_flops())


def seconds_of_step(fit: Fit, steps: int) -> float:
    """Seconds per step: the best of three measurements, after a few steps that do not count."""
    device = fit.pool.store.device
    steps_of(fit, min(5, steps))
    return min(seconds_of(lambda: steps_of(fit, steps), device) for _ in range(3)) / steps


def forget_peak(device: torch.device) -> None:
    """Reset the peak of memory to what is in use now, once what earlier cases have left is freed."""
    gc.collect()  # modules and the captured steps that use them refer to each other
    give_back(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_gib(device: torch.device) -> float | None:
    return torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None


def time_case(
    what: str,
    number: int,
    shape: Shape,
    data: DataSet,
    steps: int,
    fields: dict[str, Any],
    settings: Settings = (),
) -> Timing:
    """Time the steps of the first stage of that phase, and of a stage that alternates with it."""
    config = configuration(what, shape, fields, settings)
    learner = learner_of(config, data)
    device = learner.device
    with learner.at_work():
        fits = fits_of(learner, number, config.analyse)
        forget_peak(device)
        first = first_steps(fits)
        each = of_a_step(fits, lambda fit: seconds_of_step(fit, steps))
    peak, batch = peak_gib(device), fits[0].pool.batch_size(fits[0].stage)
    work = flops_of_step(config, data, number) / each / 1e12
    phase, parameters = "later" if number else "first", learner.method.parameter_count()
    speed = batch / each, 1000 * each
    return Timing(what, learner.engine, phase, batch, *speed, first, peak, work, number, parameters, config.net)
