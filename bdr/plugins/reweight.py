"""Re-weighting: the loss of a sample times the weight of its class, the higher the rarer the class is.

    w_y l(z, y),    w_k ~ 1 / N_k                               scheme "inverse"
                    w_k ~ (1 - beta) / (1 - beta^N_k)           scheme "effective" (Cui et al., CVPR 2019)

averaged over a batch by weight: the sum of w_y l over the sum of w_y.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from bdr.data.pool import Census
from bdr.plugins.base import Prior, old_and_new
from bdr.plugins.weighting import check_beta, effective_number, inverse_frequency, weighed
from bdr.types import Classify, Outputs, Phase


class Reweighting(Prior):
    weighs = True
    by_class = ("weight",)
    weight: Tensor  # (K,)

    def __init__(self, scheme: Literal["inverse", "effective"] = "inverse", beta: float = 0.9999) -> None:
        super().__init__()
        check_beta(beta)
        self.scheme, self.beta = scheme, beta
        self.register_buffer("weight", torch.ones(0))

    def begin(self, phase: Phase, census: Census, net: nn.Module) -> None:
        counts = census.counts
        self.weight = inverse_frequency(counts) if self.scheme == "inverse" else effective_number(counts, self.beta)

    def classify(self, inner: Classify, out: Outputs, y: Tensor) -> Tensor:
        return weighed(inner(out, y), self.weight, y)

    def report(self, phase: Phase, net: nn.Module) -> dict[str, Tensor]:
        """Mean weight of old and of new classes."""
        return old_and_new(phase, weight=self.weight)
