"""A projection of features, for losses that compare images with each other."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from bdr.nets.base import Resumable

WIDTH = 128


def norm_of(width: int) -> nn.Module:
    """Batch norm by the batch at hand: running statistics of what learns would not fit weights that follow it."""
    return nn.BatchNorm1d(width, track_running_stats=False)


class Projection(Resumable):
    """Maps features (B, D) to unit vectors (B, 128) by two layers, which `fit` makes once D is known.

    Batch norm follows the first layer, and with `normed_twice` the second one too.
    """

    def __init__(self, normed_twice: bool = False) -> None:
        super().__init__()
        self.normed_twice, self.dim, self.layers = normed_twice, 0, nn.Sequential()

    def layout(self) -> dict[str, Any]:
        return {"dim": self.dim}

    def lay_out(self, layout: dict[str, Any]) -> None:
        self.fit(layout["dim"])

    def fit(self, dim: int) -> None:
        """Make new layers if the number of features has changed."""
        if dim != self.dim:
            last = [norm_of(WIDTH)] if self.normed_twice else []  # its shift replaces the layer's bias
            output = nn.Linear(dim, WIDTH, bias=not self.normed_twice)
            self.layers = nn.Sequential(nn.Linear(dim, dim), norm_of(dim), nn.ReLU(), output, *last)
            self.dim = dim

    def forward(self, features: Tensor) -> Tensor:
        return F.normalize(self.layers(features))
