"""BDR, the module on its own: Balanced Destruction-Reconstruction (arXiv 2308.01698).

A per-class offset on the logits of the classification loss, in training only:

    psi_k   = N_k / sum N                                  how often class k is seen         (constant rebalancing)
    omega_k = (1 / Sigma_k) / sum (1 / Sigma)              how compact its features are      (dynamic compensation)
    pi      = m psi + (1 - m) omega                        at the start of a phase
    pi'     = m' psi + (1 - m') omega'                     after every batch, Sigma' running
    offset  = tau ln(K pihat), pihat the momentum mean of pi and pi' with weight beta

Centring with ln K changes nothing under a softmax and makes a flat pihat a zero offset under any other criterion.

    balance = BDR()
    balance.begin(labels, features)                        # once a phase, over the training images
    loss = F.cross_entropy(balance(logits, features, y), y)
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from bdr.fusing import fused

FORMULAS = ("corrected", "released", "anchored")
COMPONENTS = ("cr+dc+momentum", "cr+dc", "cr")
SMALLEST_SPREAD = 1e-12  # images of a class may all be alike, and 1/0 must never get through


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
    """A class with a single image has no spread of its own: it gets the mean of the others'.

    Left at zero, its omega would be one and that of all other classes nothing.
    """
    known = (count > 1).to(spread.dtype)
    typical = (spread * known).sum() / known.sum().clamp(min=1)
    return torch.where(count > 1, spread, typical)


def mix(share: float, psi: Tensor, omega: Tensor) -> Tensor:
    """pi, equation 3."""
    return share * psi + (1 - share) * omega


def last_to_appear(y: Tensor) -> Tensor:
    """(1,) the class whose first sample comes last in the batch."""
    first = (y[:, None] == y[None, :]).int().argmax(1)
    return y.gather(0, first.argmax(0, keepdim=True))


def centred(pi: Tensor, tau: float, formula: str) -> Tensor:
    """tau ln(K pi); the released code adds 1e-12 inside its logarithm."""
    log = torch.log(pi**tau + 1e-12) if formula == "released" else tau * torch.log(pi)
    return log + tau * torch.log(torch.ones_like(pi).sum())  # K as a tensor: it grows, and the code is compiled once


def refuse_shapes(labels: Tensor, features: Tensor) -> None:
    """What `begin` cannot begin with: a sentence of ours is found sooner than one of torch, three calls deeper."""
    for name, given in {"labels": labels, "features": features}.items():
        if not isinstance(given, Tensor):
            kind = type(given).__name__
            raise TypeError(f"{name} are a {kind}, and a torch.Tensor is expected: torch.as_tensor({name}) makes one")
    if features.dim() != 2:
        raise ValueError(
            f"features are {tuple(features.shape)}, and (N, D) is expected, a row an image as it goes into the "
            "classifier; labels come first: begin(labels, features)"
        )
    if labels.dim() not in (1, 2) or len(labels) != len(features) or len(labels) == 0:
        raise ValueError(
            f"labels are {tuple(labels.shape)} and features {tuple(features.shape)}: as many of both are expected, "
            "one or more, labels as ids (N,) or mixtures (N, K)"
        )


def classes_of(labels: Tensor, classes: int | None) -> int:
    """How many classes there are, once the labels are known to be among them."""
    if labels.dim() == 2:
        if classes not in (None, labels.shape[1]) or not bool((labels >= 0).all()):
            raise ValueError(
                f"labels are {tuple(labels.shape)}, from {float(labels.min()):g} on: mixtures (N, {classes or 'K'}) "
                "have a column a class, and shares of 0 or more; ids are (N,)"
            )
        return labels.shape[1]
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise ValueError(f"labels are {labels.dtype}, and ids are integers: labels.long() makes them")
    least, most = int(labels.min()), int(labels.max())
    if least < 0 or (classes is not None and most >= classes):
        allowed = "from 0 on" if classes is None else f"from 0 to {classes - 1}, since classes = {classes},"
        raise ValueError(f"labels are from {least} to {most}, and ids {allowed} are allowed")
    return most + 1 if classes is None else classes


def refuse_unfinite(features: Tensor) -> None:
    if not bool(features.isfinite().all()):
        rows = int((~features.isfinite().all(1)).sum())
        raise ValueError(f"features of {rows} of {len(features)} images are not finite (NaN or infinite): all must be")


def refuse_strangers(y: Tensor, classes: int) -> None:
    """Ids that are no classes, -100 among them, where looking costs nothing: on a GPU the host would have to wait."""
    if y.dim() != 1 or y.device.type != "cpu" or torch.compiler.is_compiling() or not len(y):
        return
    least, most = int(y.min()), int(y.max())
    if least < 0 or most >= classes:
        raise ValueError(
            f"targets are from {least} to {most}, and ids from 0 to {classes - 1} are allowed, since begin() saw "
            f"{classes} classes; images whose target is to be ignored (-100) must be left out of the batch"
        )


def ranks() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def gathered(rows: Tensor) -> Tensor:
    """The rows of all ranks, one after the other; every rank has as many."""
    if ranks() == 1:
        return rows
    parts = [torch.empty_like(rows, memory_format=torch.contiguous_format) for _ in range(ranks())]
    dist.all_gather(parts, rows.contiguous())
    return torch.cat(parts)


def gathered_shares(rows: Tensor) -> Tensor:
    """The same where ranks have unequally many."""
    lengths = gathered(torch.tensor([len(rows)], device=rows.device)).tolist()
    room = [0, 0] * (rows.dim() - 1) + [0, max(lengths) - len(rows)]
    shares = gathered(F.pad(rows, room)).split(max(lengths))
    return torch.cat([share[:length] for share, length in zip(shares, lengths, strict=True)])


class Statistics(NamedTuple):
    """What moves with every batch."""

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
    formula: str,
) -> Statistics:
    """The statistics after one batch: equations 4 and 5. A batch that is not finite moves nothing."""
    before, finite = Statistics(mean, spread, offset), features.isfinite().all()
    member = memberships(y, len(count), mean.dtype)
    here = member.sum(0)
    keep = count / (count + here)
    mean = keep[:, None] * mean + (member.T @ features) / (count + here)[:, None]
    spread = moved_spread(features, y, member, here, keep, mean, spread, formula)
    pi = mix(m_prime, frequency(count), compensation(spread))
    if formula == "anchored":
        offset = centred(beta * initial + (1 - beta) * pi, tau, formula)
    else:
        offset = offset.lerp(centred(pi, tau, formula), 1 - beta)
    after = Statistics(mean, spread, offset)
    return Statistics(*(torch.where(finite, new, old) for new, old in zip(after, before, strict=True)))


def moved_spread(
    features: Tensor, y: Tensor, member: Tensor, here: Tensor, keep: Tensor, mean: Tensor, spread: Tensor, formula: str
) -> Tensor:
    total = (member * squared_distances(features, mean, y)).sum(0)
    in_batch = total / here.clamp(min=SMALLEST_SPREAD)
    if formula == "released":  # the released code's slip: every class moves at the pace of a single one
        keep = keep.gather(0, last_to_appear(y)) if y.dim() == 1 else keep
    # One sample tells nothing of a spread; a mixed batch has soft counts, so the bound lies between one and two.
    fewest = 0.0 if formula == "anchored" else 1.5
    return torch.where(here > fewest, keep * spread + (1 - keep) * in_batch, spread)


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
        formula: str = "corrected",
        components: str = "cr+dc+momentum",
        across_ranks: bool = False,
    ) -> None:
        super().__init__()
        for name, value in {"m": m, "m_prime": m_prime, "beta": beta}.items():
            if not 0 <= value <= 1:
                raise ValueError(f"{name} = {value} is not in [0, 1]")
        if not 0 <= tau < float("inf"):
            raise ValueError(f"tau = {tau} is not allowed: it is 0 or more")
        if formula not in FORMULAS:
            raise ValueError(f"no formula '{formula}'; there are {', '.join(FORMULAS)}")
        if components not in COMPONENTS:
            raise ValueError(f"no components '{components}'; there are {', '.join(COMPONENTS)}")
        self.m, self.m_prime = (1.0, 1.0) if components == "cr" else (m, m_prime)
        self.beta = 0.0 if components == "cr+dc" else beta
        self.tau, self.formula, self.across_ranks = tau, formula, across_ranks
        self.reserve(0, 0)

    def reserve(self, classes: int, dim: int) -> None:
        """Room for the statistics of so many classes; all of it is filled by `begin`, or by loading a state."""
        like = self.mean if "mean" in self._buffers else torch.zeros(0)
        for name in ("count", "spread", "initial", "offset"):
            self.register_buffer(name, like.new_zeros(classes))
        self.register_buffer("mean", like.new_zeros(classes, dim))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Makes room first: a state may hold more classes than this module has seen."""
        if (mean := state_dict.get(f"{prefix}mean")) is not None:
            self.reserve(*mean.shape)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def extra_repr(self) -> str:
        shares = f"m={self.m}, m_prime={self.m_prime}, beta={self.beta}, tau={self.tau}"
        return f"{shares}, formula={self.formula!r}, classes={self.classes}"

    @property
    def classes(self) -> int:
        return len(self.count)

    @torch.no_grad()
    def begin(self, labels: Tensor, features: Tensor, classes: int | None = None) -> None:
        """Starts a phase from the labels (N,) and features (N, D) of its training images, old exemplars included.

        With `across_ranks` each rank gives its own share of them.
        """
        refuse_shapes(labels, features)
        if self.across_ranks:
            labels, features = gathered_shares(labels), gathered_shares(features.detach())
        classes = classes_of(labels, classes)
        refuse_unfinite(features)
        labels = labels.long() if labels.dim() == 1 else labels  # bytes as an index would be a mask
        # Half precision would let running statistics overflow, and forget small steps.
        features = features.detach().to(torch.promote_types(features.dtype, torch.float32))
        member = memberships(labels, classes, features.dtype)
        count = member.sum(0)
        if bool((count == 0).any()):
            empty = (count == 0).nonzero().flatten().tolist()
            raise ValueError(f"BDR needs at least one image of every class; there is none of {empty}")
        self.count, self.mean = count, member.T @ features / count[:, None]
        spread = (member * squared_distances(features, self.mean, labels)).sum(0) / self.count
        self.spread = typical_where_unknown(spread, self.count)
        self.initial = mix(self.m, frequency(self.count), compensation(self.spread))
        self.offset = centred(self.initial, self.tau, self.formula)

    @torch.no_grad()
    def observe(self, features: Tensor, y: Tensor) -> None:
        """Moves mean, spread and offset by one batch, in place; one that is not finite moves nothing.

        Loss scaling in half precision skips such steps and goes on, and statistics that took them in never recover.
        """
        features = features.detach().to(self.mean.dtype)
        if self.across_ranks:
            features, y = gathered(features), gathered(y)
        before = (self.count, self.mean, self.spread, self.offset, self.initial)
        after = moved(features, y, *before, self.m_prime, self.beta, self.tau, self.formula)
        torch._foreach_copy_([self.mean, self.spread, self.offset], list(after))

    def check(self, logits: Tensor, features: Tensor, y: Tensor) -> None:
        """Shapes that would broadcast in silence, or fail after the statistics have moved; ids that are no classes."""
        batch, (classes, dim) = len(logits), self.mean.shape
        if logits.shape != (batch, classes):
            raise ValueError(
                f"logits are {tuple(logits.shape)} and begin() saw {classes} classes, so ({batch}, {classes}) is "
                "expected; call begin() at the start of every phase"
            )
        if features.shape != (batch, dim):
            raise ValueError(f"features are {tuple(features.shape)}, and ({batch}, {dim}) is expected")
        if y.shape not in ((batch,), (batch, classes)):
            raise ValueError(
                f"targets are {tuple(y.shape)}: ids ({batch},) or mixtures ({batch}, {classes}) are expected"
            )
        refuse_strangers(y, classes)

    def forward(self, logits: Tensor, features: Tensor, y: Tensor) -> Tensor:
        """Observes the batch, then returns its balanced logits; plain logits in eval mode and before any `begin`."""
        if not self.training:
            return logits
        if self.classes == 0:
            warnings.warn("BDR rests until begin(labels, features) is called; that is right in a first phase only")
            return logits
        self.check(logits, features, y)
        self.observe(features, y)
        return logits + self.offset.to(logits.dtype)
