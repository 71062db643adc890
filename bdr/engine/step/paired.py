"""Two narrow branches as one network, as a captured step runs them.

    | w_stable     0     |
    |    0     w_plastic |

Matrix units take 32 channels at once, and 16 are no quicker. Where there are few pixels, kernels are so short that
their work hardly counts. So the same convolution of both branches becomes one of twice the width, in which each branch
sees only its own channels. In the first convolution of a level both branches read the same channels, so there are no
zeros. Batch norms stand side by side. At half the resolution, twice the width is as much work and counts as narrow too:
all levels of ResNet-32 are narrow. In wide levels, such as those of ResNet-18, the zeros would cost real time, so these
are left as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from bdr.engine.step.compiled import backbone_parts, compiling_for
from bdr.engine.step.eager import EagerStep
from bdr.nets import TwoBranches
from bdr.nets.base import BatchNorm, Features, Level
from bdr.nets.prunable import Layer
from bdr.nets.resnet_cifar import ConvNorm, ResNet

NARROW = 16  # channels of one branch at the resolution of the images
STATISTICS = ("running_mean", "running_var")

MakePair = Callable[[ConvNorm, Tensor, Layer], Tensor]  # (layer, its input, its partner in the other branch)


def paired_forward(net: TwoBranches, x: Tensor) -> Features:
    """The features of the network, level by level, with narrow levels of both branches computed as one."""
    maps = []
    for index in range(net.depth):
        x, seen = paired_level(net, index, x, as_one) if is_narrow(net, index) else net.level(index, x)
        maps.append(seen)
    return Features(x, tuple(maps) if net.keeps_maps else ())


def is_narrow(net: TwoBranches, index: int) -> bool:
    return int(net.plastic.stages[index][-1].bn2.num_features) <= NARROW << index  # type: ignore[union-attr, index]


def paired_level(net: TwoBranches, index: int, x: Tensor, make: MakePair) -> Level:
    """A level of both branches at once: the plastic branch runs, each of its layers made with its stable partner."""
    assert isinstance(net.stable, ResNet)
    assert isinstance(net.plastic, ResNet)
    partners = {id(theirs.conv): mine for mine, theirs in zip(net.stable.layers(), net.plastic.layers(), strict=True)}

    def both_of(layer: ConvNorm, x: Tensor) -> Tensor:
        return make(layer, x, partners[id(layer.conv)])

    both = net.plastic.level(index, x, make=both_of)
    stable, plastic = (Level(*halves) for halves in zip(both.x.chunk(2, 1), both.map.chunk(2, 1), strict=True))
    return net.mixed(index, stable, plastic)


def as_one(layer: ConvNorm, x: Tensor, partner: Layer) -> Tensor:
    conv, shared = layer.conv, x.shape[1] == layer.conv.in_channels
    weight = side_by_side([partner.conv.weight, conv.weight], shared)
    y = normed(partner.norm, layer.norm, F.conv2d(x, weight, None, conv.stride, conv.padding))
    y = y if layer.beside is None else y + layer.beside
    return F.relu(y) if layer.relu else y


def side_by_side(weights: Sequence[Tensor], shared: bool) -> Tensor:
    """One weight for several convolutions: all read the same channels if `shared`, else each of two reads its own."""
    if not shared:
        (first, second), width = weights, weights[0].shape[1]
        weights = F.pad(first, (0, 0, 0, 0, 0, width)), F.pad(second, (0, 0, 0, 0, width, 0))
    return torch.cat(list(weights))


def normed(one: BatchNorm, other: BatchNorm, x: Tensor) -> Tensor:
    """Both batch norms at once; the running statistics go back to each of them."""
    pairs = [(getattr(one, name), getattr(other, name)) for name in (*STATISTICS, "weight", "bias")]
    mean, var, weight, bias = (torch.cat(pair) for pair in pairs)
    y = F.batch_norm(x, mean, var, weight, bias, other.training, other.momentum or 0.0, other.eps)
    if other.training:
        for kept, pair in zip((mean, var), pairs, strict=False):
            for own, half in zip(pair, kept.chunk(2), strict=True):
                own.copy_(half)
    return y


class Paired:
    """Called in place of the network, with the same results; reads the weights as they are at each call."""

    def __init__(self, net: TwoBranches) -> None:
        self.net = net
        self.run: Callable[[TwoBranches, Tensor], Features] = paired_forward
        if net._compiled_call_impl is not None:
            self.run = torch.compile(paired_forward, dynamic=False, options=compiling_for(net.aggregation.device))

    def __call__(self, x: Tensor) -> Features:
        return self.run(self.net, x)


def paired_forms(step: EagerStep) -> list[Paired]:
    """A paired form for every network of two branches with a narrow level. Subclasses are left out: they may differ."""
    parts = dict.fromkeys(part for root in step.objective.parts for part in backbone_parts(root))
    return [Paired(part) for part in parts if type(part) is TwoBranches and can_be_paired(part)]


def can_be_paired(net: TwoBranches) -> bool:
    """Whether both branches are residual networks, with batch norms in the same mode, and some level is narrow."""
    if type(net.stable) is not ResNet or type(net.plastic) is not ResNet:
        return False
    norms = [[part for part in branch.modules() if isinstance(part, BatchNorm)] for branch in (net.stable, net.plastic)]
    same = all(one.training == other.training for one, other in zip(*norms, strict=True))
    return same and any(is_narrow(net, index) for index in range(net.depth))
