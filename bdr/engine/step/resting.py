"""Residual networks at rest, as a captured step runs them.

    w' = w gamma / sqrt(var + eps),     b' = beta - mean gamma / sqrt(var + eps)

What a batch norm at rest does is so done by the convolution before it, and convolution, sum and ReLU are one kernel. A
network that lost channels is filled up with zeros again, but only to the next multiple of what matrix units take at
once: between two such numbers convolutions are no quicker, and off them they are slow.
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
from bdr.nets.base import Features, Frozen, Network
from bdr.nets.prunable import Layer
from bdr.nets.resnet_cifar import ConvNorm, ResNet

UNIT = 16  # channels that matrix units take at once in bfloat16


class Folded(NamedTuple):
    """A convolution that does what it and its batch norm did."""

    weight: Tensor
    bias: Tensor
    stride: tuple[int, ...]
    padding: tuple[int, ...]

    @classmethod
    @torch.no_grad()
    def of(cls, layer: Layer, dtype: torch.dtype) -> Folded:
        conv, norm = layer.conv, layer.norm
        mean, var = norm.running_mean, norm.running_var
        assert mean is not None
        assert var is not None
        scale = norm.weight * torch.rsqrt(var + norm.eps)
        weight, bias = conv.weight * scale[:, None, None, None], norm.bias - mean * scale
        outputs, inputs = -len(weight) % UNIT, 0 if layer.inputs is None else -weight.shape[1] % UNIT
        weight = F.pad(weight, (0, 0, 0, 0, 0, inputs, 0, outputs))
        padding = conv.padding if isinstance(conv.padding, tuple) else (0, 0)
        last = weight.to(dtype).contiguous(memory_format=torch.channels_last)
        return cls(last, F.pad(bias, (0, outputs)).to(dtype), conv.stride, padding)

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


class Resting:
    """Called as the network is, without gates, and says the same; of weights as they are now."""

    def __init__(self, net: ResNet, dtype: torch.dtype) -> None:
        self.net, self.dtype = net, dtype
        self.folded = {layer.conv: Folded.of(layer, dtype) for layer in net.layers()}

    def __call__(self, x: Tensor) -> Features:
        net, maps = self.net, []
        x = x.to(self.dtype, memory_format=torch.channels_last)
        for index in range(net.depth):
            x, seen = net.level(index, x, make=self.layer)
            maps.append(seen[:, : net.widths[index]])
        return Features(x[:, : net.dim], tuple(maps) if net.keeps_maps else ())

    def layer(self, layer: ConvNorm, x: Tensor) -> Tensor:
        assert layer.gate is None, "a network at rest has none"
        folded, beside = self.folded[layer.conv], layer.beside
        if not layer.relu:
            return folded(x) if beside is None else folded(x).add_(beside)
        return folded.relu(x) if beside is None else folded.add_relu(x, beside)


def resting_forms(step: EagerStep) -> list[Resting]:
    """One for every residual network of a step that rests, in bfloat16; in other precisions they run as they are.

    Those are meant that are called as a whole: of one inside another backbone, the outer one calls the levels. What is
    derived from them may do otherwise in any of these, and is left alone.
    """
    modules = [module for part in step.objective.parts for module in part.modules()]
    if not any(isinstance(module, Network) and module.precision is torch.bfloat16 for module in modules):
        return []
    at_rest = [module for module in modules if isinstance(module, Frozen) and module.rests]
    found = {part: None for frozen in at_rest for part in backbone_parts(frozen) if type(part) is ResNet}
    return [Resting(net, torch.bfloat16) for net in found]


class Form(Protocol):
    """Another way to call a network."""

    @property
    def net(self) -> nn.Module: ...

    def __call__(self, x: Tensor) -> Features: ...


@contextlib.contextmanager
def running(forms: Sequence[Form]) -> Iterator[None]:
    """Inside, networks are called in these forms of theirs; compiled ones too."""
    before = [form.net._compiled_call_impl for form in forms]
    for form in forms:
        form.net._compiled_call_impl = form
    try:
        yield
    finally:
        for form, call in zip(forms, before, strict=True):
            form.net._compiled_call_impl = call
