"""LA: Long-tail learning via logit adjustment (Menon et al., ICLR 2021).

    CE(z + tau ln psi, y)       when "training": psi the class frequency
    argmax z - tau ln psi       when "testing": post hoc, on a network that was trained plainly

The first is the same as BDR with m = m' = 1, which the BDR paper calls constant rebalancing (CR), and with tau = 1 as
balanced softmax (Ren et al., NeurIPS 2020), its second name here.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from bdr.balance import frequency
from bdr.data.pool import Census
from bdr.errors import check_not_negative
from bdr.plugins.base import Prior, old_and_new
from bdr.types import Classify, Outputs, Phase


class LogitAdjustment(Prior):
    by_class = ("offset",)
    offset: Tensor  # (K,)

    def __init__(self, tau: float = 1.0, when: Literal["training", "testing"] = "training") -> None:
        super().__init__()
        check_not_negative(tau=tau)
        self.tau, self.corrects = tau, when == "testing"
        self.register_buffer("offset", torch.zeros(0))

    def begin(self, phase: Phase, census: Census, net: nn.Module) -> None:
        self.offset = self.tau * torch.log(phase.seen * frequency(census.counts))

    def classify(self, inner: Classify, out: Outputs, y: Tensor) -> Tensor:
        return inner(out if self.corrects else out.shift(self.offset), y)

    def correction(self, phase: Phase) -> Tensor:
        """Minus the offset; zero after a phase in which LA did not act, such as the first."""
        return -self.offset if len(self.offset) == phase.seen else self.offset.new_zeros(phase.seen)

    def report(self, phase: Phase, net: nn.Module) -> dict[str, Tensor]:
        """Mean offset of old and of new classes."""
        return old_and_new(phase, offset=self.offset)
