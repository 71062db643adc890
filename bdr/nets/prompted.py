"""Prompts for a frozen vision transformer: a pool of prompts with keys, and two ways to insert them.

Each image first passes the transformer without prompts. The class token that results is the query: the prompts whose
keys are nearest to it are used for that image. This first pass has the same weights as the second, and no gradients.
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
    """(B, k): the prompts with the nearest keys for each image, from its cosines (B, P) with all keys."""
    return cosines.topk(count, dim=1).indices


def majority(chosen: Tensor, pool: int) -> Tensor:
    """(1, k): the prompts that are chosen (B, k) most often in a batch; the first ones where counts are equal."""
    places = torch.arange(pool, device=chosen.device)
    votes = (chosen.flatten()[:, None] == places).sum(0)
    return (votes * pool - places).topk(chosen.shape[1]).indices[None]


class PromptPool(nn.Module):
    """Prompts (P, L, D), each with a key (P, D)."""

    def __init__(self, size: int, length: int, dim: int) -> None:
        super().__init__()
        self.prompts, self.keys = drawn(size, length, dim), drawn(size, dim)

    def cosines(self, query: Tensor) -> Tensor:
        """(B, P): cosines of queries (B, D) with all keys."""
        return F.cosine_similarity(query[:, None], self.keys, dim=2)

    def take(self, chosen: Tensor, count: int) -> Tensor:
        """(B, k L, D): the chosen prompts in a row; `chosen` is (B, k), or (1, k) for all images alike."""
        taken = self.prompts.index_select(0, chosen.flatten()).unflatten(0, chosen.shape)
        return taken.flatten(1, 2).expand(count, -1, -1)


def near(cosines: Tensor, chosen: Tensor) -> Tensor:
    """(B,): the sum of the cosines with the chosen keys."""
    return cosines.gather(1, chosen.expand(cosines.shape[0], -1)).sum(1)


class Prompted(Backbone):
    """Abstract: a frozen transformer, and a pool of prompts from which its own class token chooses."""

    def __init__(self, vit: VisionTransformer, pool: PromptPool) -> None:
        super().__init__()
        vit.rest()
        self.vit, self.pool, self.dim = vit, pool, vit.dim

    def to_compile(self) -> Sequence[nn.Module]:
        return self.vit.to_compile()

    @torch.no_grad()
    def query(self, tokens: Tensor) -> Tensor:
        """(B, D): the class token of each image after the transformer, without any prompt."""
        return self.vit.encode(tokens)[:, 0]


class PromptedInput(Prompted):
    """Prompts are put among the tokens that enter the first block; the features are the mean of the prompts' outputs.

    In training, a batch agrees on its prompts by vote. Otherwise each image has its own, whatever else is in the batch.
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
    """Prompts are further keys and values in blocks: general ones for all images, and one from the pool for each.

    In training, the one from the pool is that of the phase, whatever the query says. Otherwise it is the one with the
    nearest key among those that a phase has trained.
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
        """Use the prompt of this phase from now on; with `inherit` it starts as a copy of the one before."""
        self.phase.fill_(phase)
        if inherit and phase:
            self.pool.prompts[phase] = self.pool.prompts[phase - 1]

    def choose(self, cosines: Tensor) -> Tensor:
        if self.training:
            return self.phase[None]
        untrained = torch.arange(cosines.shape[1], device=cosines.device) > self.phase
        return nearest(cosines.masked_fill(untrained, -torch.inf), 1)

    def prefixes(self, own: Tensor) -> dict[int, Tensor]:
        """(2, B, L, D): the prefix of each block that has one; the images' own prompts are (B, blocks 2 L, D)."""
        mine = own.unflatten(1, (len(self.expert), 2, -1)).permute(1, 2, 0, 3, 4)
        all_alike = self.shared.unflatten(1, (2, 1, -1)).expand(-1, -1, own.shape[0], -1, -1)
        return dict(zip(self.general, all_alike, strict=True)) | dict(zip(self.expert, mine, strict=True))

    def forward(self, x: Tensor) -> Features:
        tokens = self.vit.embed(x)
        cosines = self.pool.cosines(self.query(tokens))
        chosen = self.choose(cosines)
        seen = self.vit.encode(tokens, self.prefixes(self.pool.take(chosen, x.shape[0])))
        return Features(at_least_float32(seen[:, 0]), nearness=near(cosines, chosen))
