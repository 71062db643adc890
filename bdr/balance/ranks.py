"""The rows of all processes that train together, so that each has the statistics of all."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor


def ranks() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def gathered(rows: Tensor) -> Tensor:
    """The rows of all ranks, one after the other; every rank has as many."""
    if ranks() == 1:
        return rows
    parts = [torch.empty_like(rows, memory_format=torch.contiguous_format) for _ in range(ranks())]
    dist.all_gather(parts, rows.contiguous())
    return torch.cat(parts)


def gathered_shares(rows: Tensor) -> Tensor:
    """The same where ranks have unequally many."""
    lengths = gathered(torch.tensor([len(rows)], device=rows.device)).tolist()
    room = [0, 0] * (rows.dim() - 1) + [0, max(lengths) - len(rows)]
    shares = gathered(F.pad(rows, room)).split(max(lengths))
    return torch.cat([share[:length] for share, length in zip(shares, lengths, strict=True)])
