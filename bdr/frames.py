"""What training is like on a data set, for every method: protocol, memory, network, schedule, augmentation.

What a method brings with it instead is in tables by its name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from bdr.config import Config
from bdr.types import Stage

# What methods keep of earlier classes, where it is not the 20 images of each that most do.
KEPT = {"dualprompt": "0", "ewc": "0", "finetune": "0", "joint": "all", "l2p": "0", "lwf": "0", "si": "0"}

# The frame of the BDR and CwD experiments, in which tables 4 to 9 of the paper were made; all others have DER's.
PAPER_FRAME = ("ucir",)

# Adam at 0.03 for a batch of 256, and so much less for a smaller one.
PROMPTING = Stage(
    epochs=5, batch=16, optimizer="adamw", lr=0.03 * 16 / 256, weight_decay=0.0, schedule="constant", drops=(), clip=1.0
)

# Training that methods bring with them instead of their frame's.
OWN_STAGES = {
    "bic": Stage(epochs=250, drops=(100, 150, 200), weight_decay=2e-4),
    "dualprompt": replace(PROMPTING, batch=24, lr=0.03 * 24 / 256),
    "dytox": Stage(
        epochs=500,
        batch=256,
        optimizer="adamw",
        lr=2.5e-4,  # 5e-4 for a batch of 512
        weight_decay=1e-6,
        schedule="cosine",
        floor=1e-5,
        warmup=5,
        warmup_lr=1e-6,
        repeat=3,
    ),
    "icarl": Stage(epochs=70, lr=2.0, drops=(49, 63), drop=0.2, weight_decay=5e-5),
    "l2p": PROMPTING,
    "podnet": Stage(epochs=160, schedule="cosine"),
    "rpsnet": Stage(epochs=100, optimizer="adamw", lr=1e-3, weight_decay=0.0, drops=(20, 40, 60, 80), drop=0.5),
}

# Networks that methods bring with them, and those that stand in for them on handwritten digits.
OWN_NETS: dict[str, str] = {
    "dualprompt": "vit-b16",
    "dytox": "convit",
    "l2p": "vit-b16",
    "rpsnet": "rps",
}
DIGITS_NETS: dict[str, str] = {
    "dualprompt": "vit-tiny",
    "dytox": "convit-small",
    "l2p": "vit-tiny",
    "rpsnet": "rps-small",
}

# Statistics that the networks of methods were trained with.
OWN_STATISTICS: dict[str, Any] = {"dualprompt": "half", "l2p": "half"}

# Protocols that methods were published under, where it is none of the frames'.
OWN_PROTOCOLS: dict[str, dict[str, Any]] = {
    "dualprompt": {"order": "natural", "base": 0, "step": 10, "augment": {}},
    "l2p": {"order": "natural", "base": 0, "step": 10, "augment": {}},
}

IMPRINTED = {"ucir": {"imprint": True}}  # embeddings of new classes, as in UCIR's own paper

# Settings that methods have on ResNet-18.
OWN_SETTINGS: dict[str, dict[str, Any]] = {
    # The norm of the noise that it has on ResNet-32: 0.3 on each of so many more parameters would drown the gradient.
    "e2e": {"noise": round(0.3 * (0.466 / 11.2) ** 0.5, 3)},
}

# Augmentation that methods bring with them.
OWN_AUGMENT = {
    "dytox": {"randaugment": 9.0},
    "e2e": {"additive": 63 / 255, "contrast": 0.8, "uncropped": 0.5},
    "rpsnet": {"rotation": 10.0},
}


def cifar100(method: str = "ucir", *plugins: str) -> Config:
    """The frame of the table of the paper that a method stands in: ResNet-18, 20 exemplars a class."""
    if method in PAPER_FRAME or ":" in method:
        return paper_frame(method, *plugins)
    return der_frame(method, *plugins).model_copy(update=OWN_PROTOCOLS.get(method, {}))


def paper_frame(method: str, *plugins: str) -> Config:
    """The frame of the BDR and CwD experiments: 160 epochs a phase."""
    fields: dict[str, Any] = {"data": "cifar100", "base": 50, "step": 10, "memory": "20/class", "net": "resnet18"}
    return fitted_to_plugins(Config(method=method, plugins=plugins, **fields))


def fitted_to_plugins(frame: Config) -> Config:
    """AANet's rows of table 4 were made with ResNet-32, dot-product herding and imprinted embeddings."""
    if "aanet" not in frame.plugins:
        return frame
    settings = IMPRINTED if frame.method == "ucir" else {}
    return frame.model_copy(update={"net": "resnet32", "herding": "dot", "settings": settings})


def der_frame(method: str, *plugins: str) -> Config:
    """DER's frame, in which the rows of table 2 were made: its class order, network, statistics and schedule."""
    frame = Config(
        method=method,
        plugins=plugins,
        data="cifar100",
        base=50,
        step=10,
        order="der-2",
        memory=KEPT.get(method, "20/class"),
        herding="dot",
        net=OWN_NETS.get(method, "resnet18-der"),
        statistics=OWN_STATISTICS.get(method, "der"),
        augment=OWN_AUGMENT.get(method, {"brightness": 63 / 255}),
        stage=OWN_STAGES.get(method, Stage(epochs=170, warmup=10, drops=(110, 130))),
        settings=own_settings(method),
    )
    return fitted_to_plugins(frame)


def own_settings(method: str) -> dict[str, dict[str, Any]]:
    return {method: OWN_SETTINGS[method]} if method in OWN_SETTINGS else {}


def own_fields(method: str) -> dict[str, Any]:
    """What a method brings to data that no paper has trained it on: its memory, network and training."""
    net = "resnet18" if method in PAPER_FRAME or ":" in method else OWN_NETS.get(method, "resnet18-der")
    statistics = OWN_STATISTICS.get(method, "default")
    memory, stage = KEPT.get(method, "20/class"), OWN_STAGES.get(method, Stage())
    return {"memory": memory, "net": net, "statistics": statistics, "stage": stage, "settings": own_settings(method)}


def cifar10(method: str = "ucir", *plugins: str) -> Config:
    """CIFAR-10 in the same way: two classes a phase after the first four."""
    own = own_fields(method)
    return Config(method=method, plugins=plugins, data="cifar10", base=4, step=2, **own)


# What differs on handwritten digits, where a phase is a few hundred steps.
DIGITS_PROMPTING = {"optimizer": "adamw", "lr": 0.03, "weight_decay": 0.0, "schedule": "constant", "clip": 1.0}
DIGITS_STAGES: dict[str, dict[str, Any]] = {
    "bic": {"lr": 0.03},
    "dualprompt": DIGITS_PROMPTING,
    "dytox": {"optimizer": "adamw", "batch": 16, "lr": 0.003, "weight_decay": 1e-6, "schedule": "cosine"},
    "icarl": {"lr": 1.0},
    "l2p": DIGITS_PROMPTING,
    "podnet": {"schedule": "cosine"},
    "rpsnet": {"optimizer": "adamw", "lr": 3e-3, "weight_decay": 0.0},
    "wa": {"lr": 0.03},
}

# Penalties have a few hundred steps to hold what thousands hold elsewhere.
DIGITS_SETTINGS: dict[str, dict[str, Any]] = {
    "balanced-contrastive": {"crop": 0.5},  # a fifth of 8 x 8 pixels shows nothing
    "bcl": {"crop": 0.5},
    "ewc": {"weight": 1e5},
    "paco": {"crop": 0.5, "momentum": 0.95, "queue": 64},  # as long as some of the few hundred steps
    "rwalk": {"weight": 20.0},
    "si": {"weight": 1.0},
    "ucir": {"eta": 20.0},
}

# What differs in stages on exemplars: small batches, so that an epoch of a few images is more than a step.
DIGITS_LATER: dict[str, dict[str, dict[str, Any]]] = {
    # An epoch is a single step here, and a correction that is left half-way is worse than none.
    "bic": {"correction": {"epochs": 200, "drops": [60, 120, 160, 180], "lr": 0.03}},
    # The classifier begins anew, and an epoch is a step or two.
    "der": {"balanced": {"epochs": 100, "drops": [50]}},
    "dytox": {"balanced": {"epochs": 20, "lr": 0.001}},
    "e2e": {"balanced": {"batch": 4}},
    "podnet": {"balanced": {"epochs": 20}},
    "simple-der": {"balanced": {"epochs": 100, "drops": [50]}},
}


def digits(method: str = "ucir", *plugins: str) -> Config:
    """Four digits first, then two a phase, two exemplars of each: real scarcity, in seconds.

    The cosine scale starts at 20: a short schedule has no time to grow it, and offsets need room in the logits.
    """
    return Config(
        method=method,
        plugins=plugins,
        settings={name: DIGITS_SETTINGS[name] for name in (method, *plugins) if name in DIGITS_SETTINGS},
        data="digits",
        base=4,
        step=2,
        memory=KEPT.get(method, "2/class"),
        net=DIGITS_NETS.get(method, "small"),
        stage=replace(Stage(epochs=20, batch=32, drops=(12, 17)), **DIGITS_STAGES.get(method, {})),
        stages=DIGITS_LATER.get(method, {}),
    )


def imagefolder(method: str = "ucir", *plugins: str) -> Config:
    """Images of one's own: half of the classes is up to the user; 20 exemplars a class."""
    own = own_fields(method)
    return Config(method=method, plugins=plugins, data="imagefolder", base=0, step=2, **own)


FRAMES: dict[str, Callable[..., Config]] = {
    "cifar10": cifar10,
    "cifar100": cifar100,
    "digits": digits,
    "imagefolder": imagefolder,
}


def frame_of(data: str) -> Callable[..., Config]:
    """What training is like on a data set; one of one's own is taken for a folder of pictures."""
    return FRAMES.get(data, imagefolder)
