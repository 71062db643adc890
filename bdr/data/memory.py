"""The exemplars: quotas, and ways of choosing. Lists have the best first, so that a shrinking quota keeps the head."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bdr.data.augment import Draws
from bdr.data.pool import Pool
from bdr.errors import UsageError
from bdr.seeding import generator
from bdr.types import Phase

EVERYTHING = sys.maxsize
DOT_ROUNDS = 1000  # dot-product herding may pick the same image again and again; the published codes stop here


@dataclass(frozen=True, slots=True)
class Quota:
    """How many exemplars are kept: so many per class, so many in total, shared equally among classes, or all."""

    count: int
    per_class: bool

    @classmethod
    def parse(cls, text: str) -> Quota:
        """Read `20/class`, `2000` (in total) or `all`."""
        if str(text).strip() == "all":
            return cls(EVERYTHING, per_class=True)
        match = re.fullmatch(r"(\d+)(/class)?", str(text).strip())
        if not match:
            raise UsageError(f"memory '{text}' is neither like 20/class nor like 2000 (in total), nor all")
        return cls(int(match[1]), match[2] is not None)

    def each(self, seen: int) -> int:
        return self.count if self.per_class else self.count // seen

    def check(self, classes: int) -> None:
        if not self.per_class and 0 < self.count < classes:
            raise UsageError(
                f"a memory of {self.count} images cannot hold one of each of {classes} classes; "
                f"use --memory {classes} or more, 1/class, or 0 for none at all"
            )

    def __str__(self) -> str:
        if self.count == EVERYTHING:
            return "all"
        return f"{self.count}/class" if self.per_class else f"{self.count}"


def herd_distance(features: Tensor, present: Tensor, quota: int) -> list[Tensor]:
    """Greedy herding: each pick is the unused image that brings the mean of the chosen ones closest to the class mean.

    `features` (C, N, D) are normalised; `present` (C, N) says which of the N places of each class hold an image. Return
    the places chosen in each class, best first.
    """
    mean = (features * present[..., None]).sum(1) / present.sum(1, keepdim=True)
    square = features.square().sum(2)
    free, total, picks = present.clone(), torch.zeros_like(mean), []
    for k in range(1, min(quota, features.shape[1]) + 1):
        wanted = k * mean - total  # || wanted - f ||^2 = const + |f|^2 - 2 <f, wanted>
        score = square - 2 * torch.einsum("cnd,cd->cn", features, wanted)
        pick = score.masked_fill(~free, torch.inf).argmin(1, keepdim=True)
        picks.append(pick)
        free.scatter_(1, pick, False)
        total += features.gather(1, pick[..., None].expand(-1, -1, features.shape[2]))[:, 0]
    chosen = torch.cat(picks, 1)
    return [row[: int(have)] for row, have in zip(chosen, present.sum(1), strict=True)]


def herd_dot(features: Tensor, present: Tensor, quota: int) -> list[Tensor]:
    """iCaRL's herding: take the image best aligned with a direction, correct it, repeat; an image may recur."""
    mean = (features * present[..., None]).sum(1) / present.sum(1, keepdim=True)
    direction, wanted = mean.clone(), present.sum(1).clamp(max=quota)
    rank = torch.full(present.shape, DOT_ROUNDS, device=features.device)
    for turn in range(DOT_ROUNDS):
        score = torch.einsum("cnd,cd->cn", features, direction).masked_fill(~present, -torch.inf)
        pick = score.argmax(1, keepdim=True)
        rank.scatter_(1, pick, rank.gather(1, pick).clamp(max=turn))
        direction += mean - features.gather(1, pick[..., None].expand(-1, -1, features.shape[2]))[:, 0]
        if bool(((rank < DOT_ROUNDS).sum(1) >= wanted).all()):
            break
    picked = (rank < DOT_ROUNDS).sum(1).minimum(wanted)
    return [row[: int(n)] for row, n in zip(rank.argsort(dim=1, stable=True), picked, strict=True)]


class Herding(NamedTuple):
    """A choice by features: of images as they are or, with several GPUs, of images that each GPU augments by itself."""

    pick: Callable[[Tensor, Tensor, int], list[Tensor]]
    gpus: int = 1  # each chooses its share of the quota by itself, and the union is kept

    def looks(self, pool: Pool, images: int) -> list[Draws | None]:
        """The augmentation of so many images for each GPU; None if there is only one, which sees them as they are."""
        if self.gpus == 1:
            return [None]
        place = (pool.store.device, pool.seed, "phase", pool.phase.index, "gpu")
        return [pool.store.augment.draw(images, generator(*place, gpu)) for gpu in range(self.gpus)]


HERDINGS: dict[str, Herding | None] = {
    "distance": Herding(herd_distance),
    "dot": Herding(herd_dot),
    "distributed": Herding(herd_dot, gpus=2),  # as for DyTox's published numbers
    "random": None,  # needs no features
}


def united(choices: Sequence[Sequence[int]]) -> list[int]:
    """All rows that were chosen, once each, in turns, so that the head of the union is the union of the heads."""
    return list(dict.fromkeys(row for turn in zip_longest(*choices) for row in turn if row is not None))


class Memory:
    """Row numbers of the exemplars: a list for each class, best first."""

    def __init__(self, quota: Quota, herding: str = "distance") -> None:
        self.quota, self.herding = quota, herding
        self.exemplars: list[list[int]] = []

    def rows(self, device: torch.device | str) -> Tensor:
        return torch.tensor([row for mine in self.exemplars for row in mine], dtype=torch.long, device=device)

    def covers(self, phase: Phase) -> bool:
        return len(self.exemplars) == phase.seen

    def select(self, phase: Phase, pool: Pool, net: nn.Module) -> None:
        """Cut old classes to the head of their lists and choose exemplars of the new ones."""
        each = self.quota.each(phase.seen)
        kept = [mine[:each] for mine in self.exemplars[: phase.old]]
        self.exemplars = kept + (self.choose(phase, pool, net, each) if each else [[] for _ in range(phase.new)])

    def choose(self, phase: Phase, pool: Pool, net: nn.Module, each: int) -> list[list[int]]:
        labels = pool.store.labels[pool.new]
        by_class = [pool.new[labels == k] for k in range(phase.old, phase.seen)]
        if each >= max(len(mine) for mine in by_class) and self.quota.per_class:
            return [mine.tolist() for mine in by_class]  # there is nothing to choose
        herding = HERDINGS[self.herding]
        if herding is None:
            chance = generator("cpu", pool.seed, "phase", phase.index, "exemplars")
            return [mine[torch.randperm(len(mine), generator=chance)[:each]].tolist() for mine in by_class]
        places = nn.utils.rnn.pad_sequence(by_class, batch_first=True, padding_value=-1)
        present, share, choices = places >= 0, -(-each // herding.gpus), []
        for draws in herding.looks(pool, int(present.sum())):
            features = F.normalize(pool.outputs(net, places[present], draws).features.double())
            grid = features.new_zeros(*places.shape, features.shape[1])
            grid[present] = features
            chosen = herding.pick(grid, present, share)
            choices.append([mine[picked].tolist() for mine, picked in zip(places, chosen, strict=True)])
        return [united(of_class)[:each] for of_class in zip(*choices, strict=True)]
