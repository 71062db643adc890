"""One training step, with one signature: eager, compiled, or captured as a CUDA graph. All speed tricks are in here.

A step finds its rows and their augmentation in the draws of the epoch, at the clock's position, and leaves the values
of all loss terms in the epoch's log. The host reads nothing in it. In the captured form, the whole step is one graph
launch: gathering, augmenting, both networks (side by side), the losses, backward, optimiser and log; the backbones,
the augmentation and the functions marked by `bdr.fusing` are compiled.
"""

from __future__ import annotations

from bdr.engine.step.captured import give_back
from bdr.engine.step.compiled import CompiledStep, backbone_parts, eager_between_steps
from bdr.engine.step.eager import EagerStep, Step, taken
from bdr.engine.step.engines import choose_engine, make_step
from bdr.engine.step.optimizer import make_optimizer, set_rate
from bdr.engine.step.precision import choose_precision, convolving_as, set_precision

__all__ = [
    "CompiledStep",
    "EagerStep",
    "Step",
    "backbone_parts",
    "choose_engine",
    "choose_precision",
    "convolving_as",
    "eager_between_steps",
    "give_back",
    "make_optimizer",
    "make_step",
    "set_precision",
    "set_rate",
    "taken",
]
