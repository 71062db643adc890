"""SI: Continual Learning Through Synaptic Intelligence (Zenke, Poole and Ganguli, ICML 2017).

    L = CE  +  c sum_p Omega_p (theta_p - theta*_p)^2                                                           (eq. 4)

theta* are the parameters of the backbone at the end of the previous phase. Omega adds up, phase by phase, how much each
parameter has lowered the loss on its way, for the length of that way:

    Omega_p += w_p / ((theta_p - theta*_p)^2 + xi),     w_p = - sum over steps of g_p Delta theta_p              (eq. 5)

g is the gradient without that of the penalty, which is known and needs no second backward pass. The classifier is not
held. No exemplar is needed, and cross-entropy is taken over the new classes alone; where exemplars are kept, over all
of them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bdr.data.pool import Pool
from bdr.methods.importance import Walked
from bdr.nets import MakeNetwork
from bdr.types import Phase


class SI(Walked):
    def __init__(self, make: MakeNetwork, weight: float = 0.1, damping: float = 0.1) -> None:
        super().__init__(make, weight, damping)

    @torch.no_grad()
    def end(self, phase: Phase, pool: Pool, exemplars: Tensor) -> None:
        """Update the importance; where it would be negative it is 0, so the parameter is free and not pushed away."""
        new = self.path.gained / (self.anchor.moved(self.net.backbone) + self.damping)
        self.anchor.cast(self.net.backbone, torch.relu(self.anchor.importance + new))
        self.path.gained.zero_()
