"""The images of a phase: new classes in full, old ones as exemplars; how a stage draws from them; their features."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from bdr.data.augment import Draws
from bdr.data.store import Store
from bdr.errors import UsageError
from bdr.seeding import generator
from bdr.types import Outputs, Phase, Stage

DRAWS = ("all", "rarest", "uniform", "memory", "held", "fresh")
WHOLE = ("all", "uniform")  # the draws of stages that train on all images of a phase


@contextmanager
def evaluating(net: nn.Module) -> Iterator[None]:
    """Eval mode without gradients inside; afterwards every module has its former mode again."""
    modes = [(module, module.training) for module in net.modules()]
    net.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


class Epoch(NamedTuple):
    """All draws of one epoch, made at once: (steps, B) rows, the augmentation of each, and what plug-ins drew."""

    rows: Tensor
    draws: Draws
    plugins: tuple[tuple[Tensor, ...], ...] = ()  # for each plug-in: tensors (steps, ...)

    @property
    def steps(self) -> int:
        return len(self.rows)

    def tensors(self) -> tuple[Tensor, ...]:
        return self.rows, *self.draws.columns(), *(column for drawn in self.plugins for column in drawn)

    def each(self, change: Callable[[Tensor], Tensor]) -> Epoch:
        return Epoch(
            change(self.rows), self.draws.each(change), tuple(tuple(map(change, drawn)) for drawn in self.plugins)
        )

    def at(self, step: Tensor) -> Epoch:
        """The draws of one step, whose number (1,) is on the device."""
        return self.each(lambda column: column[step][0])


def batches_of(rows: int, batch: int) -> tuple[int, int]:
    """The number of steps in an epoch of so many rows, and their size; a pool smaller than a batch is its own batch."""
    size = min(batch, rows)
    return -(-rows // size), size


def held_of_each(share: float, counts: Tensor) -> int:
    """How many rows of each class are held out: this share of the rarest class, but at least one; 0 without a share."""
    return max(1, int(share * int(counts.min()))) if share else 0


def images_drawn(draw: str, counts: Tensor, held: int, memory: Tensor) -> int:
    """How many rows a stage may draw, from counts alone: as many as `Pool.candidates` returns.

    `counts` (K,) are those of each class in the phase, of which `held` are held out; `memory` (K,) counts the exemplars
    of each class once the memory covers the phase.
    """
    if draw == "memory":
        return int(memory.sum())
    if draw == "held":
        return held * len(counts)
    if draw in ("rarest", "fresh"):
        return int((counts - held).min()) * len(counts)
    return int((counts - held).sum())


class Pool:
    """The training images of one phase; a share of the rarest class, and as many of each other one, may be held out."""

    def __init__(
        self, store: Store, phase: Phase, new: Tensor, exemplars: Tensor, seed: int, held: float = 0.0
    ) -> None:
        self.store, self.phase, self.new, self.seed = store, phase, new, seed
        self.rows = torch.cat([new, exemplars])
        self.held = self.rows[:0]
        if held and not phase.first:
            self.held, self.rows = self.split(held)
        # Counted once: counting waits for the device, and epochs are drawn while it works on the one before.
        self.of_each = self.counts(self.rows)
        self.of_rarest = int(self.of_each.min())
        self.cuts: dict[int | str, Tensor] = {}  # rows cut to the rarest class, by the place of a stage
        self.following: dict[tuple[str, int, int | str, int], Tensor] = {}  # orders of the next epochs
        self.memory = exemplars  # becomes the memory of all seen classes once the new exemplars are chosen

    def split(self, share: float) -> tuple[Tensor, Tensor]:
        """The rows to hold out, equally many of every class (a share of the rarest one), and the remaining rows."""
        counts = self.counts(self.rows)
        count = held_of_each(share, counts)
        if count >= int(counts.min()):
            raise UsageError(f"holding out {count} of every class leaves none to train on; use a larger --memory")
        held = torch.cat([mine[:count] for mine in self.shuffled(self.rows, "held")])
        return held, self.rows[~torch.isin(self.rows, held)]

    def shuffled(self, rows: Tensor, *within: str | int) -> list[Tensor]:
        """The rows of each seen class, in random order."""
        rows = self.in_chance_order(rows, *within)
        return [rows[self.store.labels[rows] == k] for k in range(self.phase.seen)]

    def in_chance_order(self, rows: Tensor, *within: str | int) -> Tensor:
        chance = generator(self.store.device, self.seed, "phase", self.phase.index, *within)
        return rows[torch.randperm(len(rows), generator=chance, device=self.store.device)]

    def candidates(self, draw: str, place: int | str, epoch: int = 0) -> Tensor:
        """The rows that a stage may draw: all, all cut to the rarest class, the memory, or what is held out."""
        if draw == "memory":
            return self.memory
        if draw == "held":
            return self.held
        if draw == "rarest":
            if place not in self.cuts:  # cut once in a stage
                self.cuts[place] = self.cut_to_rarest("stage", place, "rarest")
            return self.cuts[place]
        if draw == "fresh":
            return self.cut_to_rarest("stage", place, "rarest", epoch)
        return self.rows

    def cut_to_rarest(self, *within: str | int) -> Tensor:
        """Random rows, equally many of each class, class by class, without a loop over classes."""
        rows = self.in_chance_order(self.rows, *within)
        labels, order = self.store.labels[rows].sort(stable=True)
        rank = torch.arange(len(rows), device=rows.device) - (self.of_each.cumsum(0) - self.of_each)[labels]
        kept_first = (rank >= self.of_rarest).sort(stable=True).indices
        return rows[order][kept_first[: self.of_rarest * self.phase.seen]]

    def counts(self, rows: Tensor) -> Tensor:
        return torch.bincount(self.store.labels[rows], minlength=self.phase.seen)

    def drawn(self, draw: str) -> int:
        """How many rows a stage may draw, without drawing them."""
        held = len(self.held) // self.phase.seen
        return images_drawn(draw, self.of_each + held, held, self.counts(self.memory))

    def batch_size(self, stage: Stage) -> int:
        return batches_of(self.drawn(stage.draw), stage.batch)[1]

    def steps(self, stage: Stage) -> int:
        return batches_of(self.drawn(stage.draw), stage.batch)[0]

    def epoch(self, stage: Stage, place: int | str, epoch: int) -> Epoch:
        """The draws of an epoch; the last batch is filled from the head of the next epoch's order."""
        kind = stage.draw, stage.repeat, place
        first = self.following.pop((*kind, epoch), None)  # drawn by the epoch before, for its last batch
        first = self.order(stage, place, epoch) if first is None else first
        second = self.following[*kind, epoch + 1] = self.order(stage, place, epoch + 1)
        steps, size = batches_of(len(first), stage.batch)
        draws = self.store.augment.draw(steps * size, self.chance("augment", place, epoch))
        order = torch.cat([first, second])[: steps * size]
        return Epoch(order, draws).each(lambda column: column.unflatten(0, (steps, size)))

    def order(self, stage: Stage, place: int | str, epoch: int) -> Tensor:
        rows, chance = self.candidates(stage.draw, place, epoch), self.chance("order", place, epoch)
        if stage.draw == "uniform":
            return rows[torch.multinomial(self.likelihood(), len(rows), replacement=True, generator=chance)]
        shuffled = rows[torch.randperm(len(rows), generator=chance, device=rows.device)]
        return shuffled.repeat_interleave(stage.repeat)[: len(rows)]

    def likelihood(self) -> Tensor:
        """(N,): how likely each of the rows is, up to a common factor, if classes are drawn equally often."""
        return 1 / self.of_each[self.store.labels[self.rows]].float()

    def chance(self, what: str, place: int | str, epoch: int) -> torch.Generator:
        return generator(self.store.device, self.seed, "phase", self.phase.index, "stage", place, what, epoch)

    def census(self, draw: str, place: int) -> Census:
        return Census(self, draw, place)

    def outputs(self, net: nn.Module, rows: Tensor, draws: Draws | None = None, mirrored: bool = False) -> Outputs:
        """The network's outputs for these rows in eval mode, as they are or with the given augmentation."""
        parts: list[Outputs] = []
        with evaluating(net):
            for start in range(0, len(rows), self.store.evaluation_batch):
                some = slice(start, start + self.store.evaluation_batch)
                if draws is None:
                    parts.append(net(self.store.plain(rows[some], mirrored)))
                else:
                    parts.append(net(self.store.augmented(rows[some], draws.at(some))))
        joined = torch.cat([p.logits for p in parts]), torch.cat([p.features for p in parts])
        experts = [p.experts for p in parts if p.experts is not None]
        return Outputs(*joined, scale=parts[0].scale, experts=torch.cat(experts, 1) if experts else None)


class Census:
    """What a stage draws, for plug-ins: how many images of each class, and the network's outputs for them."""

    def __init__(self, pool: Pool, draw: str, place: int) -> None:
        self.pool, self.draw, self.place, self.phase = pool, draw, place, pool.phase
        self.rows = pool.candidates(draw, place)
        self.labels = pool.store.labels[self.rows]

    @property
    def counts(self) -> Tensor:
        """(K,) expected images of each class in an epoch."""
        if self.draw == "uniform":
            return torch.full((self.phase.seen,), len(self.rows) / self.phase.seen, device=self.rows.device)
        return self.pool.counts(self.rows).float()

    def dim(self, net: nn.Module) -> int:
        """How many features the network has."""
        return self.pool.outputs(net, self.rows[:1]).features.shape[1]

    def outputs(self, net: nn.Module) -> Outputs:
        """One eval-mode pass over these images with training augmentation, in the order of `labels`."""
        chance = self.pool.chance("census", self.place, 0)
        return self.pool.outputs(net, self.rows, self.pool.store.augment.draw(len(self.rows), chance))
