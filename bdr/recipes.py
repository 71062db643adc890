"""Recipes: one function per published setting, returning a frozen configuration; and a frame for every data set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bdr.config import Config
from bdr.types import Stage

# What methods keep of earlier classes, where it is not the 20 images of each that most do.
KEPT = {"finetune": "0", "lwf": "0", "joint": "all"}

# The frame of the BDR and CwD experiments, in which tables 4 to 9 of the paper were made; all others have DER's.
PAPER_FRAME = ("ucir",)

# Training that methods bring with them instead of their frame's.
OWN_STAGES = {
    "icarl": Stage(epochs=70, lr=2.0, drops=(49, 63), drop=0.2, weight_decay=5e-5),
}


def cifar100(method: str = "ucir", *plugins: str) -> Config:
    """The frame of the table of the paper that a method stands in: ResNet-18, 20 exemplars a class."""
    if method in PAPER_FRAME or ":" in method:
        return paper_frame(method, *plugins)
    return der_frame(method, *plugins)


def paper_frame(method: str, *plugins: str) -> Config:
    """The frame of the BDR and CwD experiments: 160 epochs a phase."""
    return Config(method=method, plugins=plugins, data="cifar100", base=50, step=10, memory="20/class", net="resnet18")


def der_frame(method: str, *plugins: str) -> Config:
    """DER's frame, in which the rows of table 2 were made: its class order, statistics, augmentation and schedule."""
    return Config(
        method=method,
        plugins=plugins,
        data="cifar100",
        base=50,
        step=10,
        order="der-2",
        memory=KEPT.get(method, "20/class"),
        herding="dot",
        net="resnet18",
        statistics="der",
        augment={"brightness": 63 / 255},
        stage=OWN_STAGES.get(method, Stage(epochs=170, warmup=10, drops=(110, 130))),
    )


def cifar10(method: str = "ucir", *plugins: str) -> Config:
    """CIFAR-10 in the same way: two classes a phase after the first four."""
    kept = KEPT.get(method, "20/class")
    return Config(method=method, plugins=plugins, data="cifar10", base=4, step=2, memory=kept, net="resnet18")


# What differs on handwritten digits, where a phase is a few hundred steps.
DIGITS_STAGES: dict[str, dict[str, Any]] = {
    "icarl": {"lr": 1.0},
}


def digits(method: str = "ucir", *plugins: str) -> Config:
    """Four digits first, then two a phase, two exemplars of each: real scarcity, in seconds.

    The cosine scale starts at 20: a short schedule has no time to grow it, and offsets need room in the logits.
    """
    return Config(
        method=method,
        plugins=plugins,
        settings={"ucir": {"eta": 20.0}} if method == "ucir" else {},
        data="digits",
        base=4,
        step=2,
        memory=KEPT.get(method, "2/class"),
        net="small",
        stage=Stage(epochs=20, batch=32, drops=(12, 17), **DIGITS_STAGES.get(method, {})),
    )


def imagefolder(method: str = "ucir", *plugins: str) -> Config:
    """Images of one's own: half of the classes is up to the user; 20 exemplars a class."""
    kept = KEPT.get(method, "20/class")
    return Config(method=method, plugins=plugins, data="imagefolder", base=0, step=2, memory=kept, net="resnet18")


def ucir_original() -> Config:
    """UCIR as its own paper has it: ResNet-32, imprinted embeddings, dot-product herding."""
    settings = {"ucir": {"imprint": True}}
    return cifar100("ucir").model_copy(update={"net": "resnet32", "herding": "dot", "settings": settings})


def cwd() -> Config:
    """CwD, row 3 of table 4: UCIR with class-wise decorrelation in the first phase."""
    return cifar100("ucir", "cwd")


def cwd_bdr() -> Config:
    """CwD with BDR, row 4 of table 4."""
    return cifar100("ucir", "cwd", "bdr")


def digits_cwd() -> Config:
    """CwD on handwritten digits: trains in seconds on a CPU."""
    return digits("ucir", "cwd")


def digits_cwd_bdr() -> Config:
    """CwD with BDR on handwritten digits."""
    return digits("ucir", "cwd", "bdr")


FRAMES: dict[str, Callable[..., Config]] = {
    "cifar10": cifar10,
    "cifar100": cifar100,
    "digits": digits,
    "imagefolder": imagefolder,
}

RECIPES: dict[str, Callable[[], Config]] = {
    "cwd": cwd,
    "cwd-bdr": cwd_bdr,
    "digits-cwd": digits_cwd,
    "digits-cwd-bdr": digits_cwd_bdr,
    "ucir-original": ucir_original,
}
