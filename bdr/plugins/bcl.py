"""BCL: Contrastive Learning with Boosted Memorization (Zhou et al., ICML 2022).

A self-supervised term beside the objective of the method, after the first phase: NT-Xent on two views of every image,

    l_a = - ln exp(f_a.f_b / T) / sum_{j != a} exp(f_a.f_j / T),      a and b the views of one image,

f projected features. What is learnt late is likely to be rare: of every image a moving average s_i <- m s_i + (1 - m)
l_i is kept, and w_i = 1/2 + 1/2 z_i / max |z|, z the standardised s, says how strongly it is augmented: after SimCLR's
crop, jitter and grey, with probability w_i by an operation of RandAugment at magnitude 10 + 20 w_i of 30. An image
begins with w = 0, and keeps what it has as an exemplar. The w are taken anew after every epoch.

Table 8 of the BDR paper cites this one; `balanced-contrastive` is the other method of that name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from bdr.data.pool import WHOLE, Census
from bdr.data.randaugment import NONE, OPERATIONS, STRONGEST, operated
from bdr.data.store import Store
from bdr.data.views import Looks, View, normalised, seen
from bdr.errors import check_below_one, check_more_than_zero, check_not_negative
from bdr.fusing import fused
from bdr.losses import masked_mean
from bdr.nets.projection import Projection
from bdr.plugins.base import Plugin
from bdr.types import Batch, Clock, Outputs, Phase, Stage

WEAKEST, STEPS = 10, 30  # the magnitude at w = 0, and how many magnitudes there are


@fused()
def nt_xent(views: Tensor, temperature: float) -> Tensor:
    """(2 B,) the loss l_a of unit vectors (2 B, D), whose second half are other views of the first half's images."""
    size = len(views)
    similarity = views @ views.T / temperature
    itself = torch.eye(size, dtype=torch.bool, device=views.device)
    partner = (views * views.roll(size // 2, 0)).sum(1) / temperature
    return similarity.masked_fill(itself, -torch.inf).logsumexp(1) - partner


def boosts(losses: Tensor, there: Tensor) -> Tensor:
    """(N,) how much each image is boosted, from 0 to 1, by its loss relative to the images that are `there`."""
    mean = torch.where(there, losses, 0).sum() / there.sum().clamp(min=1)
    away = torch.where(there, losses - mean, 0)  # not divided by the spread, which would cancel below
    # The lower bound: where losses are equal but for rounding, all boosts are one half.
    return 0.5 + 0.5 * away / torch.maximum(away.abs().max(), 1e-4 * mean.abs() + 1e-12)


@fused()
def remembered(losses: Tensor, rows: Tensor, each: Tensor, momentum: float) -> Tensor:
    """(N,) the moving averages after a batch; an image that is in it twice counts with its mean."""
    count = torch.zeros_like(losses).index_add_(0, rows, torch.ones_like(each))
    now = torch.zeros_like(losses).index_add_(0, rows, each) / count
    moved = torch.lerp(now, losses, momentum).where(~losses.isnan(), now)
    return moved.where(count > 0, losses)


@fused()
def taken_anew(boost: Tensor, losses: Tensor, present: Tensor, over: Tensor) -> Tensor:
    """(N,) the boosts after a step; new ones if the epoch is `over`, a tensor that the host must not read."""
    known = present & ~losses.isnan()
    return boosts(losses, known).where(over & known, boost)


class BoostedContrast(Plugin):
    views = 2
    losses: Tensor  # (N,) the moving average of each image; NaN if it was not seen yet
    boost: Tensor  # (N,) by image
    present: Tensor  # (N,) bool, the images that this phase trains on
    old: Tensor  # (N,) bool, those of them that are exemplars

    def __init__(
        self, weight: float = 1.0, temperature: float = 0.2, momentum: float = 0.97, crop: float = 0.1
    ) -> None:
        super().__init__()
        check_not_negative(weight=weight)
        check_more_than_zero(temperature=temperature)
        check_below_one(momentum=momentum)
        self.weight, self.temperature, self.momentum, self.view = weight, temperature, momentum, View(crop)
        self.projection = Projection(normed_twice=True)
        self.fresh: tuple[Tensor, Tensor] | None = None  # rows and losses of the images in the current batch
        self.register_buffer("losses", torch.zeros(0))
        self.register_buffer("boost", torch.zeros(0))
        self.register_buffer("present", torch.zeros(0, dtype=torch.bool))
        self.register_buffer("old", torch.zeros(0, dtype=torch.bool))

    def layout(self) -> dict[str, Any]:
        return {"images": len(self.losses)}

    def lay_out(self, layout: dict[str, Any]) -> None:
        count = layout["images"]
        self.losses, self.boost = self.losses.new_full((count,), torch.nan), self.boost.new_zeros(count)
        self.present, self.old = self.present.new_zeros(count), self.old.new_zeros(count)

    def acts(self, phase: Phase, stage: Stage) -> bool:
        """Acts also where classes are drawn equally often: it is about images learnt late, not about rare classes."""
        return not phase.first and stage.draw in WHOLE

    def begin(self, phase: Phase, census: Census, net: nn.Module) -> None:
        self.projection.fit(census.dim(net))
        self.to(census.rows.device)
        images = len(census.pool.store)
        if len(self.losses) != images:
            self.lay_out({"images": images})
        self.present = torch.zeros_like(self.present).index_fill_(0, census.rows, True)
        self.old = self.present & (census.pool.store.labels < phase.old)

    def renumber(self, before: Tensor, after: Tensor, images: int) -> None:
        if len(self.losses):  # it has acted before
            losses, boost = self.losses[before], self.boost[before]
            self.lay_out({"images": images})
            self.losses[after], self.boost[after] = losses, boost

    def draws(self, steps: int, size: int, chance: torch.Generator) -> tuple[Tensor, ...]:
        shape, device = (steps, 2 * size), chance.device
        operation = torch.randint(1, len(OPERATIONS), shape, generator=chance, device=device)
        sign, share = torch.rand((2, *shape), generator=chance, device=device)
        return *self.view.draw(*shape, chance), operation, (sign - 0.5).sign(), share

    def look(self, store: Store, rows: Tensor, drawn: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Two views of each image. The draws name the operation; the boost says how strong and how likely it is."""
        *looks, operation, sign, share = drawn
        rows = rows.repeat(2)
        boost = self.boost[rows]
        level = sign * STRONGEST * (WEAKEST + (STEPS - WEAKEST) * boost) / STEPS
        images = seen(store, rows, Looks(*looks))
        images = operated(images, operation.where(share < boost, NONE), level, (255 * store.mean).round())
        one, other = normalised(store, images).chunk(2)
        return one, other

    def terms(self, batch: Batch, out: Outputs, forward: Callable[[Tensor], Outputs]) -> dict[str, Tensor]:
        views = self.projection(forward(torch.cat(batch.views)).features)
        each = nt_xent(views, self.temperature).view(2, -1).mean(0)
        self.fresh = batch.rows, each.detach()
        return {"bcl": each.mean()}

    def weights(self, phase: Phase, stage: Stage) -> dict[str, float]:
        return {"bcl": self.weight}

    @torch.no_grad()
    def stepped(self, net: nn.Module, clock: Clock) -> None:
        assert self.fresh is not None, "a step has terms"
        rows, each = self.fresh
        self.losses.copy_(remembered(self.losses, rows, each, self.momentum))
        over = clock.step + 1 == clock.steps
        self.boost.copy_(taken_anew(self.boost, self.losses, self.present, over))

    def report(self, phase: Phase, net: nn.Module) -> dict[str, Tensor]:
        """The mean boost of exemplars and of new images; over both together it is one half after every epoch."""
        new = self.present & ~self.old
        return {"boost_old": masked_mean(self.boost, self.old), "boost_new": masked_mean(self.boost, new)}
