"""The form of a step that each engine stands for."""

from __future__ import annotations

import torch

from bdr.engine.step.captured import GraphStep
from bdr.engine.step.compiled import CompiledStep, can_compile
from bdr.engine.step.eager import EagerStep, Step
from bdr.errors import UsageError


def choose_engine(engine: str, device: torch.device) -> str:
    """The engine for a device: what `auto` stands for is chosen, and what the device cannot do is refused."""
    if engine == "auto":
        return "graph" if device.type == "cuda" else "eager"
    if engine == "graph" and device.type != "cuda":
        raise UsageError(
            f"the engine 'graph' needs a CUDA device and this is '{device}'; use --engine eager or compile"
        )
    return engine


def make_step(engine: str, eager: EagerStep, whole: bool = True) -> Step:
    """The step in the form that the engine names.

    A pool smaller than a batch has a shape of its own in every phase, so only `whole` batches are worth compiling.
    """
    if engine == "eager":
        return eager
    compiled: Step = CompiledStep(eager) if whole and can_compile(eager.store.device) else eager
    return GraphStep(compiled, eager) if engine == "graph" else compiled
