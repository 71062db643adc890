"""RPSNet: Random Path Selection for Incremental Learning (Rajasegaran et al., NeurIPS 2019).

Every layer of the network has M modules side by side. Every `jump` phases a path is drawn, one module of each layer;
the modules of earlier paths rest, those new on this one learn, and the outputs of all of them are added up. With K the
seen classes and z* the logits of the previous network,

    L = CE  +  phi sum_k max(0, p_k (log p_k - log q_k)),     p = softmax(v / 2),  q = softmax(z / 2)
    v_k = z*_k for old classes, 1 for the right new class, 0 for other new ones

and the controller phi grows with the phases t: 1 up to t = jump, then 2.5 (t - jump).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from bdr.data.pool import Pool
from bdr.errors import check_more_than_zero, check_not_negative, check_one_or_more
from bdr.fusing import fused
from bdr.losses import one_hot
from bdr.methods.base import Method, accustom
from bdr.nets import LinearHead, MakeNetwork, Network, PathNet, Teacher
from bdr.seeding import generator
from bdr.types import Batch, Classify, Phase, Stage


@fused(logits=1, old=1, y=1)
def held_to(logits: Tensor, old: Tensor, y: Tensor, temperature: float) -> Tensor:
    """(B,) divergence of logits (B, K) from the teacher's (B, K_old) and the new labels; no class adds less than 0."""
    target = torch.cat([old, one_hot(y, logits)[:, old.shape[1] :]], 1)
    student, wanted = (logits / temperature).log_softmax(1), (target / temperature).log_softmax(1)
    return F.kl_div(student, wanted, reduction="none", log_target=True).clamp(min=0).sum(1)


class RPSNet(Method):
    net: Network[LinearHead]
    distillation = "distillation"
    later = ("jump", "rigidity", "temperature", "reuse")

    def __init__(
        self,
        make: MakeNetwork,
        jump: int = 2,
        rigidity: float = 2.5,
        temperature: float = 2.0,
        reuse: bool = False,
    ) -> None:
        super().__init__()
        check_one_or_more(jump=jump)
        check_more_than_zero(temperature=temperature)
        check_not_negative(rigidity=rigidity)
        self.net = make(LinearHead)
        if not isinstance(self.net.backbone, PathNet):
            raise ValueError("it draws paths through a network that has some: use --net rps, or rps-small")
        self.teacher = Teacher(self.net)
        self.jump, self.rigidity, self.temperature, self.reuse = jump, rigidity, temperature, reuse

    def begin(self, phase: Phase, pool: Pool) -> None:
        self.net.head.grow(phase.new)
        if not phase.first and phase.index % self.jump == 0:
            self.layers.take(self.draw(phase, pool))
            self.layers.to(pool.store.device)
            accustom(self.layers, pool)  # plug-ins look at features before the new modules have learnt anything

    @property
    def layers(self) -> PathNet:
        assert isinstance(self.net.backbone, PathNet)
        return self.net.backbone

    def draw(self, phase: Phase, pool: Pool) -> list[int]:
        """A random module of every layer: an unused one while there is any, unless `reuse` allows all."""
        chance = generator("cpu", pool.seed, "phase", phase.index, "path")
        every = list(range(self.layers.parallel))
        free = [every if self.reuse else unused or every for unused in self.layers.unused()]
        return [some[int(torch.randint(len(some), (), generator=chance))] for some in free]

    def loss(self, batch: Batch, phase: Phase, classify: Classify) -> dict[str, Tensor]:
        out = self.net(batch.x)
        terms = {"ce": classify(out, batch.y).mean()}
        if not phase.first:
            old = self.teacher(batch.x).logits
            terms["distillation"] = held_to(out.logits, old, batch.y, self.temperature).mean()
        return terms

    def weights(self, phase: Phase, stage: Stage) -> dict[str, float]:
        grown = self.rigidity * (phase.index - self.jump)
        return {"distillation": 1.0 if phase.index <= self.jump else grown}

    def end(self, phase: Phase, pool: Pool, exemplars: Tensor) -> None:
        self.teacher.refill(self.net)
