"""LA: Long-tail learning via logit adjustment (Menon et al., ICLR 2021).

CE(z + tau ln psi, y), psi the class frequency.
The same as BDR with m = m' = 1, which the BDR paper calls constant rebalancing (CR).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bdr.balance import frequency
from bdr.data.pool import Census
from bdr.plugins.base import Plugin
from bdr.types import Classify, Outputs, Phase


class LogitAdjustment(Plugin):
    role = "prior"
    needs_exemplars = True
    acts_in_first_phase = False
    offset: Tensor  # (K,)

    def __init__(self, tau: float = 1.0) -> None:
        super().__init__()
        self.tau, self.active = tau, False
        self.register_buffer("offset", torch.zeros(0))

    def layout(self) -> dict[str, Any]:
        return {"active": self.active, "classes": len(self.offset)}

    def lay_out(self, layout: dict[str, Any]) -> None:
        self.active = layout["active"]
        self.offset = torch.zeros(layout["classes"], device=self.offset.device)

    def begin(self, phase: Phase, census: Census, net: nn.Module) -> None:
        self.active = not phase.first and census.draw == "all"
        if self.active:
            self.offset = self.tau * torch.log(phase.seen * frequency(census.counts))

    def classify(self, inner: Classify, out: Outputs, y: Tensor) -> Tensor:
        return inner(out.shift(self.offset) if self.active else out, y)
