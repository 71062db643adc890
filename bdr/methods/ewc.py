"""EWC: Overcoming catastrophic forgetting in neural networks (Kirkpatrick et al., PNAS 2017).

    L = CE  +  lambda / 2 sum_p F_p (theta_p - theta*_p)^2                                                      (eq. 3)

theta* are the parameters of the backbone at the end of the previous phase, F the diagonal of their Fisher information:
how sharply the network's opinions change with each of them. That of all earlier phases is one F, merged half and half
with each new one. The classifier is not held. No exemplar is needed, and cross-entropy is taken over the new classes
alone; where exemplars are kept, over all of them.
"""

from __future__ import annotations

from torch import Tensor

from bdr.data.pool import Pool
from bdr.errors import check_one_or_more
from bdr.methods.importance import Held, fisher, merged
from bdr.nets import MakeNetwork
from bdr.types import Phase


class EWC(Held):
    def __init__(self, make: MakeNetwork, weight: float = 5000.0, fisher_batch: int = 64) -> None:
        super().__init__(make, weight, share=1 / 2)
        check_one_or_more(fisher_batch=fisher_batch)
        self.fisher_batch = fisher_batch

    def end(self, phase: Phase, pool: Pool, exemplars: Tensor) -> None:
        new = fisher(self.net, self.net.backbone, self.present, pool, self.fisher_batch)
        self.anchor.cast(self.net.backbone, merged(self.anchor.importance, new, phase.first))
