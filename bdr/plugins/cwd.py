"""CwD: Mimicking the Oracle, class-wise decorrelation (Shi et al., CVPR 2022).

In the first phase only, for every class with more than one image in the batch: standardise its normalised features,
take their Gram matrix C (not divided by anything), and add the mean of its squared off-diagonal entries; the sum over
classes is divided by the number of images that took part.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from bdr.fusing import fused
from bdr.plugins.base import Plugin
from bdr.types import Batch, Outputs, Phase, Stage


@fused()
def decorrelation(features: Tensor, y: Tensor) -> Tensor:
    """The CwD loss of a batch, all classes at once.

    The sum of squares of the D x D matrix X^T X of a class equals that of its n x n matrix X X^T, so one B x B matrix,
    masked to pairs of the same class, holds all classes; the diagonal of X^T X has entries (n - 1) var / (var + eps).
    """
    same = (y[:, None] == y[None, :]).to(features.dtype)  # (B, B)
    count = same.sum(1, keepdim=True)  # (B, 1) how many images of the same class are in the batch
    taking_part = (count > 1).to(features.dtype)
    unit = F.normalize(features)
    centred = unit - same @ unit / count
    square = same @ centred.square()  # (B, D) sums of squares over the same class
    variance = square / (count - 1).clamp(min=1)
    standard = centred / torch.sqrt(variance + 1e-8) * taking_part
    gram = (standard @ standard.T).square() * same
    diagonal = (square / (variance + 1e-8)).square().sum(1, keepdim=True) / count * taking_part
    dim = features.shape[1]
    off_diagonal = (gram.sum() - diagonal.sum()) / (dim * (dim - 1))
    return off_diagonal / taking_part.sum().clamp(min=1)


class CwD(Plugin):
    soft_targets = False  # a mixture belongs to no class alone

    def __init__(self, coefficient: float = 0.5) -> None:
        super().__init__()
        self.coefficient = coefficient

    def acts(self, phase: Phase, stage: Stage) -> bool:
        return phase.first and stage.draw == "all"

    def terms(self, batch: Batch, out: Outputs, forward: Callable[[Tensor], Outputs]) -> dict[str, Tensor]:
        return {"cwd": decorrelation(out.features, batch.y)}

    def weights(self, phase: Phase, stage: Stage) -> dict[str, float]:
        return {"cwd": self.coefficient}
