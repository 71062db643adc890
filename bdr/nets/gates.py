"""Gates on the channels of a network, learnt with it: soft while they learn, open or shut once they are settled.

    m = sigmoid(s e),     s = 1 / s_max + (s_max - 1 / s_max) (b - 1) / (B - 1) at batch b of the B of an epoch

The steeper the sigmoid, the less of a slope it lets through to e, so gradients are compensated for it:

    g' = g sigma'(e) / (s sigma'(s e)),   and since   g = dL/dm s sigma'(s e),   that is   g' = dL/dm sigma'(e)

which is how it is computed here: the value is that of the steep sigmoid, the slope that of the plain one. As a factor
on gradients it would be 0 times infinity wherever the steep one is saturated.

A channel that is worth a little is best left ajar: in a long training e of many a gate ends up so near to zero that it
is neither open nor shut at s_max, and the network counts on that. So before it is trained to the end its gates are
settled, each far on its side, where it has no slope either, and the weights get used to what will be left of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bdr.nets.base import Resumable
from bdr.nets.prunable import Prunable, above, quadratic
from bdr.types import Clock

OPENNESS = 2.0  # where gates begin, give or take one: nearly all open
SETTLED = 1e6  # how far from zero a gate is open or shut at any s, for good


def steep_sigmoid(e: Tensor, s: Tensor) -> Tensor:
    """sigmoid(s e), with the compensated slope."""
    plain = e.sigmoid()
    return plain + ((s * e).sigmoid() - plain).detach()


def steepness(clock: Clock, s_max: float) -> Tensor:
    """From 1 / s_max at the first batch of an epoch to s_max at the last; s_max where there is but one."""
    to_come = (clock.steps - 1 - clock.step) / (clock.steps - 1).clamp(min=1)
    return 1 / s_max + (s_max - 1 / s_max) * (1 - to_come)


class Gates(Resumable):
    """One number e for every channel, group after group; none where there are no gates."""

    s: Tensor
    table: Tensor  # of the weights that the gates stand on, as shares of all

    def __init__(self) -> None:
        super().__init__()
        self.widths: list[int] = []
        self.e = nn.Parameter(torch.empty(0))
        self.register_buffer("s", torch.ones(()))
        self.register_buffer("table", torch.empty(0, 0))

    def begin(self, net: Prunable) -> None:
        """A gate for every channel of the network."""
        like = next(net.parameters())
        self.lay_out({"widths": net.widths})
        self.e.data = (OPENNESS + torch.randn(sum(self.widths))).to(like)  # on the CPU: every device starts alike
        table = net.table(norms=False)
        whole = quadratic(torch.tensor(self.widths, dtype=table.dtype), table)
        self.table.copy_(table / whole)
        self.to(like.device)

    def clear(self) -> None:
        self.lay_out({"widths": []})

    @property
    def there(self) -> bool:
        return bool(self.widths)

    def groups(self) -> tuple[Tensor, ...]:
        """The numbers of each group."""
        return self.e.split(self.widths)

    @torch.no_grad()
    def settle(self, kept: Sequence[Tensor]) -> None:
        """Open for good where the mask of a group says so, and shut elsewhere."""
        self.e.copy_(torch.cat(list(kept)) * 2 * SETTLED - SETTLED)

    @property
    def settled(self) -> bool:
        """Momentum may still move a number or two on, but never back to where it learns."""
        return self.there and bool((self.e.abs() > SETTLED / 2).all())

    def anneal(self, clock: Clock, s_max: float) -> None:
        self.s.copy_(steepness(clock, s_max))

    def forward(self) -> tuple[Tensor, ...] | None:
        """What each group of channels is multiplied by."""
        if not self.there:
            return None
        if self.training:
            return steep_sigmoid(self.e, self.s).split(self.widths)
        return tuple(mask.to(self.e.dtype) for mask in self.kept())

    def kept(self) -> list[Tensor]:
        """Masks of the channels whose gate is open; in every group the widest one is."""
        return above(self.groups(), 0.0)

    def sparsity(self) -> Tensor:
        """The share of the weights that is left: sum_l k_l^2 |m_l-1| |m_l| over sum_l k_l^2 c_l-1 c_l."""
        widths = torch.stack([group.sum() for group in steep_sigmoid(self.e, self.s).split(self.widths)])
        return quadratic(widths, self.table)

    def layout(self) -> dict[str, Any]:
        return {"widths": self.widths}

    def lay_out(self, layout: dict[str, Any]) -> None:
        self.widths = list(layout["widths"])
        pairs = 1 + len(self.widths) if self.widths else 0
        self.e = nn.Parameter(self.e.data.new_empty(sum(self.widths)))
        self.table = self.table.new_empty(pairs, pairs)
