"""Predictions for a split (the best five classes of each image, by readout), accuracies of a phase, and mean losses."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bdr import metrics
from bdr.data.pool import Pool, evaluating
from bdr.data.store import Store
from bdr.engine.objective import Objective, kind_of
from bdr.engine.step import convolving_as
from bdr.errors import BdrError
from bdr.methods.base import Method
from bdr.types import Phase

TOP = 5


class Predictions(NamedTuple):
    labels: np.ndarray  # (N,)
    readouts: dict[str, tuple[np.ndarray, np.ndarray]]  # name -> ids (N, 5) best first, probabilities (N, 5)


def predict(method: Method, store: Store, seen: int, limit: int | None = None, top: int = TOP) -> Predictions:
    """Predict the `top` best classes of the images of all seen classes, or of the first `limit` of these images."""
    rows = store.of_classes(0, seen)[:limit]
    parts: dict[str, list[tuple[Tensor, Tensor]]] = {}
    with evaluating(method), convolving_as(method):
        for some in rows.split(store.evaluation_batch):
            for name, scores in scores_of(method, store.plain(some), seen).items():
                best = scores.topk(min(top, seen), dim=1).indices  # by scores: probabilities may tie at zero
                parts.setdefault(name, []).append((best, scores.float().softmax(1).gather(1, best)))
    joined = {name: tuple(torch.cat(c).cpu().numpy() for c in zip(*got, strict=True)) for name, got in parts.items()}
    return Predictions(store.labels[rows].cpu().numpy(), {n: (ids, chances) for n, (ids, chances) in joined.items()})


def scores_of(method: Method, images: Tensor, seen: int) -> dict[str, Tensor]:
    """Scores by readout, a column for each of the `seen` classes; checked, since a user's own method may be wrong."""
    scores: object = method.readouts(images)
    if not isinstance(scores, dict):
        whose, kind = type(method).__name__, kind_of(scores)
        raise BdrError(f"`readouts` of {whose} must return scores by name, and returned a {kind}")
    for name, each in scores.items():
        if kind_of(each) != str((len(images), seen)):
            raise BdrError(
                f"readout '{name}' of {type(method).__name__} must be {(len(images), seen)}, a score for each of "
                f"{seen} classes, and is {kind_of(each)}"
            )
    return scores


def measure(found: Predictions, phase: Phase, boundaries: list[tuple[int, int]]) -> dict[str, Any]:
    """The accuracies of a phase for every readout, in percent."""
    line: dict[str, Any] = {"accuracy": {}, "top5": {}, "accuracy_old": {}, "accuracy_new": {}, "by_phase": {}}
    for name, (ids, _) in found.readouts.items():
        old, new = metrics.old_and_new(found.labels, ids, phase.old)
        line["accuracy"][name] = metrics.accuracy(found.labels, ids)
        line["top5"][name] = metrics.top_k(found.labels, ids)
        line["accuracy_old"][name], line["accuracy_new"][name] = old, new
        line["by_phase"][name] = metrics.by_phase(found.labels, ids, boundaries)
    return line


def mean_losses(objective: Objective, pool: Pool) -> dict[str, float]:
    """The mean classification loss on old and on new images: the one used in training, but without augmentation."""
    labels = pool.store.labels[pool.rows]
    with evaluating(objective.method):
        loss = objective.around(pool.outputs(objective.method.net, pool.rows), labels)
    old = labels < pool.phase.old
    parts = {"old": loss[old], "new": loss[~old]}
    return {name: float(part.mean()) if len(part) else math.nan for name, part in parts.items()}
