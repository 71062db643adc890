"""Where code of one's own asks the device for a value while a step is made: a captured step cannot answer."""

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
READS = {  # what waits for the device to say a value, or how many there are
    ATEN._local_scalar_dense.default: "reads a value, as .item(), float() and if do",
    ATEN.nonzero.default: "asks which values are not zero",
    ATEN.masked_select.default: "takes those that a mask leaves",
    ATEN._unique2.default: "asks which values there are",
}


class HostReads(TorchDispatchMode):
    """Inside of it, the first line of one's own that reads is kept."""

    def __init__(self, own: Collection[str]) -> None:
        super().__init__()
        self.own, self.found = own, ""

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        what = READS.get(func) or ("takes those that a mask leaves" if takes_by_mask(func, args) else "")
        if what and not self.found and (frame := self.asking()):
            code = frame.f_code
            self.found = f"{code.co_filename}, line {frame.f_lineno}, in {code.co_name}, {what}"
        return func(*args, **(kwargs or {}))

    def asking(self) -> FrameType | None:
        """The innermost frame outside of torch, if it is one's own."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and home_of_frame(frame) == "torch":
            frame = frame.f_back
        return frame if frame is not None and home_of_frame(frame) in self.own else None

    def refuse(self) -> None:
        if self.found:
            raise UsageError(
                f"{self.found}: a step that is captured cannot wait for the device; use masks that multiply "
                "(torch.where, losses.masked_mean) instead, or type --engine eager"
            )


def takes_by_mask(func: Any, args: Sequence[Any]) -> bool:
    """`x[mask]`"""
    if func is not ATEN.index.Tensor:
        return False
    return any(isinstance(index, Tensor) and index.dtype == torch.bool for index in args[1])


def home_of(module: str) -> str:
    """The package that a module is in."""
    return module.partition(".")[0]


def home_of_frame(frame: FrameType) -> str:
    return home_of(str(frame.f_globals.get("__name__", "")))
