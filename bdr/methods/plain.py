"""Plain cross-entropy with a linear classifier: the bounds that other methods lie between.

finetune    nothing is kept: what happens when nothing is done
replay      the exemplars are trained on like any other image
joint       all images are kept and every phase starts from fresh weights: the paper's Bound
"""

from __future__ import annotations

from abc import ABC

import torch
from torch import Tensor

from bdr.data.pool import Pool
from bdr.methods.base import Method
from bdr.nets import LinearHead, MakeNetwork, Network
from bdr.types import Batch, Classify, Phase


class Plain(Method, ABC):
    """Abstract: a linear classifier, trained by cross-entropy on all images of the phase."""

    net: Network[LinearHead]

    def __init__(self, make: MakeNetwork) -> None:
        super().__init__()
        self.make, self.net = make, make(LinearHead)

    def begin(self, phase: Phase, pool: Pool) -> None:
        self.net.head.grow(phase.new)

    def loss(self, batch: Batch, phase: Phase, classify: Classify) -> dict[str, Tensor]:
        return {"ce": classify(self.net(batch.x), batch.y).mean()}


class Finetune(Plain):
    """Fine-tuning on new classes alone: what happens when nothing is done."""

    keeps = ("none",)


class Replay(Plain):
    """Replay: cross-entropy on new images and exemplars alike."""

    keeps = ("some", "all")


class Joint(Plain):
    """Joint training on all images, from fresh weights in every phase: the bound."""

    keeps = ("all",)
    counts_parameters = True  # the parameters of a fresh network take their places

    @torch.no_grad()
    def begin(self, phase: Phase, pool: Pool) -> None:
        """Draw fresh weights and copy them in place, because the backbone may be compiled."""
        self.net.backbone.load_state_dict(self.make(LinearHead).backbone.state_dict())
        self.net.head.restart(phase.seen)
