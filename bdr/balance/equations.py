"""Equations 1 to 5 of BDR (arXiv 2308.01698) as functions of tensors."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from bdr.balance.ranks import least, rank, summed
from bdr.fusing import fused

Formula = Literal["corrected", "released", "anchored"]
FORMULAS: tuple[Formula, ...] = get_args(Formula)
SMALLEST_SPREAD = 1e-12  # images of a class may all be alike, and 1/0 must never get through
RANK_APART, NEVER = 2**32, 2**62  # places: from rank to rank, more than a rank has images; and after all of them


def memberships(y: Tensor, classes: int, dtype: torch.dtype) -> Tensor:
    """(B, K) weights of samples in classes: one-hot for ids, the mixture itself after mix-up."""
    if y.dim() == 2:
        return y.to(dtype)
    return (y[:, None] == torch.arange(classes, device=y.device)).to(dtype)


def squared_distances(features: Tensor, means: Tensor, y: Tensor) -> Tensor:
    """(B, 1) squared distance of every sample to its own class mean; (B, K) to all of them for mixed targets."""
    if y.dim() == 1:
        return (features - means[y]).square().sum(1, keepdim=True)
    return torch.cdist(features, means, compute_mode="donot_use_mm_for_euclid_dist").square()


def frequency(count: Tensor) -> Tensor:
    """psi, equation 1."""
    return count / count.sum()


def compensation(spread: Tensor) -> Tensor:
    """omega, equation 2."""
    inverse = 1 / spread.clamp(min=SMALLEST_SPREAD)
    return inverse / inverse.sum()


def typical_where_unknown(spread: Tensor, count: Tensor) -> Tensor:
    """The spreads, with the mean of the others for every class with a single image, which has no spread of its own.

    With a spread of zero, its omega would be one and that of every other class zero.
    """
    known = (count > 1).to(spread.dtype)
    typical = (spread * known).sum() / known.sum().clamp(min=1)
    return torch.where(count > 1, spread, typical)


def mix(share: float, psi: Tensor, omega: Tensor) -> Tensor:
    """pi, equation 3."""
    return share * psi + (1 - share) * omega


def last_to_appear(member: Tensor, across_ranks: bool) -> Tensor:
    """(1,) the class whose first sample comes last in the batch; samples of a rank follow those of all lower ranks."""
    places = rank() * RANK_APART + torch.arange(len(member), device=member.device)[:, None]
    first = F.pad(torch.where(member > 0, places, NEVER), (0, 0, 0, 1), value=NEVER).amin(0)  # a rank may be empty
    first = least(first, across_ranks)
    return torch.where(first < NEVER, first, -1).argmax(0, keepdim=True)


def centred(pi: Tensor, tau: float, formula: Formula) -> Tensor:
    """tau ln(K pi); the released code adds 1e-12 inside its logarithm."""
    log = torch.log(pi**tau + 1e-12) if formula == "released" else tau * torch.log(pi)
    return log + tau * torch.log(torch.ones_like(pi).sum())  # K as a tensor: it grows, and the code is compiled once


class Statistics(NamedTuple):
    """The statistics that change with every batch."""

    mean: Tensor  # (K, D) running class means of the features
    spread: Tensor  # (K,) running mean squared distance to the class mean
    offset: Tensor  # (K,) what is added to the logits


@fused(count=0, mean=0, spread=0, offset=0, initial=0, y=1)
def moved(
    features: Tensor,
    y: Tensor,
    count: Tensor,
    mean: Tensor,
    spread: Tensor,
    offset: Tensor,
    initial: Tensor,
    m_prime: float,
    beta: float,
    tau: float,
    formula: Formula,
    across_ranks: bool,
) -> Statistics:
    """The statistics after one batch: equations 4 and 5. A batch that is not finite moves nothing."""
    before = Statistics(mean, spread, offset)
    member = memberships(y, len(count), mean.dtype)
    here = summed(member.sum(0), across_ranks)
    keep = count / (count + here)
    mean = keep[:, None] * mean + summed(member.T @ features, across_ranks) / (count + here)[:, None]
    spread = moved_spread(features, y, member, here, keep, mean, spread, formula, across_ranks)
    finite = mean.isfinite().all() & spread.isfinite().all()  # one image that is not finite spoils both, on all ranks
    pi = mix(m_prime, frequency(count), compensation(spread))
    if formula == "anchored":
        offset = centred(beta * initial + (1 - beta) * pi, tau, formula)
    else:
        offset = offset.lerp(centred(pi, tau, formula), 1 - beta)
    after = Statistics(mean, spread, offset)
    return Statistics(*(torch.where(finite, new, old) for new, old in zip(after, before, strict=True)))


def moved_spread(
    features: Tensor,
    y: Tensor,
    member: Tensor,
    here: Tensor,
    keep: Tensor,
    mean: Tensor,
    spread: Tensor,
    formula: Formula,
    across_ranks: bool,
) -> Tensor:
    total = summed((member * squared_distances(features, mean, y)).sum(0), across_ranks)
    in_batch = total / here.clamp(min=SMALLEST_SPREAD)
    if formula == "released" and y.dim() == 1:  # a slip in the released code: all classes move at the pace of one
        keep = keep.gather(0, last_to_appear(member, across_ranks))
    # One sample says nothing about a spread; a mixed batch has soft counts, so the bound lies between one and two.
    fewest = 0.0 if formula == "anchored" else 1.5
    return torch.where(here > fewest, keep * spread + (1 - keep) * in_batch, spread)
