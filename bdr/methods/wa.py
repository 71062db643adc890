"""WA: Maintaining Discrimination and Fairness in Class Incremental Learning (Zhao et al., CVPR 2020).

    L = (1 - lambda) CE  +  lambda KL( softmax(z* / T) || softmax(z / T) ) over the old classes,   lambda = K_old / K

z* are the logits of the previous network. The classifier has no bias, and its weights are kept from falling below zero,
so that their lengths say how large logits are. Trained on many new images and few old ones, the weights of new classes
end up longer; once a phase is over they are aligned:

    w_k <- gamma w_k for new classes,   gamma = mean_old |w| / mean_new |w|

and the aligned network is what is asked, what teaches the next one, and where the next phase begins.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor

from bdr.data.pool import Pool
from bdr.errors import check_more_than_zero
from bdr.methods.base import Method, classified_and_distilled
from bdr.nets import LinearHead, MakeNetwork, Network, Teacher
from bdr.types import Batch, Classify, Clock, Phase, Stage


class WA(Method):
    net: Network[LinearHead]
    gamma: Tensor
    distillation = "distillation"
    later = ("temperature", "align")

    def __init__(
        self,
        make: MakeNetwork,
        temperature: float = 2.0,
        clamp: bool = True,
        align: bool = True,
        reset_after_warmup: bool = False,
    ) -> None:
        super().__init__()
        check_more_than_zero(temperature=temperature)
        self.net = make(partial(LinearHead, bias=False))
        self.teacher = Teacher(self.net)
        self.temperature, self.clamp, self.align = temperature, clamp, align
        self.reset_after_warmup = reset_after_warmup

    def begin(self, phase: Phase, pool: Pool) -> None:
        self.net.head.grow(phase.new)

    def at_epoch(self, stage: Stage, epoch: int) -> None:
        """Redraw the head after the warm-up, if set: a quirk of a published re-run. What it had learnt is lost."""
        if self.reset_after_warmup and 0 < stage.warmup == epoch:
            self.net.head.redraw()

    def loss(self, batch: Batch, phase: Phase, classify: Classify) -> dict[str, Tensor]:
        return classified_and_distilled(self.net, self.teacher, batch, phase, classify, self.temperature)

    def weights(self, phase: Phase, stage: Stage) -> dict[str, float]:
        share = phase.old / phase.seen
        return {} if phase.first else {"ce": 1 - share, "distillation": share}

    def stepped(self, clock: Clock) -> None:
        if self.clamp:
            self.net.head.clamp()

    def end(self, phase: Phase, pool: Pool, exemplars: Tensor) -> None:
        if self.align and not phase.first:
            self.gamma = self.net.head.align(phase.old)
        self.teacher.refill(self.net)

    def report(self, phase: Phase) -> dict[str, Tensor]:
        """The factor gamma that shortened the weights of new classes."""
        return {"gamma": self.gamma} if self.align and not phase.first else {}
