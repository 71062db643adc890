"""Mix-up: beyond Empirical Risk Minimization (Zhang et al., ICLR 2018), as timm and DyTox+ do it.

    x = lambda x_i + (1 - lambda) x_j,    y = lambda y_i + (1 - lambda) y_j,    lambda ~ Beta(alpha, alpha)

one lambda a batch, and the partner of an image is the one that stands as far from the batch's end as it does from its
beginning. Targets become (B, K), the pure mixture: smoothing belongs to a criterion.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bdr.data.pool import Census
from bdr.errors import check_more_than_zero
from bdr.losses import one_hot
from bdr.plugins.base import Plugin
from bdr.types import Batch, Phase, Stage


def beta(alpha: float, count: int, chance: torch.Generator) -> Tensor:
    """(count,) draws of Beta(alpha, alpha), as shares of two gamma variables."""
    shape = torch.full((2, count), alpha, dtype=torch.float64, device=chance.device)
    # Unlike torch.distributions, this takes a generator, the one of this draw.
    one, other = torch._standard_gamma(shape, generator=chance)
    return (one / (one + other)).float()


class Mixup(Plugin):
    mixes = True

    def __init__(self, alpha: float = 0.8) -> None:
        super().__init__()
        check_more_than_zero(alpha=alpha)
        self.alpha, self.classes = alpha, 0

    def layout(self) -> dict[str, Any]:
        return {"classes": self.classes}

    def lay_out(self, layout: dict[str, Any]) -> None:
        self.classes = layout["classes"]

    def acts(self, phase: Phase, stage: Stage) -> bool:
        """Rests where held-out images are used to correct a bias: mixtures are unlike the images to come."""
        return stage.draw != "held"

    def begin(self, phase: Phase, census: Census, net: nn.Module) -> None:
        self.classes = phase.seen

    def draws(self, steps: int, size: int, chance: torch.Generator) -> tuple[Tensor, ...]:
        return (beta(self.alpha, steps, chance),)

    def batch(self, batch: Batch, drawn: tuple[Tensor, ...]) -> Batch:
        (share,) = drawn
        target = one_hot(batch.y, batch.x.new_empty(len(batch.y), self.classes))
        return batch._replace(x=mixed(batch.x, share), y=mixed(target, share))


def mixed(values: Tensor, share: Tensor) -> Tensor:
    return share * values + (1 - share) * values.flip(0)
