"""Independent classifiers: one for the classes of each phase, on that phase's part of the features alone."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bdr.fusing import fused
from bdr.nets.base import Head
from bdr.nets.heads import uniform


@fused(features=1, scale=0, shift=0, weight=0, bias=0, owner=0)
def independent_logits(
    features: Tensor, scale: Tensor, shift: Tensor, weight: Tensor, bias: Tensor, owner: Tensor
) -> Tensor:
    """(B, K): logits of features (B, T D), in which each class reads its owner, one of the T tokens, alone.

    Each token is normalised, scaled and shifted by its row of (T, D); each class has a row of `weight` (K, D). All
    pairs of tokens and classes are one product, of which those that belong together are kept: cheaper than T products.
    """
    tokens = features.unflatten(1, scale.shape)
    pairs = F.linear(F.layer_norm(tokens, scale.shape[1:]) * scale + shift, weight)  # (B, T, K)
    own = owner == torch.arange(scale.shape[0], device=owner.device)[:, None]
    return (pairs * own).sum(1) + bias


class Weights(NamedTuple):
    """The layer norms and linear layers of some of these classifiers."""

    scale: Tensor  # (T, D)
    shift: Tensor  # (T, D)
    weight: Tensor  # (K, D)
    bias: Tensor  # (K,)


class Heads(nn.Module):
    """`Weights` as parameters, which learn if they are said to move."""

    def __init__(self, weights: Weights, moves: bool) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(weights.scale, moves), nn.Parameter(weights.shift, moves)
        self.weight, self.bias = nn.Parameter(weights.weight, moves), nn.Parameter(weights.bias, moves)


def joined(old: Heads, new: Heads) -> Weights:
    return Weights(*(torch.cat(pair) for pair in zip(old.parameters(), new.parameters(), strict=True)))


def empty(tokens: int, classes: int, dim: int, like: Tensor) -> Weights:
    norm, linear = (tokens, dim), (classes, dim)
    return Weights(*(like.new_empty(shape) for shape in (norm, norm, linear, linear[:1])))


def fresh(classes: int, dim: int, like: Tensor) -> Weights:
    """The weights of one random classifier, as torch starts a layer norm and a linear layer."""
    weight, bias = uniform(classes, like.new_empty(0, dim)), (2 * torch.rand(classes) - 1) * dim**-0.5
    return Weights(like.new_ones(1, dim), like.new_zeros(1, dim), weight, bias.to(like))


class TokenHeads(Head):
    """Head i is a layer norm and a linear layer on token i alone; those of earlier phases are frozen."""

    owner: Tensor  # (K,) the token that each class is read from

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim, self.counts = dim, list[int]()  # the number of classes of each token
        self.old, self.new = (Heads(empty(0, 0, dim, torch.empty(0)), moves) for moves in (False, True))
        self.register_buffer("owner", torch.zeros(0, dtype=torch.long), persistent=False)

    @property
    def classes(self) -> int:
        return sum(self.counts)

    def grow(self, count: int) -> None:
        """Add a classifier of `count` classes for one more token."""
        with torch.no_grad():
            self.old = Heads(joined(self.old, self.new), moves=False)
        self.new = Heads(fresh(count, self.dim, self.old.weight.data), moves=True)
        self.count([*self.counts, count])

    def restart(self, count: int) -> None:
        """Replace all classifiers with a fresh one for a single token."""
        self.lay_out({"counts": []})
        self.grow(count)

    def count(self, counts: list[int]) -> None:
        self.counts = counts
        each = torch.tensor(counts, dtype=torch.long)
        self.owner = torch.arange(len(counts)).repeat_interleave(each).to(self.owner.device)

    def layout(self) -> dict[str, Any]:
        return {"counts": self.counts}

    def lay_out(self, layout: dict[str, Any]) -> None:
        counts, like = list(layout["counts"]), self.new.weight.data
        self.old = Heads(empty(len(counts[:-1]), sum(counts[:-1]), self.dim, like), moves=False)
        self.new = Heads(empty(len(counts[-1:]), sum(counts[-1:]), self.dim, like), moves=True)
        self.count(counts)

    def forward(self, features: Tensor) -> tuple[Tensor, float]:
        now = joined(self.old, self.new)
        return independent_logits(features, now.scale, now.shift, now.weight, now.bias, self.owner), 1.0
