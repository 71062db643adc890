"""Residual networks at rest, as a captured step runs them.

    w' = w gamma / sqrt(var + eps),     b' = beta - mean gamma / sqrt(var + eps)

So the convolution before a batch norm at rest does the work of both, and convolution, sum and ReLU are one kernel. A
network that lost channels is padded with zeros, but only up to the next multiple of what matrix units take at once: a
width between two multiples saves no time, and its convolutions are slow. Two narrow branches are one network here too
(`paired.py`), but their weights are laid side by side once and not in every step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bdr.engine.step.compiled import backbone_parts
from bdr.engine.step.eager import EagerStep
from bdr.engine.step.paired import is_narrow, paired_level, side_by_side
from bdr.nets import TwoBranches
from bdr.nets.base import Features, Frozen, Level, Levelled, Network
from bdr.nets.experts import Experts
from bdr.nets.prunable import Layer
from bdr.nets.resnet_cifar import ConvNorm, ResNet

UNIT = 16  # channels that matrix units take at once in bfloat16


def filled_up(channels: int) -> int:
    """The number of channels, rounded up to a multiple of `UNIT`."""
    return channels + -channels % UNIT


@torch.no_grad()
def without_norm(layer: Layer | ConvNorm, inputs: int) -> tuple[Tensor, Tensor]:
    """Weight and bias that do the work of a convolution and its batch norm, padded to so many inputs and full units."""
    norm, weight = layer.norm, layer.conv.weight
    mean, var = norm.running_mean, norm.running_var
    assert mean is not None
    assert var is not None
    scale = norm.weight * torch.rsqrt(var + norm.eps)
    more_inputs, more_outputs = inputs - weight.shape[1], filled_up(len(weight)) - len(weight)
    weight = F.pad(weight * scale[:, None, None, None], (0, 0, 0, 0, 0, more_inputs, 0, more_outputs))
    return weight, F.pad(norm.bias - mean * scale, (0, more_outputs))


class Folded(NamedTuple):
    """A convolution that does the work of a convolution and its batch norm, or of those of two branches."""

    weight: Tensor
    bias: Tensor
    stride: tuple[int, ...]
    padding: tuple[int, ...]

    @classmethod
    def of(cls, layers: Sequence[Layer | ConvNorm], inputs: int, dtype: torch.dtype) -> Folded:
        """Fold one layer, or two, which either read the same inputs or each a half of them."""
        conv = layers[0].conv
        shared = inputs <= filled_up(conv.weight.shape[1])
        each = inputs if shared else inputs // 2
        weights, biases = zip(*(without_norm(layer, each) for layer in layers), strict=True)
        weight = side_by_side(weights, shared).to(dtype).contiguous(memory_format=torch.channels_last)
        padding = conv.padding if isinstance(conv.padding, tuple) else (0, 0)
        return cls(weight, torch.cat(biases).to(dtype), conv.stride, padding)

    def __call__(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight, self.bias, self.stride, self.padding)

    def relu(self, x: Tensor) -> Tensor:
        if not x.is_cuda:
            return F.relu(self(x))
        return torch.cudnn_convolution_relu(x, self.weight, self.bias, self.stride, self.padding, (1, 1), 1)

    def add_relu(self, x: Tensor, summand: Tensor) -> Tensor:
        if not x.is_cuda:
            return F.relu(self(x) + summand)
        around = (self.stride, self.padding, (1, 1), 1)
        return torch.cudnn_convolution_add_relu(x, self.weight, summand, 1.0, self.bias, *around)


class MakeFolded(Protocol):
    """A function that computes a layer, or both at once if it has a partner in the other branch."""

    def __call__(self, layer: ConvNorm, x: Tensor, partner: Layer | None = None) -> Tensor: ...


def told(net: nn.Module, x: Tensor, make: MakeFolded) -> Features:
    """The features of a network that can rest; `make` computes its layers, which are padded, while features are not."""
    if isinstance(net, Experts):
        return experts_told(net, x, make)
    assert isinstance(net, Levelled)
    maps, widths = [], plain_in(net).widths
    for index in range(net.depth):
        x, seen = level_told(net, index, x, make)
        maps.append(seen[:, : widths[index]])
    return Features(x[:, : net.dim], tuple(maps) if net.keeps_maps else ())


def level_told(net: Levelled, index: int, x: Tensor, make: MakeFolded) -> Level:
    if not isinstance(net, TwoBranches):
        return plain_in(net).level(index, x, make=make)
    if is_narrow(net, index):
        return paired_level(net, index, x, make)
    return net.mixed(index, *(level_told(branch, index, x, make) for branch in (net.stable, net.plastic)))


def experts_told(net: Experts, x: Tensor, make: MakeFolded) -> Features:
    *shared, last = range(net.plain.depth)
    for index in shared:
        x = level_told(net.plain, index, x, make).x
    ends = [level_told(net.plain, last, x, make), *(other(x, make) for other in net.others)]
    return Features(torch.cat([end.x[:, : net.plain.dim] for end in ends], 1))


def plain_in(net: nn.Module) -> ResNet:
    """The residual network that this network is made of, or is."""
    found = net.plastic if isinstance(net, TwoBranches) else net.plain if isinstance(net, Experts) else net
    assert isinstance(found, ResNet)
    return found


def can_rest(net: nn.Module) -> bool:
    """Whether a network has a resting form. Subclasses have none: they may do otherwise in any of their levels."""
    if type(net) is TwoBranches:
        return type(net.plastic) is ResNet
    return type(net.plain if type(net) is Experts else net) is ResNet


class Resting:
    """Called in place of the network, without gates, with the same results; folds the weights as they are when made."""

    def __init__(self, net: nn.Module, dtype: torch.dtype) -> None:
        self.net, self.dtype = net, dtype
        self.folded: dict[nn.Module, Folded] = {}
        stem = plain_in(net).stem
        # One pass without images: the network knows best which layers it has and how many channels each of them reads.
        told(net, stem.weight.new_zeros(1, stem.in_channels, 1, 1), self.fold)

    def __call__(self, x: Tensor) -> Features:
        return told(self.net, x.to(self.dtype, memory_format=torch.channels_last), self.layer)

    def fold(self, layer: ConvNorm, x: Tensor, partner: Layer | None = None) -> Tensor:
        """Fold a layer; of what it reads and returns, only the number of channels counts here."""
        layers: list[Layer | ConvNorm] = [layer] if partner is None else [partner, layer]
        folded = self.folded[layer.conv] = Folded.of(layers, x.shape[1], self.dtype)
        return x.new_zeros(1, len(folded.weight), 1, 1)

    def layer(self, layer: ConvNorm, x: Tensor, partner: Layer | None = None) -> Tensor:
        assert layer.gate is None, "a network at rest has none"
        folded, beside = self.folded[layer.conv], layer.beside
        if not layer.relu:
            return folded(x) if beside is None else folded(x).add_(beside)
        return folded.relu(x) if beside is None else folded.add_relu(x, beside)


def resting_forms(step: EagerStep) -> list[Resting]:
    """A resting form for every residual network at rest in a step, in bfloat16; in other precisions there are none.

    Only networks that are called as a whole count, by themselves or as two branches or experts: for one inside another
    backbone, the outer one calls the levels.
    """
    modules = [module for part in step.objective.parts for module in part.modules()]
    if not any(isinstance(module, Network) and module.precision is torch.bfloat16 for module in modules):
        return []
    at_rest = [module for module in modules if isinstance(module, Frozen) and module.rests]
    found = {part: None for frozen in at_rest for part in backbone_parts(frozen) if can_rest(part)}
    return [Resting(net, torch.bfloat16) for net in found]


class Form(Protocol):
    """Another way to call a network."""

    @property
    def net(self) -> nn.Module: ...

    def __call__(self, x: Tensor) -> Features: ...


@contextlib.contextmanager
def running(forms: Sequence[Form]) -> Iterator[None]:
    """Inside, networks are called in these forms, compiled networks too."""
    before = [form.net._compiled_call_impl for form in forms]
    for form in forms:
        form.net._compiled_call_impl = form
    try:
        yield
    finally:
        for form, call in zip(forms, before, strict=True):
            form.net._compiled_call_impl = call
