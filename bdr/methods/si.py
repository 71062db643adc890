"""SI: Continual Learning Through Synaptic Intelligence (Zenke, Poole and Ganguli, ICML 2017).

    L = CE  +  c sum_p Omega_p (theta_p - theta*_p)^2                                                           (eq. 4)

theta* are the parameters of the backbone at the end of the previous phase. Omega adds up, phase by phase, how much each
parameter has lowered the loss on its way, for the length of that way:

    Omega_p += w_p / ((theta_p - theta*_p)^2 + xi),     w_p = - sum over steps of g_p Delta theta_p              (eq. 5)

g is the gradient without that of the penalty, which is known and needs no second backward pass. The classifier is not
held. No exemplar is needed, and cross-entropy is taken over the new classes alone; where exemplars are kept, over all
of them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bdr.data.pool import Pool
from bdr.methods.base import Method, Present
from bdr.methods.importance import Anchor, Path
from bdr.nets import LinearHead, MakeBackbone, Network
from bdr.types import Batch, Classify, Clock, Outputs, Phase, Stage


class SI(Method):
    net: Network[LinearHead]
    distillation = "penalty"

    def __init__(self, make: MakeBackbone, weight: float = 0.1, damping: float = 0.1) -> None:
        super().__init__()
        if damping <= 0:
            raise ValueError(f"damping = {damping} is not allowed: it is more than 0")
        backbone = make()
        self.net = Network(backbone, LinearHead(backbone.dim))
        self.anchor, self.path, self.present = Anchor(backbone), Path(backbone), Present()
        self.weight, self.damping = weight, damping

    def begin(self, phase: Phase, pool: Pool) -> None:
        self.net.head.grow(phase.new)
        self.present.begin(pool)

    def begin_stage(self, stage: Stage, phase: Phase, pool: Pool) -> None:
        self.anchor.hold(self.weight, stage.lr)

    def criterion(self, out: Outputs, y: Tensor) -> Tensor:
        return self.present.cross_entropy(out, y)

    def loss(self, batch: Batch, phase: Phase, classify: Classify) -> dict[str, Tensor]:
        terms = {"ce": classify(self.net(batch.x), batch.y).mean()}
        if not phase.first:
            terms["penalty"] = self.anchor.penalty(self.net.backbone)
        return terms

    def weights(self, phase: Phase, stage: Stage) -> dict[str, float]:
        return {"penalty": self.weight}

    def graded(self, clock: Clock) -> None:
        self.path.graded(self.net.backbone, self.weight * self.anchor.slope(self.net.backbone))

    def stepped(self, clock: Clock) -> None:
        self.path.stepped(self.net.backbone)

    @torch.no_grad()
    def end(self, phase: Phase, pool: Pool, exemplars: Tensor) -> None:
        """What has worked against the loss on the whole is not held, rather than pushed away."""
        new = self.path.gained / (self.anchor.moved(self.net.backbone) + self.damping)
        self.anchor.cast(self.net.backbone, torch.relu(self.anchor.importance + new))
        self.path.gained.zero_()
