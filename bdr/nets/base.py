"""What every network is made of: a backbone, a head that grows, the two together, and frozen copies."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bdr.errors import BdrError
from bdr.types import Outputs


class Resumable(nn.Module):
    """A module whose shape can change: `layout` describes it, and `lay_out` restores it before tensors are loaded."""

    by_class: tuple[str, ...] = ()  # names of buffers (K,); if nothing else grows, neither method needs an override

    def layout(self) -> dict[str, Any]:
        """The shape as JSON values: widths, counts, switches."""
        return {"classes": len(self.get_buffer(self.by_class[0]))} if self.by_class else {}

    def lay_out(self, layout: dict[str, Any]) -> None:
        """Take the shape that `layout` returned; the tensors are loaded afterwards."""
        for name in self.by_class:
            setattr(self, name, self.get_buffer(name).new_zeros(layout["classes"]))


def layouts_of(module: nn.Module) -> dict[str, dict[str, Any]]:
    return {name: part.layout() for name, part in module.named_modules() if isinstance(part, Resumable)}


def lay_out(module: nn.Module, layouts: Mapping[str, dict[str, Any]]) -> None:
    """Lay out the named parts of a module. Outer parts come first, as they may create inner ones, laid out next."""
    for name, layout in layouts.items():
        try:
            part = module.get_submodule(name)
        except AttributeError:
            part = None
        if not isinstance(part, Resumable):
            raise BdrError(f"'{name}' is to be laid out, and this model does not have it")
        part.lay_out(layout)


class Features(NamedTuple):
    pooled: Tensor  # (B, D), float32 or finer
    maps: tuple[Tensor, ...] = ()
    nearness: Tensor | None = None  # (B,), where prompts are chosen by keys

    @classmethod
    def of(cls, x: Tensor, maps: tuple[Tensor, ...] = ()) -> Features:
        """A map, average-pooled in at least float32: class means and spreads are computed from these features."""
        return cls(x.mean((2, 3), dtype=torch.promote_types(x.dtype, torch.float32)), maps)


class Backbone(Resumable, ABC):
    """Maps images to features. It is the part of a network that the engine compiles and runs in low precision."""

    dim: int
    source: str | None = None  # the sha256 of the file that its weights were read from

    @abstractmethod
    def forward(self, x: Tensor) -> Features: ...

    def to_compile(self) -> Sequence[nn.Module]:
        """The modules to compile, which keep their shape from phase to phase: a backbone that grows names inner ones.

        Each must have a `forward` of its own: the compiler skips the code of torch's modules, nn.Sequential among them.
        """
        return [self]

    def kept_elsewhere(self) -> Sequence[nn.Linear]:
        """Layers that never change and are in no saved state: in low precision they are cast once, not at each step."""
        return []


class Level(NamedTuple):
    """The output of one level of a backbone."""

    x: Tensor  # the input of the next level; after the last level, the pooled features (B, D)
    map: Tensor  # (B, C, H, W), before the level's last ReLU if maps are kept

    @classmethod
    def last(cls, x: Tensor, relu: bool) -> Level:
        """The output of the last level, from the map that it ends with; with `relu`, a ReLU comes before pooling."""
        return cls(Features.of(F.relu(x) if relu else x).pooled, x)


class Levelled(Backbone, ABC):
    """A backbone that can be run level by level, from images to pooled features; `forward` runs all levels in turn.

    If its channels can have gates, these are one vector for each group of channels: see `nets/prunable.py`.
    """

    depth: int  # how many levels
    keeps_maps: bool

    @abstractmethod
    def level(self, index: int, x: Tensor, gates: Sequence[Tensor] | None = None) -> Level: ...

    def forward(self, x: Tensor, gates: Sequence[Tensor] | None = None) -> Features:
        maps = []
        for index in range(self.depth):
            x, seen = self.level(index, x, gates)
            maps.append(seen)
        return Features(x, tuple(maps) if self.keeps_maps else ())


class Divisible(Levelled, ABC):
    """A levelled backbone whose last level can be a module of its own, so that there can be several copies of it."""

    @abstractmethod
    def last_level(self) -> nn.Module:
        """A copy of the last level as a module of its own, which maps the output of the level before to a Level."""


class BatchNorm(nn.BatchNorm2d):
    """Batch norm without a count of batches, which a fixed momentum never reads: it costs a kernel a layer and step."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.num_batches_tracked = None

    def forward(self, x: Tensor, gate: Tensor | None = None) -> Tensor:
        """Normalise a batch. A gate (C,) multiplies the output of each channel, without a further pass over images."""
        if gate is None:
            return super().forward(x)
        scale, shift = self.weight * gate, self.bias * gate
        mean, var = self.running_mean, self.running_var
        return F.batch_norm(x, mean, var, scale, shift, self.training, self.momentum or 0.0, self.eps)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        state_dict.pop(f"{prefix}num_batches_tracked", None)
        nn.Module._load_from_state_dict(self, state_dict, prefix, *rest)


class Head(Resumable, ABC):
    """Maps features to logits. Heads are grown and read through their methods; no other code touches their weights."""

    @property
    @abstractmethod
    def classes(self) -> int: ...

    @abstractmethod
    def grow(self, count: int) -> None: ...

    @abstractmethod
    def forward(self, features: Tensor) -> tuple[Tensor, Tensor | float]:
        """Logits (B, K) and their scale: under a cosine head, logits / scale are cosines."""

    def read(self, seen: Features) -> Outputs:
        """The outputs of a network with this head, from the features that its backbone computed."""
        logits, scale = self(seen.pooled)
        return Outputs(logits, seen.pooled, scale, seen.maps, nearness=seen.nearness)


H = TypeVar("H", bound=Head)
N = TypeVar("N", bound=nn.Module)


class Network(Resumable, Generic[H]):
    """A backbone in the precision of the run, and a head in float32.

    A plug-in may have the network split into branches or experts after the first phase: `splitting` puts these in the
    place of its parts. Until then it is the plain network, and can be taken over from runs without such a plug-in.
    """

    backbone: Backbone
    head: H
    splitting: Callable[[Network[Any]], None] | None

    def __init__(self, backbone: Backbone, head: H) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head
        self.precision: torch.dtype | None = None  # set by the engine: bfloat16, or None for plain float32
        self.tf32 = False  # set by the engine: whether convolutions in float32 may run in TensorFloat-32
        self.splitting, self.is_split = None, False

    def split(self) -> None:
        """Split the network, unless it is split already."""
        if not self.is_split:
            assert self.splitting is not None, "the network was built without a plug-in that splits it"
            self.splitting(self)
            self.is_split = True

    def layout(self) -> dict[str, Any]:
        return {"split": True} if self.is_split else {}

    def lay_out(self, layout: dict[str, Any]) -> None:
        if layout.get("split"):
            self.split()

    def forward(self, x: Tensor) -> Outputs:
        with torch.autocast(x.device.type, dtype=self.precision or torch.bfloat16, enabled=self.precision is not None):
            seen = self.backbone(x)
        return self.head.read(seen)


DECIDED_BY_METHODS = ("last_relu", "maps")  # options of every backbone that are no settings: methods decide them


class MakeNetwork(Protocol):
    """Builds the network of a run around the head that a method asks for."""

    def __call__(self, head: Callable[[int], H], **options: Any) -> Network[H]:
        """`head` is called with the number of features; options are the backbone's: last_relu, maps, or its own."""
        ...


class Frozen(nn.Module, Generic[N]):
    """A part without gradients that stays in eval mode. It may run in parallel with what learns, and is saved once."""

    net: N
    rests = True  # nothing but `refill` changes its weights

    def __init__(self, net: N) -> None:
        super().__init__()
        self.net = copy.deepcopy(net).requires_grad_(False).eval()
        self.content = object()  # a new object whenever the weights change

    def train(self, mode: bool = True) -> Self:
        return self

    @torch.no_grad()
    def forward(self, x: Tensor) -> Any:
        return self.net(x)


class Teacher(Frozen[N]):
    """The network as it was, used in training alone; refilled in place between stages."""

    @torch.no_grad()
    def refill(self, net: N) -> None:
        if layouts_of(self.net) != layouts_of(net):
            lay_out(self.net, layouts_of(net))
        self.net.to(next(net.parameters()).device).load_state_dict(net.state_dict())
        self.net.requires_grad_(False).eval()
        self.content = object()


class Follower(Teacher[N]):
    """A moving average of a module that learns, used in training alone; it is updated in place."""

    rests = False

    @torch.no_grad()
    def follow(self, net: N, momentum: float) -> None:
        """Move towards `net`, keeping the share `momentum`. Running statistics move too, to fit the weights."""
        mine, theirs = ([*net.parameters(), *net.buffers()] for net in (self.net, net))
        torch._foreach_lerp_(numbers(mine), numbers(theirs), 1 - momentum)


def numbers(tensors: Iterable[Tensor]) -> list[Tensor]:
    """The tensors that can be averaged: counts cannot."""
    return [tensor for tensor in tensors if tensor.is_floating_point() and tensor.numel()]
