"""A small network, quick on a CPU: on images of a few pixels each convolution costs more to start than to compute."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from bdr.nets.base import BatchNorm, Divisible, Level
from bdr.nets.prunable import Layer, Prunable, initialise
from bdr.nets.resnet_cifar import conv3x3
from bdr.types import ImageShape

WIDTHS = (32, 64, 64)


class LastConvolution(nn.Module):
    """The convolution at the end of the network, and pooling."""

    def __init__(self, conv: nn.Module, norm: nn.Module, last_relu: bool) -> None:
        super().__init__()
        self.conv, self.norm, self.last_relu = conv, norm, last_relu

    def forward(self, x: Tensor) -> Level:
        return Level.last(self.norm(self.conv(F.max_pool2d(x, 2))), self.last_relu)


class SmallNet(Prunable, Divisible):
    """Three convolutions with batch norm, at full, half and quarter resolution; pooled. Maps precede the ReLU."""

    dim, depth = WIDTHS[-1], len(WIDTHS)

    def __init__(self, channels: int, last_relu: bool = True, maps: bool = False) -> None:
        super().__init__()
        inputs = (channels, *WIDTHS[:-1])
        self.convs = nn.ModuleList(conv3x3(i, o) for i, o in zip(inputs, WIDTHS, strict=True))
        self.norms = nn.ModuleList(BatchNorm(width) for width in WIDTHS)
        self.last_relu, self.keeps_maps = last_relu, maps
        self.apply(initialise)
        self.full, self.pooled = self.widths, len(WIDTHS) - 1

    def layers(self) -> list[Layer]:
        pairs = enumerate(zip(self.convs, self.norms, strict=True))
        return [Layer(conv, norm, i - 1 if i else None, i) for i, (conv, norm) in pairs]  # type: ignore[arg-type]

    def level(self, index: int, x: Tensor, gates: Sequence[Tensor] | None = None) -> Level:
        gate = None if gates is None else gates[index]
        seen = self.norms[index](self.convs[index](F.max_pool2d(x, 2) if index else x), gate)
        if index < self.depth - 1:
            return Level(F.relu(seen), seen)
        return Level.last(seen, self.last_relu)

    def last_level(self) -> LastConvolution:
        return LastConvolution(copy.deepcopy(self.convs[-1]), copy.deepcopy(self.norms[-1]), self.last_relu)


def small(shape: ImageShape, last_relu: bool = True, maps: bool = False) -> SmallNet:
    """Three convolutions for images of a few pixels: 64 features, 0.06 M parameters."""
    return SmallNet(shape.channels, last_relu, maps)
