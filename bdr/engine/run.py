"""The phase loop: begin, stages, memory, end, record, checkpoint; and how to go on after a stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bdr.data.pool import Pool
from bdr.data.store import Store
from bdr.engine.analyse import Snapshots
from bdr.engine.checkpoint import Checkpoints, Position, State, position_info, taken_out
from bdr.engine.evaluate import Predictions, mean_losses, predict
from bdr.engine.fit import Fit, Fits
from bdr.engine.inherit import Earlier, publish, published
from bdr.engine.learner import Learner
from bdr.engine.listen import Listener
from bdr.engine.objective import Objective
from bdr.engine.recording import Recording
from bdr.engine.saving import beside_modules, fits_state, learner_state, resting_in, restore_fits, restore_learner
from bdr.engine.step import give_back
from bdr.errors import BdrError, Interrupted
from bdr.methods.base import Method
from bdr.records import Run, RunWriter
from bdr.seeding import seed_of
from bdr.types import Phase


class Company(NamedTuple):
    """Who is with a run while it trains: who hears of it, who may stop it, and what is tried before the first epoch."""

    listener: Listener
    stopping: Callable[[], bool]
    rehearse: Callable[[Predictions], None]


@dataclass
class Experiment:
    """A learner that is led through its phases, writing a run directory."""

    learner: Learner
    test: Store
    classes: Sequence[str]  # names, in order of arrival
    path: Path
    validation: Store | None = None
    keep: str = "last"
    analyse: bool = False
    checkpoint_every: float = 20.0  # seconds
    shared: Path | None = None  # where a first phase equal to this one's is, or will be, kept
    taken_over: int = 0  # phases that another run has trained: this one extends it
    earlier: Earlier | None = None  # that run, where this one is yet to begin
    code: str = ""  # the version of the library's own source
    own_code: Mapping[str, str] = field(default_factory=dict)  # modules of one's own, with their versions

    def __post_init__(self) -> None:
        self.checkpoints = Checkpoints(self.path / "checkpoint")
        self.position = Position()
        self.waiting = State({}, {})  # what was saved inside a phase, until it is taken up
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
    def phases(self) -> Sequence[Phase]:
        return self.learner.phases

    @property
    def method(self) -> Method:
        return self.learner.method

    @property
    def device(self) -> torch.device:
        return self.learner.device

    def start(self, info: dict[str, Any], company: Company) -> None:
        """Runs from the first phase on, or from phases that another run has trained already."""
        self.open(RunWriter.create(self.path, info), company)
        with self.records.logged_failure():
            self.make_ready()
            if self.taken_over:
                self.take_over()
            elif self.shared is not None:
                self.adopt(self.shared)
            self.go()

    def resume(self, company: Company) -> None:
        """Goes on from the newest whole checkpoint; without one, from the beginning."""
        self.open(RunWriter.alone(self.path), company)
        with self.records.logged_failure():
            self.analyse = bool(Run.open(self.path).info.get("analyse"))  # from the first step to the last, or not
            if not self.take_up_checkpoint() and self.taken_over:
                self.take_over()
            self.say_other_code()
            self.go()

    def open(self, writer: RunWriter, company: Company) -> None:
        self.listener, self.stopping, self.rehearse = company
        self.records = Recording(
            writer=writer,
            listener=self.listener,
            learner=self.learner,
            test=self.test,
            validation=self.validation,
            classes=self.classes,
            keep=self.keep,
        )

    def make_ready(self) -> None:
        torch.manual_seed(seed_of(self.learner.seed, "start"))
        self.learner.settle()

    def take_up_checkpoint(self) -> bool:
        """Whether there was a whole one; the records are cut back to where it stands."""
        writer = self.records.writer
        with self.records.heard_warnings():
            state = self.checkpoints.newest(lambda state: writer.lost(state.info["offsets"]))
        offsets = state.info["offsets"] if state else {}
        writer.refuse_lost(offsets)
        writer.cut_back(offsets)
        writer.log("going on")  # whatever it ended with before is over
        self.make_ready()
        if state is not None:
            self.restore(state)
            self.checkpoints.trust(resting_in(self.learner))
        return state is not None

    def say_other_code(self) -> None:
        """What is trained from here on may be another method than before, under the same name."""
        if self.position.phase == len(self.phases):  # only its end was left to be marked
            return
        for line in self.records.writer.goes_on_with(dict(self.own_code), self.code, self.position.phase):
            self.records.note(line)

    def go(self) -> None:
        try:
            with self.learner.at_work(), self.records.heard_warnings():
                for phase in self.phases[self.position.phase :]:
                    self.run_phase(phase)
        except torch.OutOfMemoryError as error:
            batch = max(stage.batch for stage in self.learner.stages[self.position.phase])
            raise BdrError(
                f"out of memory on {self.device} with a batch of {batch}: try --set stage.batch={max(1, batch // 2)}; "
                f"what was saved is kept in {self.path}"
            ) from error
        finally:
            self.checkpoints.wait()
        self.records.writer.finish()
        self.listener.run_ends()

    # One phase

    def run_phase(self, phase: Phase) -> None:
        pool = self.enter_phase(phase)
        for number in range(self.position.stage, len(self.learner.stages[phase.index])):
            self.run_stage(phase, pool, number)
            give_back(self.device)
        if phase.first:
            self.publish()
        self.weigh("final", phase, pool)
        self.end_phase(phase, pool)

    def enter_phase(self, phase: Phase) -> Pool:
        """Its pool, from its beginning or from wherever it was left."""
        fresh = self.position == Position(phase.index)
        if fresh:
            self.seconds, self.losses = 0.0, {}
        pool = self.learner.begin_phase(phase) if fresh else self.learner.pool_of(phase)
        if self.analyse and not phase.first:
            replayed, distillation = self.learner.replayed, self.method.distillation
            self.snapshots = Snapshots(self.method.net, pool, self.phases[0].seen, replayed, distillation)
            if not fresh:
                self.snapshots.restore(self.waiting)
        if fresh and phase.first:
            self.rehearse(predict(self.method, self.test, phase.seen, limit=64))
        return pool

    def run_stage(self, phase: Phase, pool: Pool, number: int) -> None:
        fits, stage = self.enter_stage(phase, pool, number), self.learner.stages[phase.index][number]
        self.listener.stage_begins(phase, number, stage, self.position.epoch)
        for epoch in range(self.position.epoch, stage.epochs):
            self.run_epoch(fits, phase, epoch)
        self.learner.end_stage()
        self.position = Position(phase.index, number + 1)
        self.save()

    def enter_stage(self, phase: Phase, pool: Pool, number: int) -> Fits:
        """What it fits, from its beginning or from wherever it was left."""
        if not self.position.in_stage:
            self.learner.begin_stage(phase, pool, number)
            if number == 0:
                self.weigh("initial", phase, pool)
                if self.snapshots is not None:
                    self.snapshots.start()
        fits = self.learner.open_fits(phase, pool, number, self.analyse)
        if self.position.in_stage:
            restore_fits(fits, self.waiting, self.device)
        return fits

    def weigh(self, when: str, phase: Phase, pool: Pool) -> None:
        """The training images of a later phase; where it is analysed, the test images of all seen classes too."""
        if phase.first:
            return
        stage, seed = self.learner.stages[phase.index][0], self.learner.seed
        pools = {when: pool}
        if self.analyse:
            rows = self.test.of_classes(0, phase.seen)
            pools[f"test_{when}"] = Pool(self.test, phase, rows, rows[:0], seed)
        objective = Objective(self.method, self.learner.plugins, phase, stage)
        for name, each in pools.items():
            self.losses |= {f"{name}_{part}": loss for part, loss in mean_losses(objective, each).items()}

    def run_epoch(self, fits: Fits, phase: Phase, epoch: int) -> None:
        fit, stage = fits.main, fits.main.stage
        first, before = self.position.step, taken_out("log", self.waiting.tensors).get("values")
        if first == 0:
            self.learner.begin_epoch(fit, epoch)

        looking = self.snapshots if fit.number == 0 else None

        def after_step(step: int, log: Tensor) -> None:
            if looking is not None:  # before anything is saved: this step is not made again
                looking.step_ends(stage, epoch, step, fit.step.names, log)
            if self.stopping() or self.due():
                self.position = Position(phase.index, fit.number, epoch, step)
                self.save(fits, log)
                self.leave_if_asked()

        log = fit.epoch(epoch, first, None if before is None else before.to(self.device), after_step)
        self.records.epoch(fit, log)
        if fits.aside is not None:
            self.alternate(fits.main, fits.aside, epoch)
        if looking is not None:
            looking.epoch_ends(stage, log)
        self.position = Position(phase.index, fit.number, epoch + 1)
        if epoch + 1 < stage.epochs and (self.stopping() or self.due()):
            self.save(fits)
            self.leave_if_asked()

    def alternate(self, main: Fit, aside: Fit, epoch: int) -> None:
        """An epoch of what alternates with a stage, from start to end: it is short."""
        aside.wake()
        self.learner.seed_epoch(aside, epoch)
        log = aside.epoch(epoch, 0, None, lambda step, log: None)
        self.records.means(aside, log, main.objective.plugins)  # none takes part; what they are may have changed
        main.wake()

    def end_phase(self, phase: Phase, pool: Pool) -> None:
        self.learner.end_phase(phase, pool)
        line = self.records.measured(phase)
        line["parameters"] = self.method.parameter_count()
        line["steps_per_epoch"] = pool.steps(self.learner.stages[phase.index][0])
        line["images"] = len(pool.rows)
        line["losses"] = self.losses
        line["seconds"] = self.seconds
        self.records.phase(phase, line, self.snapshots)
        self.snapshots, self.position = None, Position(phase.index + 1)
        self.save()
        self.listener.phase_ends(line)
        if phase is not self.phases[-1]:
            self.leave_if_asked()

    # What others have trained, or will not have to

    def publish(self) -> None:
        """A first phase that has trained on its exemplars depends on the memory, and is no other run's."""
        if self.shared is None or self.shared.exists() or self.learner.memory.covers(self.phases[0]):
            return
        state = self.state()
        publish(self.shared, State(state.tensors, state.info | {"epochs": Run.open(self.path).epochs}))

    def adopt(self, folder: Path) -> None:
        """Begins after the first phase, if an equal run has left it there."""
        state = published(folder, self.records.note)
        if state is None:
            return
        self.restore(state)
        for line in state.info["epochs"]:
            self.records.writer.epoch(line)
        self.records.note(f"the first phase was trained before by an equal run: taken from {folder}")
        self.save()

    def take_over(self) -> None:
        """Begins where the run ended that this one extends: its records and its state become those of this one."""
        earlier, self.earlier = self.earlier, None  # its weights need not be held any longer
        if earlier is None:
            raise BdrError(f"nothing was saved in {self.path} yet: type the bdr extend that began it once more")
        self.records.writer.take_over(earlier.run)
        try:
            self.restore(earlier.state_here())
        except (RuntimeError, KeyError) as error:
            said = str(error).splitlines()[0]
            raise BdrError(
                f"the model of {earlier.run.path} does not fit these settings ({said}): leave out --set"
            ) from None
        earlier.renumber(self.learner)
        self.records.note(f"extends {earlier.run.path}, which trained the first {self.taken_over} phases")
        self.save()

    # Going on after a stop

    def due(self) -> bool:
        return time.monotonic() - self.saved_at >= self.checkpoint_every

    def leave_if_asked(self) -> None:
        if self.stopping():
            self.checkpoints.wait()
            self.records.note("stopped on request; the state is saved")
            raise Interrupted(f"stopped, and saved; go on with: bdr resume {self.path}")

    def save(self, fits: Fits | None = None, log: Tensor | None = None) -> None:
        self.checkpoints.save(self.state(fits, log), resting_in(self.learner))
        self.saved_at = time.monotonic()

    def state(self, fits: Fits | None = None, log: Tensor | None = None) -> State:
        """All that the run is now: the learner, what it is fitting, and how far it has come."""
        learner = learner_state(self.learner)
        seen = State({}, {}) if self.snapshots is None else self.snapshots.state()
        come = {"position": position_info(self.position), "losses": dict(self.losses), "seconds": self.seconds}
        tensors = learner.tensors | fits_state(fits, log, self.device) | seen.tensors
        return State(tensors, learner.info | seen.info | come | {"offsets": self.records.writer.offsets()})

    def restore(self, state: State) -> None:
        restore_learner(self.learner, state)
        self.position, self.waiting = Position(**state.info["position"]), beside_modules(state)
        self.losses, self.seconds = state.info["losses"], state.info["seconds"]
