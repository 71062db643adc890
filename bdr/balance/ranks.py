"""Several processes that train together (ranks): each gets the statistics of the images of all of them."""

from __future__ import annotations

from typing import TypeVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

T = TypeVar("T")


def ranks() -> int:
    """The number of processes that train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """The number of this process among them."""
    return dist.get_rank() if ranks() > 1 else 0


def summed(part: Tensor, across_ranks: bool) -> Tensor:
    """The sum of the parts, over all ranks if asked for; batches may differ in size, and the host does not wait."""
    if across_ranks and ranks() > 1:
        dist.all_reduce(part)
    return part


def least(part: Tensor, across_ranks: bool) -> Tensor:
    """The least values of the parts, place by place, over all ranks if asked for."""
    if across_ranks and ranks() > 1:
        dist.all_reduce(part, op=dist.ReduceOp.MIN)
    return part


def told_by_all(fact: T) -> list[T]:
    """The fact of every rank, in the order of the ranks."""
    facts = [fact] * ranks()
    if ranks() > 1:
        dist.all_gather_object(facts, fact)
    return facts


def gathered(labels: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
    """The labels and features of all ranks, one after the other; refused on every rank if they do not fit together."""
    if ranks() == 1:
        return labels, features
    kinds = told_by_all(f"labels {kind_of(labels)} and features {kind_of(features)}")
    if len(set(kinds)) > 1:
        given = "; ".join(f"rank {number} gives {kind}" for number, kind in enumerate(kinds))
        raise ValueError(f"the shares of ranks may differ in the number of images alone: {given}")
    return gathered_rows(labels), gathered_rows(features)


def kind_of(rows: Tensor) -> str:
    return f"({', '.join(['N', *map(str, rows.shape[1:])])}) of {rows.dtype}"


def gathered_rows(rows: Tensor) -> Tensor:
    lengths = told_by_all(len(rows))
    padded = F.pad(rows, [0, 0] * (rows.dim() - 1) + [0, max(lengths) - len(rows)]).contiguous()
    shares = [torch.empty_like(padded) for _ in lengths]
    dist.all_gather(shares, padded)
    return torch.cat([share[:length] for share, length in zip(shares, lengths, strict=True)])
