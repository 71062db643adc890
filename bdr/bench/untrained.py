"""A learner is brought to a later phase without training: all in place that the phases before it would leave."""

from __future__ import annotations

import torch

from bdr.data.pool import Pool
from bdr.engine.learner import Learner
from bdr.methods import Method
from bdr.types import Phase


def begun(learner: Learner, number: int) -> tuple[Phase, Pool]:
    """The start of a phase, with all in place that the phases before it would leave, but for what training teaches."""
    learner.settle()
    for earlier in learner.phases[:number]:
        pass_untrained(learner, earlier)
    phase = learner.phases[number]
    return phase, learner.begin_phase(phase)


def pass_untrained(learner: Learner, phase: Phase) -> None:
    """All that a run does in a phase, without a step: networks grow, exemplars are chosen, teachers are copied."""
    pool = learner.begin_phase(phase)
    for _ in learner.each_stage(phase, pool):
        pass_for_trained(learner.method)
    learner.end_phase(phase, pool)


@torch.no_grad()
def pass_for_trained(method: Method) -> None:
    """In place of a stage's training: no two weights are equal."""
    for parameter in method.parameters():
        if parameter.requires_grad:
            parameter.mul_(torch.empty_like(parameter).uniform_(0.9, 1.1))
