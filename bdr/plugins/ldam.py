"""LDAM-DRW: label-distribution-aware margins, deferred re-weighting (Cao et al., NeurIPS 2019).

    w_y l(z - s Delta_y e_y, y),    Delta_k = C / N_k^(1/4)     the rarest class has the largest margin, `max_margin`

z / s are cosines under a cosine head, as in the paper, whose s is 30; here s is the scale that the head has. A linear
head has logits without such a unit, and s is 1. w is 1 until the share `deferred` of a stage's epochs has passed, and
from then on the effective-number weights, by which a batch is averaged (the paper's 160 of 200 epochs are 0.8).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bdr.data.pool import Census
from bdr.errors import check_not_negative
from bdr.losses import one_hot
from bdr.plugins.base import Prior, old_and_new
from bdr.plugins.weighting import check_beta, effective_number, weighed
from bdr.types import Batch, Classify, Outputs, Phase


def margins(counts: Tensor, most: float) -> Tensor:
    """(K,) the margins Delta, proportional to N^(-1/4); `most` is the largest of them."""
    return most * (counts.min() / counts) ** 0.25


class LDAM(Prior):
    weighs = True
    soft_targets = False  # a mixture has no class of its own to keep a margin from
    by_class = ("margin", "weight", "current")
    margin: Tensor  # (K,)
    weight: Tensor  # (K,) the weights that are deferred
    current: Tensor  # (K,) the weights in force now: ones until the deferred share of epochs has passed

    def __init__(self, max_margin: float = 0.5, deferred: float = 0.8, beta: float = 0.9999) -> None:
        super().__init__()
        check_not_negative(max_margin=max_margin)
        if not 0 <= deferred <= 1:
            raise ValueError(f"deferred = {deferred} is not allowed: it is a share of the epochs, from 0 to 1")
        check_beta(beta)
        self.max_margin, self.share, self.beta = max_margin, deferred, beta
        for name in self.by_class:
            self.register_buffer(name, torch.zeros(0))

    def begin(self, phase: Phase, census: Census, net: nn.Module) -> None:
        self.margin = margins(census.counts, self.max_margin)
        self.weight = effective_number(census.counts, self.beta)
        self.current = torch.ones_like(self.weight)

    @torch.no_grad()
    def observe(self, batch: Batch, out: Outputs) -> None:
        # In double precision, 0.59 of 100 epochs is 59; in single precision it is 58.999996.
        late = batch.clock.epoch >= torch.floor(self.share * torch.as_tensor(batch.clock.epochs).double())
        self.current.copy_(torch.where(late, self.weight, 1.0))

    def classify(self, inner: Classify, out: Outputs, y: Tensor) -> Tensor:
        kept = out.shift(-out.scale * self.margin * one_hot(y, out.logits))
        return weighed(inner(kept, y), self.current, y)

    def report(self, phase: Phase, net: nn.Module) -> dict[str, Tensor]:
        """Mean margin and weight of old and of new classes."""
        return old_and_new(phase, margin=self.margin, weight=self.current)
