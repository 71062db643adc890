"""Predictions of a split: the best five classes of every image, for every readout of the method."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bdr.data.pool import EVALUATION_BATCH, Store, evaluating
from bdr.methods.base import Method

TOP = 5


class Predictions(NamedTuple):
    labels: np.ndarray  # (N,)
    readouts: dict[str, tuple[np.ndarray, np.ndarray]]  # name -> ids (N, 5) best first, probabilities (N, 5)


def predict(method: Method, store: Store, seen: int, limit: int | None = None) -> Predictions:
    """What the method says of the images of all seen classes (of the first `limit` of them)."""
    rows = store.of_classes(0, seen)[:limit]
    parts: dict[str, list[tuple[Tensor, Tensor]]] = {}
    with evaluating(method):
        for some in rows.split(EVALUATION_BATCH):
            for name, scores in method.readouts(store.plain(some)).items():
                best = scores.float().softmax(1).topk(min(TOP, seen), dim=1)
                parts.setdefault(name, []).append((best.indices, best.values))
    joined = {name: tuple(torch.cat(c).cpu().numpy() for c in zip(*got, strict=True)) for name, got in parts.items()}
    return Predictions(store.labels[rows].cpu().numpy(), {n: (ids, chances) for n, (ids, chances) in joined.items()})
