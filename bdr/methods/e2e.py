"""E2E: End-to-End Incremental Learning (Castro et al., ECCV 2018).

Every phase adds a head of its own to the classifier. Cross-entropy is taken over all of them together, and each old
head is distilled from the previous network by itself, at temperature T = 2:

    L = CE  +  sum over old heads i of KL( softmax(z*_i / T) || softmax(z_i / T) )                          (eq. 1, 3)

The gradients are disturbed by noise that fades with the epochs. Then comes a balanced stage on the exemplars alone, new
classes included, in which the newest head is distilled as well, from the network as it was before that stage.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bdr.data.pool import Pool
from bdr.errors import check_more_than_zero, check_not_negative
from bdr.fusing import fused
from bdr.losses import distillation
from bdr.methods.base import Method
from bdr.nets import LinearHead, MakeNetwork, Network, Resumable, Teacher
from bdr.types import Batch, Classify, Clock, Phase, Stage


def log_softmax_within(logits: Tensor, members: Tensor) -> Tensor:
    """(B, K) logarithms of probabilities that sum to 1 within each head; `members` (H, K) marks its classes."""
    sums = logits[:, None].masked_fill(~members, -torch.inf).logsumexp(2, keepdim=True)  # (B, H, 1)
    return logits - (sums * members).sum(1)


@fused(logits=1, reference=1, members=1)
def headwise_distillation(logits: Tensor, reference: Tensor, members: Tensor, temperature: float) -> Tensor:
    """(B,) the sum over the heads of the KL divergence of softened predictions, without the factor T^2."""
    student = log_softmax_within(logits / temperature, members)
    teacher = log_softmax_within(reference / temperature, members)
    return F.kl_div(student, teacher, reduction="none", log_target=True).sum(1)


class Heads(Resumable):
    """Which classes belong to the head of each phase."""

    members: Tensor  # (H, K)

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("members", torch.empty(0, 0, dtype=torch.bool))

    def layout(self) -> dict[str, Any]:
        return {"shape": list(self.members.shape)}

    def lay_out(self, layout: dict[str, Any]) -> None:
        self.members = self.members.new_empty(layout["shape"])

    def grow(self, count: int) -> None:
        self.members = torch.block_diag(self.members, self.members.new_ones(1, count))


class E2E(Method):
    net: Network[LinearHead]
    distillation = "distillation"
    later = ("temperature",)
    keeps = ("some", "all")
    loudness: Tensor  # the scale of the gradient noise in this stage

    def __init__(self, make: MakeNetwork, temperature: float = 2.0, noise: float = 0.3, noise_epoch: int = 1) -> None:
        super().__init__()
        check_more_than_zero(temperature=temperature)
        check_not_negative(noise=noise)
        if noise_epoch < 1:
            raise ValueError(
                f"noise_epoch = {noise_epoch} is not allowed: it is how many epochs count as one, 1 or more"
            )
        self.net, self.heads = make(LinearHead), Heads()
        self.teacher, self.unbalanced = Teacher(self.net), Teacher(self.net)
        self.register_buffer("loudness", torch.zeros(()))
        self.temperature, self.noise, self.noise_epoch = temperature, noise, noise_epoch

    def begin(self, phase: Phase, pool: Pool) -> None:
        self.net.head.grow(phase.new)
        self.heads.grow(phase.new)

    def stages(self, phase: Phase, base: Stage) -> list[Stage]:
        """After the first phase, a balanced stage: 30 epochs for 40, at 1/10 of the rate, which drops at each third."""
        if phase.first:
            return [base]
        epochs = max(1, round(0.75 * base.epochs))
        drops = (round(epochs / 3), round(2 * epochs / 3))
        balanced = replace(base, name="balanced", draw="memory", loss="balanced", epochs=epochs, lr=base.lr / 10)
        return [base, replace(balanced, schedule="steps", drops=drops, drop=0.1, warmup=0)]

    def begin_stage(self, stage: Stage, phase: Phase, pool: Pool) -> None:
        balanced = stage.loss == "balanced"
        if balanced:
            self.unbalanced.refill(self.net)
        self.loudness.fill_(0.0 if balanced else self.noise / pool.batch_size(stage))

    def loss(self, batch: Batch, phase: Phase, classify: Classify) -> dict[str, Tensor]:
        out = self.net(batch.x)
        terms = {"ce": classify(out, batch.y).mean()}
        if not phase.first:
            terms["distillation"] = self.distil_old_heads(out.logits, batch, phase)
        return terms

    def balanced(self, batch: Batch, phase: Phase, classify: Classify) -> dict[str, Tensor]:
        out = self.net(batch.x)
        terms = {"ce": classify(out, batch.y).mean()}
        terms["distillation"] = self.distil_old_heads(out.logits, batch, phase)
        newest = self.unbalanced(batch.x).logits[:, phase.old :]
        terms["newest"] = distillation(out.logits[:, phase.old :], newest, self.temperature).mean()
        return terms

    def distil_old_heads(self, logits: Tensor, batch: Batch, phase: Phase) -> Tensor:
        reference, members = self.teacher(batch.x).logits, self.heads.members[:-1, : phase.old]
        return headwise_distillation(logits[:, : phase.old], reference, members, self.temperature).mean()

    @torch.no_grad()
    def graded(self, clock: Clock) -> None:
        """Add noise to all gradients at once; which random number falls on which parameter does not matter."""
        if not self.noise:
            return
        slopes = [p.grad for p in self.net.parameters() if p.grad is not None]
        sizes, spread = (
            [slope.numel() for slope in slopes],
            self.loudness / (1 + clock.epoch / self.noise_epoch) ** 0.55,
        )
        row = spread * torch.randn(sum(sizes), dtype=spread.dtype, device=spread.device)
        shaped = [
            part.as_strided(slope.shape, slope.stride()) for part, slope in zip(row.split(sizes), slopes, strict=True)
        ]
        torch._foreach_add_(slopes, shaped)

    def end(self, phase: Phase, pool: Pool, exemplars: Tensor) -> None:
        self.teacher.refill(self.net)
