"""BDR as a plug-in (arXiv 2308.01698): the module of `bdr.balance` around any method's classification loss."""

from __future__ import annotations

import warnings

from torch import Tensor, nn

from bdr.balance import BDR, Components, Formula
from bdr.balance.equations import compensation
from bdr.data.pool import Census
from bdr.plugins.base import Prior, old_and_new
from bdr.types import Batch, Classify, Outputs, Phase


class BDRPlugin(Prior):
    def __init__(
        self,
        m: float = 0.8,
        m_prime: float = 0.8,
        beta: float = 0.99,
        tau: float = 1.0,
        formula: Formula = "corrected",
        components: Components = "cr+dc+momentum",
    ) -> None:
        super().__init__()
        self.balance = BDR(m, m_prime, beta, tau, formula, components)

    def begin(self, phase: Phase, census: Census, net: nn.Module) -> None:
        out = census.outputs(net)
        self.balance.begin(census.labels, out.features, phase.seen)
        warn_of_small_scale(self.balance.offset, out.scale)

    def observe(self, batch: Batch, out: Outputs) -> None:
        self.balance.observe(out.features, batch.y)

    def report(self, phase: Phase, net: nn.Module) -> dict[str, Tensor]:
        """Mean offset, spread and compensation (equation 2) of old and of new classes."""
        offset, spread = self.balance.offset, self.balance.spread
        return old_and_new(phase, offset=offset, spread=spread, omega=compensation(spread))

    def classify(self, inner: Classify, out: Outputs, y: Tensor) -> Tensor:
        return inner(out.shift(self.balance.offset), y)


def warn_of_small_scale(offset: Tensor, scale: Tensor | float) -> None:
    """Warn of offsets that span more than cosine logits can, [-scale, scale]: they would decide alone."""
    if not isinstance(scale, Tensor):  # a linear head, whose logits are not bounded
        return
    span, room = float(offset.max() - offset.min()), 2 * float(scale.detach())
    if span > room:
        warnings.warn(
            f"BDR's offsets span {span:.1f}, more than the {room:.1f} that cosine logits can at a scale of "
            f"{room / 2:.1f}: old classes will be over-favoured; start with a larger scale (a setting of "
            "the method, on its page in docs/methods), or train longer",
            stacklevel=2,
        )
