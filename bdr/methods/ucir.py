"""UCIR: Learning a Unified Classifier Incrementally via Rebalancing (Hou et al., CVPR 2019).

One cosine classifier for all classes; after the first phase

    L = CE(eta cos)  +  lambda sqrt(K_old / K_new) (1 - cos(f, f*))  +  margin ranking                        (eq. 8)

f* are the features of the previous network (less-forget, eq. 6); margin ranking (eq. 7) holds every image of an old
class away from the best-scoring new embeddings. The embeddings of old classes rest. The default is the variant of the
CwD and BDR experiments: new embeddings start at random; `imprint` gives the original's.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from bdr.data.pool import Pool
from bdr.errors import check_more_than_zero, check_not_negative, check_one_or_more
from bdr.fusing import fused
from bdr.losses import cosine_distance, masked_mean
from bdr.methods.base import Method
from bdr.nets import CosineHead, MakeNetwork, Network, Teacher
from bdr.types import Batch, Classify, Outputs, Phase, Stage


@fused(logits=1, new_class=0)
def ranking(
    logits: Tensor, scale: Tensor | float, y: Tensor, new_class: Tensor, margin: float, negatives: int
) -> Tensor:
    """Equation 7, averaged over the samples of old classes in a batch; `new_class` (K,) marks the new classes."""
    cosines = logits / scale
    own = cosines.gather(1, y[:, None])
    hardest = cosines.masked_fill(~new_class, -torch.inf).topk(negatives, dim=1).values
    return masked_mean(torch.relu(margin - own + hardest).mean(1), ~new_class[y])


class UCIR(Method):
    net: Network[CosineHead]
    distillation = "less_forget"
    scale_setting = "eta"
    later = ("lambda_base", "margin", "negatives", "imprint")
    soft_targets = False  # margin ranking needs the one class of each image

    def __init__(
        self,
        make: MakeNetwork,
        lambda_base: float = 5.0,
        margin: float = 0.5,
        negatives: int = 2,
        eta: float = 1.0,
        imprint: bool = False,
    ) -> None:
        super().__init__()
        check_more_than_zero(eta=eta)
        check_not_negative(lambda_base=lambda_base, margin=margin)
        check_one_or_more(negatives=negatives)
        self.net = make(partial(CosineHead, eta=eta), last_relu=False)
        self.teacher = Teacher(self.net)
        self.lambda_base, self.margin, self.negatives, self.imprint = lambda_base, margin, negatives, imprint

    def begin(self, phase: Phase, pool: Pool) -> None:
        self.net.head.grow(phase.new)
        if self.imprint and not phase.first:
            self.net.head.imprint(self.new_directions(phase, pool))

    def new_directions(self, phase: Phase, pool: Pool) -> Tensor:
        """(K_new, D) the direction of each new class's mean normalised feature, seen by the network as it stands."""
        features = F.normalize(pool.outputs(self.net, pool.new).features)
        new = pool.store.labels[pool.new] - phase.old
        return F.normalize(features.new_zeros(phase.new, features.shape[1]).index_add_(0, new, features))

    def loss(self, batch: Batch, phase: Phase, classify: Classify) -> dict[str, Tensor]:
        out = self.net(batch.x)
        terms = {"ce": classify(out, batch.y).mean()}
        if not phase.first:
            old = self.teacher(batch.x)
            terms["less_forget"] = cosine_distance(out.features, old.features).mean()
            terms["margin"] = self.margin_ranking(out, batch.y, phase)
        return terms

    def weights(self, phase: Phase, stage: Stage) -> dict[str, float]:
        return {} if phase.first else {"less_forget": self.lambda_base * (phase.old / phase.new) ** 0.5}

    def margin_ranking(self, out: Outputs, y: Tensor, phase: Phase) -> Tensor:
        """Hold the own cosine of images of old classes above those of the hardest new classes by the margin."""
        new_class = torch.arange(phase.seen, device=y.device) >= phase.old
        negatives = min(self.negatives, phase.new)
        return ranking(out.logits, out.scale, y, new_class, self.margin, negatives)

    def end(self, phase: Phase, pool: Pool, exemplars: Tensor) -> None:
        self.teacher.refill(self.net)

    def report(self, phase: Phase) -> dict[str, Tensor]:
        """The scale of the cosines: the offsets of a plug-in need room in logits that lie within it."""
        return {"eta": self.net.head.eta}
