"""A ConViT with a learned token for each phase, as in DyTox: one class-attention block decodes the tokens.

The decoder (CaiT, Touvron et al., ICCV 2021) runs once for all tokens: each sees itself and the patches, but no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bdr.errors import check_below_one
from bdr.fusing import fused
from bdr.nets.base import Backbone, Features, Resumable
from bdr.nets.convit import Encoder, drawn, initialise, joined, perceptron, split, thinned
from bdr.types import ImageShape


class ClassAttention(nn.Module):
    """Attention in which each token queries itself and the patches."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.project = nn.Linear(dim, dim)

    def forward(self, tokens: Tensor, patches: Tensor) -> Tensor:
        """(B, T, C) from tokens (T, C), which are the same for every image, and patches (B, N, C)."""
        q, own_k, own_v = (split(part(tokens), self.heads) for part in (self.q, self.k, self.v))  # (H, T, d)
        k, v = split(self.k(patches), self.heads), split(self.v(patches), self.heads)  # (B, H, N, d)
        own = (q * own_k).sum(-1, keepdim=True).expand(patches.shape[0], -1, -1, -1)
        scores = torch.cat([own, q @ k.mT], -1) * q.shape[-1] ** -0.5
        share = scores.softmax(-1)  # (B, H, T, 1 + N)
        return self.project(joined(share[..., :1] * own_v + share[..., 1:] @ v))


class Decoder(nn.Module):
    """A block in which tokens attend to patches: (B, T, C). `kept` (2, B, T) has factors for each token and image."""

    def __init__(self, dim: int, heads: int, ratio: float) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention, self.mlp = ClassAttention(dim, heads), perceptron(dim, ratio)

    def forward(self, tokens: Tensor, patches: Tensor, kept: Tensor | None = None) -> Tensor:
        heard = self.attention(self.before_attention(tokens), self.before_attention(patches))
        x = tokens + thinned(heard, kept, 0)
        return x + thinned(self.mlp(self.before_mlp(x)), kept, 1)


@fused(tokens=0, kept=2)
def decoded(decoder: Decoder, tokens: Tensor, patches: Tensor, kept: Tensor | None) -> Tensor:
    """(B, T, C): the decoded tokens. Their number is marked as growing, so that all phases share one compiled form."""
    said: Tensor = decoder(tokens, patches, kept)
    return said


class TaskTokens(Resumable):
    """A learned token for each phase; those of earlier phases are frozen in a block of their own."""

    def __init__(self, dim: int, spread: float) -> None:
        super().__init__()
        self.spread = spread
        self.old = nn.Parameter(torch.empty(0, dim), requires_grad=False)
        self.new = drawn(1, dim, spread)

    def grow(self) -> None:
        self.old = nn.Parameter(self().detach(), requires_grad=False)
        self.new = nn.Parameter(drawn(1, self.new.shape[1], self.spread).to(self.old))

    def layout(self) -> dict[str, Any]:
        return {"old": len(self.old)}

    def lay_out(self, layout: dict[str, Any]) -> None:
        self.old = nn.Parameter(self.old.data.new_empty(layout["old"], self.new.shape[1]), requires_grad=False)

    def forward(self) -> Tensor:
        return torch.cat([self.old, self.new])


class TokenTransformer(Backbone):
    """Encoder, tokens and decoder; the features are the decoded tokens side by side: (B, T x dim).

    It starts with one token, and until it grows it is a backbone like any other. What stochastic depth leaves out is
    drawn here, before any compiled code runs, so that all engines draw alike.
    """

    rates: Tensor  # (blocks + 1,) probabilities of being left out; the decoder's is the last

    def __init__(
        self,
        shape: ImageShape,
        patch: int,
        dim: int,
        blocks: int,
        heads: int,
        ratio: float,
        stochastic_depth: float,
        spread: float,
    ) -> None:
        super().__init__()
        check(shape, patch, dim, blocks, heads, stochastic_depth)
        self.dim, self.stochastic_depth = dim, stochastic_depth
        self.encoder = Encoder(shape, patch, dim, blocks, heads, ratio, spread)
        self.tokens = TaskTokens(dim, spread)
        self.decoder = Decoder(dim, heads, ratio)
        self.apply(partial(initialise, spread=spread))
        self.register_buffer("rates", torch.linspace(0, stochastic_depth, blocks + 1), persistent=False)

    def grow(self) -> None:
        """Add a token."""
        self.tokens.grow()

    def to_compile(self) -> Sequence[nn.Module]:
        return [self.encoder]

    def kept(self, part: nn.Module, rates: Tensor, *shape: int) -> Tensor | None:
        """(rates, 2, *shape): factors, 0 with probability `rate` and else 1 / (1 - rate); None in eval mode."""
        if not part.training or not self.stochastic_depth:
            return None
        stays = (1 - rates).reshape(-1, *[1] * (1 + len(shape)))
        return (torch.rand(len(rates), 2, *shape, device=rates.device) < stays) / stays

    def forward(self, x: Tensor) -> Features:
        tokens = self.tokens()
        patches = self.encoder(x, self.kept(self.encoder, self.rates[:-1], x.shape[0]))
        kept = self.kept(self.decoder, self.rates[-1:], x.shape[0], len(tokens))
        said = decoded(self.decoder, tokens, patches, None if kept is None else kept[0])
        return Features(said.flatten(1).to(torch.promote_types(said.dtype, torch.float32)))


def check(shape: ImageShape, patch: int, dim: int, blocks: int, heads: int, stochastic_depth: float) -> None:
    if min(patch, dim, blocks, heads) < 1:
        raise ValueError("patch, embed, blocks and heads are 1 or more")
    if shape.height % patch or shape.width % patch:
        raise ValueError(f"patch = {patch} does not divide images of {shape.height} x {shape.width} pixels")
    if dim % heads:
        raise ValueError(f"embed = {dim} does not split into {heads} heads")
    check_below_one(stochastic_depth=stochastic_depth)


def convit(
    shape: ImageShape,
    last_relu: bool = True,
    maps: bool = False,
    patch: int = 4,
    embed: int = 384,
    blocks: int = 5,
    heads: int = 12,
    mlp_ratio: float = 4.0,
    stochastic_depth: float = 0.1,
    spread: float = 0.02,
) -> TokenTransformer:
    """ConViT with a token a phase, as in DyTox: 384 features a token, 10.68 M parameters.

    `spread` is that of the truncated normal from which weights, positions and tokens are drawn. Features keep their
    sign with or without `last_relu`: they come from a sum, as a transformer's do.
    """
    if maps:
        raise ValueError("a transformer has no feature maps; use --net resnet18 or another one that has")
    return TokenTransformer(shape, patch, embed, blocks, heads, mlp_ratio, stochastic_depth, spread)


def convit_small(
    shape: ImageShape,
    last_relu: bool = True,
    maps: bool = False,
    patch: int = 4,
    embed: int = 64,
    blocks: int = 2,
    heads: int = 4,
    mlp_ratio: float = 2.0,
    stochastic_depth: float = 0.0,
    spread: float = 0.2,
) -> TokenTransformer:
    """The same for images of a few pixels: 64 features a token, 0.10 M parameters."""
    return convit(shape, last_relu, maps, patch, embed, blocks, heads, mlp_ratio, stochastic_depth, spread)
