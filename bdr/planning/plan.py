"""A run that has been checked and not yet begun, and how much work it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bdr.configuration.config import Config
from bdr.data.pool import held_of_each, images_drawn
from bdr.engine.experiment import Experiment
from bdr.engine.learner import Learner
from bdr.records.speed import Setup
from bdr.records.work import images_of
from bdr.types import Phase, Stage


@dataclass(frozen=True)
class Plan:
    """A run that has been checked and not yet begun."""

    config: Config
    experiment: Experiment
    info: dict[str, Any]
    notes: tuple[str, ...] = ()  # to be shown before it trains: what was adapted, and what has changed

    @property
    def learner(self) -> Learner:
        return self.experiment.learner

    def new_images(self, phase: Phase) -> int:
        return len(self.learner.train.of_classes(phase.old, phase.seen))

    def kept(self, classes: int) -> Tensor:
        """(K,) how many images of each of the first `classes` classes the memory will hold when it covers them.

        Distributed herding holds fewer where its two halves choose the same image.
        """
        there = self.learner.train.labels.bincount()[:classes]
        return there.clamp(max=self.learner.memory.quota.each(classes)) if classes else there

    def exemplars(self, classes: int) -> int:
        """How many images of the first `classes` classes the memory will hold."""
        return int(self.kept(classes).sum())

    def drawn(self, phase: Phase, stage: Stage) -> int:
        """How many images an epoch of a stage draws."""
        new = self.learner.train.labels.bincount()[phase.old : phase.seen]
        counts = torch.cat([self.kept(phase.old), new])
        held = 0 if phase.first else held_of_each(self.learner.method.held, counts)
        return images_drawn(stage.draw, counts, held, self.kept(phase.seen))

    def work(self) -> list[list[dict[str, Any]]]:
        """For every stage of every phase: its name, how it draws, images drawn per epoch, views, and epochs.

        The list of a phase that is taken over from another run is empty.
        """
        pairs, taken = zip(self.learner.phases, self.learner.stages, strict=True), self.experiment.taken_over
        return [[self.work_of(phase, stage) for stage in stages if phase.index >= taken] for phase, stages in pairs]

    def work_of(self, phase: Phase, stage: Stage) -> dict[str, Any]:
        views = sum(plugin.views for plugin in self.learner.plugins if plugin.acts(phase, stage))
        drawn = {"images": self.drawn(phase, stage), "draw": stage.draw, "views": views}
        return {"stage": stage.name, **drawn, "epochs": stage.epochs}

    def workload(self) -> list[list[int]]:
        """How many images pass through training, for every stage of every phase."""
        return [[images_of(stage) for stage in stages] for stages in self.work()]


def setup_of(plan: Plan) -> Setup:
    """The facts that another run must share with this one for its speed to predict the speed of this one."""
    image, precision = tuple(plan.info["image"]), plan.info["protocol"]["precision"]
    return Setup(plan.config.net, plan.experiment.device.type, image, precision)
