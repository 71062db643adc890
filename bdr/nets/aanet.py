"""The network of AANet after its first phase: a stable and a plastic branch, whose levels are mixed."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from torch import Tensor, nn

from bdr.nets.base import Level, Levelled


class ScaledConv(nn.Module):
    """A convolution with frozen filters; each (out, in) plane of them has a learnable factor, which starts at 1."""

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
    """Replace every convolution inside a module with a scaled one; all else is left as it is."""
    for name, child in list(module.named_children()):
        if isinstance(child, nn.Conv2d):
            setattr(module, name, ScaledConv(child))
        else:
            scale_convolutions(child)


class TwoBranches(Levelled):
    """Two copies of a backbone: level l is a_l stable_l + (1 - a_l) plastic_l, of what level l - 1 gives.

    Both copies start equal, and with equal shares: the a_l (`aggregation`), which are frozen unless a stage names them.
    """

    def __init__(self, plain: Levelled) -> None:
        super().__init__()
        self.dim, self.depth, self.keeps_maps = plain.dim, plain.depth, plain.keeps_maps
        self.plastic = plain
        self.stable = copy.deepcopy(plain)
        scale_convolutions(self.stable)
        shares = next(plain.parameters()).data.new_full((self.depth,), 0.5)
        self.aggregation = nn.Parameter(shares, requires_grad=False)

    def level(self, index: int, x: Tensor, gates: Sequence[Tensor] | None = None) -> Level:
        return self.mixed(index, self.stable.level(index, x), self.plastic.level(index, x))

    def mixed(self, index: int, stable: Level, plastic: Level) -> Level:
        share = self.aggregation[index]

        def mix(one: Tensor, other: Tensor) -> Tensor:
            return share * one + (1 - share) * other

        return Level(mix(stable.x, plastic.x), mix(stable.map, plastic.map) if self.keeps_maps else plastic.map)
