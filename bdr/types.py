"""The values that travel: protocol -> phase -> pool -> batch -> outputs -> loss terms. Nothing is computed here."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Phase:
    """Classes [old, seen) arrive. Ids are in order of arrival: labels are remapped once, when data is loaded."""

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
    """What images a network is to be made for."""

    channels: int = 3
    height: int = 32
    width: int = 32


class Clock(NamedTuple):
    """Where a stage stands, on the device: a Python number would be frozen into a captured graph."""

    epoch: Tensor
    step: Tensor
    steps: Tensor  # of an epoch
    epochs: Tensor | float = math.inf  # of the stage; a clock of one's own need not end


class Batch(NamedTuple):
    """What a method sees of the data."""

    x: Tensor  # (B, C, H, W) augmented, normalised, on the device
    y: Tensor  # (B,) ids, or (B, K) the pure mixture after mix-up
    rows: Tensor  # (B,) image ids, for memories of single images
    clock: Clock
    views: tuple[Tensor, ...] = ()  # further views, for plug-ins only


class Outputs(NamedTuple):
    """What a network says of a batch."""

    logits: Tensor  # (B, K)
    features: Tensor  # (B, D), before any normalisation; of several experts, those of each at unit length, in a row
    scale: Tensor | float = 1.0  # logits / scale are cosines under a cosine head
    maps: tuple[Tensor, ...] = ()  # feature maps of the stages of the backbone, before their last ReLU
    experts: Tensor | None = None  # (E, B, K)
    nearness: Tensor | None = None  # (B,) cosines of what an image asks for with the keys of the prompts it gets

    def shift(self, offset: Tensor) -> Outputs:
        """The same outputs with an offset a class on the logits, and on those of every expert."""
        experts = None if self.experts is None else self.experts + offset
        return self._replace(logits=self.logits + offset, experts=experts)


Classify = Callable[[Outputs, Tensor], Tensor]  # (outputs, targets) -> (B,), one loss a sample


OPTIMIZERS = ("sgd", "adamw")


@dataclass(frozen=True, slots=True)
class Stage:
    """One optimisation inside a phase. Methods of several stages declare them; the engine alone loops."""

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
    warmup_lr: float | None = None  # from where; None: by as much in the first of these epochs as in the others
    clip: float | None = None
    draw: str = "all"  # which images: "all" | "rarest" | "uniform" | "memory" | "held" | "fresh", see data/pool.py
    repeat: int = 1  # how often an image stands in an epoch; the epoch stays as long, with fewer different images
    train: tuple[str, ...] = ()  # exactly these parameters move; () = what requires_grad says after begin
    loss: str = "loss"  # which of the method's objectives
    alternate: Stage | None = None  # a second optimisation, an epoch of it after each of this one, without plug-ins


def has_name(parameter: str, wanted: str) -> bool:
    """What a stage says that it trains is the full name of the parameter, or of a part that it belongs to."""
    return parameter == wanted or parameter.startswith(f"{wanted}.")
