"""A projection of features, for losses that compare images with each other."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from bdr.nets.base import Resumable

WIDTH = 128


class Projection(Resumable):
    """Features (B, D) to unit vectors (B, 128), by two layers; made when it is known how many features there are."""

    def __init__(self, norm: bool) -> None:
        super().__init__()
        self.norm, self.dim, self.layers = norm, 0, nn.Sequential()

    def layout(self) -> dict[str, Any]:
        return {"dim": self.dim}

    def lay_out(self, layout: dict[str, Any]) -> None:
        self.fit(layout["dim"])

    def fit(self, dim: int) -> None:
        """Begins anew where the number of features has changed."""
        if dim != self.dim:
            # By the batch at hand: statistics of what learns do not fit weights that follow it.
            between: list[nn.Module] = [nn.BatchNorm1d(dim, track_running_stats=False)] if self.norm else []
            self.layers = nn.Sequential(nn.Linear(dim, dim), *between, nn.ReLU(), nn.Linear(dim, WIDTH))
            self.dim = dim

    def forward(self, features: Tensor) -> Tensor:
        return F.normalize(self.layers(features))
