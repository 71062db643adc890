"""The vision transformer (Dosovitskiy et al., ICLR 2021), with its parameters named and shaped as timm publishes them.

Images are resized on the device to the size that the network was made for. They must be normalised as its weights
expect: those of timm with mean 0.5 and std 0.5, which the configuration calls `statistics: half`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bdr.errors import BdrError
from bdr.nets.base import Backbone, Features
from bdr.nets.pretrained import checksum, read_weights, refuse_another
from bdr.types import ImageShape

RANDOM = "random"  # a value of `weights` that says on purpose that no file is read
MODEL = "vit_base_patch16_224.augreg_in21k"  # of timm
HOW_TO_GET = (
    f"download model.safetensors from https://huggingface.co/timm/{MODEL}, keep it where you like, "
    "and type --set vit-b16.weights=FOLDER/model.safetensors; for a run that is there, --weights with where it is now"
)


class Attention(nn.Module):
    """Multi-head self-attention; a prefix gives further keys and values to attend to."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.proj = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor, prefix: Tensor | None = None) -> Tensor:
        """(B, N, D) from tokens (B, N, D); `prefix` (2, B, L, D) is put before the projected keys and values."""
        q, k, v = self.qkv(x).chunk(3, 2)
        if prefix is not None:
            k, v = torch.cat([prefix[0].to(k.dtype), k], 1), torch.cat([prefix[1].to(v.dtype), v], 1)
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in (q, k, v))
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(dim, hidden), nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class Block(nn.Module):
    """Attention and a perceptron, each applied to normalised tokens and added to the tokens."""

    def __init__(self, dim: int, heads: int, ratio: int = 4) -> None:
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(dim, eps=1e-6), Attention(dim, heads)
        self.norm2, self.mlp = nn.LayerNorm(dim, eps=1e-6), Mlp(dim, ratio * dim)

    def forward(self, x: Tensor, prefix: Tensor | None = None) -> Tensor:
        x = x + self.attn(self.norm1(x), prefix)
        return x + self.mlp(self.norm2(x))


class PatchEmbed(nn.Module):
    """Square patches, each as one token."""

    def __init__(self, channels: int, dim: int, patch: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(channels, dim, patch, patch)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x).flatten(2).transpose(1, 2)


class VisionTransformer(Backbone):
    """Patches and a class token, with learnt positions, pass equal blocks; the features are the class token's."""

    def __init__(
        self,
        channels: int,
        size: int,
        patch: int,
        embed: int,
        depth: int,
        heads: int,
        weights: str | None = None,
        sha256: str | None = None,
    ) -> None:
        super().__init__()
        check_sizes(size, patch, embed, depth, heads)
        self.dim, self.size, self.channels, self.weights, self.resting = embed, size, channels, weights, False
        self.cls_token = nn.Parameter(torch.empty(1, 1, embed))
        self.pos_embed = nn.Parameter(torch.empty(1, 1 + (size // patch) ** 2, embed))
        self.patch_embed = PatchEmbed(channels, embed, patch)
        self.blocks = nn.ModuleList(Block(embed, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(embed, eps=1e-6)
        self.register_state_dict_post_hook(leave_out)
        self.register_load_state_dict_pre_hook(fill_in)
        if weights in (None, RANDOM):
            refuse_sum_alone(sha256)
            initialise(self)
        else:
            self.source = checksum(str(weights), HOW_TO_GET)
            refuse_another(str(weights), self.source, sha256)
            self.load_state_dict(read_weights(str(weights), self.state_dict(), ignored="head."))

    def layout(self) -> dict[str, Any]:
        return {"source": self.source}

    def lay_out(self, layout: dict[str, Any]) -> None:
        if layout["source"] != self.source:
            raise BdrError(
                f"the network was trained on weights with sha256 {layout['source']}, and those given now "
                f"({self.weights}) have {self.source}: put the file of that time in its place"
            )

    def rest(self) -> None:
        """Freeze all parameters. Those from a file are saved nowhere else: it is read again, and must be the same."""
        self.requires_grad_(False)
        self.resting = True

    @property
    def kept_in_file(self) -> bool:
        return self.resting and self.source is not None

    def kept_elsewhere(self) -> Sequence[nn.Linear]:
        return [part for part in self.modules() if isinstance(part, nn.Linear)] if self.kept_in_file else []

    def to_compile(self) -> Sequence[nn.Module]:
        """The blocks, which are alike and compiled as one."""
        return list(self.blocks)

    def embed(self, x: Tensor) -> Tensor:
        """(B, 1 + N, D): the class token and the patches of images of any size, with their positions added."""
        if x.shape[2:] != (self.size, self.size):
            x = F.interpolate(x, (self.size, self.size), mode="bicubic")
        if x.shape[1] == 1:  # grey images, for a network that was made for colour
            x = x.expand(-1, self.channels, -1, -1)
        patches = self.patch_embed(x)
        return torch.cat([self.cls_token.expand(x.shape[0], -1, -1), patches], 1) + self.pos_embed

    def encode(self, tokens: Tensor, prefixes: Mapping[int, Tensor] | None = None) -> Tensor:
        """(B, N, D): tokens after all blocks, normalised; `prefixes` may give some blocks a prefix (2, B, L, D)."""
        for place, block in enumerate(self.blocks):
            tokens = block(tokens, prefixes.get(place) if prefixes else None)
        return self.norm(tokens)

    def forward(self, x: Tensor) -> Features:
        return Features(at_least_float32(self.encode(self.embed(x))[:, 0]))


def at_least_float32(features: Tensor) -> Tensor:
    return features.to(torch.promote_types(features.dtype, torch.float32))


def check_sizes(size: int, patch: int, embed: int, depth: int, heads: int) -> None:
    if min(size, patch, embed, depth, heads) < 1:
        raise ValueError(f"size {size}, patch {patch}, embed {embed}, depth {depth}, heads {heads}: all are 1 or more")
    if size % patch:
        raise ValueError(f"size = {size} is not allowed: it is a multiple of patch = {patch}")
    if embed % heads:
        raise ValueError(f"embed = {embed} is not allowed: it is a multiple of heads = {heads}")


def refuse_sum_alone(sha256: str | None) -> None:
    if sha256 is not None:
        raise ValueError(f"sha256 = {sha256} is the sum of a file of weights, and none is named: set weights too")


def initialise(vit: VisionTransformer) -> None:
    """Draw weights as normal with variance 1 / D: tokens neither fade nor grow on their way, whatever the width."""
    for parameter in (p for p in vit.parameters() if p.dim() > 1):
        nn.init.trunc_normal_(parameter, std=vit.dim**-0.5)
    for module in vit.modules():
        if isinstance(module, nn.Linear | nn.Conv2d) and module.bias is not None:
            nn.init.zeros_(module.bias)


def leave_out(vit: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Remove from a state what rests in a file of its own, so that checkpoints do not repeat it."""
    if isinstance(vit, VisionTransformer) and vit.kept_in_file:
        for name in [name for name in state if name.startswith(prefix)]:
            del state[name]


def fill_in(vit: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    if isinstance(vit, VisionTransformer) and vit.kept_in_file:
        state |= {prefix + name: parameter.detach() for name, parameter in vit.named_parameters()}


def without_maps(maps: bool) -> None:
    if maps:
        raise ValueError("a vision transformer has no feature maps, which this method compares: use another --net")


def vit_b16(
    shape: ImageShape,
    last_relu: bool = True,
    maps: bool = False,
    weights: str | None = None,
    size: int = 224,
    patch: int = 16,
    embed: int = 768,
    depth: int = 12,
    heads: int = 12,
    sha256: str | None = None,
) -> VisionTransformer:
    """ViT-B/16 for images of 224 x 224 pixels, to which others are resized: 768 features, 85.80 M parameters."""
    without_maps(maps)
    return VisionTransformer(3, size, patch, embed, depth, heads, weights, sha256)


def vit_tiny(
    shape: ImageShape,
    last_relu: bool = True,
    maps: bool = False,
    weights: str = RANDOM,
    size: int = 8,
    patch: int = 4,
    embed: int = 64,
    depth: int = 5,
    heads: int = 4,
    sha256: str | None = None,
) -> VisionTransformer:
    """A vision transformer for images of a few pixels, with random weights: 64 features, 0.25 M parameters."""
    without_maps(maps)
    return VisionTransformer(shape.channels, size, patch, embed, depth, heads, weights, sha256)
