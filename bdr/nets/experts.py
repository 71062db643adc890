"""A network that becomes several experts: they share the early levels; each has its own last one, and its own head.

It is the plain network until it is split. Then all experts start as copies of it, the first one being what was there.
Their features stand side by side, each expert's at unit length: so the cosine of two such rows is the mean of the
experts' cosines, and the squared distance of two the sum of theirs.
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
    """A backbone whose last level can be there several times. Features are those of all experts, one after another."""

    def __init__(self, plain: Divisible) -> None:
        super().__init__()
        self.plain = plain  # shared levels, and the first expert's
        self.others = nn.ModuleList()

    @property
    def dim(self) -> int:  # type: ignore[override]
        return (1 + len(self.others)) * self.plain.dim

    def split(self, count: int) -> None:
        """So many experts that start equal. What is split already stays as it is."""
        if not len(self.others):
            self.others.extend(self.plain.last_level() for _ in range(count - 1))

    def layout(self) -> dict[str, Any]:
        return {"experts": 1 + len(self.others)}

    def lay_out(self, layout: dict[str, Any]) -> None:
        if layout != self.layout():
            self.others = nn.ModuleList()
            self.split(layout["experts"])

    def forward(self, x: Tensor) -> Features:
        last = self.plain.depth - 1
        for index in range(last):
            x = self.plain.level(index, x).x
        ends = [self.plain.level(last, x), *(other(x) for other in self.others)]
        return Features(torch.cat([end.x for end in ends], 1))


class ExpertHeads(Head):
    """The classifiers of all experts. What a method asks of its head, each of them does; logits are their mean."""

    def __init__(self, first: Head) -> None:
        super().__init__()
        self.heads = nn.ModuleList([first])

    def each(self) -> list[Any]:
        return list(self.heads)

    @property
    def classes(self) -> int:
        return int(self.each()[0].classes)

    def split(self, count: int) -> None:
        """So many that start equal. What is split already stays as it is."""
        if len(self.heads) == 1:
            self.heads.extend(copy.deepcopy(self.heads[0]) for _ in range(count - 1))

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

    def align(self, old: int) -> None:
        for head in self.each():
            head.align(old)

    def imprint(self, directions: Tensor) -> None:
        """Directions (K_new, D) of all features: each head takes its part of them."""
        for head, part in zip(self.each(), directions.chunk(len(self.heads), 1), strict=True):
            head.imprint(F.normalize(part))

    def layout(self) -> dict[str, Any]:
        return {"experts": len(self.heads)}

    def lay_out(self, layout: dict[str, Any]) -> None:
        if layout != self.layout():
            self.heads = nn.ModuleList([self.heads[0]])
            self.split(layout["experts"])

    def opinions(self, features: Tensor) -> tuple[Tensor, Tensor | float]:
        """(E, B, K) logits of the experts, and the mean of their scales."""
        parts = features.chunk(len(self.heads), 1)
        said = [head(part) for head, part in zip(self.heads, parts, strict=True)]
        return torch.stack([logits for logits, _ in said]), sum(scale for _, scale in said) / len(said)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor | float]:
        logits, scale = self.opinions(features)
        return logits.mean(0), scale

    def read(self, seen: Features) -> Outputs:
        if len(self.heads) == 1:
            return self.each()[0].read(seen)
        experts, scale = self.opinions(seen.pooled)
        unit = F.normalize(seen.pooled.unflatten(1, (len(self.heads), -1)), dim=2)
        return Outputs(experts.mean(0), unit.flatten(1), scale, experts=experts)
