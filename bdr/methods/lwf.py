"""LwF: Learning without Forgetting (Li and Hoiem, ECCV 2016).

    L = CE  +  lambda KL( softmax(z* / T) || softmax(z / T) ) over the old classes                              (eq. 3)

z* are the logits of the previous network on the images at hand. No exemplar is needed, and cross-entropy is taken over
the new classes alone; where exemplars are kept, over all of them.
"""

from __future__ import annotations

from torch import Tensor

from bdr.data.pool import Pool
from bdr.errors import check_more_than_zero, check_not_negative
from bdr.methods.base import Method, Present, classified_and_distilled
from bdr.nets import LinearHead, MakeNetwork, Network, Teacher
from bdr.types import Batch, Classify, Outputs, Phase, Stage


class LwF(Method):
    net: Network[LinearHead]
    distillation = "distillation"
    later = ("weight", "temperature")

    def __init__(self, make: MakeNetwork, weight: float = 1.0, temperature: float = 2.0) -> None:
        super().__init__()
        check_more_than_zero(temperature=temperature)
        check_not_negative(weight=weight)
        self.net = make(LinearHead)
        self.teacher, self.present = Teacher(self.net), Present()
        self.weight, self.temperature = weight, temperature

    def begin(self, phase: Phase, pool: Pool) -> None:
        self.net.head.grow(phase.new)
        self.present.begin(pool)

    def criterion(self, out: Outputs, y: Tensor) -> Tensor:
        return self.present.cross_entropy(out, y)

    def loss(self, batch: Batch, phase: Phase, classify: Classify) -> dict[str, Tensor]:
        return classified_and_distilled(self.net, self.teacher, batch, phase, classify, self.temperature)

    def weights(self, phase: Phase, stage: Stage) -> dict[str, float]:
        return {"distillation": self.weight}

    def end(self, phase: Phase, pool: Pool, exemplars: Tensor) -> None:
        self.teacher.refill(self.net)
