"""One stage: which parameters move, by which optimiser and at which rate, and its epochs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from bdr.data.pool import Epoch, Pool
from bdr.engine.listen import EpochLog
from bdr.engine.objective import Objective, kind_of, owner
from bdr.engine.step import EagerStep, Step, make_optimizer, make_step, set_rate
from bdr.errors import BdrError
from bdr.plugins.base import Plugin
from bdr.schedules import learning_rate
from bdr.types import Clock, Stage, has_name


def set_moving(module: nn.Module, names: Iterable[str]) -> None:
    """Let exactly these parameters move; the others have no gradient, not even one left from an earlier stage."""
    names = tuple(names)
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(any(has_name(name, wanted) for wanted in names))
        if not parameter.requires_grad:
            parameter.grad = None


def set_modes(module: nn.Module) -> None:
    """Set training mode, except for modules none of whose parameters move: their batch norm rests with them."""
    module.train()
    for part in module.modules():
        parameters = list(part.parameters())
        if parameters and not any(p.requires_grad for p in parameters):
            part.eval()


class Awake(NamedTuple):
    """Which parameters move and which modules train in some parts, to be restored without matching names again."""

    moving: list[tuple[nn.Parameter, bool]]
    modes: list[tuple[nn.Module, bool]]

    @classmethod
    def now(cls, parts: Sequence[nn.Module]) -> Awake:
        moving = [(parameter, parameter.requires_grad) for part in parts for parameter in part.parameters()]
        return cls(moving, [(module, module.training) for part in parts for module in part.modules()])

    def again(self) -> None:
        for parameter, moves in self.moving:
            parameter.requires_grad_(moves)
            if not moves:
                parameter.grad = None
        for module, mode in self.modes:
            module.training = mode


def drawn_by(plugin: Plugin, steps: int, size: int, chance: torch.Generator) -> tuple[Tensor, ...]:
    """What a plug-in draws for an epoch; checked, for in a user's own plug-in, too many rows would go unnoticed."""
    drawn: object = plugin.draws(steps, size, chance)
    columns = drawn if isinstance(drawn, tuple | list) else [drawn]
    if columns is drawn and all(isinstance(column, Tensor) and column.shape[:1] == (steps,) for column in columns):
        return tuple(columns)
    found = ", ".join(map(kind_of, columns))
    raise BdrError(
        f"`draws` of {owner(plugin)} must return a tuple of tensors with a row a step ({steps}, ...), and "
        f"returned {f'({found})' if columns is drawn else found}"
    )


class Fit:
    """A stage under way, made once its parts are awake. It can be left after any step, and entered again there."""

    def __init__(self, objective: Objective, pool: Pool, engine: str, place: int | str) -> None:
        self.objective, self.pool, self.place = objective, pool, place  # `place` is in the seeds of all draws
        parts, stage, device = objective.parts, objective.stage, pool.store.device
        self.awake = Awake.now(parts)
        undecayed = [p for name, p in objective.method.named_parameters() if not objective.method.decays(name, p)]
        parameters = (p for part in parts for p in part.parameters())
        self.optimizer = make_optimizer(stage, parameters, device, undecayed)
        self.steps = pool.steps(stage)
        self.clock = Clock(*(torch.tensor(value, device=device) for value in (0, 0, self.steps, stage.epochs)))
        self.eager = EagerStep(objective, self.optimizer, pool.store, self.clock, stage.clip)
        self.step: Step = make_step(engine, self.eager, whole=pool.batch_size(stage) == stage.batch)
        self.ahead: dict[int, Epoch] = {}  # the next epoch's draws, made once the steps of this one are launched

    @property
    def stage(self) -> Stage:
        return self.objective.stage

    def wake(self) -> None:
        """Restore the parts as they were when this fit was made, after another fit of the same parts had its turn."""
        self.awake.again()

    def epoch(
        self, epoch: int, first: int, before: Tensor | None, after_step: Callable[[int, Tensor], None]
    ) -> EpochLog:
        """Run an epoch from step `first` on; `before` holds the values of its earlier steps.

        `after_step` is called after every step but the last, and may leave the epoch by raising.
        """
        rate = learning_rate(self.stage, epoch)
        set_rate(self.optimizer, rate)
        plan = self.ahead.pop(epoch) if epoch in self.ahead else self.plan(epoch)
        self.clock.epoch.fill_(epoch)
        self.clock.step.fill_(first)
        started = time.perf_counter()
        self.step.open(plan, before)
        for step in range(first, plan.steps):
            self.step()
            if step + 1 < plan.steps:
                after_step(step + 1, self.eager.log)
        if epoch + 1 < self.stage.epochs:  # before the host waits, or a GPU would be idle while the next is drawn
            self.ahead = {epoch + 1: self.plan(epoch + 1)}
        numbers = self.eager.log.cpu().numpy()  # the one read of the epoch
        seconds = time.perf_counter() - started
        images = (plan.steps - first) * plan.rows.shape[1]
        result = EpochLog(epoch, rate, self.eager.names, numbers, self.objective.counted, seconds, images)
        self.check_finite(result)
        return result

    def open(self, epoch: int) -> Epoch:
        """Stand before the first step of an epoch, for steps that are made one by one; return its draws."""
        plan = self.plan(epoch)
        self.step.open(plan, None)
        self.rewind()
        return plan

    def rewind(self) -> None:
        """Stand before the first step of the open epoch again."""
        self.clock.step.zero_()

    def plan(self, epoch: int) -> Epoch:
        """All draws of an epoch, plug-ins' included; whenever they are made, they depend on the epoch's place alone."""
        drawn, plugins = self.pool.epoch(self.stage, self.place, epoch), self.objective.plugins
        chances = [self.pool.chance(plugin.name, self.place, epoch) for plugin in plugins]
        size = drawn.rows.shape[1]
        theirs = (drawn_by(p, drawn.steps, size, chance) for p, chance in zip(plugins, chances, strict=True))
        return drawn._replace(plugins=tuple(theirs))

    def check_finite(self, log: EpochLog) -> None:
        """Refuse terms that are not finite, and name the first of them: one step later all others are NaN too."""
        bad = {name: ~np.isfinite(log.term(name)) for name in log.weights}
        if failed := {name: int(steps.argmax()) for name, steps in bad.items() if steps.any()}:
            name = min(failed, key=failed.__getitem__)
            unmoved = log.epoch == failed[name] == 0
            advice = (
                "The stage has made no step yet, so no learning rate mends it: look at the images and at what "
                f"'{name}' divides by or takes the logarithm of"
                if unmoved
                else f"Try a smaller --set stage.lr={self.stage.lr / 10:g}"
            )
            raise BdrError(
                f"the loss is {'not' if unmoved else 'no longer'} finite: term '{name}' at step {failed[name] + 1} of "
                f"epoch {log.epoch + 1}, stage '{self.stage.name}', phase {self.pool.phase.index}; the checkpoint "
                f"before it is kept. {advice}, or --precision fp32"
            )


class Fits(NamedTuple):
    """The fits of a stage: its own, and that of the stage that alternates with it."""

    main: Fit
    aside: Fit | None = None
