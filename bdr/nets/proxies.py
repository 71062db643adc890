"""The local similarity classifier: several proxies per class, old ones frozen; and k-means, to place new ones.

The score of a class says how near its proxies are to the features; nearer proxies count more:

    s_kj = - | f/|f| - p_kj/|p_kj| |^2 = 2 cos(f, p_kj) - 2,        score_k = sum_j softmax_j(s_kj) s_kj

Logits are eta score_k without the constant -2 eta, which changes no softmax and no loss here. So logits / (2 eta) are
cosines.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bdr.fusing import fused
from bdr.nets.base import Head

RESTARTS = 10
ROUNDS = 300


@fused(proxies=0)
def local_similarity(features: Tensor, proxies: Tensor, eta: Tensor) -> Tensor:
    """(B, K): logits of features (B, D) under proxies (K, P, D)."""
    cosines = F.linear(F.normalize(features), F.normalize(proxies, dim=2).flatten(0, 1))
    near = 2 * cosines.unflatten(1, (-1, proxies.shape[1]))
    return eta * (near.softmax(2) * near).sum(2)


class ProxyHead(Head):
    """Logits by local similarity, eta learnable; the proxies of earlier phases are frozen in a block of their own."""

    def __init__(self, dim: int, proxies: int = 10, eta: float = 1.0) -> None:
        super().__init__()
        self.old = nn.Parameter(torch.empty(0, proxies, dim), requires_grad=False)
        self.new = nn.Parameter(torch.empty(0, proxies, dim))
        self.eta = nn.Parameter(torch.tensor(float(eta)))

    @property
    def classes(self) -> int:
        return len(self.old) + len(self.new)

    @property
    def proxies(self) -> int:
        return self.new.shape[1]

    def grow(self, count: int) -> None:
        """Add `count` classes with random proxies (Kaiming); proxies that were new until now are frozen."""
        _, proxies, dim = self.new.shape
        fresh = torch.randn(count, proxies, dim) * dim**-0.5  # drawn on the CPU, so that every device starts alike
        self.old = nn.Parameter(torch.cat([self.old.data, self.new.data]), requires_grad=False)
        self.new = nn.Parameter(fresh.to(self.old))

    @torch.no_grad()
    def imprint(self, centres: Tensor) -> None:
        """Place new proxies at these centres (K_new, P, D) of unit features, times the mean length of the old ones."""
        self.new.copy_(centres * self.old.norm(dim=2).mean())

    def layout(self) -> dict[str, Any]:
        _, proxies, dim = self.new.shape
        return {"old": len(self.old), "new": len(self.new), "proxies": proxies, "dim": dim}

    def lay_out(self, layout: dict[str, Any]) -> None:
        each = layout["proxies"], layout["dim"]
        self.old = nn.Parameter(self.old.data.new_empty(layout["old"], *each), requires_grad=False)
        self.new = nn.Parameter(self.new.data.new_empty(layout["new"], *each))

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        return local_similarity(features, torch.cat([self.old, self.new]), self.eta), 2 * self.eta


def spread_out(points: Tensor, count: int, chance: torch.Generator) -> Tensor:
    """(R, count, D): first centres for each restart; points far from those chosen before are likelier (k-means++)."""
    distance = points.new_ones(RESTARTS, len(points))
    chosen: list[Tensor] = []
    for _ in range(count):
        # If all points are chosen already, any will do: a class may have fewer images than proxies.
        pick = torch.multinomial(distance.clamp(min=1e-30), 1, generator=chance)  # (R, 1)
        chosen.append(points[pick])
        here = (points - chosen[-1]).square().sum(2)
        distance = here if len(chosen) == 1 else distance.minimum(here)
    return torch.cat(chosen, 1)


def moved(points: Tensor, centres: Tensor) -> Tensor:
    """Each centre moved to the mean of the points that it is nearest to; one that is nearest to none stays."""
    nearest = torch.cdist(points.expand(len(centres), -1, -1), centres).argmin(2)
    member = F.one_hot(nearest, centres.shape[1]).to(points.dtype)  # (R, N, count)
    size = member.sum(1)[..., None]
    return torch.where(size > 0, member.mT @ points / size.clamp(min=1), centres)


def inertia(points: Tensor, centres: Tensor) -> Tensor:
    """(R,): the sum of the squared distances of points (N, D) to the nearest of their centres (R, count, D)."""
    return torch.cdist(points.expand(len(centres), -1, -1), centres).amin(2).square().sum(1)


@torch.no_grad()
def kmeans(points: Tensor, count: int, chance: torch.Generator) -> Tensor:
    """(count, D): centres of points (N, D), the best result of Lloyd's algorithm from several starts side by side."""
    centres = spread_out(points, count, chance)
    for _ in range(ROUNDS):
        before, centres = centres, moved(points, centres)
        if torch.equal(before, centres):
            break
    return centres[inertia(points, centres).argmin()]
