"""Refusals of what the module cannot begin or go on with: they say what was given and what is expected."""

from __future__ import annotations

import torch
from torch import Tensor


def refuse_numbers(tau: float, **shares: float) -> None:
    """Refuse settings that are not numbers, or are too small or too large."""
    for name, value in {**shares, "tau": tau}.items():
        if isinstance(value, str):
            raise TypeError(
                f"{name} = {value!r}, and a number is expected: BDR(m, m_prime, beta, tau, ...) are numbers, and names "
                "are best given as BDR(formula='corrected', components='cr')"
            )
    for name, value in shares.items():
        if not 0 <= value <= 1:
            raise ValueError(f"{name} = {value} is not in [0, 1]")
    if not 0 <= tau < float("inf"):
        raise ValueError(f"tau = {tau} is not allowed: it is 0 or more")


def unfit(labels: Tensor, features: Tensor) -> Exception | None:
    """The error that says why `begin` cannot take these, or None: clearer than one of torch, three calls deeper."""
    if refusal := no_tensor(labels=labels, features=features):
        return refusal
    if features.dim() != 2:
        return ValueError(
            f"features are {tuple(features.shape)}, and (N, D) is expected, a row an image as it goes into the "
            "classifier; labels come first: begin(labels, features)"
        )
    if labels.dim() == 2 and labels.shape[1] == 1:
        return ValueError(
            f"labels are {tuple(labels.shape)}, and ids are ({len(labels)},): labels.flatten() makes them"
        )
    if labels.dim() not in (1, 2) or len(labels) != len(features):
        return ValueError(
            f"labels are {tuple(labels.shape)} and features {tuple(features.shape)}: as many of both are expected, "
            "labels as ids (N,) or mixtures (N, K)"
        )
    return None


def no_tensor(**given: object) -> TypeError | None:
    for name, value in given.items():
        if not isinstance(value, Tensor):
            kind = type(value).__name__
            return TypeError(f"{name} are a {kind}, and a torch.Tensor is expected: torch.as_tensor({name}) makes one")
    return None


def without_images(empty: list[int], classes: int) -> ValueError:
    said = f"BDR needs at least one image of every class; there is none of {empty}"
    if empty == [0]:
        return ValueError(f"{said}, and labels are from 1 to {classes - 1}: ids count from 0 (labels - 1)")
    return ValueError(f"{said}: number the classes without gaps, and keep an image or more of each old one")


def classes_of(labels: Tensor, classes: int | None) -> int:
    """The number of classes; labels that are not among them are refused."""
    if len(labels) == 0:
        raise ValueError("there are no labels and features: a phase begins with at least one image of every class")
    if labels.dim() == 2:
        if classes not in (None, labels.shape[1]) or not bool((labels >= 0).all()):
            raise ValueError(
                f"labels are {tuple(labels.shape)}, from {float(labels.min()):g} on: mixtures (N, {classes or 'K'}) "
                "have a column a class, and shares of 0 or more; ids are (N,)"
            )
        return labels.shape[1]
    refuse_no_ids("labels", labels)
    least, most = int(labels.min()), int(labels.max())
    if least < 0 or (classes is not None and most >= classes):
        allowed = "from 0 on" if classes is None else f"from 0 to {classes - 1}, since classes = {classes},"
        raise ValueError(f"labels are from {least} to {most}, and ids {allowed} are allowed")
    return most + 1 if classes is None else classes


def refuse_unfinite(features: Tensor) -> None:
    if not bool(features.isfinite().all()):
        rows = int((~features.isfinite().all(1)).sum())
        raise ValueError(f"features of {rows} of {len(features)} images are not finite (NaN or infinite): all must be")


def refuse_no_ids(name: str, ids: Tensor) -> None:
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise ValueError(f"{name} are {ids.dtype}, and ids are integers: {name}.long() makes them")


def refuse_logits(logits: Tensor, features: Tensor, classes: int) -> None:
    """Refuse logits that would broadcast silently, or fail after the statistics have moved."""
    batch = len(logits)
    if logits.shape != (batch, classes):
        raise ValueError(
            f"logits are {tuple(logits.shape)} and begin() saw {classes} classes, so ({batch}, {classes}) is expected: "
            f"call begin() at the start of every phase, and give logits[:, :{classes}] where a head is made for "
            "classes to come, too"
        )
    if len(features) != batch:
        raise ValueError(f"features are {tuple(features.shape)} and logits {tuple(logits.shape)}: a row an image each")


def refuse_batch(features: Tensor, targets: Tensor, classes: int, dim: int) -> None:
    """Refuse shapes that would broadcast silently, and ids that are no classes."""
    if classes == 0:
        raise ValueError(
            "no batch can be observed before begin(labels, features); a first phase has nothing to balance, so leave "
            "the module out of it, its offset too"
        )
    if refusal := no_tensor(features=features, targets=targets):
        raise refusal
    batch = len(features)
    if features.shape != (batch, dim):
        raise ValueError(f"features are {tuple(features.shape)}, and ({batch}, {dim}) is expected, as begin() saw them")
    if targets.shape not in ((batch,), (batch, classes)):
        raise ValueError(
            f"targets are {tuple(targets.shape)}: ids ({batch},) or mixtures ({batch}, {classes}) are expected"
        )
    if targets.dim() == 1:
        refuse_no_ids("targets", targets)
    if targets.device.type == "cpu" and not torch.compiler.is_compiling() and batch:  # else the host would have to wait
        (refuse_strangers if targets.dim() == 1 else refuse_negative)(targets, classes)


def refuse_negative(mixtures: Tensor, classes: int) -> None:
    """Refuse negative shares, as of logits or logarithms given instead: they would reduce the counts of classes."""
    if bool((mixtures < 0).any()):
        raise ValueError(
            f"targets are {tuple(mixtures.shape)}, from {float(mixtures.min()):g} on: mixtures (B, {classes}) have "
            "shares of 0 or more"
        )


def refuse_strangers(ids: Tensor, classes: int) -> None:
    """Refuse ids that are no classes, -100 among them."""
    least, most = int(ids.min()), int(ids.max())
    if least < 0 or most >= classes:
        raise ValueError(
            f"targets are from {least} to {most}, and ids from 0 to {classes - 1} are allowed, since begin() saw "
            f"{classes} classes; images whose target is to be ignored (-100) must be left out of the batch"
        )
