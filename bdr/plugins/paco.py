"""PaCo: Parametric Contrastive Learning (Cui et al., ICCV 2021).

After the first phase the classification loss of an image i becomes a softmax in which the classes, by their logits,
stand beside other images (eq. 4 and 6):

    L_i = - sum_j w_j log (exp(s_j) / D_i) / sum_j w_j,      D_i = sum_k exp(s_k)  +  gamma sum_j exp(s_j)

over i's own class, s = z + ln psi, w = beta, psi the frequency of the class; and over the images j of the same class,
s = f_i.f_j / T, w = alpha. f are projected features of the batch, of a second view of it by a momentum encoder, and of
a queue of such views, which is empty when a phase begins. The images of the batch alone are anchors.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bdr.balance import frequency
from bdr.data.pool import Census
from bdr.data.store import Store
from bdr.data.views import Looks, View, normalised, seen
from bdr.errors import check_below_one, check_more_than_zero, check_not_negative, check_one_or_more
from bdr.fusing import fused
from bdr.nets.base import Follower
from bdr.nets.projection import WIDTH, Projection
from bdr.plugins.base import Prior
from bdr.types import Batch, Classify, Clock, Outputs, Phase

EMPTY = -1  # the label of an empty place in the queue


class Contrast(NamedTuple):
    """What other images add to the softmax of each anchor, beside the classes."""

    mass: Tensor  # (B,) ln sum_j exp(s_j) over all other images
    near: Tensor  # (B,) sum of s_j over the images of the same class
    positives: Tensor  # (B,) how many these are


@fused()
def contrasted(query: Tensor, y: Tensor, others: Tensor, labels: Tensor, temperature: float) -> Contrast:
    """Compare anchors (B, D) with each other and with others (N, D), leaving out those labelled EMPTY."""
    compared, labels = torch.cat([query, others]), torch.cat([y, labels])
    similarity = query @ compared.T / temperature  # (B, B + N)
    itself = torch.arange(len(y), device=y.device)[:, None] == torch.arange(len(labels), device=y.device)
    there = (labels != EMPTY) & ~itself
    same = (there & (labels == y[:, None])).to(similarity.dtype)
    mass = similarity.masked_fill(~there, -torch.inf).logsumexp(1)
    return Contrast(mass, (similarity * same).sum(1), same.sum(1))


def everything(logits: Tensor, contrast: Contrast, gamma: float) -> Tensor:
    """(B,) ln D; the logits already include ln psi."""
    return torch.logaddexp(logits.logsumexp(1), contrast.mass + math.log(gamma))


@fused(logits=1)
def parametric(centre: Tensor, logits: Tensor, contrast: Contrast, alpha: float, beta: float, gamma: float) -> Tensor:
    """(B,) the loss L, made from `centre`, the loss ln sum_k exp(s_k) - s_y of the classes alone."""
    total = everything(logits, contrast, gamma)
    own = centre + total - logits.logsumexp(1)
    others = contrast.positives * total - contrast.near
    return (beta * own + alpha * others) / (beta + alpha * contrast.positives)


@fused(logits=1, offset=0)
def of_the_images(logits: Tensor, offset: Tensor, contrast: Contrast, gamma: float) -> Tensor:
    """The part of the loss that compares images, averaged over the batch."""
    return (everything(logits + offset, contrast, gamma) - contrast.near / contrast.positives).mean()


@fused()
def enqueue(queue: Tensor, labels: Tensor, place: Tensor, keys: Tensor, y: Tensor) -> None:
    """Overwrite the oldest entries with new ones; of a batch longer than the queue, with the last ones."""
    length = len(labels)
    keys, y = keys[-length:], y[-length:]
    places = (place + torch.arange(len(y), device=y.device)) % length
    queue.index_copy_(0, places, keys)
    labels.index_copy_(0, places, y)
    place.add_(len(y)).remainder_(length)


class PaCo(Prior):
    views = 1
    soft_targets = False  # a mixture has no class to be near to
    needs_softmax = True
    by_likelihood = weighs = True  # it needs ln sum exp(s) - s_y, and returns a mean over images
    offset: Tensor  # (K,)
    queue: Tensor  # (Q, 128)
    labels: Tensor  # (Q,)
    place: Tensor  # (1,) where the next view goes
    key_net: Follower[nn.Module]

    def __init__(
        self,
        alpha: float = 0.01,
        beta: float = 1.0,
        gamma: float = 1.0,
        temperature: float = 0.05,
        queue: int = 1024,
        momentum: float = 0.999,
        crop: float = 0.2,
    ) -> None:
        super().__init__()
        check(alpha, beta, gamma, temperature, queue, momentum)
        self.alpha, self.beta, self.gamma, self.temperature = alpha, beta, gamma, temperature
        self.length, self.momentum, self.view = queue, momentum, View(crop)
        self.projection = Projection()
        self.key_projection, self.key_net = Follower(self.projection), Follower(nn.Identity())
        self.contrast: Contrast | None = None  # of the current batch
        self.register_buffer("offset", torch.zeros(0))
        self.register_buffer("queue", torch.zeros(0, WIDTH))
        self.register_buffer("labels", torch.zeros(0, dtype=torch.long))
        self.register_buffer("place", torch.zeros(1, dtype=torch.long))

    def layout(self) -> dict[str, Any]:
        return {"classes": len(self.offset), "queue": len(self.queue)}

    def lay_out(self, layout: dict[str, Any]) -> None:
        self.offset = self.offset.new_zeros(layout["classes"])
        self.empty(layout["queue"])

    def empty(self, length: int) -> None:
        self.queue = self.queue.new_zeros(length, WIDTH)
        self.labels = self.labels.new_full((length,), EMPTY)
        self.place = torch.zeros_like(self.place)

    def attach(self, net: nn.Module) -> None:
        self.key_net = Follower(net)

    def begin(self, phase: Phase, census: Census, net: nn.Module) -> None:
        # Not centred as in other priors: images share this softmax, so ln K on the classes would change gamma.
        self.offset = torch.log(frequency(census.counts))
        self.projection.fit(census.dim(net))
        self.projection.to(census.rows.device)
        self.key_projection.refill(self.projection)
        self.key_net.refill(net)
        self.empty(self.length)

    def draws(self, steps: int, size: int, chance: torch.Generator) -> tuple[Tensor, ...]:
        return self.view.draw(steps, size, chance)

    def look(self, store: Store, rows: Tensor, drawn: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (normalised(store, seen(store, rows, Looks(*drawn))),)

    def observe(self, batch: Batch, out: Outputs) -> None:
        keys = self.key_projection(self.key_net(batch.views[0]).features)
        # This copies the queue: the backward pass may still need it after the queue has moved on.
        others, labels = torch.cat([keys, self.queue]), torch.cat([batch.y, self.labels])
        self.contrast = contrasted(self.projection(out.features), batch.y, others, labels, self.temperature)
        enqueue(self.queue, self.labels, self.place, keys, batch.y)

    def classify(self, inner: Classify, out: Outputs, y: Tensor) -> Tensor:
        """PaCo's loss; outside of a step there are no other images, and the classes are alone in the softmax."""
        shifted = out.shift(self.offset)
        centre = inner(shifted, y)
        if self.contrast is None:
            return centre
        return parametric(centre, shifted.logits, self.contrast, self.alpha, self.beta, self.gamma)

    def watch(self, batch: Batch, out: Outputs) -> dict[str, Tensor]:
        """The part of the loss that compares images. It ends the batch: its contrast is dropped."""
        assert self.contrast is not None, "a batch is observed before it is watched"
        contrast, self.contrast = self.contrast, None
        return {"paco": of_the_images(out.logits, self.offset, contrast, self.gamma)}

    def stepped(self, net: nn.Module, clock: Clock) -> None:
        self.key_net.follow(net, self.momentum)
        self.key_projection.follow(self.projection, self.momentum)


def check(alpha: float, beta: float, gamma: float, temperature: float, queue: int, momentum: float) -> None:
    check_more_than_zero(beta=beta, gamma=gamma, temperature=temperature)
    check_not_negative(alpha=alpha)
    check_one_or_more(queue=queue)
    check_below_one(momentum=momentum)
