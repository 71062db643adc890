"""ConViT (d'Ascoli et al., ICML 2021) with task tokens that one class-attention block reads out, as DyTox has it.

The encoder is shared by all phases. Its blocks attend by content and by position, head by head as a gate g decides:

    attention = (1 - sigmoid(g)) softmax(q k / sqrt(d)) + sigmoid(g) softmax(w . (dx, dy, dx^2 + dy^2))

Both are linear in the values, so each part is applied to them by itself, and the larger one by torch's own kernel.
The decoder (CaiT, Touvron et al., ICCV 2021) runs once for all tokens: each sees itself and the patches, no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bdr.nets.base import Backbone, Features, Resumable
from bdr.types import ImageShape


def drawn(count: int, dim: int, spread: float) -> nn.Parameter:
    return nn.Parameter(nn.init.trunc_normal_(torch.empty(count, dim), std=spread))


def initialise(module: nn.Module, spread: float) -> None:
    """Linear layers from a truncated normal; then attention by place, which begins near by."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=spread)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    if isinstance(module, GatedAttention):
        module.start_local()


def split(x: Tensor, heads: int) -> Tensor:
    """(B, N, C) to (B, heads, N, C / heads)."""
    return x.unflatten(-1, (heads, -1)).transpose(-3, -2)


def joined(x: Tensor) -> Tensor:
    """And back."""
    return x.transpose(-3, -2).flatten(-2)


def relative_places(rows: int, columns: int) -> Tensor:
    """(3, N, N): dx, dy and their squares' sum, from each patch of a grid to each other one."""
    y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    dx, dy = (place.flatten()[None, :] - place.flatten()[:, None] for place in (x, y))
    return torch.stack([dx, dy, dx**2 + dy**2]).float()


class GatedAttention(nn.Module):
    """Gated positional self-attention (GPSA)."""

    places: Tensor

    def __init__(self, dim: int, heads: int, rows: int, columns: int) -> None:
        super().__init__()
        self.heads = heads
        self.qk, self.v = nn.Linear(dim, 2 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.project, self.place = nn.Linear(dim, dim), nn.Linear(3, heads)
        self.gate = nn.Parameter(torch.ones(heads))
        self.register_buffer("places", relative_places(rows, columns), persistent=False)

    @torch.no_grad()
    def start_local(self) -> None:
        """Values pass through; the first heads look at the neighbours in a square, as a convolution does."""
        nn.init.eye_(self.v.weight)
        side = int(self.heads**0.5)
        for head in range(side**2):
            right, down = (place - (side - 1) / 2 for place in divmod(head, side))
            self.place.weight[head] = torch.tensor([2 * right, 2 * down, -1.0])

    def positional(self) -> Tensor:
        """(H, N, N), the same for every image. Sums of squares are too coarse in half precision: no matrix product."""
        scores = (self.place.weight[:, :, None, None] * self.places).sum(1) + self.place.bias[:, None, None]
        return scores.softmax(-1)

    def forward(self, x: Tensor) -> Tensor:
        q, k = self.qk(x).chunk(2, -1)
        q, k, v = (split(part, self.heads) for part in (q, k, self.v(x)))
        gate = torch.sigmoid(self.gate)[:, None, None]
        by_place = torch.einsum("hnm,bhmd->bhnd", self.positional(), v)
        by_content = F.scaled_dot_product_attention(q, k, v)
        return self.project(joined((1 - gate) * by_content + gate * by_place))


class ClassAttention(nn.Module):
    """Tokens ask; each is answered by itself and the patches."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.project = nn.Linear(dim, dim)

    def forward(self, tokens: Tensor, patches: Tensor) -> Tensor:
        """(B, T, C) of tokens (T, C), which are the same for every image, and patches (B, N, C)."""
        (count, _), (size, others, _) = tokens.shape, patches.shape
        q = split(self.q(tokens), self.heads).expand(size, -1, -1, -1)
        own_k, own_v = (part(tokens).expand(size, -1, -1) for part in (self.k, self.v))
        k = split(torch.cat([own_k, self.k(patches)], 1), self.heads)
        v = split(torch.cat([own_v, self.v(patches)], 1), self.heads)
        itself = torch.eye(count, dtype=torch.bool, device=tokens.device)
        seen = F.pad(itself, (0, others), value=True)
        return self.project(joined(F.scaled_dot_product_attention(q, k, v, attn_mask=seen)))


def perceptron(dim: int, ratio: float) -> nn.Sequential:
    inner = int(dim * ratio)
    return nn.Sequential(nn.Linear(dim, inner), nn.GELU(), nn.Linear(inner, dim))


class Block(nn.Module):
    """Attention of patches to patches, and a perceptron, each added to what comes in.

    Stochastic depth leaves them out for some images: `kept` (2, B) is what each is multiplied by.
    """

    def __init__(self, dim: int, heads: int, ratio: float, rows: int, columns: int) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention, self.mlp = GatedAttention(dim, heads, rows, columns), perceptron(dim, ratio)

    def forward(self, x: Tensor, kept: Tensor | None = None) -> Tensor:
        x = x + thinned(self.attention(self.before_attention(x)), kept, 0)
        return x + thinned(self.mlp(self.before_mlp(x)), kept, 1)


class Decoder(nn.Module):
    """The same with tokens that attend to patches: (B, T, C). Each token of each image has its own `kept` (2, B, T)."""

    def __init__(self, dim: int, heads: int, ratio: float) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention, self.mlp = ClassAttention(dim, heads), perceptron(dim, ratio)

    def forward(self, tokens: Tensor, patches: Tensor, kept: Tensor | None = None) -> Tensor:
        heard = self.attention(self.before_attention(tokens), self.before_attention(patches))
        x = tokens + thinned(heard, kept, 0)
        return x + thinned(self.mlp(self.before_mlp(x)), kept, 1)


def thinned(x: Tensor, kept: Tensor | None, which: int) -> Tensor:
    if kept is None:
        return x
    factor = kept[which]
    return x * factor.reshape(*factor.shape, *[1] * (x.dim() - factor.dim()))


class Encoder(nn.Module):
    """Images to patches (B, N, C) that have looked at each other. Its shape never changes."""

    def __init__(
        self, shape: ImageShape, patch: int, dim: int, blocks: int, heads: int, ratio: float, spread: float
    ) -> None:
        super().__init__()
        rows, columns = shape.height // patch, shape.width // patch
        self.patches = nn.Conv2d(shape.channels, dim, patch, patch)
        self.positions = drawn(rows * columns, dim, spread)
        self.blocks = nn.ModuleList(Block(dim, heads, ratio, rows, columns) for _ in range(blocks))

    def forward(self, x: Tensor, kept: Tensor | None = None) -> Tensor:
        x = self.patches(x).flatten(2).mT + self.positions
        for place, block in enumerate(self.blocks):
            x = block(x, None if kept is None else kept[place])
        return x


class TaskTokens(Resumable):
    """A learned token a phase; those of earlier phases rest in a block of their own."""

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


class ConViT(Backbone):
    """Encoder, tokens, decoder; features are what the tokens have become, side by side: (B, T x dim).

    It begins with one token, and is a backbone like any other until it is grown. What stochastic depth leaves out is
    drawn here, before the compiled encoder, so that all engines draw alike.
    """

    rates: Tensor  # (blocks + 1,) of leaving out; the decoder's is the last

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
        """One more token."""
        self.tokens.grow()

    def to_compile(self) -> Sequence[nn.Module]:
        return [self.encoder]

    def kept(self, part: nn.Module, rates: Tensor, *shape: int) -> Tensor | None:
        """(rates, 2, *shape) zero with its rate, else as much more as the others are less; nothing in eval mode."""
        if not part.training or not self.stochastic_depth:
            return None
        stays = (1 - rates).reshape(-1, *[1] * (1 + len(shape)))
        return (torch.rand(len(rates), 2, *shape, device=rates.device) < stays) / stays

    def forward(self, x: Tensor) -> Features:
        tokens = self.tokens()
        patches = self.encoder(x, self.kept(self.encoder, self.rates[:-1], len(x)))
        kept = self.kept(self.decoder, self.rates[-1:], len(x), len(tokens))
        said = self.decoder(tokens, patches, None if kept is None else kept[0])
        return Features(said.flatten(1).to(torch.promote_types(said.dtype, torch.float32)))


def check(shape: ImageShape, patch: int, dim: int, blocks: int, heads: int, stochastic_depth: float) -> None:
    if min(patch, dim, blocks, heads) < 1:
        raise ValueError("patch, embed, blocks and heads are 1 or more")
    if shape.height % patch or shape.width % patch:
        raise ValueError(f"patch = {patch} does not divide images of {shape.height} x {shape.width} pixels")
    if dim % heads:
        raise ValueError(f"embed = {dim} does not split into {heads} heads")
    if not 0 <= stochastic_depth < 1:
        raise ValueError(f"stochastic_depth = {stochastic_depth} is not allowed: it is from 0 to less than 1")


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
) -> ConViT:
    """ConViT with a token a phase, as DyTox has it: 384 features a token, 10.68 M parameters.

    `spread` is that of the truncated normal that weights, positions and tokens are drawn from.
    Features keep their sign with `last_relu` or without: they come from a sum, as a transformer's do.
    """
    if maps:
        raise ValueError("a transformer has no feature maps; use --net resnet18 or another one that has")
    return ConViT(shape, patch, embed, blocks, heads, mlp_ratio, stochastic_depth, spread)


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
) -> ConViT:
    """The same for images of a few pixels: 64 features a token, 0.10 M parameters."""
    return convit(shape, last_relu, maps, patch, embed, blocks, heads, mlp_ratio, stochastic_depth, spread)
