"""Gates on the channels of a network, learnt with it: soft while they learn, open or shut once they are settled.

    m = sigmoid(s e),     s = 1 / s_max + (s_max - 1 / s_max) (b - 1) / (B - 1) at batch b of the B of an epoch

The steeper the sigmoid, the less of a gradient it lets through to e, so gradients are compensated for it:

    g' = g sigma'(e) / (s sigma'(s e)),   and since   g = dL/dm s sigma'(s e),   that is   g' = dL/dm sigma'(e)

which is how it is computed here: the value is that of the steep sigmoid, the slope that of the plain one. A factor on
gradients would be 0 times infinity wherever the steep sigmoid is saturated.

The best gate for a channel of little use is ajar: in a long training, the e of many gates end up so near to zero that
they are neither open nor shut at s_max, and the network counts on that. So the gates are settled before the end of
training: each is moved far to its side of zero, where its slope is zero too, and the weights adapt to the channels that
will be left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bdr.nets.base import Resumable
from bdr.nets.prunable import Prunable, above, quadratic
from bdr.types import Clock

OPENNESS = 2.0  # where e begins, give or take one: nearly all gates are open
SETTLED = 1e6  # how far from zero the e of a settled gate is: open or shut for good, at any s


def steep_sigmoid(e: Tensor, s: Tensor) -> Tensor:
    """sigmoid(s e), with the compensated slope."""
    plain = e.sigmoid()
    return plain + ((s * e).sigmoid() - plain).detach()


def steepness(clock: Clock, s_max: float) -> Tensor:
    """The factor s: from 1 / s_max at the first batch of an epoch to s_max at the last; s_max if there is only one."""
    to_come = (clock.steps - 1 - clock.step) / (clock.steps - 1).clamp(min=1)
    return 1 / s_max + (s_max - 1 / s_max) * (1 - to_come)


class Gates(Resumable):
    """The gates of a network: one number e for each channel, group after group; none where there are no gates."""

    s: Tensor
    table: Tensor  # `Prunable.table` of the convolution weights, as shares of all of them

    def __init__(self) -> None:
        super().__init__()
        self.widths: list[int] = []
        self.e = nn.Parameter(torch.empty(0))
        self.register_buffer("s", torch.ones(()))
        self.register_buffer("table", torch.empty(0, 0))

    def begin(self, net: Prunable) -> None:
        """Give every channel of the network a gate."""
        like = next(net.parameters())
        self.lay_out({"widths": net.widths})
        self.e.data = (OPENNESS + torch.randn(sum(self.widths))).to(like)  # on the CPU, so all devices start alike
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
        """The numbers e of each group."""
        return self.e.split(self.widths)

    @torch.no_grad()
    def settle(self, kept: Sequence[Tensor]) -> None:
        """Open for good the gates that the masks (one for each group) keep, and shut all others for good."""
        self.e.copy_(torch.cat(list(kept)) * 2 * SETTLED - SETTLED)

    @property
    def settled(self) -> bool:
        """Whether all gates are settled. Momentum may still move an e a little, but never back to where it learns."""
        return self.there and bool((self.e.abs() > SETTLED / 2).all())

    def anneal(self, clock: Clock, s_max: float) -> None:
        self.s.copy_(steepness(clock, s_max))

    def forward(self) -> tuple[Tensor, ...] | None:
        """The factors of the channels in each group; None without gates."""
        if not self.there:
            return None
        if self.training:
            return steep_sigmoid(self.e, self.s).split(self.widths)
        return tuple(mask.to(self.e.dtype) for mask in self.kept())

    def kept(self) -> list[Tensor]:
        """Masks of the channels whose gate is open; in each group the one with the largest e always is."""
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
