"""Residual networks for small images: ResNet-32, and ResNet-18 with a 3x3 stem."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from bdr.nets.base import BatchNorm, Features, Level, Levelled
from bdr.types import ImageShape


def conv3x3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around a shortcut; without the last ReLU the features keep their sign."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1, last_relu: bool = True) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv3x3(inputs, outputs, stride), BatchNorm(outputs)
        self.conv2, self.bn2 = conv3x3(outputs, outputs), BatchNorm(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), BatchNorm(outputs))
        self.last_relu = last_relu

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y)) + self.shortcut(x)
        return F.relu(y) if self.last_relu else y


class ResNet(Levelled):
    """A 3x3 stem and stages of basic blocks, each after the first at half the resolution; average pooling.

    A stage ends before its last ReLU, where its map is taken. The stem belongs to the first level, pooling to the last.
    """

    def __init__(
        self,
        widths: Sequence[int],
        blocks: int,
        channels: int = 3,
        last_relu: bool = True,
        maps: bool = False,
        zero_init: bool = False,
    ) -> None:
        super().__init__()
        self.dim, self.depth, self.last_relu, self.keeps_maps = widths[-1], len(widths), last_relu, maps
        self.stem, self.bn = conv3x3(channels, widths[0]), BatchNorm(widths[0])
        self.stages = nn.ModuleList()
        inputs = widths[0]
        for i, width in enumerate(widths):
            stage = [BasicBlock(inputs if b == 0 else width, width, 2 if i and b == 0 else 1) for b in range(blocks)]
            stage[-1].last_relu = False
            self.stages.append(nn.Sequential(*stage))
            inputs = width
        self.apply(initialise)
        if zero_init:  # every block begins as its shortcut
            for block in (module for module in self.modules() if isinstance(module, BasicBlock)):
                nn.init.zeros_(block.bn2.weight)

    def level(self, index: int, x: Tensor) -> Level:
        seen = self.stages[index](x if index else F.relu(self.bn(self.stem(x))))
        if index < self.depth - 1:
            return Level(F.relu(seen), seen)
        return Level(Features.of(F.relu(seen) if self.last_relu else seen).pooled, seen)


def initialise(module: nn.Module) -> None:
    """Kaiming-normal by fan-out for convolutions; batch norm starts as the identity."""
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def resnet18(shape: ImageShape, last_relu: bool = True, maps: bool = False) -> ResNet:
    """ResNet-18 with the CIFAR stem: 512 features, 11.17 M parameters."""
    return ResNet((64, 128, 256, 512), 2, shape.channels, last_relu, maps)


def resnet18_der(shape: ImageShape, last_relu: bool = True, maps: bool = False) -> ResNet:
    """The same as DER starts it: the last batch norm of each block at zero."""
    return ResNet((64, 128, 256, 512), 2, shape.channels, last_relu, maps, zero_init=True)


def resnet32(shape: ImageShape, last_relu: bool = True, maps: bool = False) -> ResNet:
    """ResNet-32 with convolutional shortcuts: 64 features, 0.47 M parameters."""
    return ResNet((16, 32, 64), 5, shape.channels, last_relu, maps)
