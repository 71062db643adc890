"""iCaRL: Incremental Classifier and Representation Learning (Rebuffi et al., CVPR 2017).

Sigmoid outputs, and one binary cross-entropy over all of them (algorithm 3):

    L = - 1/K sum_k [ q_k log sigmoid(z_k) + (1 - q_k) log(1 - sigmoid(z_k)) ]

with q_k the label for new classes and the previous network's sigmoid for old ones, also where the image is of an old
class; K is the number of classes seen so far, or `outputs` where that is more: the original has 100 from the start.
Images are told by the nearest mean of exemplars (equation 2); the network's own opinion is recorded beside it. The part
over new classes is the classification loss that plug-ins see, the part over old ones is `distillation`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bdr.data.pool import Pool
from bdr.losses import binary, one_hot
from bdr.methods.base import Method
from bdr.nets import LinearHead, MakeNetwork, Network, Teacher
from bdr.types import Batch, Classify, Outputs, Phase


class ICaRL(Method):
    net: Network[LinearHead]
    distillation = "distillation"
    softmax = False  # each class is a yes or no of its own
    readout = "nme"

    def __init__(self, make: MakeNetwork, outputs: int = 0) -> None:
        super().__init__()
        if outputs < 0:
            raise ValueError(f"outputs = {outputs} is not allowed: it is 0, for the classes seen so far, or more")
        self.net = make(LinearHead)
        self.teacher = Teacher(self.net)
        self.outputs = outputs

    def begin(self, phase: Phase, pool: Pool) -> None:
        self.net.head.grow(phase.new)

    @property
    def old(self) -> int:
        """The number of classes that the teacher knows."""
        return self.teacher.net.head.classes

    def criterion(self, out: Outputs, y: Tensor) -> Tensor:
        """(B,) the part that the new classes contribute to the mean binary cross-entropy over all outputs."""
        target = one_hot(y, out.logits)
        return binary(out.logits[:, self.old :], target[:, self.old :]) / self.among(out.logits)

    def among(self, logits: Tensor) -> int:
        """The number of outputs that the mean is taken over."""
        return max(self.outputs, logits.shape[1])

    def loss(self, batch: Batch, phase: Phase, classify: Classify) -> dict[str, Tensor]:
        out = self.net(batch.x)
        terms = {"bce": classify(out, batch.y).mean()}
        if not phase.first:
            believed = torch.sigmoid(self.teacher(batch.x).logits)
            terms["distillation"] = (binary(out.logits[:, : phase.old], believed) / self.among(out.logits)).mean()
        return terms

    def end(self, phase: Phase, pool: Pool, exemplars: Tensor) -> None:
        self.teacher.refill(self.net)
