"""What L2P and DualPrompt share: a vision transformer that rests, prompts and a classifier that learn.

    L = cross-entropy over the classes that are present  +  lambda sum of (1 - cos(query, key)) over the prompts in use

Without exemplars only new classes are present, and the logits of old ones are left out of training; with exemplars all
classes are, and it is cross-entropy over all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from bdr.data.pool import Pool
from bdr.errors import check_not_negative
from bdr.methods.base import Method, Present
from bdr.nets import LinearHead, MakeNetwork, Network, VisionTransformer
from bdr.nets.vit import HOW_TO_GET
from bdr.types import Batch, Classify, Outputs, Phase, Stage


def transformer_of(net: Network[LinearHead]) -> VisionTransformer:
    """The vision transformer that prompts go into; refused without weights, because it is not trained here."""
    vit = net.backbone
    if not isinstance(vit, VisionTransformer):
        raise ValueError(
            f"prompts go into a vision transformer, and not into a {type(vit).__name__}: use --net vit-b16"
        )
    if vit.weights is None:
        raise ValueError(
            f"its network rests, so that it needs weights that were trained before: {HOW_TO_GET}; "
            "to go on with weights that know nothing, type --set vit-b16.weights=random"
        )
    return vit


class Prompting(Method, ABC):
    """Abstract: cross-entropy, and a term that pulls keys towards the images that use them."""

    net: Network[LinearHead]

    def __init__(self, make: MakeNetwork, pull: float) -> None:
        super().__init__()
        check_not_negative(pull=pull)
        self.net, self.present, self.pull = make(LinearHead), Present(), pull

    def begin(self, phase: Phase, pool: Pool) -> None:
        self.net.head.grow(phase.new)
        self.present.begin(pool)

    def criterion(self, out: Outputs, y: Tensor) -> Tensor:
        return self.present.cross_entropy(out, y)

    def loss(self, batch: Batch, phase: Phase, classify: Classify) -> dict[str, Tensor]:
        out = self.net(batch.x)
        assert out.nearness is not None
        return {"ce": classify(out, batch.y).mean(), "pull": self.distance(out.nearness, batch.y, phase)}

    @abstractmethod
    def distance(self, nearness: Tensor, y: Tensor, phase: Phase) -> Tensor:
        """The mean over images of the sum of 1 - cosine over the keys of the prompts that the image uses."""

    def weights(self, phase: Phase, stage: Stage) -> dict[str, float]:
        return {"pull": self.pull}
