"""Classifiers that grow: linear, and cosine with the embeddings of earlier phases frozen."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bdr.fusing import fused
from bdr.nets.base import Head


def uniform(count: int, like: Tensor) -> Tensor:
    """Fresh rows ~ U(-1/sqrt(d), 1/sqrt(d)) for a matrix (K, d), drawn on the CPU so that every device starts alike."""
    bound = like.shape[1] ** -0.5
    return torch.empty(count, like.shape[1]).uniform_(-bound, bound).to(like)


@fused(embeddings=0)
def cosine_logits(features: Tensor, embeddings: Tensor, eta: Tensor) -> Tensor:
    """(B, K) cosines of features (B, D) and embeddings (K, D), times eta."""
    return eta * F.linear(F.normalize(features), F.normalize(embeddings))


class LinearHead(Head):
    """z = W f (+ b); old rows are kept when it grows, and all rows learn."""

    def __init__(self, dim: int, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(0, dim))
        self.bias = nn.Parameter(torch.empty(0)) if bias else None

    @property
    def classes(self) -> int:
        return len(self.weight)

    def restart(self, count: int) -> None:
        """Replace all rows with `count` fresh ones."""
        self.lay_out({"classes": 0, "dim": self.weight.shape[1]})
        self.grow(count)

    def renew(self, count: int, dim: int) -> None:
        """Replace all rows with `count` Kaiming-normal ones for `dim` features."""
        self.lay_out({"classes": count, "dim": dim})
        self.weight.data = (torch.randn(count, dim) * dim**-0.5).to(self.weight)  # every device starts alike
        if self.bias is not None:
            self.bias.data.zero_()

    def narrow(self, kept: Tensor) -> None:
        """Read only the features that are kept, by a mask (D,), from now on."""
        self.weight = nn.Parameter(self.weight.data[:, kept])

    def grow(self, count: int) -> None:
        self.weight = nn.Parameter(torch.cat([self.weight.data, uniform(count, self.weight)]))
        if self.bias is not None:
            self.bias = nn.Parameter(torch.cat([self.bias.data, self.bias.data.new_zeros(count)]))

    @torch.no_grad()
    def redraw(self) -> None:
        """Draw all rows anew, in place, because an optimiser or a captured graph may hold on to them."""
        self.weight.copy_(uniform(len(self.weight), self.weight))
        if self.bias is not None:
            self.bias.zero_()

    @torch.no_grad()
    def clamp(self) -> None:
        """Set negative weights to zero."""
        self.weight.clamp_(min=0)

    @torch.no_grad()
    def align(self, old: int) -> Tensor:
        """Scale the rows from `old` on, so that they are as long as those before on average; return the factor.

        If all of them are zero, they stay so.
        """
        length = self.weight.norm(dim=1)
        before, now = length[:old].mean(), length[old:].mean()
        factor = torch.where(now > 0, before / now, 1.0)
        self.weight[old:] *= factor
        return factor

    def layout(self) -> dict[str, Any]:
        return {"classes": len(self.weight), "dim": self.weight.shape[1]}

    def lay_out(self, layout: dict[str, Any]) -> None:
        self.weight = nn.Parameter(self.weight.data.new_empty(layout["classes"], layout["dim"]))
        if self.bias is not None:
            self.bias = nn.Parameter(self.bias.data.new_empty(layout["classes"]))

    def forward(self, features: Tensor) -> tuple[Tensor, float]:
        return F.linear(features, self.weight, self.bias), 1.0


class CosineHead(Head):
    """z_k = eta <f/|f|, w_k/|w_k|>, eta learnable; the embeddings of earlier phases are frozen in their own block."""

    def __init__(self, dim: int, eta: float = 1.0) -> None:
        super().__init__()
        self.old = nn.Parameter(torch.empty(0, dim), requires_grad=False)
        self.new = nn.Parameter(torch.empty(0, dim))
        self.eta = nn.Parameter(torch.tensor(float(eta)))

    @property
    def classes(self) -> int:
        return len(self.old) + len(self.new)

    def grow(self, count: int) -> None:
        self.old = nn.Parameter(torch.cat([self.old.data, self.new.data]), requires_grad=False)
        self.new = nn.Parameter(uniform(count, self.old))

    @torch.no_grad()
    def imprint(self, directions: Tensor) -> None:
        """Point new embeddings along these unit vectors (K_new, D), as long as the old ones are on average."""
        self.new.copy_(directions * self.old.norm(dim=1).mean())

    def layout(self) -> dict[str, Any]:
        return {"old": len(self.old), "new": len(self.new), "dim": self.old.shape[1]}

    def lay_out(self, layout: dict[str, Any]) -> None:
        self.old = nn.Parameter(self.old.data.new_empty(layout["old"], layout["dim"]), requires_grad=False)
        self.new = nn.Parameter(self.new.data.new_empty(layout["new"], layout["dim"]))

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        return cosine_logits(features, torch.cat([self.old, self.new]), self.eta), self.eta
