"""A step with compiled parts, and what surrounds a run that has such steps."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from bdr.data.pool import Epoch
from bdr.engine.step.eager import EagerStep, looked, taken
from bdr.fusing import fusing, mark_growing
from bdr.nets.base import Backbone

VERSIONS = 64  # backbones of one kind share compiled code, which has a version for each of their shapes and modes


class CompiledStep:
    """The step with compiled backbones, augmentation and losses; everything outside a step stays eager."""

    def __init__(self, step: EagerStep) -> None:
        self.step = step
        options = compiling_for(step.store.device)
        for module in (part for root in step.objective.parts for part in backbone_parts(root)):
            if module._compiled_call_impl is None:
                module.compile(dynamic=False, options=options)
        step.taken, step.looked = torch.compile(taken), torch.compile(looked)

    def open(self, epoch: Epoch, log: Tensor | None) -> None:
        self.step.open(epoch, log)
        assert self.step.epoch is not None
        for tensor in self.step.epoch.tensors():
            mark_growing(tensor, 0)
            if tensor.dim() > 1:  # another batch size is another version, and leaves this one as it is
                torch._dynamo.mark_static(tensor, 1)

    def __call__(self) -> None:
        with torch.compiler.set_stance("default"), fusing(), tried_convolutions():
            self.step()


def compiling_for(device: torch.device) -> dict[str, Any] | None:
    """Options of the compiler: on a GPU, many small kernels that cast a backbone's weights are combined into one."""
    return {"combo_kernels": True} if device.type == "cuda" else None


def backbone_parts(module: nn.Module) -> Iterator[nn.Module]:
    """The parts of every backbone that are to be compiled; for a backbone inside another, the outer one names them."""
    if isinstance(module, Backbone):
        yield from module.to_compile()
    else:
        for child in module.children():
            yield from backbone_parts(child)


def tried_convolutions() -> contextlib.AbstractContextManager[object]:
    """Inside, cuDNN times all its algorithms once for every shape of convolution and keeps the fastest."""
    now = torch.backends.cudnn
    as_now = {"enabled": now.enabled, "deterministic": now.deterministic, "allow_tf32": now.allow_tf32}
    return now.flags(benchmark=True, benchmark_limit=0, **as_now)  # 0: no limit to how many


def can_compile(device: torch.device) -> bool:
    if device.type != "cuda":
        return True
    from torch.utils._triton import has_triton

    if not has_triton():
        warnings.warn("Triton is missing, so nothing is compiled: steps will take about a quarter longer", stacklevel=2)
    return has_triton()


@contextlib.contextmanager
def eager_between_steps(engine: str) -> Iterator[None]:
    """Inside, only steps run compiled, and the rest eager: evaluation, herding and statistics come in many shapes."""
    if engine == "eager":  # nothing is compiled, so no stance is asked for
        yield
        return
    with torch.compiler.set_stance("force_eager"), many_versions():
        yield


def many_versions() -> contextlib.AbstractContextManager[object]:
    """Inside, code may be compiled for many shapes; too many are an error, where torch would just become slow.

    It goes around a run and not around a step: each such patch leaves a context variable behind for good.
    """
    return torch._dynamo.config.patch(recompile_limit=VERSIONS, fail_on_recompile_limit_hit=True)
