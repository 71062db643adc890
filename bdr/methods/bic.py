"""BiC: Large Scale Incremental Learning (Wu et al., CVPR 2019).

First all weights, on what is not held out (eq. 1 to 3):

    L = (1 - lambda) CE  +  lambda KL( softmax(z* / T) || softmax(z / T) ) over the old classes,   lambda = K_old / K

z* are the logits of the previous network, corrected. Then, with everything else at rest, the two numbers of

    q_k = z_k for old classes,   alpha z_k + beta for new ones                                                  (eq. 4)

by cross-entropy of q on held-out images, equally many of every class, plus 0.1 beta^2 / 2 (eq. 5). q is what is told.

The correction is the last part of the head. It begins each phase as the identity, so the logits that train are plain;
what is told, and what the next network is taught, is corrected, and nobody has to say which is meant.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bdr.data.pool import Pool
from bdr.errors import check_more_than_zero, check_not_negative
from bdr.methods.base import Method, classified_and_distilled
from bdr.nets import Head, LinearHead, MakeNetwork, Network, Resumable, Teacher
from bdr.types import Batch, Classify, Phase, Stage

EPOCHS = 250  # of the first stage in the published schedule that the next line's numbers belong to
CORRECTION_EPOCHS, CORRECTION_DROPS = 200, (60, 120, 160, 180)


class Correction(Resumable):
    """alpha z + beta for the logits of the newest classes; a fixed factor and summand for each earlier class."""

    factor: Tensor  # (K_old,)
    summand: Tensor  # (K_old,)

    def __init__(self, keep: bool) -> None:
        super().__init__()
        self.keep, self.newest = keep, 0
        self.alpha = nn.Parameter(torch.tensor(1.0), requires_grad=False)
        self.beta = nn.Parameter(torch.tensor(0.0), requires_grad=False)
        self.register_buffer("factor", torch.ones(0))
        self.register_buffer("summand", torch.zeros(0))

    @torch.no_grad()
    def grow(self, count: int) -> None:
        """Fix what was learnt for the classes so far, or drop it unless `keep` is set; new ones begin uncorrected."""
        factor, summand = self.line()
        self.factor = factor if self.keep else torch.ones_like(factor)
        self.summand = summand if self.keep else torch.zeros_like(summand)
        self.alpha.fill_(1.0)
        self.beta.fill_(0.0)
        self.newest = count

    def line(self) -> tuple[Tensor, Tensor]:
        """(K,) factors and summands of all classes."""
        alpha, beta = self.alpha.expand(self.newest), self.beta.expand(self.newest)
        return torch.cat([self.factor, alpha]), torch.cat([self.summand, beta])

    def layout(self) -> dict[str, Any]:
        return {"old": len(self.factor), "new": self.newest}

    def lay_out(self, layout: dict[str, Any]) -> None:
        self.factor = self.factor.new_ones(layout["old"])
        self.summand = self.summand.new_zeros(layout["old"])
        self.newest = layout["new"]

    def forward(self, logits: Tensor) -> Tensor:
        factor, summand = self.line()
        return torch.addcmul(summand, logits, factor)


class CorrectedHead(Head):
    """A linear classifier whose logits are corrected."""

    def __init__(self, dim: int, keep: bool) -> None:
        super().__init__()
        self.linear, self.correction = LinearHead(dim), Correction(keep)

    @property
    def classes(self) -> int:
        return self.linear.classes

    def grow(self, count: int) -> None:
        self.linear.grow(count)
        self.correction.grow(count)

    def forward(self, features: Tensor) -> tuple[Tensor, float]:
        logits, scale = self.linear(features)
        return self.correction(logits), scale


class BiC(Method):
    net: Network[CorrectedHead]
    distillation = "distillation"
    later = ("temperature", "held", "beta_decay", "keep_corrections")
    keeps = ("some", "all")  # without images of old classes there is nothing to fit the correction on

    def __init__(
        self,
        make: MakeNetwork,
        temperature: float = 2.0,
        held: float = 0.1,
        beta_decay: float = 0.1,
        keep_corrections: bool = False,
    ) -> None:
        super().__init__()
        check_more_than_zero(temperature=temperature)
        check_not_negative(beta_decay=beta_decay)
        if not 0 < held < 1:
            raise ValueError(f"held = {held} is not allowed: it is a share, more than 0 and less than 1")
        self.net = make(partial(CorrectedHead, keep=keep_corrections))
        self.teacher = Teacher(self.net)
        self.temperature, self.held, self.beta_decay = temperature, held, beta_decay

    def begin(self, phase: Phase, pool: Pool) -> None:
        self.net.head.grow(phase.new)

    def stages(self, phase: Phase, base: Stage) -> list[Stage]:
        return [base] if phase.first else [base, self.correcting(base)]

    def correcting(self, base: Stage) -> Stage:
        """The second stage, scaled from the published schedule by the same factor as the first stage."""
        share = base.epochs / EPOCHS
        stage = replace(base, name="correction", draw="held", loss="correct", train=("net.head.correction",))
        stage = replace(stage, schedule="steps", warmup=0, weight_decay=0.0)  # only beta decays, by a term of the loss
        stage = replace(stage, lr=base.lr * base.batch / 256)  # the rate is stated for a batch of 256
        drops = tuple(max(1, round(drop * share)) for drop in CORRECTION_DROPS)
        return replace(stage, epochs=max(1, round(CORRECTION_EPOCHS * share)), drops=drops)

    def loss(self, batch: Batch, phase: Phase, classify: Classify) -> dict[str, Tensor]:
        return classified_and_distilled(self.net, self.teacher, batch, phase, classify, self.temperature)

    def correct(self, batch: Batch, phase: Phase, classify: Classify) -> dict[str, Tensor]:
        """The objective of the second stage, in which only alpha and beta move."""
        out = self.net(batch.x)
        return {"ce": classify(out, batch.y).mean(), "beta": self.net.head.correction.beta.square() / 2}

    def weights(self, phase: Phase, stage: Stage) -> dict[str, float]:
        if stage.loss == "correct":
            return {"beta": self.beta_decay}
        share = phase.old / phase.seen
        return {} if phase.first else {"ce": 1 - share, "distillation": share}

    def end(self, phase: Phase, pool: Pool, exemplars: Tensor) -> None:
        self.teacher.refill(self.net)

    def report(self, phase: Phase) -> dict[str, Tensor]:
        """The alpha and beta of the correction."""
        correction = self.net.head.correction
        return {} if phase.first else {"alpha": correction.alpha, "beta": correction.beta}
