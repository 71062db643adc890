"""EWC: Overcoming catastrophic forgetting in neural networks (Kirkpatrick et al., PNAS 2017).

    L = CE  +  lambda / 2 sum_p F_p (theta_p - theta*_p)^2                                                      (eq. 3)

theta* are the parameters of the backbone at the end of the previous phase, F the diagonal of their Fisher information:
how sharply the network's opinions change with each of them. That of all earlier phases is one F, merged half and half
with each new one. The classifier is not held. No exemplar is needed, and cross-entropy is taken over the new classes
alone; where exemplars are kept, over all of them.
"""

from __future__ import annotations

from torch import Tensor

from bdr.data.pool import Pool
from bdr.methods.base import Method, Present
from bdr.methods.importance import Anchor, fisher, merged
from bdr.nets import LinearHead, MakeBackbone, Network
from bdr.types import Batch, Classify, Outputs, Phase, Stage


class EWC(Method):
    net: Network[LinearHead]
    distillation = "penalty"

    def __init__(self, make: MakeBackbone, weight: float = 5000.0, fisher_batch: int = 64) -> None:
        super().__init__()
        if fisher_batch < 1:
            raise ValueError(f"fisher_batch = {fisher_batch} is not allowed: it is 1 or more")
        backbone = make()
        self.net = Network(backbone, LinearHead(backbone.dim))
        self.anchor, self.present = Anchor(backbone), Present()
        self.weight, self.fisher_batch = weight, fisher_batch

    def begin(self, phase: Phase, pool: Pool) -> None:
        self.net.head.grow(phase.new)
        self.present.begin(pool)

    def begin_stage(self, stage: Stage, phase: Phase, pool: Pool) -> None:
        self.anchor.hold(self.weight / 2, stage.lr)

    def criterion(self, out: Outputs, y: Tensor) -> Tensor:
        return self.present.cross_entropy(out, y)

    def loss(self, batch: Batch, phase: Phase, classify: Classify) -> dict[str, Tensor]:
        terms = {"ce": classify(self.net(batch.x), batch.y).mean()}
        if not phase.first:
            terms["penalty"] = self.anchor.penalty(self.net.backbone)
        return terms

    def weights(self, phase: Phase, stage: Stage) -> dict[str, float]:
        return {"penalty": self.weight / 2}

    def end(self, phase: Phase, pool: Pool, exemplars: Tensor) -> None:
        new = fisher(self.net, self.net.backbone, self.present, pool, self.fisher_batch)
        self.anchor.cast(self.net.backbone, merged(self.anchor.importance, new, phase.first))
