"""A projection of features, for losses that compare images with each other."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from bdr.nets.base import Resumable

WIDTH = 128


def norm_of(width: int) -> nn.Module:
    """By the batch at hand: statistics of what learns do not fit weights that follow it."""
    return nn.BatchNorm1d(width, track_running_stats=False)


class Projection(Resumable):
    """Features (B, D) to unit vectors (B, 128), by two layers; made when it is known how many features there are.

    Batch norm follows the first layer, and the second one too where it is `normed_twice`.
    """

    def __init__(self, normed_twice: bool = False) -> None:
        super().__init__()
        self.normed_twice, self.dim, self.layers = normed_twice, 0, nn.Sequential()

    def layout(self) -> dict[str, Any]:
        return {"dim": self.dim}

    def lay_out(self, layout: dict[str, Any]) -> None:
        self.fit(layout["dim"])

    def fit(self, dim: int) -> None:
        """Begins anew where the number of features has changed."""
        if dim != self.dim:
            last = [norm_of(WIDTH)] if self.normed_twice else []  # its shift stands in for the layer's own
            output = nn.Linear(dim, WIDTH, bias=not self.normed_twice)
            self.layers = nn.Sequential(nn.Linear(dim, dim), norm_of(dim), nn.ReLU(), output, *last)
            self.dim = dim

    def forward(self, features: Tensor) -> Tensor:
        return F.normalize(self.layers(features))
