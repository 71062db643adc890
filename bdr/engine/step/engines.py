"""Which form of a step each engine means."""

from __future__ import annotations

import torch

from bdr.engine.step.captured import GraphStep
from bdr.engine.step.compiled import CompiledStep, can_compile
from bdr.engine.step.eager import EagerStep, Step
from bdr.errors import UsageError


def choose_engine(engine: str, device: torch.device) -> str:
    """What `auto` means here, and a refusal of what cannot be."""
    if engine == "auto":
        return "graph" if device.type == "cuda" else "eager"
    if engine == "graph" and device.type != "cuda":
        raise UsageError(
            f"the engine 'graph' needs a CUDA device and this is '{device}'; use --engine eager or compile"
        )
    return engine


def make_step(engine: str, eager: EagerStep, whole: bool = True) -> Step:
    """The step in the form that the engine names.

    A pool smaller than a batch is a shape of its own, in every phase another: what is not whole is not worth compiling.
    """
    if engine == "eager":
        return eager
    compiled: Step = CompiledStep(eager) if whole and can_compile(eager.store.device) else eager
    return GraphStep(compiled, eager) if engine == "graph" else compiled
