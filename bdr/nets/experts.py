"""A network of several experts, which share the early levels; each has its own last level and its own head.

All experts start as copies of the plain network, which is itself the first of them. Their features stand side by side,
each expert's at unit length: so the cosine of two such rows is the mean of the experts' cosines, and their squared
distance is the sum of the experts' squared distances.
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
    """A backbone with several copies of its last level. Features are those of all experts, one after another."""

    def __init__(self, plain: Divisible, count: int) -> None:
        super().__init__()
        self.dim = count * plain.dim
        self.plain = plain  # the shared levels, and the first expert's last one
        self.others = nn.ModuleList(plain.last_level() for _ in range(count - 1))

    def forward(self, x: Tensor) -> Features:
        last = self.plain.depth - 1
        for index in range(last):
            x = self.plain.level(index, x).x
        ends = [self.plain.level(last, x), *(other(x) for other in self.others)]
        return Features(torch.cat([end.x for end in ends], 1))


class ExpertHeads(Head):
    """The classifiers of all experts. Each of them does what a method calls on its head; the logits are their mean."""

    def __init__(self, first: Head, count: int) -> None:
        super().__init__()
        self.heads = nn.ModuleList([first, *(copy.deepcopy(first) for _ in range(count - 1))])

    def each(self) -> list[Any]:
        return list(self.heads)

    @property
    def classes(self) -> int:
        return int(self.each()[0].classes)

    @property
    def eta(self) -> Tensor:
        """The mean scale of cosine heads."""
        return torch.stack([head.eta for head in self.each()]).mean()

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
        """Align every head; return the mean of their factors."""
        return torch.stack([head.align(old) for head in self.each()]).mean()

    def imprint(self, directions: Tensor) -> None:
        """Imprint directions (K_new, D) in the features of all experts: each head takes its part of them."""
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
