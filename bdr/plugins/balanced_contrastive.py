"""Balanced Contrastive Learning for Long-Tailed Visual Recognition (Zhu et al., CVPR 2022).

After the first phase, beside a classification loss with logit compensation, CE(z + ln psi), for every view a of a batch

    L_a = - 1/|P| sum_{p in P} ln exp(f_a.f_p / T) / sum_k 1/|A_k| sum_{j in A_k} exp(f_a.f_j / T)            (eq. 8)

A_k are the other views of class k and its prototype, P those of a's own class: every class has its prototype in every
batch (class complement), and counts by its mean, not by how many images it has there (class averaging).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bdr.balance import frequency
from bdr.data.pool import Census
from bdr.data.store import Store
from bdr.data.views import Looks, View, normalised, seen
from bdr.errors import check_more_than_zero, check_not_negative
from bdr.fusing import fused
from bdr.losses import one_hot
from bdr.nets.projection import WIDTH, Projection
from bdr.plugins.base import Prior
from bdr.types import Batch, Classify, Outputs, Phase, Stage


@fused(prototypes=0)
def balanced(views: Tensor, y: Tensor, prototypes: Tensor, temperature: float) -> Tensor:
    """(N,) the loss L_a (eq. 8) of unit vectors `views` (N, D), with a prototype (K, D) for every class."""
    labels = torch.cat([y, torch.arange(len(prototypes), device=y.device)])
    similarity = views @ torch.cat([views, prototypes]).T / temperature  # (N, N + K)
    there = torch.arange(len(y), device=y.device)[:, None] != torch.arange(len(labels), device=y.device)
    member = one_hot(labels, similarity.new_empty(len(labels), len(prototypes)))
    among = (there.to(member.dtype) @ member)[:, labels]  # (N, N + K) how many others of its class an anchor sees
    everything = (similarity - among.log()).masked_fill(~there, -torch.inf).logsumexp(1)
    same = (there & (labels == y[:, None])).to(similarity.dtype)
    return everything - (similarity * same).sum(1) / same.sum(1)


class BalancedContrast(Prior):
    views = 2
    soft_targets = False  # a mixture has no class to be near to
    offset: Tensor  # (K,)

    def __init__(self, weight: float = 0.35, temperature: float = 0.1, crop: float = 0.2) -> None:
        super().__init__()
        check_not_negative(weight=weight)
        check_more_than_zero(temperature=temperature)
        self.weight, self.temperature, self.view = weight, temperature, View(crop)
        self.projection = Projection()
        self.prototypes = nn.Parameter(torch.zeros(0, WIDTH))
        self.register_buffer("offset", torch.zeros(0))

    def layout(self) -> dict[str, Any]:
        return {"classes": len(self.offset)}

    def lay_out(self, layout: dict[str, Any]) -> None:
        self.offset = self.offset.new_zeros(layout["classes"])
        self.prototypes = nn.Parameter(self.prototypes.new_zeros(layout["classes"], WIDTH))

    def begin(self, phase: Phase, census: Census, net: nn.Module) -> None:
        self.offset = torch.log(phase.seen * frequency(census.counts))
        self.projection.fit(census.dim(net))
        old = self.prototypes.detach()
        new = torch.randn(phase.seen - len(old), WIDTH) / WIDTH**0.5
        self.prototypes = nn.Parameter(torch.cat([old, new.to(old)]))

    def draws(self, steps: int, size: int, chance: torch.Generator) -> tuple[Tensor, ...]:
        return self.view.draw(steps, 2 * size, chance)

    def look(self, store: Store, rows: Tensor, drawn: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        one, other = normalised(store, seen(store, rows.repeat(2), Looks(*drawn))).chunk(2)
        return one, other

    def classify(self, inner: Classify, out: Outputs, y: Tensor) -> Tensor:
        return inner(out.shift(self.offset), y)

    def terms(self, batch: Batch, out: Outputs, forward: Callable[[Tensor], Outputs]) -> dict[str, Tensor]:
        views = self.projection(forward(torch.cat(batch.views)).features)
        prototypes = F.normalize(self.prototypes)
        return {"balanced_contrastive": balanced(views, batch.y.repeat(2), prototypes, self.temperature).mean()}

    def weights(self, phase: Phase, stage: Stage) -> dict[str, float]:
        return {"balanced_contrastive": self.weight}
