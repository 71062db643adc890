"""How precisely networks compute."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import nn

from bdr.nets.base import Backbone, Network


def choose_precision(precision: str, device: torch.device) -> str:
    if precision == "auto":
        return "bf16" if device.type == "cuda" else "fp32"
    return precision


def set_precision(part: nn.Module, precision: str, device: torch.device) -> None:
    """Backbones in bfloat16 under `bf16`; convolutions in TensorFloat-32 under `tf32`; channels last on a GPU."""
    for module in part.modules():
        if isinstance(module, Network):
            module.precision = torch.bfloat16 if precision == "bf16" else None
            module.tf32 = precision == "tf32"
        if isinstance(module, Backbone) and precision == "bf16":
            for layer in module.kept_elsewhere():
                layer.to(torch.bfloat16)  # once, where autocast would cast it at each use
    if device.type == "cuda":
        part.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


@contextlib.contextmanager
def convolving_as(part: nn.Module) -> Iterator[None]:
    """Inside, convolutions are as precise as the part's networks say; outside, as the process has them."""
    cudnn, before = torch.backends.cudnn, torch.backends.cudnn.allow_tf32
    cudnn.allow_tf32 = any(module.tf32 for module in part.modules() if isinstance(module, Network))
    try:
        yield
    finally:
        cudnn.allow_tf32 = before
