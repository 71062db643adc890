"""Bringing a learner to a later phase without training it."""

from __future__ import annotations

import torch

from bdr.data.pool import Pool
from bdr.engine.learner import Learner
from bdr.methods import Method
from bdr.types import Phase


def begun(learner: Learner, number: int) -> tuple[Phase, Pool]:
    """Begin a phase as after the phases before it: all that these leave is in place, except trained weights."""
    learner.settle()
    for earlier in learner.phases[:number]:
        pass_untrained(learner, earlier)
    phase = learner.phases[number]
    return phase, learner.begin_phase(phase)


def pass_untrained(learner: Learner, phase: Phase) -> None:
    """Do all that a run does in a phase except the steps: networks grow, exemplars are chosen, teachers are copied."""
    pool = learner.begin_phase(phase)
    for _ in learner.each_stage(phase, pool):
        pass_for_trained(learner.method)
    learner.end_phase(phase, pool)


@torch.no_grad()
def pass_for_trained(method: Method) -> None:
    """Change the weights at random in place of a stage's training, so that no two of them are equal."""
    for parameter in method.parameters():
        if parameter.requires_grad:
            parameter.mul_(torch.empty_like(parameter).uniform_(0.9, 1.1))
