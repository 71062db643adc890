"""ConViT: Improving Vision Transformers with Soft Convolutional Inductive Biases (d'Ascoli et al., ICML 2021).

Patches attend to each other by content and by position. In each head a gate g decides how much either counts:

    attention = (1 - sigmoid(g)) softmax(q k / sqrt(d)) + sigmoid(g) softmax(w . (dx, dy, dx^2 + dy^2))

Both parts are linear in the values, so each is applied to them separately, the one by content with torch's own kernel.
The rows of both add up to one, and so do those of their mixture, which needs no normalisation.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bdr.types import ImageShape


def drawn(count: int, dim: int, spread: float) -> nn.Parameter:
    return nn.Parameter(nn.init.trunc_normal_(torch.empty(count, dim), std=spread))


def initialise(module: nn.Module, spread: float) -> None:
    """Draw linear layers from a truncated normal, and let attention by position start with the neighbours."""
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
    """(B, heads, N, C / heads) back to (B, N, C)."""
    return x.transpose(-3, -2).flatten(-2)


def relative_places(rows: int, columns: int) -> Tensor:
    """(3, N, N): dx, dy and the sum of their squares, from each patch of a grid to each other one."""
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
        """Let values pass unchanged, and the first heads look at the neighbours in a square, as a convolution does."""
        nn.init.eye_(self.v.weight)
        side = int(self.heads**0.5)
        for head in range(side**2):
            right, down = (place - (side - 1) / 2 for place in divmod(head, side))
            self.place.weight[head] = torch.tensor([2 * right, 2 * down, -1.0])

    def positional(self) -> Tensor:
        """Attention by position (H, N, N), the same for every image.

        It needs no matrix product, which would run in half precision: sums of squares would be too coarse there.
        """
        scores = (self.place.weight[:, :, None, None] * self.places).sum(1) + self.place.bias[:, None, None]
        return scores.softmax(-1)

    def forward(self, x: Tensor) -> Tensor:
        q, k = self.qk(x).chunk(2, -1)
        q, k, v = (split(part, self.heads) for part in (q, k, self.v(x)))
        gate = torch.sigmoid(self.gate)[:, None, None]
        by_place = torch.einsum("hnm,bhmd->bhnd", self.positional(), v)
        by_content = F.scaled_dot_product_attention(q, k, v)
        return self.project(joined((1 - gate) * by_content + gate * by_place))


def perceptron(dim: int, ratio: float) -> nn.Sequential:
    inner = int(dim * ratio)
    return nn.Sequential(nn.Linear(dim, inner), nn.GELU(), nn.Linear(inner, dim))


class Block(nn.Module):
    """Attention of patches to patches and a perceptron, each added to its input.

    Stochastic depth leaves them out for some images: `kept` (2, B) holds the factors of their outputs.
    """

    def __init__(self, dim: int, heads: int, ratio: float, rows: int, columns: int) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention, self.mlp = GatedAttention(dim, heads, rows, columns), perceptron(dim, ratio)

    def forward(self, x: Tensor, kept: Tensor | None = None) -> Tensor:
        x = x + thinned(self.attention(self.before_attention(x)), kept, 0)
        return x + thinned(self.mlp(self.before_mlp(x)), kept, 1)


def thinned(x: Tensor, kept: Tensor | None, which: int) -> Tensor:
    if kept is None:
        return x
    factor = kept[which]
    return x * factor.reshape(*factor.shape, *[1] * (x.dim() - factor.dim()))


class Encoder(nn.Module):
    """Maps images to patches (B, N, C) that have attended to each other. Its shape never changes."""

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
