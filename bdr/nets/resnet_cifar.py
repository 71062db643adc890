"""Residual networks for small images: ResNet-32, and ResNet-18 with a 3x3 stem."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from bdr.nets.base import BatchNorm, Divisible, Level
from bdr.nets.prunable import Layer, Prunable, initialise
from bdr.types import ImageShape


class ConvNorm(NamedTuple):
    """A convolution and its batch norm, and what is made of their output: relu(gate norm(conv(x)) + beside)."""

    conv: nn.Conv2d
    norm: BatchNorm
    gate: Tensor | None = None
    beside: Tensor | None = None
    relu: bool = True


# A network is described once, layer by layer; to compute its layers in another way, another such function is passed.
MakeLayer = Callable[[ConvNorm, Tensor], Tensor]


def as_it_reads(layer: ConvNorm, x: Tensor) -> Tensor:
    y = layer.norm(layer.conv(x), layer.gate)
    y = y if layer.beside is None else y + layer.beside
    return F.relu(y) if layer.relu else y


def conv3x3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut; without the last ReLU the features keep their sign."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1, last_relu: bool = True) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv3x3(inputs, outputs, stride), BatchNorm(outputs)
        self.conv2, self.bn2 = conv3x3(outputs, outputs), BatchNorm(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), BatchNorm(outputs))
        self.last_relu, self.gamma = last_relu, 1.0

    def forward(
        self, x: Tensor, inner: Tensor | None = None, stream: Tensor | None = None, make: MakeLayer = as_it_reads
    ) -> Tensor:
        """`inner` gates the channels inside, `stream` those that a stage adds up, acting once on each summand."""
        y = make(ConvNorm(self.conv1, self.bn1, inner), x)
        return make(ConvNorm(self.conv2, self.bn2, stream, self.beside(x, stream, make), self.last_relu), y)

    def beside(self, x: Tensor, stream: Tensor | None, make: MakeLayer) -> Tensor:
        if not len(self.shortcut):
            return x
        conv, norm = self.shortcut
        return make(ConvNorm(conv, norm, stream, relu=False), x)  # type: ignore[arg-type]

    def layers(self, inputs: int, inner: int, stream: int) -> list[Layer]:
        """Its convolutions, given the numbers of the groups of channels that it reads, has inside and adds to."""
        found = [Layer(self.conv1, self.bn1, inputs, inner), Layer(self.conv2, self.bn2, inner, stream, self.gamma)]
        if len(self.shortcut):
            conv, norm = self.shortcut
            found.append(Layer(conv, norm, inputs, stream))  # type: ignore[arg-type]
        return found


class LastStage(nn.Module):
    """Blocks at the end of a network, and pooling."""

    def __init__(self, blocks: nn.Module, last_relu: bool) -> None:
        super().__init__()
        self.blocks, self.last_relu = blocks, last_relu

    def forward(self, x: Tensor, make: MakeLayer = as_it_reads) -> Level:
        for block in self.blocks:  # type: ignore[attr-defined]
            x = block(x, make=make)
        return Level.last(x, self.last_relu)


class ResNet(Prunable, Divisible):
    """A 3x3 stem, stages of basic blocks, each after the first at half the resolution, and average pooling.

    If maps are kept, a stage ends before its last ReLU. The stem belongs to the first level, pooling to the last. The
    channels that a stage adds up are one group, and those of the stem belong to that of the first stage; the channels
    inside a block are a group of their own.
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
            stage[-1].last_relu = (i < len(widths) - 1 or last_relu) and not maps  # else it comes after the map
            self.stages.append(nn.Sequential(*stage))
            inputs = width
        self.apply(initialise)
        if zero_init:  # every block begins as its shortcut
            for block in self.blocks():
                block.gamma = 0.0
                nn.init.zeros_(block.bn2.weight)
        self.full, self.pooled = self.widths, len(widths) - 1

    def blocks(self) -> list[BasicBlock]:
        return [block for stage in self.stages for block in stage]  # type: ignore[attr-defined]

    def layers(self) -> list[Layer]:
        """All convolutions; the groups of the stages come first, then those inside the blocks."""
        found, each = [Layer(self.stem, self.bn, None, 0)], len(self.blocks()) // len(self.stages)
        for place, block in enumerate(self.blocks()):
            stage, first = place // each, place % each == 0
            found += block.layers(max(0, stage - 1) if first else stage, len(self.stages) + place, stage)
        return found

    def level(
        self, index: int, x: Tensor, gates: Sequence[Tensor] | None = None, make: MakeLayer = as_it_reads
    ) -> Level:
        stage = self.stages[index]
        stream, inner = self.gates_of(index, gates)
        x = x if index else make(ConvNorm(self.stem, self.bn, stream), x)
        for block, gate in zip(stage, inner, strict=True):  # type: ignore[call-overload]
            x = block(x, gate, stream, make)
        if index < self.depth - 1:
            return Level(F.relu(x) if self.keeps_maps else x, x)
        return Level.last(x, self.last_relu and self.keeps_maps)

    def last_level(self) -> LastStage:
        return LastStage(copy.deepcopy(self.stages[-1]), self.last_relu and self.keeps_maps)

    def gates_of(self, index: int, gates: Sequence[Tensor] | None) -> tuple[Tensor | None, Sequence[Tensor | None]]:
        """The gates of the channels that a stage adds up, and of those inside each of its blocks."""
        each = len(self.stages[index])  # type: ignore[arg-type]
        if gates is None:
            return None, [None] * each
        first = self.depth + index * each
        return gates[index], gates[first : first + each]


def resnet18(shape: ImageShape, last_relu: bool = True, maps: bool = False) -> ResNet:
    """ResNet-18 with the CIFAR stem: 512 features, 11.17 M parameters."""
    return ResNet((64, 128, 256, 512), 2, shape.channels, last_relu, maps)


def resnet18_der(shape: ImageShape, last_relu: bool = True, maps: bool = False) -> ResNet:
    """The same as DER starts it: the last batch norm of each block at zero."""
    return ResNet((64, 128, 256, 512), 2, shape.channels, last_relu, maps, zero_init=True)


def resnet32(shape: ImageShape, last_relu: bool = True, maps: bool = False) -> ResNet:
    """ResNet-32 with convolutional shortcuts: 64 features, 0.47 M parameters."""
    return ResNet((16, 32, 64), 5, shape.channels, last_relu, maps)
