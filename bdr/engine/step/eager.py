"""A training step without compilation or capture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from bdr.data.pool import Epoch
from bdr.data.store import Store
from bdr.engine.objective import Objective, Views
from bdr.errors import BdrError
from bdr.plugins.base import Plugin
from bdr.types import Batch, Clock


class Step(Protocol):
    def open(self, epoch: Epoch, log: Tensor | None) -> None:
        """Take in the draws of an epoch, and the values of its steps that were made before a stop."""
        ...

    def __call__(self) -> None:
        """Make the step of the epoch that the clock stands at; the clock moves on."""
        ...


def taken(store: Store, epoch: Epoch, at: Tensor) -> tuple[Tensor, Tensor, Epoch]:
    """The images and labels of one step of an epoch, whose number is `at` (1,), and its draws."""
    now = epoch.at(at)
    return store.augmented(now.rows, now.draws), store.labels[now.rows], now


def looked(plugin: Plugin, store: Store, rows: Tensor, drawn: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The further views of these images that a plug-in wants."""
    views = tuple(plugin.look(store, rows, drawn))
    if len(views) != plugin.views:
        raise BdrError(f"plug-in '{plugin.name}' wants {plugin.views} further views, and its `look` makes {len(views)}")
    return views


def handed_on(plugin: Plugin, batch: Batch, drawn: tuple[Tensor, ...]) -> Batch:
    changed: object = plugin.batch(batch, drawn)
    if not isinstance(changed, Batch):
        kind = type(changed).__name__
        raise BdrError(f"`batch` of plug-in '{plugin.name}' must return the batch, and returned a {kind}")
    return changed


class EagerStep:
    """The step as it reads. The other forms run this one, so it always holds the values of an epoch."""

    def __init__(
        self, objective: Objective, optimizer: torch.optim.Optimizer, store: Store, clock: Clock, clip: float | None
    ) -> None:
        self.objective, self.optimizer, self.store, self.clock, self.clip = objective, optimizer, store, clock, clip
        self.taken, self.looked = taken, looked
        self.names: tuple[str, ...] = ()  # of the values; known after the first step
        self.epoch: Epoch | None = None
        self.values: Tensor | None = None
        self.seen: Callable[[Sequence[Tensor]], None] = lambda images: None  # called when a batch's images are ready

    def open(self, epoch: Epoch, log: Tensor | None) -> None:
        if self.epoch is None:
            self.epoch = epoch.each(torch.clone)
        for mine, theirs in zip(self.epoch.tensors(), epoch.tensors(), strict=True):
            mine.copy_(theirs)  # in place: a captured graph reads them where they were
        if log is not None:
            self.values = log.clone()

    @property
    def log(self) -> Tensor:
        """(steps, terms) values of the epoch so far, on the device; not there before the first step."""
        assert self.values is not None, "no step was made yet"
        return self.values

    def __call__(self) -> None:
        at = self.clock.step.view(1)
        batch, views = self.batch(at)
        self.seen((batch.x, *(view for mine in views for view in mine)))
        self.optimizer.zero_grad(set_to_none=True)
        terms, out = self.objective.terms(batch, views)
        self.objective.total(terms).backward()
        self.update()
        self.keep(at, terms | self.objective.watched(out, batch, views))
        self.clock.step.add_(1)

    def batch(self, at: Tensor) -> tuple[Batch, Views]:
        """The batch drawn for this step, as the plug-ins have changed it, and the further views that each wants."""
        assert self.epoch is not None, "open an epoch first"
        x, y, now = self.taken(self.store, self.epoch, at)
        batch = Batch(x, y, now.rows, self.clock)
        views: list[tuple[Tensor, ...]] = []
        for plugin, drawn in zip(self.objective.plugins, now.plugins, strict=True):
            batch = handed_on(plugin, batch, drawn)
            views.append(self.looked(plugin, self.store, now.rows, drawn) if plugin.views else ())
        return batch, views

    def update(self) -> None:
        method = self.objective.method
        method.graded(self.clock)
        if self.clip is not None:
            moving = [p for group in self.optimizer.param_groups for p in group["params"]]
            nn.utils.clip_grad_norm_(moving, self.clip)
        self.optimizer.step()
        method.stepped(self.clock)
        for plugin in self.objective.plugins:
            plugin.stepped(method.net, self.clock)

    def keep(self, at: Tensor, values: dict[str, Tensor]) -> None:
        self.names = tuple(values)
        row = torch.stack([value.detach() for value in values.values()])
        if self.values is None:
            self.values = row.new_zeros(int(self.clock.steps), len(row))
        self.values.index_copy_(0, at, row[None])
