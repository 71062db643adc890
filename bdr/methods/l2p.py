"""L2P: Learning to Prompt for Continual Learning (Wang et al., CVPR 2022).

    min  L(g(mean of prompt outputs), y)  +  lambda sum over the chosen keys k of (1 - cos(q(x), k))

A pool of prompts with a key each. The query q(x) is what the transformer, which rests, says of an image without
prompts; the prompts of the nearest keys stand among the tokens of the image, and what becomes of them is classified. In
training the images of a batch agree on their prompts by majority, as in its PyTorch port.
"""

from __future__ import annotations

from torch import Tensor

from bdr.errors import check_one_or_more
from bdr.methods.prompting import Prompting, transformer_of
from bdr.nets import MakeNetwork
from bdr.nets.prompted import PromptedInput
from bdr.types import Phase


class L2P(Prompting):
    def __init__(self, make: MakeNetwork, pool: int = 10, length: int = 5, top: int = 5, pull: float = 0.1) -> None:
        super().__init__(make, pull)
        check_one_or_more(pool=pool, length=length, top=top)
        if top > pool:
            raise ValueError(f"top = {top} is not allowed: the pool has {pool} prompts")
        self.top = top
        self.net.backbone = PromptedInput(transformer_of(self.net), pool, length, top)

    def distance(self, nearness: Tensor, y: Tensor, phase: Phase) -> Tensor:
        return self.top - nearness.mean()
