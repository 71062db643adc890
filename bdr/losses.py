"""Terms that more than one paper uses, and the only ways to average over a part of a batch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from bdr.fusing import fused
from bdr.types import Outputs


@fused(logits=1, y=1)
def softmax_loss(logits: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(logits, y, reduction="none")


def cross_entropy(out: Outputs, y: Tensor) -> Tensor:
    """(B,) softmax cross-entropy; y holds ids or mixtures."""
    return softmax_loss(out.logits, y)


@fused(logits=1, reference=1)
def distillation(logits: Tensor, reference: Tensor, temperature: float = 2.0) -> Tensor:
    """(B,) KL divergence between softened predictions for the same classes, without the factor T^2."""
    student, teacher = (logits / temperature).log_softmax(1), (reference / temperature).log_softmax(1)
    return F.kl_div(student, teacher, reduction="none", log_target=True).sum(1)


@fused(logits=1, target=1)
def binary(logits: Tensor, target: Tensor) -> Tensor:
    """(B,) binary cross-entropy with probabilities as targets, summed over the classes."""
    return F.binary_cross_entropy_with_logits(logits, target, reduction="none").sum(1)


def one_hot(y: Tensor, like: Tensor) -> Tensor:
    """(B, K) targets, as wide as the logits: ids as ones and zeros, mixtures as they are."""
    if y.dim() == 2:
        return y.to(like.dtype)
    return (y[:, None] == torch.arange(like.shape[1], device=y.device)).to(like.dtype)


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """The mean of the values (B,) where the mask is true; zero where it is true nowhere."""
    weight = mask.to(values.dtype)
    return (values * weight).sum() / weight.sum().clamp(min=1)


@fused()
def cosine_distance(features: Tensor, reference: Tensor) -> Tensor:
    """(B,) one minus the cosine of each pair; if features are several times as wide, the mean over their parts."""
    if features.shape[1] != reference.shape[1]:
        parts = features.unflatten(1, (-1, reference.shape[1]))  # (B, parts, D)
        return 1 - F.cosine_similarity(parts, reference[:, None], dim=2).mean(1)
    return 1 - F.cosine_similarity(features, reference)


def old_mass(y: Tensor, old: int) -> Tensor:
    """(B,) how much of each sample belongs to classes of earlier phases: 0 or 1, or in between after mix-up."""
    return y[:, :old].sum(1) if y.dim() == 2 else (y < old).to(torch.float32)


def old_as_one(y: Tensor, old: int) -> Tensor:
    """Targets (ids or mixtures) for a classifier whose first class is all old ones in one, followed by the new ones."""
    if y.dim() == 2:
        return torch.cat([y[:, :old].sum(1, keepdim=True), y[:, old:]], 1)
    return (y - old + 1).clamp(min=0)
