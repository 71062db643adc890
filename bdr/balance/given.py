"""What the module cannot begin or go on with, said in its own words: what was given, what is expected."""

from __future__ import annotations

import torch
from torch import Tensor


def refuse_shapes(labels: Tensor, features: Tensor) -> None:
    """What `begin` cannot begin with: a sentence of ours is found sooner than one of torch, three calls deeper."""
    for name, given in {"labels": labels, "features": features}.items():
        if not isinstance(given, Tensor):
            kind = type(given).__name__
            raise TypeError(f"{name} are a {kind}, and a torch.Tensor is expected: torch.as_tensor({name}) makes one")
    if features.dim() != 2:
        raise ValueError(
            f"features are {tuple(features.shape)}, and (N, D) is expected, a row an image as it goes into the "
            "classifier; labels come first: begin(labels, features)"
        )
    if labels.dim() not in (1, 2) or len(labels) != len(features) or len(labels) == 0:
        raise ValueError(
            f"labels are {tuple(labels.shape)} and features {tuple(features.shape)}: as many of both are expected, "
            "one or more, labels as ids (N,) or mixtures (N, K)"
        )


def classes_of(labels: Tensor, classes: int | None) -> int:
    """How many classes there are, once the labels are known to be among them."""
    if labels.dim() == 2:
        if classes not in (None, labels.shape[1]) or not bool((labels >= 0).all()):
            raise ValueError(
                f"labels are {tuple(labels.shape)}, from {float(labels.min()):g} on: mixtures (N, {classes or 'K'}) "
                "have a column a class, and shares of 0 or more; ids are (N,)"
            )
        return labels.shape[1]
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise ValueError(f"labels are {labels.dtype}, and ids are integers: labels.long() makes them")
    least, most = int(labels.min()), int(labels.max())
    if least < 0 or (classes is not None and most >= classes):
        allowed = "from 0 on" if classes is None else f"from 0 to {classes - 1}, since classes = {classes},"
        raise ValueError(f"labels are from {least} to {most}, and ids {allowed} are allowed")
    return most + 1 if classes is None else classes


def refuse_unfinite(features: Tensor) -> None:
    if not bool(features.isfinite().all()):
        rows = int((~features.isfinite().all(1)).sum())
        raise ValueError(f"features of {rows} of {len(features)} images are not finite (NaN or infinite): all must be")


def refuse_strangers(y: Tensor, classes: int) -> None:
    """Ids that are no classes, -100 among them, where looking costs nothing: on a GPU the host would have to wait."""
    if y.dim() != 1 or y.device.type != "cpu" or torch.compiler.is_compiling() or not len(y):
        return
    least, most = int(y.min()), int(y.max())
    if least < 0 or most >= classes:
        raise ValueError(
            f"targets are from {least} to {most}, and ids from 0 to {classes - 1} are allowed, since begin() saw "
            f"{classes} classes; images whose target is to be ignored (-100) must be left out of the batch"
        )
