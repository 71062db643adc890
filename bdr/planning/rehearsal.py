"""Tries steps and predictions on a few images before the first epoch: hours of training must not end in a typo."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from traceback import walk_tb

import torch
from torch import nn

from bdr.data.memory import Memory
from bdr.engine.checkpoint import module_state, restore_module
from bdr.engine.evaluate import predict
from bdr.engine.fit import Fit
from bdr.engine.learner import Learner
from bdr.errors import ALIKE, BdrError, UsageError, nearest
from bdr.planning.host_reads import HostReads, home_of, home_of_frame
from bdr.planning.parts import make_method, make_plugins
from bdr.planning.plan import Plan
from bdr.types import ImageShape

FEW = 2  # images of each class
BATCH = 64  # images that are evaluated
SLIPS = (NameError, AttributeError, TypeError, ImportError)  # errors that more images would not mend


def rehearse(plan: Plan) -> None:
    """Try everything on a small scale that a run comes to later: training, then predicting."""
    rehearse_training(plan)
    rehearse_readouts(plan)


def rehearse_readouts(plan: Plan) -> None:
    """Predict a batch with a copy of the method, as it is when its first phase begins."""
    own = own_packages(plan.learner)
    try:
        trial, phase = on_few_images(plan.learner), plan.learner.phases[0]
        trial.begin_phase(phase)
        predict(trial.method, plan.experiment.test, phase.seen, limit=BATCH)
    except Exception as error:
        if isinstance(error, BdrError) or not own:
            raise
        tell_failure(error, own)


def rehearse_training(plan: Plan) -> None:
    """Make a step of every stage of the first two phases on a copy, if a part is the user's own; tests cover ours."""
    own = own_packages(plan.learner)
    if not own:
        return
    seen, reads = Weighed(), HostReads(own)
    try:
        with warnings.catch_warnings(action="ignore"):
            trial = on_few_images(plan.learner)
            train_a_little(trial, seen, reads if plan.learner.engine == "graph" else None)
    except BdrError:
        raise
    except Exception as error:
        tell_failure(error, own)
    else:
        rehearse_going_on(plan, trial)
    reads.refuse()
    seen.refuse_misnamed()


def own_packages(learner: Learner) -> set[str]:
    """The packages of all modules that are neither ours nor torch's."""
    modules = [module for part in learner.modules().values() for module in part.modules()]
    return {home_of(type(module).__module__) for module in modules} - {"bdr", "torch"}


def rehearse_going_on(plan: Plan, trial: Learner) -> None:
    """Check that freshly built parts can load trained ones, as they do after a stop, and where a model is loaded."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings(action="ignore"):
        plugins = make_plugins(plan.config)
        method = make_method(plan.config, ImageShape(*plan.info["image"]), plugins)
    built = replace(trial, method=method, plugins=plugins).modules()
    for name, part in trial.modules().items():
        try:
            restore_module(built[name], module_state(part), trial.device)
        except (BdrError, RuntimeError) as error:
            why = str(error).splitlines()[:2][-1].strip()  # torch's first line only says that there are errors
            raise UsageError(
                f"no checkpoint of {type(part).__name__} could be taken up again, for begin is not replayed: {why}; "
                "make its parts in __init__, and let what grows say how (by_class, or layout and lay_out): see "
                "docs/add-a-method.md"
            ) from None
        if home_of(type(part).__module__) != "bdr":
            tell_lost_numbers(part, built[name])


def tell_lost_numbers(part: nn.Module, built: nn.Module) -> None:
    """Warn of Python numbers that training changes: only layouts save them, and a captured step keeps the old ones."""
    before, after = numbers_of(built), numbers_of(part)
    for name in [name for name, now in after.items() if before.get(name) != now]:
        was = f"was {before[name]} when it was made" if name in before else "was not there when it was made"
        warnings.warn(
            f"{type(part).__name__}.{name} is {after[name]} after a trial of training and {was}: no checkpoint has "
            "numbers of Python, so a run that goes on may differ; make it a buffer, tell it in layout, or take it from "
            "phase and batch.clock",
            stacklevel=2,
        )


def numbers_of(part: nn.Module) -> dict[str, float]:
    return {name: value for name, value in vars(part).items() if isinstance(value, int | float) and name != "training"}


def tell_failure(error: Exception, own: Collection[str]) -> None:
    """Refuse a slip in the user's own code; only warn of other failures: few images, still unlearnt, prove little."""
    passed = walk_tb(error.__traceback__)
    frames = [(frame, line) for frame, line in passed if home_of_frame(frame) in own]
    said = f"{type(error).__name__}: {error}"
    if frames:
        frame, line = frames[-1]
        said = f"{frame.f_code.co_filename}, line {line}, in {frame.f_code.co_name}: {said}"
        if isinstance(error, SLIPS):
            raise UsageError(f"{said} (tried before training, on {FEW} images of each class)") from error
    warnings.warn(
        f"{said}: so ended a trial before training, on {FEW} images of each class; if that is not because there are so "
        "few, training will end likewise",
        stacklevel=1,  # told from one place, and so only once if training and predicting end alike
    )


@dataclass
class Weighed:
    """The terms of the rehearsed stages, and the names of terms that method and plug-ins give weights to."""

    terms: set[str] = field(default_factory=set)
    weights: dict[str, set[str]] = field(default_factory=dict)  # names of terms, by who weighs them
    whole: bool = False  # whether a later phase was rehearsed to its end

    def take_in(self, fit: Fit) -> None:
        for part, mine in fit.objective.weights_of.items():
            self.weights.setdefault(part, set()).update(mine)
        self.terms |= fit.objective.counted.keys()

    def refuse_misnamed(self) -> None:
        """Refuse weights of terms that do not exist; a weight may be of a term in another stage or phase."""
        free = self.terms - set().union(*self.weights.values())
        for part, names in self.weights.items():
            for name in sorted(names - self.terms):
                near = nearest(name, free, ALIKE)
                if near or self.whole:
                    hint = f": did you mean '{near}'?" if near else ""
                    raise UsageError(
                        f"weights of {part} name '{name}', a term of no stage of the first two phases; the terms are "
                        f"{', '.join(sorted(self.terms))}{hint}"
                    )


def train_a_little(trial: Learner, seen: Weighed, reads: HostReads | None = None) -> None:
    for phase in trial.phases[:2]:
        pool = trial.begin_phase(phase)
        for fits in trial.each_stage(phase, pool):
            for fit in fits:
                if fit is not None:
                    step_once(fit, reads)
                    seen.take_in(fit)
        trial.end_phase(phase, pool)
        seen.whole = not phase.first


def step_once(fit: Fit, reads: HostReads | None) -> None:
    """Make a step; where reads are looked for, another: the first is free to read what it keeps, as in a warm-up."""
    fit.wake()
    fit.open(0)
    fit.step()
    if reads is not None:
        fit.rewind()
        with reads:
            fit.step()


def on_few_images(learner: Learner, few: int = FEW) -> Learner:
    """A copy of all that training changes, with a few images of each class of the first two phases."""
    method, plugins = copy.deepcopy((learner.method, list(learner.plugins)))
    classes = range(learner.phases[:2][-1].seen)
    rows = torch.cat([learner.train.of_classes(label, label + 1)[:few] for label in classes])
    some = copy.copy(learner.train)
    some.pixels, some.labels, some.names = some.pixels[rows], some.labels[rows], None
    memory = Memory(learner.memory.quota, learner.memory.herding)
    return replace(learner, train=some, method=method, plugins=plugins, memory=memory, engine="eager", replayed=[])
