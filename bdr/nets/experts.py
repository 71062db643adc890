"""A network of several experts: they share the early levels; each has its own last one, and its own head.

All start as copies of the plain network, the first one being what was there. Their features stand side by side, each
expert's at unit length: so the cosine of two such rows is the mean of the experts' cosines, and the squared distance of
two the sum of theirs.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bdr.nets.base import Backbone, Divisible, Features, Head
from bdr.types import Outputs


class Experts(Backbone):
    """A backbone whose last level is there several times. Features are those of all experts, one after another."""

    def __init__(self, plain: Divisible, count: int) -> None:
        super().__init__()
        self.dim = count * plain.dim
        self.plain = plain  # shared levels, and the first expert's
        self.others = nn.ModuleList(plain.last_level() for _ in range(count - 1))

    def forward(self, x: Tensor) -> Features:
        last = self.plain.depth - 1
        for index in range(last):
            x = self.plain.level(index, x).x
        ends = [self.plain.level(last, x), *(other(x) for other in self.others)]
        return Features(torch.cat([end.x for end in ends], 1))


class ExpertHeads(Head):
    """The classifiers of all experts. What a method asks of its head, each of them does; logits are their mean."""

    def __init__(self, first: Head, count: int) -> None:
        super().__init__()
        self.heads = nn.ModuleList([first, *(copy.deepcopy(first) for _ in range(count - 1))])

    def each(self) -> list[Any]:
        return list(self.heads)

    @property
    def classes(self) -> int:
        return int(self.each()[0].classes)

    def grow(self, count: int) -> None:
        for head in self.each():
            head.grow(count)

    def restart(self, count: int) -> None:
        for head in self.each():
            head.restart(count)

    def redraw(self) -> None:
        for head in self.each():
            head.redraw()

    def clamp(self) -> None:
        for head in self.each():
            head.clamp()

    def align(self, old: int) -> Tensor:
        """The mean factor of the heads."""
        return torch.stack([head.align(old) for head in self.each()]).mean()

    def imprint(self, directions: Tensor) -> None:
        """Directions (K_new, D) of all features: each head takes its part of them."""
        for head, part in zip(self.each(), directions.chunk(len(self.heads), 1), strict=True):
            head.imprint(F.normalize(part))

    def opinions(self, features: Tensor) -> tuple[Tensor, Tensor | float]:
        """(E, B, K) logits of the experts, and the mean of their scales."""
        parts = features.chunk(len(self.heads), 1)
        said = [head(part) for head, part in zip(self.heads, parts, strict=True)]
        return torch.stack([logits for logits, _ in said]), sum(scale for _, scale in said) / len(said)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor | float]:
        logits, scale = self.opinions(features)
        return logits.mean(0), scale

    def read(self, seen: Features) -> Outputs:
        experts, scale = self.opinions(seen.pooled)
        unit = F.normalize(seen.pooled.unflatten(1, (len(self.heads), -1)), dim=2)
        return Outputs(experts.mean(0), unit.flatten(1), scale, experts=experts)
