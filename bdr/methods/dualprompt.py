"""DualPrompt: Complementary Prompting for Rehearsal-free Continual Learning (Wang et al., ECCV 2022).

    min  L(f_{g, e_t}(x), y)  +  lambda (1 - cos(q(x), k_t))

Prompts are prefixes: keys and values that blocks of the resting transformer look at besides their own. The G-prompt g
goes into the first blocks and is shared by all phases; every phase t has an E-prompt e_t with a key k_t, for the next
blocks. In training the E-prompt of the phase is used; afterwards the one whose key is nearest to the query q(x).
"""

from __future__ import annotations

from typing import cast

from torch import Tensor

from bdr.data.pool import Pool
from bdr.errors import UsageError, check_one_or_more
from bdr.losses import masked_mean, old_mass
from bdr.methods.prompting import Prompting, transformer_of
from bdr.nets import MakeNetwork
from bdr.nets.prompted import PrefixedBlocks
from bdr.types import Phase, Stage


def check_blocks(g_blocks: tuple[int, ...], e_blocks: tuple[int, ...], depth: int) -> None:
    for name, blocks in {"g_blocks": g_blocks, "e_blocks": e_blocks}.items():
        if not blocks or not all(0 <= block < depth for block in blocks):
            raise ValueError(f"{name} = {blocks} is not allowed: the network has blocks 0 to {depth - 1}")
    if len({*g_blocks, *e_blocks}) < len(g_blocks) + len(e_blocks):
        raise ValueError(f"g_blocks = {g_blocks}, e_blocks = {e_blocks} is not allowed: a block has one prompt")


class DualPrompt(Prompting):
    later = ("inherit",)

    def __init__(
        self,
        make: MakeNetwork,
        pool: int = 10,
        g_length: int = 5,
        e_length: int = 5,
        g_blocks: tuple[int, ...] = (0, 1),
        e_blocks: tuple[int, ...] = (2, 3, 4),
        inherit: bool = True,
        pull: float = 1.0,
    ) -> None:
        super().__init__(make, pull)
        check_one_or_more(pool=pool, g_length=g_length, e_length=e_length)
        vit = transformer_of(self.net)
        check_blocks(g_blocks, e_blocks, len(vit.blocks))
        self.pool, self.inherit = pool, inherit
        self.net.backbone = PrefixedBlocks(vit, g_blocks, e_blocks, pool, (g_length, e_length))

    def stages(self, phase: Phase, base: Stage) -> list[Stage]:
        if phase.index >= self.pool:
            raise UsageError(
                f"dualprompt has an E-prompt for each of {self.pool} phases, and this run has more: "
                f"type --set dualprompt.pool={phase.index + 1} or more, or use a larger --step"
            )
        return [base]

    def begin(self, phase: Phase, pool: Pool) -> None:
        super().begin(phase, pool)
        cast(PrefixedBlocks, self.net.backbone).enter(phase.index, self.inherit)

    def distance(self, nearness: Tensor, y: Tensor, phase: Phase) -> Tensor:
        """The mean over images of new classes: exemplars of earlier phases must not pull at the key of this one."""
        return masked_mean(1 - nearness, 1 - old_mass(y, phase.old))
