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

from bdr.balance.equations import FORMULAS, Formula, compensation, frequency
from bdr.balance.module import BDR, COMPONENTS, Components

__all__ = ["BDR", "COMPONENTS", "FORMULAS", "Components", "Formula", "compensation", "frequency"]
