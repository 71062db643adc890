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


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """The mean of the values (B,) where the mask is true; zero where it is true nowhere."""
    weight = mask.to(values.dtype)
    return (values * weight).sum() / weight.sum().clamp(min=1)


@fused()
def cosine_distance(features: Tensor, reference: Tensor) -> Tensor:
    """(B,) one minus the cosine of each pair."""
    return 1 - F.cosine_similarity(features, reference)


def old_mass(y: Tensor, old: int) -> Tensor:
    """(B,) how much of each sample belongs to classes of earlier phases: 0 or 1, or in between after mix-up."""
    return y[:, :old].sum(1) if y.dim() == 2 else (y < old).to(torch.float32)
