"""A network for images of a few pixels, quick on a CPU: every convolution there costs more to start than to compute."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from bdr.nets.base import Backbone, BatchNorm, Features
from bdr.nets.resnet_cifar import conv3x3, initialise
from bdr.types import ImageShape

WIDTHS = (32, 64, 64)


class SmallNet(Backbone):
    """Three convolutions with batch norm, at full, half and quarter resolution; pooled. Maps precede the ReLU."""

    dim = WIDTHS[-1]

    def __init__(self, channels: int, last_relu: bool = True, maps: bool = False) -> None:
        super().__init__()
        inputs = (channels, *WIDTHS[:-1])
        self.convs = nn.ModuleList(conv3x3(i, o) for i, o in zip(inputs, WIDTHS, strict=True))
        self.norms = nn.ModuleList(BatchNorm(width) for width in WIDTHS)
        self.last_relu, self.keeps_maps = last_relu, maps
        self.apply(initialise)

    def forward(self, x: Tensor) -> Features:
        maps = []
        for level, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            x = norm(conv(F.max_pool2d(x, 2) if level else x))
            maps.append(x)
            x = F.relu(x) if self.last_relu or level < len(WIDTHS) - 1 else x
        return Features.of(x, tuple(maps) if self.keeps_maps else ())


def small(shape: ImageShape, last_relu: bool = True, maps: bool = False) -> SmallNet:
    """Three convolutions for images of a few pixels: 64 features, 0.06 M parameters."""
    return SmallNet(shape.channels, last_relu, maps)
