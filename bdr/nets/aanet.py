"""The network of AANet: one branch at first, later a stable and a plastic one, whose levels are mixed."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bdr.nets.base import Level, Levelled


class ScaledConv(nn.Module):
    """A convolution whose filters rest; every (out, in) plane of them has a factor that learns, 1 at first."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        planes = conv.weight.data.new_ones(*conv.weight.shape[:2], 1, 1)
        self.scale = nn.Parameter(planes, requires_grad=conv.weight.requires_grad)
        self.conv, self.stride, self.padding = conv, conv.stride, conv.padding
        self.conv.weight.requires_grad_(False)

    @property
    def weight(self) -> Tensor:
        return self.conv.weight * self.scale

    def forward(self, x: Tensor) -> Tensor:
        return self.conv._conv_forward(x, self.weight, self.conv.bias)


def scale_convolutions(module: nn.Module) -> None:
    """Every convolution inside becomes a scaled one; all else is left as it is."""
    for name, child in list(module.named_children()):
        if isinstance(child, nn.Conv2d):
            setattr(module, name, ScaledConv(child))
        else:
            scale_convolutions(child)


class TwoBranches(Levelled):
    """A backbone that can be split into two copies: level l is a_l stable_l + (1 - a_l) plastic_l of the level before.

    Before it is split it is the plain backbone. The a_l, `aggregation`, rest unless a stage names them.
    """

    stable: Levelled | None

    def __init__(self, plain: Levelled) -> None:
        super().__init__()
        self.dim, self.depth, self.keeps_maps = plain.dim, plain.depth, plain.keeps_maps
        self.plastic = plain
        self.stable = None
        self.aggregation = nn.Parameter(torch.empty(0), requires_grad=False)  # (levels,) once it is split

    def split(self) -> None:
        """The two branches start equal, and so do their shares. What is split already stays as it is."""
        if self.stable is None:
            self.stable = copy.deepcopy(self.plastic)
            scale_convolutions(self.stable)
            self.aggregation = nn.Parameter(self.aggregation.data.new_full((self.depth,), 0.5), requires_grad=False)

    def layout(self) -> dict[str, Any]:
        return {"branches": 1 if self.stable is None else 2}

    def lay_out(self, layout: dict[str, Any]) -> None:
        if layout["branches"] == 2:
            self.split()
        elif self.stable is not None:
            self.stable = None
            self.aggregation = nn.Parameter(self.aggregation.data[:0].clone(), requires_grad=False)

    def level(self, index: int, x: Tensor, gates: Sequence[Tensor] | None = None) -> Level:
        plastic = self.plastic.level(index, x)
        if self.stable is None:
            return plastic
        return self.mixed(index, self.stable.level(index, x), plastic)

    def mixed(self, index: int, stable: Level, plastic: Level) -> Level:
        share = self.aggregation[index]

        def mix(one: Tensor, other: Tensor) -> Tensor:
            return share * one + (1 - share) * other

        return Level(mix(stable.x, plastic.x), mix(stable.map, plastic.map) if self.keeps_maps else plastic.map)
