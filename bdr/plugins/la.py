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
from bdr.plugins.base import Prior
from bdr.types import Classify, Outputs, Phase


class LogitAdjustment(Prior):
    offset: Tensor  # (K,)

    def __init__(self, tau: float = 1.0) -> None:
        super().__init__()
        self.tau = tau
        self.register_buffer("offset", torch.zeros(0))

    def layout(self) -> dict[str, Any]:
        return {"classes": len(self.offset)}

    def lay_out(self, layout: dict[str, Any]) -> None:
        self.offset = torch.zeros(layout["classes"], device=self.offset.device)

    def begin(self, phase: Phase, census: Census, net: nn.Module) -> None:
        self.offset = self.tau * torch.log(phase.seen * frequency(census.counts))

    def classify(self, inner: Classify, out: Outputs, y: Tensor) -> Tensor:
        return inner(out.shift(self.offset), y)
