"""Focal loss: Focal Loss for Dense Object Detection (Lin et al., ICCV 2017).

    (1 - p)^gamma l,    p = exp(-l)                             equation 4, without its alpha

l is the classification loss that it stands around, cross-entropy, so p is the probability of the right class, with a
prior's offset where there is one. Criteria of other kinds are refused: a mean over yes-or-no answers is the logarithm
of no such probability. The gradient flows through p too, as in the paper.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bdr.data.pool import WHOLE, Census
from bdr.errors import check_not_negative
from bdr.losses import cross_entropy, one_hot
from bdr.plugins.base import Plugin
from bdr.types import Batch, Classify, Outputs, Phase, Stage

LEAST = 1e-12  # lower bound of 1 - p: the slope of a root at zero is infinite, and a criterion may be below zero


def focus(loss: Tensor, gamma: float) -> Tensor:
    """(B,) the factor (1 - p)^gamma of each sample, from its loss."""
    return (-torch.expm1(-loss)).clamp(min=LEAST) ** gamma


class Focal(Plugin):
    by_likelihood = weighs = True
    by_class = ("total", "count")
    total: Tensor  # (K,) sums of the factors in this epoch, by class
    count: Tensor  # (K,) how many samples these are

    def __init__(self, gamma: float = 2.0, always: bool = False) -> None:
        super().__init__()
        check_not_negative(gamma=gamma)
        self.gamma, self.always = gamma, always
        for name in self.by_class:
            self.register_buffer(name, torch.zeros(0))

    def acts(self, phase: Phase, stage: Stage) -> bool:
        """Acts also where classes are drawn equally often: it is about hard images, not about rare classes."""
        return (self.always or not phase.first) and stage.draw in WHOLE

    def begin(self, phase: Phase, census: Census, net: nn.Module) -> None:
        self.lay_out({"classes": phase.seen})

    @torch.no_grad()
    def observe(self, batch: Batch, out: Outputs) -> None:
        """Sum up the factors for the records alone, from plain cross-entropy whatever the criterion is."""
        going_on = (batch.clock.step > 0).to(self.total.dtype)
        member = one_hot(batch.y, self.total[None])
        factor = focus(cross_entropy(out, batch.y), self.gamma).to(member.dtype)
        self.total.mul_(going_on).add_(factor @ member)
        self.count.mul_(going_on).add_(member.sum(0))

    def classify(self, inner: Classify, out: Outputs, y: Tensor) -> Tensor:
        loss = inner(out, y)
        return focus(loss, self.gamma) * loss

    def report(self, phase: Phase, net: nn.Module) -> dict[str, Tensor]:
        """The mean factor of samples of old and of new classes in the epoch."""
        parts = {"old": slice(0, phase.old), "new": slice(phase.old, None)}
        parts = parts if phase.old else {"new": slice(None)}
        return {f"factor_{age}": self.total[k].sum() / self.count[k].sum().clamp(min=1) for age, k in parts.items()}
