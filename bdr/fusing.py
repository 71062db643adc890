"""A mark on small functions of tensors: a compiled step may run them as few kernels; elsewhere they run as they read.

What such functions cost is the number of their kernels, not their arithmetic. The mark says which of their arguments
grow with the classes, so that they are compiled once for all phases. The engine decides whether they are compiled.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")


class Switch:
    """Whether marked functions are compiled; the engine turns this on around a compiled step."""

    on = False


def fused(**growing: int) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """`fused(logits=1)`: dimension 1 of the argument `logits` grows with the classes, all others stay as they are."""

    def mark(function: Callable[P, R]) -> Callable[P, R]:
        names = function.__code__.co_varnames[: function.__code__.co_argcount]
        dimensions = {names.index(name): dimension for name, dimension in growing.items()}
        compiled: list[Callable[P, R]] = []

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if not Switch.on or torch.compiler.is_compiling():
                return function(*args, **kwargs)
            if not compiled:
                compiled.append(torch.compile(function))
            for place, dimension in dimensions.items():
                mark_growing(args[place], dimension)
            return compiled[0](*args, **kwargs)

        return call

    return mark


def mark_growing(tensor: object, dimension: int) -> None:
    if isinstance(tensor, Tensor) and tensor.dim() > dimension:  # ids lack dimension 1; an argument may be None
        torch._dynamo.maybe_mark_dynamic(tensor, dimension)


@contextlib.contextmanager
def fusing() -> Iterator[None]:
    """Inside, marked functions are compiled."""
    before, Switch.on = Switch.on, True
    try:
        yield
    finally:
        Switch.on = before
