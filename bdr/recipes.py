"""Recipes: one function per published setting, returning a frozen configuration; and a frame for every data set."""

from __future__ import annotations

from collections.abc import Callable

from bdr.config import Config
from bdr.types import Stage


def cifar100(method: str = "ucir", *plugins: str) -> Config:
    """The frame of the BDR and CwD experiments: ResNet-18, 160 epochs a phase, 20 exemplars a class."""
    return Config(method=method, plugins=plugins, data="cifar100", base=50, step=10, memory="20/class", net="resnet18")


def cifar10(method: str = "ucir", *plugins: str) -> Config:
    """CIFAR-10 in the same way: two classes a phase after the first four."""
    return Config(method=method, plugins=plugins, data="cifar10", base=4, step=2, memory="20/class", net="resnet18")


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
        memory="2/class",
        net="small",
        stage=Stage(epochs=20, batch=32, drops=(12, 17)),
    )


def imagefolder(method: str = "ucir", *plugins: str) -> Config:
    """Images of one's own: half of the classes is up to the user; 20 exemplars a class."""
    return Config(method=method, plugins=plugins, data="imagefolder", base=0, step=2, memory="20/class", net="resnet18")


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
