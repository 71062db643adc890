"""RWalk: Riemannian Walk for Incremental Learning (Chaudhry et al., ECCV 2018).

    L = CE  +  lambda sum_p (F_p + s_p) (theta_p - theta*_p)^2

theta* are the parameters of the backbone at the end of the previous phase, F the diagonal of their Fisher information
as in EWC, and s the score of the path that led there: how much a parameter has lowered the loss, for how much it has
changed the network's opinions:

    s_p = max(0, w_p / (F_p (theta_p - theta*_p)^2 + damping)),     w_p = - sum over steps of g_p Delta theta_p

g is the gradient without that of the penalty. Both are averaged with those of earlier phases. The classifier is not
held: exemplars, trained on like any other image, keep it in balance.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bdr.data.pool import Pool
from bdr.errors import check_one_or_more
from bdr.methods.importance import Walked, fisher, merged
from bdr.nets import MakeNetwork
from bdr.types import Phase


class RWalk(Walked):
    fisher: Tensor  # (P,) the importance is the sum of this and `score`
    score: Tensor  # (P,)
    training_only = ("anchor", "path", "fisher", "score")

    def __init__(self, make: MakeNetwork, weight: float = 1.0, damping: float = 0.1, fisher_batch: int = 64) -> None:
        super().__init__(make, weight, damping)
        check_one_or_more(fisher_batch=fisher_batch)
        self.register_buffer("fisher", torch.zeros_like(self.anchor.importance))
        self.register_buffer("score", torch.zeros_like(self.anchor.importance))
        self.fisher_batch = fisher_batch

    def end(self, phase: Phase, pool: Pool, exemplars: Tensor) -> None:
        new = fisher(self.net, self.net.backbone, self.present, pool, self.fisher_batch)
        self.fisher.copy_(merged(self.fisher, new, phase.first))
        self.score.copy_(merged(self.score, self.path_score(), phase.first))
        self.anchor.cast(self.net.backbone, self.fisher + self.score)
        self.path.gained.zero_()

    def path_score(self) -> Tensor:
        """(P,) how much each parameter has lowered the loss in this phase, relative to its way on the manifold."""
        return torch.relu(self.path.gained / (self.fisher * self.anchor.moved(self.net.backbone) + self.damping))
