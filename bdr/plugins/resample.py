"""Balanced sampling: after the first phase every class is equally likely, and an epoch stays as long.

Stages that draw all images draw as many with replacement, class by class alike: exemplars come up often, images of new
classes less often than once an epoch. Other stages, such as a method's own balanced one, are left as they are.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from bdr.data.pool import Census
from bdr.errors import UsageError
from bdr.losses import one_hot
from bdr.plugins.base import Plugin
from bdr.types import Batch, Outputs, Phase, Stage


class Resampling(Plugin):
    role = "draw"
    needs_exemplars = True
    by_class = ("drawn",)
    drawn: Tensor  # (K,) samples of each class in this epoch

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("drawn", torch.zeros(0))

    def acts(self, phase: Phase, stage: Stage) -> bool:
        return not phase.first and stage.draw == "uniform"

    def begin(self, phase: Phase, census: Census, net: nn.Module) -> None:
        self.lay_out({"classes": phase.seen})

    @torch.no_grad()
    def observe(self, batch: Batch, out: Outputs) -> None:
        self.drawn.mul_(batch.clock.step > 0).add_(one_hot(batch.y, self.drawn[None]).sum(0))

    def report(self, phase: Phase, net: nn.Module) -> dict[str, Tensor]:
        """The share of old classes in what the epoch drew."""
        return {"share_old": self.drawn[: phase.old].sum() / self.drawn.sum().clamp(min=1)}

    def stages(self, phase: Phase, stages: list[Stage]) -> list[Stage]:
        if phase.first:
            return stages
        if not any(stage.draw == "all" for stage in stages):
            draws = ", ".join(stage.draw for stage in stages)
            raise UsageError(
                f"plug-in '{self.name}' draws classes equally often where a stage draws all images, and phase "
                f"{phase.index} has no such stage ({draws}): leave it out"
            )
        return [replace(stage, draw="uniform") if stage.draw == "all" else stage for stage in stages]
