"""Finds where the user's own code reads a value from the device in a step, which a captured step cannot do."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bdr.errors import UsageError

ATEN = torch.ops.aten
MASKED = "takes those that a mask leaves"


class HostReads(TorchDispatchMode):
    """A context that notes the first line of the user's own code that reads a value from the device."""

    def __init__(self, own: Collection[str]) -> None:
        super().__init__()
        self.own, self.found = own, ""

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        what = asked_by(func, args, kwargs)
        if what and not self.found and (frame := self.asking()):
            code = frame.f_code
            self.found = f"{code.co_filename}, line {frame.f_lineno}, in {code.co_name}, {what}"
        return func(*args, **kwargs)

    def asking(self) -> FrameType | None:
        """The innermost frame outside of torch, if it is in the user's own code."""
        frame = sys._getframe(1).f_back  # a backward pass on a GPU has a thread of its own, and no frames below
        while frame is not None and home_of_frame(frame) == "torch":
            frame = frame.f_back
        return frame if frame is not None and home_of_frame(frame) in self.own else None

    def refuse(self) -> None:
        if self.found:
            raise UsageError(
                f"{self.found}: a step that is captured cannot wait for the device; use masks that multiply "
                "(torch.where, losses.masked_mean) instead, or type --engine eager"
            )


def asked_by(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> str:
    """How an operation reads a value from the device, in words; empty if it reads none."""
    if func is ATEN.index.Tensor:
        return MASKED if has_mask(args[1]) else ""
    if func is ATEN.index_put_.default:
        return MASKED if has_mask(args[1]) and not is_fill(args[1], args[2]) else ""
    if func is ATEN._to_copy.default:
        return copied(args[0], kwargs.get("device"))
    if torch.Tag.data_dependent_output in func.tags:
        return "reads a value, as .item(), float(), if and torch.equal do"
    if torch.Tag.dynamic_output_shape in func.tags and kwargs.get("output_size") is None:
        return "asks how many values there are, as nonzero, x[mask], unique and bincount do"
    return ""


def has_mask(indices: Sequence[Tensor | None]) -> bool:
    """Whether an index is a mask, as in `x[mask]`."""
    return any(isinstance(index, Tensor) and index.dtype == torch.bool for index in indices)


def is_fill(indices: Sequence[Tensor | None], value: Tensor) -> bool:
    """Whether `x[mask] = value` is a fill, which reads nothing: a number for a single mask, not one on the device."""
    return value.numel() == 1 and value.is_cpu and sum(index is not None for index in indices) == 1


def copied(tensor: Tensor, to: torch.device | None) -> str:
    """Which way a copy leaves its device, in words; empty if it stays there, or can be captured."""
    if to is None or tensor.device.type == to.type or (tensor.is_cpu and tensor.is_pinned()):
        return ""
    return f"copies {'from' if tensor.is_cpu else 'to'} the CPU"


def home_of(module: str) -> str:
    """The top-level package that a module is in."""
    return module.partition(".")[0]


def home_of_frame(frame: FrameType) -> str:
    return home_of(str(frame.f_globals.get("__name__", "")))
