"""Backbones whose channels can be removed for good: which belong together, what is left, and how large that is.

Channels that are added up, such as those along a stage of a residual network, can only be removed together: they are a
group. A table of convolutions, each between two groups, is all that removing channels and counting weights needs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bdr.nets.base import BatchNorm, Levelled

OF_A_CHANNEL = ("weight", "bias", "running_mean", "running_var")


def initialise(module: nn.Module) -> None:
    """Kaiming-normal by fan-out for convolutions; batch norm starts as the identity."""
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


class Layer(NamedTuple):
    """A convolution and its batch norm."""

    conv: nn.Conv2d
    norm: BatchNorm
    inputs: int | None  # the group of channels that it reads; None: the image
    outputs: int  # the group that it writes
    gamma: float = 1.0  # at which the weights of its batch norm start

    def reads(self, kept: Sequence[Tensor]) -> Tensor:
        """(I,): which of its input channels are kept."""
        every = torch.ones(self.conv.in_channels, dtype=torch.bool, device=self.conv.weight.device)
        return every if self.inputs is None else kept[self.inputs]

    def take(self, weight: Tensor, of_channels: Sequence[Tensor]) -> None:
        """Replace its tensors with these, of whatever width."""
        learns = self.conv.weight.requires_grad
        self.conv.weight = nn.Parameter(weight, requires_grad=learns)
        self.conv.out_channels, self.conv.in_channels = weight.shape[:2]
        self.norm.num_features = len(weight)
        for name, values in zip(OF_A_CHANNEL, of_channels, strict=True):
            setattr(self.norm, name, nn.Parameter(values, requires_grad=learns) if "running" not in name else values)

    def tensors(self) -> tuple[Tensor, list[Tensor]]:
        return self.conv.weight.data, [getattr(self.norm, name).data for name in OF_A_CHANNEL]


def quadratic(widths: Tensor, table: Tensor) -> Tensor:
    """The size that a table of pairs gives for these widths (G,), whole numbers or not."""
    n = torch.cat([widths.new_ones(1), widths])
    return n @ table @ n


class Prunable(Levelled, ABC):
    """Abstract; subclasses set `full`, the original widths of all groups, and `pooled`, the group of the features."""

    full: list[int]
    pooled: int

    @abstractmethod
    def layers(self) -> list[Layer]:
        """All convolutions. Gates are one vector for each group, which multiplies the outputs of its batch norms."""

    @property
    def widths(self) -> list[int]:
        found = {layer.outputs: layer.norm.num_features for layer in self.layers()}
        return [found[group] for group in sorted(found)]

    @property
    def whole(self) -> bool:
        return self.widths == self.full

    def table(self, norms: bool = True) -> Tensor:
        """(1 + G, 1 + G): parameters for each pair of channels, one of the group read and one of the group written.

        The image comes first. With n = (1, widths), n table n is the size of the network or, without `norms`, the
        number of weights of its convolutions alone.
        """
        found = torch.zeros(1 + len(self.full), 1 + len(self.full), dtype=torch.float64)
        for layer in self.layers():
            area, channels = layer.conv.weight[0, 0].numel(), layer.conv.in_channels
            if layer.inputs is None:
                found[0, 1 + layer.outputs] += area * channels
            else:
                found[1 + layer.inputs, 1 + layer.outputs] += area
            found[0, 1 + layer.outputs] += 2 * norms
        return found

    def size(self, widths: Sequence[int]) -> int:
        """The number of parameters at these widths of the groups."""
        return int(quadratic(torch.tensor([float(width) for width in widths], dtype=torch.float64), self.table()))

    @torch.no_grad()
    def remove(self, kept: Sequence[Tensor]) -> None:
        """Remove all channels but those kept, by a mask for each group."""
        for layer in self.layers():
            rows, columns = kept[layer.outputs], layer.reads(kept)
            weight, of_channels = layer.tensors()
            layer.take(weight[rows][:, columns], [values[rows] for values in of_channels])
        self.dim = self.widths[self.pooled]

    @torch.no_grad()
    def widen(self) -> None:
        """Restore the original widths: removed channels come back as new ones, beside those that were kept.

        The kept channels do not read the new ones yet, so their outputs stay the same.
        """
        before = [layer.tensors() for layer in self.layers()]
        self.lay_out({"widths": self.full})
        for layer, (weight, of_channels) in zip(self.layers(), before, strict=True):
            now, blank = layer.tensors()
            fresh = nn.Conv2d(now.shape[1], now.shape[0], tuple(now.shape[2:]), bias=False)  # type: ignore[arg-type]
            initialise(fresh)
            now.copy_(fresh.weight)
            now[: len(weight)] = 0.0
            now[: len(weight), : weight.shape[1]] = weight
            for values, start, kept in zip(blank, (layer.gamma, 0.0, 0.0, 1.0), of_channels, strict=True):
                values.fill_(start)[: len(kept)] = kept

    def layout(self) -> dict[str, Any]:
        return {"widths": self.widths}

    def lay_out(self, layout: dict[str, Any]) -> None:
        widths = layout["widths"]
        if widths == self.widths:
            return
        for layer in self.layers():
            weight, of_channels = layer.tensors()
            inputs = layer.conv.in_channels if layer.inputs is None else widths[layer.inputs]
            shape = (widths[layer.outputs], inputs, *weight.shape[2:])
            layer.take(weight.new_empty(shape), [values.new_empty(shape[0]) for values in of_channels])
        self.dim = self.widths[self.pooled]


def above(scores: Sequence[Tensor], threshold: float | Tensor) -> list[Tensor]:
    """Masks of the channels whose score is above the threshold; the best of a group always counts."""
    return [(group > threshold) | (torch.arange(len(group), device=group.device) == group.argmax()) for group in scores]


def threshold_for(net: Prunable, scores: Sequence[Tensor], wanted: float) -> float:
    """The lowest threshold on the scores of all channels that leaves a network of no more than the wanted size."""
    scores, table = [group.detach().cpu() for group in scores], net.table()
    values = torch.cat(list(scores)).sort().values.tolist()
    below = 2 * values[0] - values[-1] - 1.0  # below all scores, by more than their range
    steps = [below, *values]

    def shrunk(threshold: float) -> int:
        return -int(quadratic(torch.stack([mask.sum() for mask in above(scores, threshold)]).double(), table))

    return float(steps[min(len(values), bisect_left(steps, -wanted, key=shrunk))])


def best_channels(net: Prunable, scores: Sequence[Tensor], wanted: float) -> list[Tensor]:
    """Masks of the channels with the highest scores, as many as make a network of no more than the wanted size."""
    return above(scores, threshold_for(net, scores, wanted))
