"""BDR as a module: the offset, the running statistics behind it, and what moves them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from bdr.balance.equations import (
    FORMULAS,
    Formula,
    centred,
    compensation,
    frequency,
    memberships,
    mix,
    moved,
    squared_distances,
    typical_where_unknown,
)
from bdr.balance.given import (
    classes_of,
    refuse_batch,
    refuse_logits,
    refuse_numbers,
    refuse_unfinite,
    unfit,
    without_images,
)
from bdr.balance.ranks import gathered, rank, ranks, told_by_all

Components = Literal["cr+dc+momentum", "cr+dc", "cr"]
COMPONENTS: tuple[Components, ...] = get_args(Components)
DRIFTS = (
    "several processes train together, and BDR() has the statistics of its own images alone: offsets of ranks drift "
    "apart, or are those of rank 0 inside of DistributedDataParallel; BDR(across_ranks=True) has those of all images"
)


def precisely(features: Tensor) -> torch.autocast:
    """Autocast off: it would sum the features of a class in half precision, which 500 images overflow."""
    return torch.autocast(features.device.type, enabled=False)


def overwrite(statistics: list[Tensor], values: list[Tensor]) -> None:
    """Copy the values into the statistics in place, all in one kernel; in compiled code, one after the other.

    From a grouped copy, Inductor makes code that overwrites spreads from which offsets have still to be computed.
    """
    if not torch.compiler.is_compiling():
        torch._foreach_copy_(statistics, values)
        return
    for statistic, value in zip(statistics, values, strict=True):
        statistic.copy_(value)


class BDR(nn.Module):
    """The offset and the running statistics behind it: buffers only, changed in place, never read by the host."""

    count: Tensor  # (K,) training images of each class in this phase
    mean: Tensor  # (K, D) running class means of the features
    spread: Tensor  # (K,) running mean squared distance to the class mean
    initial: Tensor  # (K,) pi at the start of the phase
    offset: Tensor  # (K,) what is added to the logits

    def __init__(
        self,
        m: float = 0.8,
        m_prime: float = 0.8,
        beta: float = 0.99,
        tau: float = 1.0,
        formula: Formula = "corrected",
        components: Components = "cr+dc+momentum",
        across_ranks: bool = False,
    ) -> None:
        super().__init__()
        refuse_numbers(m=m, m_prime=m_prime, beta=beta, tau=tau)
        if formula not in FORMULAS:
            raise ValueError(f"no formula '{formula}'; there are {', '.join(FORMULAS)}")
        if components not in COMPONENTS:
            raise ValueError(f"no components '{components}'; there are {', '.join(COMPONENTS)}")
        self.m, self.m_prime = (1.0, 1.0) if components == "cr" else (m, m_prime)
        self.beta = 0.0 if components == "cr+dc" else beta
        self.tau, self.formula, self.across_ranks = tau, formula, across_ranks
        self.reserve(0, 0)

    def reserve(self, classes: int, dim: int, dtype: torch.dtype = torch.float32) -> None:
        """Make room for the statistics of so many classes; `begin`, or loading a state, fills all of it."""
        like = (self.mean if "mean" in self._buffers else torch.zeros(0)).to(dtype)
        for name in ("count", "spread", "initial", "offset"):
            self.register_buffer(name, like.new_zeros(classes))
        self.register_buffer("mean", like.new_zeros(classes, dim))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Make room first: a state may hold more classes than this module has seen, and have another precision."""
        if (mean := state_dict.get(f"{prefix}mean")) is not None:
            classes, dim = mean.shape
            self.reserve(classes, dim, torch.promote_types(mean.dtype, torch.float32))
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> BDR:
        """Move to another device with the model, but keep the precision of the statistics when the model is cast."""

        def precise(statistic: Tensor) -> Tensor:
            given = fn(statistic)
            return given if given.dtype == statistic.dtype else statistic.to(given.device)

        return super()._apply(precise, recurse)

    def extra_repr(self) -> str:
        shares = f"m={self.m}, m_prime={self.m_prime}, beta={self.beta}, tau={self.tau}"
        return f"{shares}, formula={self.formula!r}, classes={self.classes}"

    @property
    def classes(self) -> int:
        return len(self.count)

    @torch.inference_mode(False)  # features may come from it, but buffers that are made in it could never change
    @torch.no_grad()
    def begin(self, labels: Tensor, features: Tensor, classes: int | None = None) -> None:
        """Start a phase from the labels (N,) and features (N, D) of its training images, old exemplars included.

        With `across_ranks` each rank gives its own share of them.
        """
        labels, features = self.of_all_ranks(labels, features)
        classes = classes_of(labels, classes)
        refuse_unfinite(features)
        labels = labels.long() if labels.dim() == 1 else labels  # bytes as an index would be a mask
        # Half precision would let running statistics overflow, and forget small steps.
        features = features.detach().to(torch.promote_types(features.dtype, torch.float32))
        member = memberships(labels, classes, features.dtype)
        count = member.sum(0)
        if bool((count == 0).any()):
            raise without_images((count == 0).nonzero().flatten().tolist(), classes)
        with precisely(features):
            self.count, self.mean = count, member.T @ features / count[:, None]
            spread = (member * squared_distances(features, self.mean, labels)).sum(0) / self.count
            self.spread = typical_where_unknown(spread, self.count)
            self.initial = mix(self.m, frequency(self.count), compensation(self.spread))
            self.offset = centred(self.initial, self.tau, self.formula)

    def of_all_ranks(self, labels: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """The labels and features of all ranks, or of this one alone without `across_ranks`.

        What one rank cannot begin with is refused on every rank: the others would wait for it for ever.
        """
        refusal = unfit(labels, features)
        for refused in told_by_all(refusal) if self.across_ranks else [refusal]:
            if refused is not None:
                raise refused
        if self.across_ranks:
            return gathered(labels, features)
        if ranks() > 1 and rank() == 0:
            warnings.warn(DRIFTS)
        return labels, features

    @torch.no_grad()
    def observe(self, features: Tensor, y: Tensor) -> None:
        """Update mean, spread and offset by one batch, in place; a batch that is not finite changes nothing.

        Loss scaling in half precision skips such steps and goes on; statistics that took one in would never recover.
        """
        refuse_batch(features, y, *self.mean.shape)
        features, y = features.detach().to(self.mean.dtype), y.long() if y.dim() == 1 else y
        before = (self.count, self.mean, self.spread, self.offset, self.initial)
        how = (self.m_prime, self.beta, self.tau, self.formula, self.across_ranks)
        with precisely(features):
            after = moved(features, y, *before, *how)
        overwrite([self.mean, self.spread, self.offset], list(after))

    def forward(self, logits: Tensor, features: Tensor, y: Tensor) -> Tensor:
        """Observe the batch and return its balanced logits; in eval mode and before any `begin`, the plain logits."""
        if not self.training:
            return logits
        if self.classes == 0:
            warnings.warn("BDR rests until begin(labels, features) is called; that is right in a first phase only")
            return logits
        refuse_logits(logits, features, self.classes)
        self.observe(features, y)
        return logits + self.offset.to(logits.dtype)
