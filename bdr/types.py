"""The values that travel: protocol -> phase -> pool -> batch -> outputs -> loss terms. Nothing is computed here."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase: classes [old, seen) arrive. Ids are in order of arrival; labels are remapped once, on loading data."""

    index: int
    old: int
    seen: int

    @property
    def new(self) -> int:
        return self.seen - self.old

    @property
    def first(self) -> bool:
        return self.index == 0


class ImageShape(NamedTuple):
    """The shape of the images that a network is built for."""

    channels: int = 3
    height: int = 32
    width: int = 32


class Clock(NamedTuple):
    """How far a stage has come, as tensors on the device: a Python number would be frozen into a captured graph."""

    epoch: Tensor
    step: Tensor
    steps: Tensor  # in an epoch
    epochs: Tensor | float = math.inf  # in the stage; a clock that is made by hand need not have an end


class Batch(NamedTuple):
    """A batch of training images, as a method gets it."""

    x: Tensor  # (B, C, H, W) augmented, normalised, on the device
    y: Tensor  # (B,) ids, or (B, K) the pure mixture after mix-up
    rows: Tensor  # (B,) image ids, for state that is kept per image
    clock: Clock
    views: tuple[Tensor, ...] = ()  # further views, for plug-ins only


class Outputs(NamedTuple):
    """What a network returns for a batch."""

    logits: Tensor  # (B, K)
    features: Tensor  # (B, D), not normalised; with several experts, those of each at unit length, side by side
    scale: Tensor | float = 1.0  # logits / scale are cosines under a cosine head
    maps: tuple[Tensor, ...] = ()  # feature maps of the stages of the backbone, before their last ReLU
    experts: Tensor | None = None  # (E, B, K)
    nearness: Tensor | None = None  # (B,) cosines of an image's query with the keys of its prompts, added

    def shift(self, offset: Tensor) -> Outputs:
        """The same outputs with an offset for each class added to the logits, and to those of every expert."""
        experts = None if self.experts is None else self.experts + offset
        return self._replace(logits=self.logits + offset, experts=experts)


Classify = Callable[[Outputs, Tensor], Tensor]  # (outputs, targets) -> (B,), one loss per sample


OPTIMIZERS = ("sgd", "adamw")


@dataclass(frozen=True, slots=True)
class Stage:
    """One optimisation within a phase. A method with several stages only declares them; the engine runs them."""

    name: str = "main"
    epochs: int = 160
    batch: int = 128
    optimizer: str = "sgd"
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    schedule: str = "steps"
    drops: tuple[int, ...] = (80, 120)
    drop: float = 0.1  # the learning rate is multiplied by this at each of the drops
    floor: float = 0.0  # the learning rate that a cosine ends at
    warmup: int = 0  # epochs in which the learning rate rises
    warmup_lr: float | None = None  # the rate in the first of these; None: lr / warmup, so that all add as much
    clip: float | None = None
    draw: str = "all"  # which images: "all" | "rarest" | "uniform" | "memory" | "held" | "fresh", see data/pool.py
    repeat: int = 1  # how often an image appears in an epoch; the epoch stays as long, so it has fewer different images
    train: tuple[str, ...] = ()  # exactly these parameters move; () = what requires_grad says after begin
    loss: str = "loss"  # which of the method's objectives
    alternate: Stage | None = None  # a second optimisation, without plug-ins: one epoch after each epoch of this stage


def has_name(parameter: str, wanted: str) -> bool:
    """Whether `wanted` is the full name of the parameter, or of a part that contains it."""
    return parameter == wanted or parameter.startswith(f"{wanted}.")
