"""A method with its plug-ins and its memory, led from phase to phase. It writes nothing and knows no folder.

Its caller begins a phase. For each stage of the phase, the caller begins the stage, opens its fits, begins and fits the
epochs, and ends the stage. Then the caller ends the phase.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bdr.data.memory import Memory
from bdr.data.pool import Pool
from bdr.data.store import Store
from bdr.engine.fit import Fit, Fits, set_modes, set_moving
from bdr.engine.objective import Objective, Watch, kind_of, old_loss, owner
from bdr.engine.step import convolving_as, eager_between_steps, set_precision
from bdr.errors import BdrError
from bdr.losses import cross_entropy
from bdr.methods.base import Method
from bdr.nets import Head
from bdr.plugins.base import Plugin
from bdr.seeding import seed_of
from bdr.types import Phase, Stage


def check_grown(method: Method, phase: Phase) -> None:
    """Refuse a head that is too small: a user's own method may forget to let it grow."""
    head = getattr(method.net, "head", None)
    if isinstance(head, Head) and head.classes < phase.seen:
        raise BdrError(
            f"the head of {type(method).__name__} has {head.classes} classes after begin(), and there are {phase.seen} "
            f"in phase {phase.index}: call self.net.head.grow(phase.new) in begin()"
        )


def correction_of(plugin: Plugin, phase: Phase) -> Tensor:
    """The plug-in's correction, a number for each seen class; checked, since a user's own plug-in may be wrong."""
    offset: object = plugin.correction(phase)
    if isinstance(offset, Tensor) and offset.shape == (phase.seen,):
        return offset
    raise BdrError(
        f"`correction` of {owner(plugin)} must be a number for each of {phase.seen} classes, and is {kind_of(offset)}"
    )


def current(device: torch.device) -> AbstractContextManager[object]:
    """Inside, streams, graphs and random numbers for which no GPU is named belong to this one."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@dataclass
class Learner:
    """All that training changes, and all that is needed to train it."""

    phases: Sequence[Phase]
    stages: Sequence[Sequence[Stage]]  # of each phase
    train: Store
    method: Method
    plugins: Sequence[Plugin]
    memory: Memory
    seed: int
    engine: str = "eager"
    precision: str = "fp32"
    replayed: list[int] = field(default_factory=list)  # the exemplars that this phase trains on
    moving: list[str] = field(default_factory=list)  # the parameters that move, after the phase and the stage began

    @property
    def device(self) -> torch.device:
        return self.train.device

    def modules(self) -> dict[str, Method | Plugin]:
        return {"method": self.method} | {f"plugins.{plugin.name}": plugin for plugin in self.plugins}

    def settle(self) -> None:
        """Put all modules on the device, in the layout and precision of the run."""
        for part in self.modules().values():
            part.to(self.device)
            set_precision(part, self.precision, self.device)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Inside, all modules are settled and the process is set up for them; its settings are put back afterwards."""
        self.settle()
        with current(self.device), eager_between_steps(self.engine), convolving_as(self.method):
            yield

    # A phase

    def begin_phase(self, phase: Phase) -> Pool:
        self.replayed = self.memory.rows("cpu").tolist()
        pool = self.pool_of(phase)
        torch.manual_seed(seed_of(self.seed, "phase", phase.index, "begin"))
        self.method.begin(phase, pool)
        check_grown(self.method, phase)
        self.settle()
        return pool

    def pool_of(self, phase: Phase) -> Pool:
        """The pool of a phase that has begun, now or before a stop."""
        new = self.train.of_classes(phase.old, phase.seen)
        replayed = torch.tensor(self.replayed, dtype=torch.long, device=self.device)
        pool = Pool(self.train, phase, new, replayed, self.seed, self.method.held)
        if self.memory.covers(phase):
            pool.memory = self.memory.rows(self.device)
        return pool

    def end_phase(self, phase: Phase, pool: Pool) -> None:
        """Make what a phase leaves to the next: exemplars, teacher, corrections, class means."""
        if not self.memory.covers(phase):
            self.select(phase, pool)
        torch.manual_seed(seed_of(self.seed, "phase", phase.index, "end"))
        self.method.end(phase, pool, self.memory.rows(self.device))
        self.correct(phase)
        self.settle()
        self.method.remember(phase, pool, self.memory.rows(self.device))

    def select(self, phase: Phase, pool: Pool) -> None:
        self.memory.select(phase, pool, self.method.net)
        pool.memory = self.memory.rows(self.device)

    def correct(self, phase: Phase) -> None:
        """Keep the plug-ins' corrections of scores with the model, so that whoever loads it reads the same scores."""
        offsets = [correction_of(plugin, phase) for plugin in self.plugins if plugin.corrects]
        if self.method.correction is not None and offsets:
            self.method.correction.offset = torch.stack(offsets).sum(0)

    # A stage of it

    def each_stage(self, phase: Phase, pool: Pool) -> Iterator[Fits]:
        """Yield the fits of each stage in turn, at the start of its first epoch; asking for the next ends the stage."""
        for number in range(len(self.stages[phase.index])):
            self.begin_stage(phase, pool, number)
            fits = self.open_fits(phase, pool, number)
            self.begin_epoch(fits.main, 0)
            yield fits
            self.end_stage()

    def begin_stage(self, phase: Phase, pool: Pool, number: int) -> None:
        stage = self.stages[phase.index][number]
        if stage.draw == "memory" and not self.memory.covers(phase):
            self.select(phase, pool)
        torch.manual_seed(seed_of(self.seed, "phase", phase.index, "stage", number, "begin"))
        self.method.begin_stage(stage, phase, pool)
        self.settle()
        census = pool.census(stage.draw, number)
        for plugin in sorted(self.plugins, key=lambda plugin: "net" not in plugin.roles):  # others may copy it
            if plugin.acts(phase, stage):
                plugin.begin(phase, census, self.method.net)
        self.settle()
        self.moving = [name for name, p in self.method.named_parameters() if p.requires_grad]

    def open_fits(self, phase: Phase, pool: Pool, number: int, watches: Sequence[Watch] = (old_loss,)) -> Fits:
        """The fits of a stage that has begun: its own, and that of the stage that alternates with it, if any."""
        stage = self.stages[phase.index][number]
        self.wake(stage)
        main = Fit(Objective(self.method, self.plugins, phase, stage, watches), pool, self.engine, number)
        if stage.alternate is None:
            return Fits(main)
        self.wake(stage.alternate)
        place = f"{number}.{stage.alternate.name}"
        aside = Fit(self.plain_objective(phase, stage.alternate), pool, self.engine, place)
        main.wake()
        return Fits(main, aside)

    def plain_objective(self, phase: Phase, stage: Stage) -> Objective:
        """An alternating stage's objective: cross-entropy over all seen classes, old and new alike, with no plug-in."""
        return Objective(self.method, (), phase, stage, criterion=cross_entropy)

    def wake(self, stage: Stage) -> None:
        """Let the parameters that the stage trains move, and put all modules at rest in eval mode."""
        set_moving(self.method, stage.train or self.moving)
        for part in self.modules().values():
            set_modes(part)

    def begin_epoch(self, fit: Fit, epoch: int) -> None:
        """Begin an epoch of a stage itself; the method is not told of epochs that alternate with it."""
        self.seed_epoch(fit, epoch)
        self.method.at_epoch(fit.stage, epoch)

    def seed_epoch(self, fit: Fit, epoch: int) -> None:
        phase = fit.objective.phase
        torch.manual_seed(seed_of(self.seed, "phase", phase.index, "stage", fit.place, "epoch", epoch))

    def end_stage(self) -> None:
        """Let move again what only this stage put to rest; drop gradients, which would hold the memory of its graph."""
        set_moving(self.method, self.moving)
        for part in self.modules().values():
            part.zero_grad(set_to_none=True)
