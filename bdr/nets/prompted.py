"""Prompts for a vision transformer that rests: a pool of them with keys, and two ways to put them in.

An image is first seen by the transformer alone; its class token is the query, and the prompts whose keys are nearest to
it are used for that image. That first look shares the weights with the second, and takes no gradients.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bdr.nets.base import Backbone, Features
from bdr.nets.vit import VisionTransformer, at_least_float32


def drawn(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(*shape).uniform_(-1, 1))


def nearest(cosines: Tensor, count: int) -> Tensor:
    """(B, k) the prompts of each image, of its cosines (B, P) with all keys."""
    return cosines.topk(count, dim=1).indices


def majority(chosen: Tensor, pool: int) -> Tensor:
    """(1, k) the prompts that are chosen (B, k) most often in a batch; the first ones of those that are level."""
    places = torch.arange(pool, device=chosen.device)
    votes = (chosen.flatten()[:, None] == places).sum(0)
    return (votes * pool - places).topk(chosen.shape[1]).indices[None]


class PromptPool(nn.Module):
    """Prompts (P, L, D), each with a key (P, D)."""

    def __init__(self, size: int, length: int, dim: int) -> None:
        super().__init__()
        self.prompts, self.keys = drawn(size, length, dim), drawn(size, dim)

    def cosines(self, query: Tensor) -> Tensor:
        """(B, P) of queries (B, D) and keys."""
        return F.cosine_similarity(query[:, None], self.keys, dim=2)

    def take(self, chosen: Tensor, count: int) -> Tensor:
        """(B, k L, D) the chosen prompts in a row; `chosen` is (B, k), or (1, k) for all images alike."""
        taken = self.prompts.index_select(0, chosen.flatten()).unflatten(0, chosen.shape)
        return taken.flatten(1, 2).expand(count, -1, -1)


def near(cosines: Tensor, chosen: Tensor) -> Tensor:
    """(B,) the cosines with the chosen keys, added."""
    return cosines.gather(1, chosen.expand(cosines.shape[0], -1)).sum(1)


class Prompted(Backbone):
    """Abstract: a transformer at rest, and a pool of prompts that its own class token chooses from."""

    def __init__(self, vit: VisionTransformer, pool: PromptPool) -> None:
        super().__init__()
        vit.rest()
        self.vit, self.pool, self.dim = vit, pool, vit.dim

    def to_compile(self) -> Sequence[nn.Module]:
        return self.vit.to_compile()

    @torch.no_grad()
    def query(self, tokens: Tensor) -> Tensor:
        """(B, D) what the transformer says of images without any prompt."""
        return self.vit.encode(tokens)[:, 0]


class PromptedInput(Prompted):
    """Prompts stand among the tokens that the first block sees; the features are the mean of what becomes of them.

    In training a batch agrees on its prompts by vote. Otherwise every image has its own, whatever stands beside it.
    """

    def __init__(self, vit: VisionTransformer, pool: int, length: int, top: int) -> None:
        super().__init__(vit, PromptPool(pool, length, vit.dim))
        self.top = top

    def choose(self, cosines: Tensor) -> Tensor:
        chosen = nearest(cosines, self.top)
        return majority(chosen, cosines.shape[1]) if self.training else chosen

    def forward(self, x: Tensor) -> Features:
        tokens = self.vit.embed(x)
        cosines = self.pool.cosines(self.query(tokens))
        chosen = self.choose(cosines)
        prompts = self.pool.take(chosen, x.shape[0])
        seen = self.vit.encode(torch.cat([tokens[:, :1], prompts, tokens[:, 1:]], 1))
        pooled = at_least_float32(seen[:, 1 : 1 + prompts.shape[1]]).mean(1)
        return Features(pooled, nearness=near(cosines, chosen))


class PrefixedBlocks(Prompted):
    """Prompts are keys and values that blocks look at: general ones for all images, and one of the pool for each.

    In training the prompt of the phase is used, whatever the query says. Otherwise it is the one with the nearest key,
    of those that a phase has trained.
    """

    phase: Tensor  # (1,)

    def __init__(
        self, vit: VisionTransformer, general: Sequence[int], expert: Sequence[int], pool: int, lengths: tuple[int, int]
    ) -> None:
        super().__init__(vit, PromptPool(pool, len(expert) * 2 * lengths[1], vit.dim))
        self.general, self.expert = tuple(general), tuple(expert)
        self.shared = drawn(len(general), 2 * lengths[0], vit.dim)
        self.register_buffer("phase", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def enter(self, phase: int, inherit: bool) -> None:
        """The prompt of this phase is next; it may start as the one before."""
        self.phase.fill_(phase)
        if inherit and phase:
            self.pool.prompts[phase] = self.pool.prompts[phase - 1]

    def choose(self, cosines: Tensor) -> Tensor:
        if self.training:
            return self.phase[None]
        untrained = torch.arange(cosines.shape[1], device=cosines.device) > self.phase
        return nearest(cosines.masked_fill(untrained, -torch.inf), 1)

    def prefixes(self, own: Tensor) -> dict[int, Tensor]:
        """(2, B, L, D) for each block that has one, of the prompts (B, blocks 2 L, D) of the images."""
        mine = own.unflatten(1, (len(self.expert), 2, -1)).permute(1, 2, 0, 3, 4)
        all_alike = self.shared.unflatten(1, (2, 1, -1)).expand(-1, -1, own.shape[0], -1, -1)
        return dict(zip(self.general, all_alike, strict=True)) | dict(zip(self.expert, mine, strict=True))

    def forward(self, x: Tensor) -> Features:
        tokens = self.vit.embed(x)
        cosines = self.pool.cosines(self.query(tokens))
        chosen = self.choose(cosines)
        seen = self.vit.encode(tokens, self.prefixes(self.pool.take(chosen, x.shape[0])))
        return Features(at_least_float32(seen[:, 0]), nearness=near(cosines, chosen))
