"""A network for images of a few pixels, quick on a CPU: every convolution there costs more to start than to compute."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from bdr.nets.base import BatchNorm, Features
from bdr.nets.prunable import Layer, Prunable, initialise
from bdr.nets.resnet_cifar import conv3x3
from bdr.types import ImageShape

WIDTHS = (32, 64, 64)


class SmallNet(Prunable):
    """Three convolutions with batch norm, at full, half and quarter resolution; pooled. Maps precede the ReLU."""

    dim = WIDTHS[-1]

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

    def forward(self, x: Tensor, gates: Sequence[Tensor] | None = None) -> Features:
        gated: Sequence[Tensor | None] = gates or [None] * len(WIDTHS)
        maps = []
        for level, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            x = norm(conv(F.max_pool2d(x, 2) if level else x), gated[level])
            maps.append(x)
            x = F.relu(x) if self.last_relu or level < len(WIDTHS) - 1 else x
        return Features.of(x, tuple(maps) if self.keeps_maps else ())


def small(shape: ImageShape, last_relu: bool = True, maps: bool = False) -> SmallNet:
    """Three convolutions for images of a few pixels: 64 features, 0.06 M parameters."""
    return SmallNet(shape.channels, last_relu, maps)
