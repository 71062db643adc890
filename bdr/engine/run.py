"""The phase loop: begin, stages, memory, end, evaluate, record, checkpoint; and how to go on after a stop."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bdr.data.exemplars import checksums_of_classes, tell
from bdr.data.memory import Memory
from bdr.data.pool import Pool, Store, evaluating
from bdr.engine.analyse import Snapshots, gradient_norms
from bdr.engine.checkpoint import Checkpoints, Position, State, save_model
from bdr.engine.evaluate import Predictions, measure, predict
from bdr.engine.fit import Fit, set_modes, set_moving
from bdr.engine.listen import EpochLog, Listener
from bdr.engine.objective import Objective, old_loss
from bdr.engine.saving import Earlier, adopt, publish, resting_in, restore, restore_fits, state_of, take_over
from bdr.engine.step import convolving_as, eager_between_steps, give_back, set_precision
from bdr.errors import BdrError
from bdr.methods.base import Method
from bdr.plugins.base import Plugin
from bdr.records import RunWriter
from bdr.records.steps import CE_OLD, GRADIENTS
from bdr.seeding import seed_of
from bdr.types import Phase, Stage

LONGEST = 1000  # letters of a failure in the log


class Interrupted(BdrError):
    """The run was asked to stop, and saved itself."""

    exit_code = 130


@dataclass
class Experiment:
    """A method with its plug-ins, on a sequence of phases, writing a run directory."""

    phases: Sequence[Phase]
    train: Store
    test: Store
    method: Method
    plugins: Sequence[Plugin]
    memory: Memory
    stages: Sequence[Sequence[Stage]]  # of each phase
    seed: int
    classes: Sequence[str]  # names, in order of arrival
    path: Path
    engine: str = "eager"
    precision: str = "fp32"
    validation: Store | None = None
    keep: str = "last"
    analyse: bool = False
    checkpoint_every: float = 20.0  # seconds
    shared: Path | None = None  # where a first phase equal to this one's is, or will be, kept
    taken_over: int = 0  # phases that another run has trained: this one extends it
    earlier: Earlier | None = None  # that run, where this one is yet to begin
    own_code: Mapping[str, str] = field(default_factory=dict)  # modules of one's own, with their versions
    rehearse: Callable[[Predictions], None] = lambda predictions: None
    listener: Listener = field(default_factory=Listener)
    stopping: Callable[[], bool] = lambda: False

    def __post_init__(self) -> None:
        self.checkpoints = Checkpoints(self.path / "checkpoint")
        self.position, self.waiting = Position(), State({}, {})
        self.replayed: list[int] = []  # the exemplars that this phase trains on
        self.moving: list[str] = []  # the parameters that move, as the beginnings of phase and stage left them
        self.losses: dict[str, float] = {}  # of old and new classes, before the first step and after the last
        self.snapshots: Snapshots | None = None  # of a later phase that is analysed
        self.before, self.since, self.saved_at = 0.0, time.perf_counter(), time.monotonic()

    @property
    def seconds(self) -> float:
        """What this phase has taken so far, all that belongs to it included, and what it took before a stop."""
        return self.before + time.perf_counter() - self.since

    @seconds.setter
    def seconds(self, before: float) -> None:
        self.before, self.since = before, time.perf_counter()

    @property
    def device(self) -> torch.device:
        return self.train.device

    def start(self, info: dict[str, Any]) -> None:
        """Runs from the first phase on, or from a first phase that an equal run has trained already."""
        self.writer = RunWriter.create(self.path, info)
        with self.logged_failure():
            torch.manual_seed(seed_of(self.seed, "start"))
            self.settle()
            if self.taken_over:
                self.take_over()
            elif self.shared is not None and self.shared.is_dir() and adopt(self, self.shared):
                self.save()
            self.go()

    def take_over(self) -> None:
        """Begins where the run ended that this one extends."""
        if self.earlier is None:
            raise BdrError(f"nothing was saved in {self.path} yet: type the bdr extend that began it once more")
        take_over(self, self.earlier)
        self.save()

    def resume(self) -> None:
        """Goes on from the newest whole checkpoint; without one, from the beginning."""
        self.writer = RunWriter.alone(self.path)
        with self.logged_failure():
            with self.heard_warnings():
                state = self.checkpoints.newest()
            self.writer.cut_back(state.info["offsets"] if state else {})
            self.writer.log("going on")  # whatever it ended with before is over
            torch.manual_seed(seed_of(self.seed, "start"))
            self.settle()
            if state is not None:
                restore(self, state)
                self.checkpoints.trust(resting_in(self))
            elif self.taken_over:
                self.take_over()
            self.say_other_code()
            self.go()

    def say_other_code(self) -> None:
        """What is trained from here on may be another method than before, under the same name."""
        number = self.position.phase
        if changed := self.writer.goes_on_with(dict(self.own_code), number):
            names = ", ".join(changed)
            self.note(f"warning: {names} changed since the run was trained: phase {number} goes on with other code")

    def go(self) -> None:
        try:
            with eager_between_steps(self.engine), convolving_as(self.method), self.heard_warnings():
                for phase in self.phases[self.position.phase :]:
                    self.run_phase(phase)
        except torch.OutOfMemoryError as error:
            batch = max(stage.batch for stage in self.stages[self.position.phase])
            raise BdrError(
                f"out of memory on {self.device} with a batch of {batch}: try --set stage.batch={max(1, batch // 2)}; "
                f"what was saved is kept in {self.path}"
            ) from error
        finally:
            self.checkpoints.wait()
        self.writer.finish()
        self.listener.run_ends()

    @contextmanager
    def logged_failure(self) -> Iterator[None]:
        """What ends a run, other than a wish, goes into its log: those who read its folder alone should know."""
        try:
            yield
        except Interrupted:
            raise
        except Exception as error:
            with suppress(Exception):  # a disk that fails is the error rather than a reason to hide it
                self.writer.log(shorten(f"failed: {type(error).__name__}: {error}", LONGEST, placeholder=" ..."))
            raise
        finally:
            self.writer.close()

    @contextmanager
    def heard_warnings(self) -> Iterator[None]:
        """Warnings of plug-ins and libraries go into the run's log and to the listener."""
        with warnings.catch_warnings():
            warnings.simplefilter("default", UserWarning)
            warnings.showwarning = lambda message, *_, **__: self.note(f"warning: {message}")
            yield

    def note(self, text: str) -> None:
        self.writer.log(text)
        self.listener.note(text)

    def settle(self) -> None:
        """Puts all modules on the device, in the layout and precision of the run."""
        for part in (self.method, *self.plugins):
            part.to(self.device)
            set_precision(part, self.precision, self.device)

    # One phase

    def run_phase(self, phase: Phase) -> None:
        pool, stages = self.begin_phase(phase), self.stages[phase.index]
        for number in range(self.position.stage, len(stages)):
            self.run_stage(phase, pool, number, stages[number])
            give_back(self.device)
        if phase.first:
            publish(self)
        self.weigh_all("final", phase, pool, stages[0])
        self.end_phase(phase, pool, stages)

    def begin_phase(self, phase: Phase) -> Pool:
        fresh = self.position == Position(phase.index)
        if fresh:
            self.replayed, self.seconds, self.losses = self.memory.rows("cpu").tolist(), 0.0, {}
        new = self.train.of_classes(phase.old, phase.seen)
        replayed = torch.tensor(self.replayed, dtype=torch.long, device=self.device)
        pool = Pool(self.train, phase, new, replayed, self.seed, self.method.held)
        if self.memory.covers(phase):
            pool.memory = self.memory.rows(self.device)
        if self.analyse and not phase.first:
            self.snapshots = Snapshots(self.method.net, pool, self.phases[0].seen, self.replayed)
            if not fresh:
                self.snapshots.restore(self.waiting)
        if fresh:
            torch.manual_seed(seed_of(self.seed, "phase", phase.index, "begin"))
            self.method.begin(phase, pool)
            self.settle()
            if phase.first:
                self.rehearse(predict(self.method, self.test, phase.seen, limit=64))
        return pool

    def run_stage(self, phase: Phase, pool: Pool, number: int, stage: Stage) -> None:
        fits = self.enter_stage(phase, pool, number, stage)
        restore_fits(self, fits)
        self.listener.stage_begins(phase, number, stage, self.position.epoch)
        for epoch in range(self.position.epoch, stage.epochs):
            self.run_epoch(fits, phase, epoch)
        set_moving(self.method, self.moving)
        self.position = Position(phase.index, number + 1)
        self.save()

    def enter_stage(self, phase: Phase, pool: Pool, number: int, stage: Stage) -> dict[str, Fit]:
        """A stage that is ready to step, with the exemplars that it trains on."""
        if stage.draw == "memory" and not self.memory.covers(phase):
            self.select(phase, pool)
        if not self.position.in_stage:
            self.begin_stage(phase, pool, number, stage)
        return self.open_fits(phase, pool, number, stage)

    def open_fits(self, phase: Phase, pool: Pool, number: int, stage: Stage) -> dict[str, Fit]:
        """What a stage fits: its own objective, and the one that alternates with it."""
        self.wake(stage)
        watches = (old_loss, gradient_norms) if self.analyse and number == 0 else (old_loss,)
        main = Fit(Objective(self.method, self.plugins, phase, stage, watches), stage, number, pool, self.engine)
        if stage.alternate is None:
            return {"optimizer": main}
        self.wake(stage.alternate)
        place = f"{number}.{stage.alternate.name}"
        aside = Fit(Objective(self.method, (), phase, stage.alternate), stage.alternate, place, pool, self.engine)
        main.wake()
        return {"optimizer": main, "alternate": aside}

    def wake(self, stage: Stage) -> None:
        """What the stage trains may move, and all that rests is in eval mode."""
        set_moving(self.method, stage.train or self.moving)
        for part in (self.method, *self.plugins):
            set_modes(part)

    def begin_stage(self, phase: Phase, pool: Pool, number: int, stage: Stage) -> None:
        torch.manual_seed(seed_of(self.seed, "phase", phase.index, "stage", number, "begin"))
        self.method.begin_stage(stage, phase, pool)
        self.settle()
        census = pool.census(stage.draw, number)
        for plugin in sorted(self.plugins, key=lambda plugin: "net" not in plugin.roles):  # others may copy it
            if plugin.acts(phase, stage):
                plugin.begin(phase, census, self.method.net)
        self.settle()
        self.moving = [name for name, p in self.method.named_parameters() if p.requires_grad]
        if number == 0:
            self.weigh_all("initial", phase, pool, stage)
            if self.snapshots is not None:
                self.snapshots.start()

    def weigh_all(self, when: str, phase: Phase, pool: Pool, stage: Stage) -> None:
        """The training images of a later phase; where it is analysed, the test images of all seen classes too."""
        if phase.first:
            return
        self.weigh(when, phase, pool, stage)
        if self.analyse:
            rows = self.test.of_classes(0, phase.seen)
            self.weigh(f"test_{when}", phase, Pool(self.test, phase, rows, rows[:0], self.seed), stage)

    def weigh(self, when: str, phase: Phase, pool: Pool, stage: Stage) -> None:
        """The mean classification loss of old and of new images, as trained with, but without augmentation."""
        labels = pool.store.labels[pool.rows]
        objective = Objective(self.method, self.plugins, phase, stage)
        with evaluating(self.method):
            loss = objective.around(pool.outputs(self.method.net, pool.rows), labels)
        old = labels < phase.old
        for name, part in {"old": loss[old], "new": loss[~old]}.items():
            self.losses[f"{when}_{name}"] = float(part.mean()) if len(part) else math.nan

    def run_epoch(self, fits: dict[str, Fit], phase: Phase, epoch: int) -> None:
        fit, stage = fits["optimizer"], fits["optimizer"].stage
        first, before = self.position.step, self.take("log", "values")
        place = "phase", phase.index, "stage", fit.number
        if first == 0:
            torch.manual_seed(seed_of(self.seed, *place, "epoch", epoch))
            self.method.at_epoch(stage, epoch)

        def after_step(step: int, log: Tensor) -> None:
            if self.stopping() or self.due():
                self.position = Position(phase.index, int(fit.number), epoch, step)
                self.save(fits, log)
                self.leave_if_asked()

        log = fit.epoch(epoch, first, before, after_step)
        self.record_epoch(fit, phase, log)
        if "alternate" in fits:
            self.alternate(fits, phase, epoch)
        if self.snapshots is not None and fit.number == 0:
            self.snapshots.epoch_ends(stage, log, self.method.distillation)
        self.position = Position(phase.index, int(fit.number), epoch + 1)
        if epoch + 1 < stage.epochs and (self.stopping() or self.due()):
            self.save(fits)
            self.leave_if_asked()

    def alternate(self, fits: dict[str, Fit], phase: Phase, epoch: int) -> None:
        """An epoch of what alternates with a stage, from start to end: it is short."""
        main, fit = fits["optimizer"], fits["alternate"]
        fit.wake()
        torch.manual_seed(seed_of(self.seed, "phase", phase.index, "stage", fit.number, "epoch", epoch))
        log = fit.epoch(epoch, 0, None, lambda step, log: None)
        self.record_terms(fit, phase, log, main.objective.plugins)  # none takes part; what they are may have changed
        main.wake()

    def record_epoch(self, fit: Fit, phase: Phase, log: EpochLog) -> None:
        self.record_terms(fit, phase, log, fit.objective.plugins)
        if not phase.first:
            distillation = log.term(self.method.distillation or "")
            self.writer.steps(phase.index, int(fit.number), log.term(CE_OLD), distillation)
            if self.analyse and fit.number == 0:
                self.writer.analysis(phase.index, *map(log.term, GRADIENTS))
        self.listener.epoch_ends(phase, fit.stage, log)

    def record_terms(self, fit: Fit, phase: Phase, log: EpochLog, plugins: Sequence[Plugin]) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # an epoch without any old-class sample
            terms = {name: float(np.nanmean(log.term(name))) for name in log.names if name not in GRADIENTS}
        loss = sum(log.weights.get(name, 1.0) * terms[name] for name in log.terms)
        line = {"phase": phase.index, "stage": fit.stage.name, "epoch": log.epoch, "lr": log.rate, "loss": loss}
        speed = {"images_per_second": log.images / log.seconds, "seconds": log.seconds}
        told = {plugin.name: plugin.report(phase, self.method.net) for plugin in plugins}
        state = {name: {key: float(value) for key, value in each.items()} for name, each in told.items() if each}
        self.writer.epoch(line | {"terms": terms} | ({"plugins": state} if state else {}) | speed)

    def conclude(self, phase: Phase, pool: Pool) -> None:
        """What a phase leaves to the next: exemplars, teacher, corrections, class means."""
        if not self.memory.covers(phase):
            self.select(phase, pool)
        torch.manual_seed(seed_of(self.seed, "phase", phase.index, "end"))
        self.method.end(phase, pool, self.memory.rows(self.device))
        self.correct(phase)
        self.settle()
        self.method.remember(phase, pool, self.memory.rows(self.device))

    def end_phase(self, phase: Phase, pool: Pool, stages: Sequence[Stage]) -> None:
        self.conclude(phase, pool)
        line = self.evaluate(phase)
        line["parameters"] = self.method.parameter_count()
        line["steps_per_epoch"] = pool.steps(stages[0], 0)
        line["images"] = len(pool.rows)
        line["losses"] = self.losses
        line["seconds"] = self.seconds
        self.writer.memory(phase.index, dict(zip(self.classes, self.memory.exemplars, strict=False)))
        if phase is self.phases[-1]:
            self.writer.exemplars(phase.index, self.told_exemplars(phase))
        if self.snapshots is not None:
            self.writer.snapshots(phase.index, self.snapshots.arrays())
            self.snapshots = None
        self.keep_model(phase)
        self.writer.phase(line)
        self.position = Position(phase.index + 1)
        self.save()
        self.listener.phase_ends(line)
        if phase is not self.phases[-1]:
            self.leave_if_asked()

    def told_exemplars(self, phase: Phase) -> dict[str, Any]:
        """For whoever extends this run on a data set whose rows are others."""
        kept = tell(self.train, self.memory.exemplars)
        told = {name: [each._asdict() for each in mine] for name, mine in zip(self.classes, kept, strict=False)}
        tests = dict(zip(self.classes, checksums_of_classes(self.test, phase.seen), strict=False))
        return {"exemplars": told, "tests": tests}

    def correct(self, phase: Phase) -> None:
        """What plug-ins have to say of the scores, kept with the model: whoever loads it reads the same."""
        offsets = [plugin.correction(phase) for plugin in self.plugins if plugin.corrects]
        if self.method.correction is not None and offsets:
            self.method.correction.offset = torch.stack(offsets).sum(0)

    def select(self, phase: Phase, pool: Pool) -> None:
        self.memory.select(phase, pool, self.method.net)
        pool.memory = self.memory.rows(self.device)

    def evaluate(self, phase: Phase) -> dict[str, Any]:
        """Predicts, stores the predictions, and measures what is said of a phase at once."""
        line: dict[str, Any] = {"phase": phase.index, "old": phase.old, "seen": phase.seen}
        for split, store in {"test": self.test, "val": self.validation}.items():
            if store is not None:
                found = predict(self.method, store, phase.seen)
                self.writer.predictions(phase.index, found.labels, found.readouts, split)
                measured = measure(found, phase, [(p.old, p.seen) for p in self.phases[: phase.index + 1]])
                line |= measured if split == "test" else {"val": measured["accuracy"]}
        return line

    def keep_model(self, phase: Phase) -> None:
        final = phase is self.phases[-1]
        if self.keep == "all" or (self.keep == "last" and final):
            save_model(self.path / f"phase-{phase.index:02d}" / "model", self.method)

    # Going on after a stop

    def due(self) -> bool:
        return time.monotonic() - self.saved_at >= self.checkpoint_every

    def leave_if_asked(self) -> None:
        if self.stopping():
            self.checkpoints.wait()
            self.note("stopped on request; the state is saved")
            raise Interrupted(f"stopped, and saved; go on with: bdr resume {self.path}")

    def save(self, fits: Mapping[str, Fit] | None = None, log: Tensor | None = None) -> None:
        self.checkpoints.save(state_of(self, fits or {}, log), resting_in(self))
        self.saved_at = time.monotonic()

    def take(self, group: str, name: str) -> Tensor | None:
        """What a half-way epoch left behind, once."""
        found = self.waiting.tensors.pop(f"{group}:{name}", None)
        return None if found is None else found.to(self.device)
