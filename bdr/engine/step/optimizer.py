"""The optimiser of a stage, in a form that can be part of a captured step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bdr.errors import BdrError, UsageError
from bdr.types import OPTIMIZERS, Stage


def make_optimizer(
    stage: Stage,
    parameters: Iterable[nn.Parameter],
    device: torch.device,
    undecayed: Iterable[nn.Parameter] = (),  # the parameters that weight decay leaves alone
) -> torch.optim.Optimizer:
    moving = [p for p in parameters if p.requires_grad and p.numel()]
    if not moving:
        raise BdrError(f"stage '{stage.name}' moves no parameter: its `train` {stage.train} fits none")
    spared = set(map(id, undecayed))
    groups = [group_of(moving, lambda p: id(p) not in spared)]
    if any(id(p) in spared for p in moving):
        groups.append(group_of(moving, lambda p: id(p) in spared) | {"weight_decay": 0.0})
    fast = device.type == "cuda"
    # A learning rate on the device can change without capturing the graph again.
    lr = torch.tensor(stage.lr, device=device) if fast else stage.lr
    if stage.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr, weight_decay=stage.weight_decay, fused=fast, capturable=fast)
    if stage.optimizer == "sgd":
        return torch.optim.SGD(groups, lr, stage.momentum, weight_decay=stage.weight_decay, fused=fast or None)
    raise UsageError(f"no optimiser '{stage.optimizer}'; there are {', '.join(OPTIMIZERS)}")


def group_of(moving: Sequence[nn.Parameter], belongs: Callable[[nn.Parameter], bool]) -> dict[str, Any]:
    """The parameters that belong to a group, and their places among all that move: checkpoints name moments by them."""
    chosen = {place: p for place, p in enumerate(moving) if belongs(p)}
    return {"params": list(chosen.values()), "places": list(chosen)}


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
