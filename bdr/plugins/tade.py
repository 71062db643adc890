"""TADE: Self-Supervised Aggregation of Diverse Experts for Test-Agnostic Long-Tailed Recognition (Zhang et al., NeurIPS
2022), without what it does at test time.

Three experts share the early levels of the network; each has its own last level and head, and learns for another
distribution of classes: that of the training images, a flat one, and the reverse.

    L = CE(z1)  +  CE(z2 + ln psi)  +  CE(z3 + ln psi - tau ln psibar)

psi is the class frequency, psibar the same frequencies in reversed order of rank: the most frequent class has that of
the rarest. Classes that are equally frequent share the mean of what their ranks get. What is told is the mean of the
three logits. Offsets are centred, ln(K psi), as everywhere: a flat psi is no offset under any criterion.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from bdr.balance import frequency
from bdr.data.pool import Census
from bdr.errors import UsageError, check_not_negative
from bdr.losses import cross_entropy
from bdr.nets import CosineHead, Divisible, ExpertHeads, Experts, LinearHead, MakeNetwork, Network
from bdr.nets.base import H
from bdr.plugins.base import Prior
from bdr.types import Batch, Classify, Outputs, Phase

EXPERTS = 3
METHODS_WITH_ONE_HEAD = "ucir, wa, icarl, e2e, lwf or replay"
LOSSES = [f"tade_{number}" for number in range(1, EXPERTS + 1)]


def reversed_ranks(psi: Tensor) -> Tensor:
    """(K,) the frequencies in reversed order of rank; equally frequent classes share the mean of what they get."""
    values, order = psi.sort()
    given = torch.empty_like(psi).scatter(0, order, values.flip(0))
    equal = (psi[:, None] == psi).to(psi.dtype)
    return equal @ given / equal.sum(1)


def expert_offsets(count: Tensor, tau: float) -> Tensor:
    """(3, K) the offsets added to the logits of each expert, from the number of images (K,) of every class."""
    psi, classes = frequency(count), len(count)
    forward, backward = torch.log(classes * psi), torch.log(classes * reversed_ranks(psi))
    return torch.stack([torch.zeros_like(psi), forward, forward - tau * backward])


def into_experts(net: Network[Any]) -> None:
    """Split a network into experts; for a method, the new head still acts like the one that it asked for."""
    assert isinstance(net.backbone, Divisible)
    net.backbone, net.head = Experts(net.backbone, EXPERTS), ExpertHeads(net.head, EXPERTS)


class TADE(Prior):
    adds_parameters = True
    splits = True
    weighs = True  # a sum of three losses is no likelihood
    offsets: Tensor  # (3, K)

    def __init__(self, tau: float = 2.0) -> None:
        super().__init__()
        check_not_negative(tau=tau)
        self.tau = tau
        self.register_buffer("offsets", torch.zeros(EXPERTS, 0))

    def layout(self) -> dict[str, Any]:
        return {"classes": self.offsets.shape[1]}

    def lay_out(self, layout: dict[str, Any]) -> None:
        self.offsets = self.offsets.new_zeros(EXPERTS, layout["classes"])

    def net(self, make: MakeNetwork) -> MakeNetwork:
        def make_experts(head: Callable[[int], H], **options: Any) -> Network[H]:
            net = make(head, **options)
            self.check(net)
            net.splitting = into_experts
            return net

        return make_experts

    def check(self, net: Network[Any]) -> None:
        """Refuse a network whose last level or head cannot exist three times."""
        backbone, head = net.backbone, net.head
        if not isinstance(backbone, Divisible) or backbone.depth < 2:
            lacks = "no level before it" if isinstance(backbone, Divisible) else "none of its own"
            raise UsageError(
                f"'{self.name}' has the last level of the network three times, and {type(backbone).__name__} has "
                f"{lacks}: use {METHODS_WITH_ONE_HEAD} on --net resnet18, resnet32 or small, or give your network a "
                "`last_level` (bdr.nets.Divisible)"
            )
        if not isinstance(head, LinearHead | CosineHead) or backbone.keeps_maps:
            needs = "the maps of a single last level" if backbone.keeps_maps else f"a single {type(head).__name__}"
            raise UsageError(
                f"'{self.name}' has last level and head three times, and this method needs {needs}: use "
                f"{METHODS_WITH_ONE_HEAD}"
            )

    def begin(self, phase: Phase, census: Census, net: nn.Module) -> None:
        assert isinstance(net, Network)
        net.split()
        self.offsets = expert_offsets(census.counts, self.tau)

    def classify(self, inner: Classify, out: Outputs, y: Tensor) -> Tensor:
        """The sum of the experts' own losses."""
        one, two, three = (inner(expert, y) for expert in self.shifted(out))
        return one + two + three

    def shifted(self, out: Outputs) -> list[Outputs]:
        """The outputs of each expert, with its offset added."""
        assert out.experts is not None, "these outputs are those of a single network"
        logits = (out.experts + self.offsets[:, None]).unbind()
        return [out._replace(logits=z, experts=None) for z in logits]

    def watch(self, batch: Batch, out: Outputs) -> dict[str, Tensor]:
        """The loss of each expert, always by cross-entropy, whatever the criterion is."""
        losses = [cross_entropy(expert, batch.y).mean() for expert in self.shifted(out)]
        return dict(zip(LOSSES, losses, strict=True))
