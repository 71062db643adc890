"""The network of RPSNet: layers of parallel modules, each of which is made when a path first uses it.

A path names one module of each layer. The outputs of all modules that some path has named are added up, together with
that of a skip module, which all paths share: the identity, or a convolution where the width changes. Layer by layer
this is ResNet-18 with its branches multiplied; one path alone is a plain network, and any method can train it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from bdr.nets.base import Backbone, BatchNorm, Features
from bdr.nets.prunable import initialise
from bdr.nets.resnet_cifar import conv3x3
from bdr.types import ImageShape


class Simple(nn.Module):
    """The module that reads the images, and the skip module of a layer that changes the width."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv, self.bn = conv3x3(inputs, outputs), BatchNorm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn(self.conv(x)))


class Residual(nn.Module):
    """A residual block without its shortcut."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv3x3(inputs, outputs), BatchNorm(outputs)
        self.conv2, self.bn2 = conv3x3(outputs, outputs), BatchNorm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))


class Layer(nn.Module):
    """Modules side by side, by number and in the order in which paths first used them, and the skip module."""

    def __init__(self, inputs: int, outputs: int, first: bool, halves: bool) -> None:
        super().__init__()
        self.inputs, self.outputs, self.first, self.halves = inputs, outputs, first, halves
        self.skip = nn.Identity() if inputs == outputs else Simple(inputs, outputs)
        self.chosen = nn.ModuleDict()

    def use(self, number: int) -> None:
        if str(number) not in self.chosen:
            made = (Simple if self.first else Residual)(self.inputs, self.outputs)
            self.chosen[str(number)] = made.apply(initialise)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(x, 2) if self.halves else x
        total = self.skip(x)
        for module in self.chosen.values():
            total = total + module(x)
        return total


class PathNet(Backbone):
    """A layer for the images, equally many residual ones for each width, and pooling. Maps are those before the ReLU.

    The resolution is halved at each width after the second. The first path is the first module of each layer.
    """

    def __init__(
        self, channels: int, parallel: int, layers: int, widths: Sequence[int], last_relu: bool, maps: bool
    ) -> None:
        super().__init__()
        if parallel < 1:
            raise ValueError(f"modules = {parallel} is not allowed: a layer has at least one")
        if not widths or layers <= len(widths):
            raise ValueError(
                f"layers = {layers} is not allowed: one is for the images, and every width has one or more"
            )
        self.levels = [0, *(place * len(widths) // (layers - 1) for place in range(layers - 1))]
        self.dim, self.parallel, self.last_relu, self.keeps_maps = widths[-1], parallel, last_relu, maps
        self.layers, inputs, before = nn.ModuleList(), channels, 0
        for level in self.levels:
            self.layers.append(Layer(inputs, widths[level], not self.layers, halves=level > max(before, 1)))
            inputs, before = widths[level], level
        self.apply(initialise)
        self.paths: list[list[int]] = []
        self.take([0] * layers)

    def stack(self) -> list[Layer]:
        return [layer for layer in self.layers if isinstance(layer, Layer)]

    def take(self, path: Sequence[int]) -> None:
        """Add a path: modules that earlier paths used are frozen for good, and those new on this one begin to learn."""
        for layer, number in zip(self.stack(), path, strict=True):
            layer.chosen.requires_grad_(False)
            layer.use(number)
        self.paths.append(list(path))

    def unused(self) -> list[list[int]]:
        """The modules of each layer that no path has named so far."""
        return [[m for m in range(self.parallel) if m not in used] for used in zip(*self.paths, strict=True)]

    def layout(self) -> dict[str, Any]:
        return {"paths": self.paths}

    def lay_out(self, layout: dict[str, Any]) -> None:
        self.paths = []
        for layer in self.stack():
            layer.chosen = nn.ModuleDict()
        for path in layout["paths"]:
            self.take(path)

    def to_compile(self) -> Sequence[nn.Module]:
        """Single modules: these keep their shape, while the sum of their outputs changes with every path."""
        parts = [part for layer in self.stack() for part in (layer.skip, *layer.chosen.values())]
        return [part for part in parts if not isinstance(part, nn.Identity)]

    def forward(self, x: Tensor) -> Features:
        maps = []
        for place, layer in enumerate(self.layers):
            x = layer(F.relu(x) if place else x)
            if self.levels[place] not in self.levels[place + 1 :]:
                maps.append(x)
        x = F.relu(x) if self.last_relu else x
        return Features.of(x, tuple(maps) if self.keeps_maps else ())


def rps(
    shape: ImageShape,
    last_relu: bool = True,
    maps: bool = False,
    modules: int = 8,
    layers: int = 9,
    widths: tuple[int, ...] = (64, 128, 256, 512),
) -> PathNet:
    """RPSNet's parallel modules, a ResNet-18 a path: 512 features, 12.55 M parameters, 11.00 M more with every path."""
    return PathNet(shape.channels, modules, layers, widths, last_relu, maps)


def rps_small(
    shape: ImageShape,
    last_relu: bool = True,
    maps: bool = False,
    modules: int = 8,
    layers: int = 4,
    widths: tuple[int, ...] = (16, 32, 64),
) -> PathNet:
    """The same for images of a few pixels: 64 features, 0.10 M parameters, 0.07 M more with every path."""
    return PathNet(shape.channels, modules, layers, widths, last_relu, maps)
