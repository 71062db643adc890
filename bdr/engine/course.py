"""A run under way: its phases one after another, how far it has come, and the state to go on from after a stop."""

from __future__ import annotations

import time

from torch import Tensor

from bdr.data.pool import Pool
from bdr.engine.analyse import Snapshots, watches_of
from bdr.engine.checkpoint import Checkpoints, Position, State, position_info, taken_out
from bdr.engine.evaluate import mean_losses
from bdr.engine.experiment import Company, Experiment
from bdr.engine.fit import Fit, Fits
from bdr.engine.inherit import publish
from bdr.engine.objective import Objective
from bdr.engine.recording import Recording
from bdr.engine.saving import beside_modules, fits_state, learner_state, resting_in, restore_fits, restore_learner
from bdr.engine.step import give_back
from bdr.errors import Interrupted, as_word
from bdr.records import Run, RunWriter
from bdr.types import Phase

TOLD_EVERY = 1.0  # seconds at least between two reports of a step


class Course:
    """An experiment, and all that changes in a run of it apart from its learner."""

    def __init__(self, experiment: Experiment, writer: RunWriter, company: Company) -> None:
        self.experiment, self.learner = experiment, experiment.learner
        self.phases, self.method, self.device = experiment.phases, experiment.method, experiment.device
        self.listener, self.stopping = company.listener, company.stopping
        self.records = Recording(writer, self.listener, experiment)
        self.checkpoints = Checkpoints(experiment.path / "checkpoint")
        self.position = Position()
        self.waiting = State({}, {})  # what was saved inside a phase and has still to be restored
        self.losses: dict[str, float] = {}  # mean ones of old and new classes, before the first step and after the last
        self.begun: dict[str, dict[str, float]] = {}  # the reports of plug-ins before the first step
        self.snapshots: Snapshots | None = None  # only in a later phase that is analysed
        self.before, self.since, self.saved_at = 0.0, time.perf_counter(), time.monotonic()
        self.told_at = time.monotonic()

    @property
    def seconds(self) -> float:
        """The seconds that this phase has taken so far, all that belongs to it and the time before a stop included."""
        return self.before + time.perf_counter() - self.since

    @seconds.setter
    def seconds(self, before: float) -> None:
        self.before, self.since = before, time.perf_counter()

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
        """Begin a phase, or go on where it was left, and return its pool."""
        fresh = self.position == Position(phase.index)
        if fresh:
            self.seconds, self.losses, self.begun = 0.0, {}, {}
        pool = self.learner.begin_phase(phase) if fresh else self.learner.pool_of(phase)
        if self.experiment.analyse and not phase.first:
            replayed, distillation = self.learner.replayed, self.method.distillation
            self.snapshots = Snapshots(self.method.net, pool, self.phases[0].seen, replayed, distillation)
            if not fresh:
                self.snapshots.restore(self.waiting)
        return pool

    def run_stage(self, phase: Phase, pool: Pool, number: int) -> None:
        fits, stage = self.enter_stage(phase, pool, number), self.learner.stages[phase.index][number]
        self.listener.stage_begins(phase, number, stage, self.position.epoch)
        for epoch in range(self.position.epoch, stage.epochs):
            self.run_epoch(fits, number, epoch)
        self.learner.end_stage()
        self.position = Position(phase.index, number + 1)
        self.save()

    def enter_stage(self, phase: Phase, pool: Pool, number: int) -> Fits:
        """Begin a stage, or go on where it was left, and return its fits."""
        if not self.position.in_stage:
            self.learner.begin_stage(phase, pool, number)
            if number == 0:
                self.weigh("initial", phase, pool)
                if self.snapshots is not None:
                    self.snapshots.start()
        fits = self.learner.open_fits(phase, pool, number, watches_of(number, self.experiment.analyse))
        if self.position.in_stage:
            restore_fits(fits, self.waiting, self.device)
        elif number == 0:
            self.begun = self.records.told(phase, fits.main.objective.plugins)
        return fits

    def weigh(self, when: str, phase: Phase, pool: Pool) -> None:
        """Keep the mean losses on a later phase's images and, if analysed, on the test images of all seen classes."""
        if phase.first:
            return
        stage, seed = self.learner.stages[phase.index][0], self.learner.seed
        pools = {when: pool}
        if self.experiment.analyse:
            rows = self.experiment.test.of_classes(0, phase.seen)
            pools[f"test_{when}"] = Pool(self.experiment.test, phase, rows, rows[:0], seed)
        objective = Objective(self.method, self.learner.plugins, phase, stage)
        for name, each in pools.items():
            self.losses |= {f"{name}_{part}": loss for part, loss in mean_losses(objective, each).items()}

    def run_epoch(self, fits: Fits, number: int, epoch: int) -> None:
        fit, stage, phase = fits.main, fits.main.stage, fits.main.objective.phase
        first, before = self.position.step, taken_out("log", self.waiting.tensors).get("values")
        if first == 0:
            self.learner.begin_epoch(fit, epoch)

        looking = self.snapshots if number == 0 else None

        def after_step(step: int, log: Tensor) -> None:
            if looking is not None:  # before anything is saved: a resumed run does not make this step again
                looking.step_ends(stage, epoch, step, fit.eager.names, log)
            self.tell_now_and_then(fit, epoch, step)
            if self.stopping() or self.due():
                self.position = Position(phase.index, number, epoch, step)
                self.save(fits, log)
                self.leave_if_asked()

        log = fit.epoch(epoch, first, None if before is None else before.to(self.device), after_step)
        self.records.epoch(fit, number, log)
        if fits.aside is not None:
            self.alternate(fits.main, fits.aside, epoch)
        if looking is not None:
            looking.epoch_ends(stage, log)
        self.position = Position(phase.index, number, epoch + 1)
        if epoch + 1 < stage.epochs and (self.stopping() or self.due()):
            self.save(fits)
            self.leave_if_asked()

    def tell_now_and_then(self, fit: Fit, epoch: int, step: int) -> None:
        """Report the step once a second, by the host's clock alone: asking the device means waiting for it."""
        if (now := time.monotonic()) - self.told_at >= TOLD_EVERY:
            self.told_at = now
            self.listener.steps_end(fit.objective.phase, fit.stage, epoch, step, fit.steps)

    def alternate(self, main: Fit, aside: Fit, epoch: int) -> None:
        """Run an epoch of the stage that alternates with another; it is short, so there is no stop within it."""
        aside.wake()
        self.learner.seed_epoch(aside, epoch)
        log = aside.epoch(epoch, 0, None, lambda step, log: None)
        self.records.turn(aside, log, main.objective.plugins)
        main.wake()

    def end_phase(self, phase: Phase, pool: Pool) -> None:
        self.learner.end_phase(phase, pool)
        line = self.records.measured(phase)
        line["parameters"] = self.method.parameter_count()
        line["steps_per_epoch"] = pool.steps(self.learner.stages[phase.index][0])
        line["images"] = len(pool.rows)
        line["losses"] = self.losses
        line["plugins_at_start"], line["method_at_end"] = self.begun, self.records.said(phase)
        line["seconds"] = self.seconds
        self.records.phase(phase, line, self.snapshots)
        self.snapshots, self.position = None, Position(phase.index + 1)
        self.save()
        self.listener.phase_ends(line)
        if phase is not self.phases[-1]:
            self.leave_if_asked()

    def publish(self) -> None:
        """Share the first phase with equal runs, unless it trained on its exemplars and so depends on the memory."""
        shared = self.experiment.shared
        if shared is None or shared.exists() or self.learner.memory.covers(self.phases[0]):
            return
        state = self.state()
        publish(shared, State(state.tensors, state.info | {"epochs": Run.open(self.experiment.path).epochs}))

    # Going on after a stop

    def due(self) -> bool:
        return time.monotonic() - self.saved_at >= self.experiment.checkpoint_every

    def leave_if_asked(self) -> None:
        if self.stopping():
            self.checkpoints.wait()
            self.records.writer.log("stopped on request; the state is saved")  # listeners see the error
            raise Interrupted(f"stopped, and saved; go on with: bdr resume {as_word(self.experiment.path)}")

    def save(self, fits: Fits | None = None, log: Tensor | None = None) -> None:
        self.checkpoints.save(self.state(fits, log), resting_in(self.learner))
        self.saved_at = time.monotonic()

    def state(self, fits: Fits | None = None, log: Tensor | None = None) -> State:
        """The state of the run now: its learner, what this is fitting, and how far the run has come."""
        learner = learner_state(self.learner)
        seen = State({}, {}) if self.snapshots is None else self.snapshots.state()
        come = {
            "position": position_info(self.position),
            "losses": dict(self.losses),
            "begun": self.begun,
            "seconds": self.seconds,
        }
        tensors = learner.tensors | fits_state(fits, log, self.device) | seen.tensors
        return State(tensors, learner.info | seen.info | come | {"offsets": self.records.writer.offsets()})

    def restore(self, state: State) -> None:
        restore_learner(self.learner, state)
        self.position, self.waiting = Position(**state.info["position"]), beside_modules(state)
        self.losses, self.begun, self.seconds = (state.info[name] for name in ("losses", "begun", "seconds"))
