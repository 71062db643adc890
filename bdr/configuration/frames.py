"""The frame of each data set: the protocol, memory, network, schedule and augmentation that every method starts from.

What a method brings with it instead is in one table by method, `BRINGS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from bdr.configuration.config import Config, Statistics, is_own
from bdr.errors import UsageError
from bdr.types import Stage


@dataclass(frozen=True)
class OnDigits:
    """What a method brings to handwritten digits, where a phase is a few hundred steps."""

    net: str | None = None  # the network used in place of its own
    stage: dict[str, Any] = field(default_factory=dict)  # fields that differ in the main stage
    stages: dict[str, dict[str, Any]] = field(default_factory=dict)  # and in later ones, by their name
    settings: dict[str, Any] = field(default_factory=dict)  # of the method


@dataclass(frozen=True)
class Brings:
    """What a method brings with it; for everything that is not set here, its frame holds."""

    memory: str | None = None  # what it keeps of earlier classes, on any data
    # On CIFAR and on folders of images:
    in_paper_frame: bool = False  # frame and ResNet-18 are those of the BDR experiments; DER's otherwise
    net: str | None = None
    stage: Stage | None = None
    statistics: Statistics | None = None  # those that its network was trained with
    settings: dict[str, Any] = field(default_factory=dict)  # of the method
    # On single data sets:
    cifar100: dict[str, Any] = field(default_factory=dict)  # class order, base, step and augmentation
    digits: OnDigits = OnDigits()


def prompting(batch: int) -> Stage:
    """The stage of methods that learn prompts: Adam at 0.03 for a batch of 256, in proportion for smaller ones."""
    return Stage(
        epochs=5,
        batch=batch,
        optimizer="adamw",
        lr=0.03 * batch / 256,
        weight_decay=0.0,
        schedule="constant",
        drops=(),
        clip=1.0,
    )


# Methods that learn prompts for a pretrained network.
PROMPTED = Brings(
    memory="0",
    net="vit-b16",
    stage=prompting(batch=16),
    statistics="half",
    cifar100={"order": "natural", "base": 0, "step": 10, "augment": {}},
    digits=OnDigits(
        net="vit-tiny",
        stage={"optimizer": "adamw", "lr": 0.03, "weight_decay": 0.0, "schedule": "constant", "clip": 1.0},
    ),
)

# A row for each method. On digits penalties are larger: they act for a few hundred steps, not for thousands.
BRINGS: dict[str, Brings] = {
    "bic": Brings(
        stage=Stage(epochs=250, drops=(100, 150, 200), weight_decay=2e-4),
        digits=OnDigits(
            stage={"lr": 0.03},
            # An epoch is a single step here, and a correction that stops half-way is worse than none.
            stages={"correction": {"epochs": 200, "drops": (60, 120, 160, 180), "lr": 0.03}},
        ),
    ),
    "der": Brings(
        # The classifier starts from scratch, and an epoch is only a step or two.
        digits=OnDigits(stages={"balanced": {"epochs": 100, "drops": (50,)}}),
    ),
    "dualprompt": replace(PROMPTED, stage=prompting(batch=24)),
    "dytox": Brings(
        net="convit",
        stage=Stage(
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
        cifar100={"augment": {"randaugment": 9.0}},
        digits=OnDigits(
            net="convit-small",
            stage={"optimizer": "adamw", "batch": 16, "lr": 0.003, "weight_decay": 1e-6, "schedule": "cosine"},
            stages={"balanced": {"epochs": 20, "lr": 0.001}},
        ),
    ),
    "e2e": Brings(
        # Noise of the same norm as 0.3 gives on ResNet-32: on each of ResNet-18's parameters, of which there are many
        # more, 0.3 would drown the gradient.
        settings={"noise": round(0.3 * (0.466 / 11.2) ** 0.5, 3)},
        cifar100={"augment": {"additive": 63 / 255, "contrast": 0.8, "uncropped": 0.5}},
        digits=OnDigits(stages={"balanced": {"batch": 4}}),  # so that an epoch of a few images has more than one step
    ),
    "ewc": Brings(memory="0", digits=OnDigits(settings={"weight": 1e5})),
    "finetune": Brings(memory="0"),
    "icarl": Brings(
        stage=Stage(epochs=70, lr=2.0, drops=(49, 63), drop=0.2, weight_decay=5e-5),
        digits=OnDigits(stage={"lr": 1.0}),
    ),
    "joint": Brings(memory="all"),
    "l2p": PROMPTED,
    "lwf": Brings(memory="0"),
    "podnet": Brings(
        stage=Stage(epochs=160, schedule="cosine"),
        digits=OnDigits(stage={"schedule": "cosine"}, stages={"balanced": {"epochs": 20}}),
    ),
    "replay": Brings(),
    "rpsnet": Brings(
        net="rps",
        stage=Stage(epochs=100, optimizer="adamw", lr=1e-3, weight_decay=0.0, drops=(20, 40, 60, 80), drop=0.5),
        cifar100={"augment": {"rotation": 10.0}},
        digits=OnDigits(net="rps-small", stage={"optimizer": "adamw", "lr": 3e-3, "weight_decay": 0.0}),
    ),
    "rwalk": Brings(digits=OnDigits(settings={"weight": 20.0})),
    "si": Brings(memory="0", digits=OnDigits(settings={"weight": 1.0})),
    "simple-der": Brings(digits=OnDigits(stages={"balanced": {"epochs": 100, "drops": (50,)}})),
    "ucir": Brings(
        in_paper_frame=True,
        # A short schedule has no time to grow the cosine scale, and offsets need room in the logits.
        digits=OnDigits(settings={"eta": 20.0}),
    ),
    "wa": Brings(digits=OnDigits(stage={"lr": 0.03})),
}

# Settings that plug-ins have on digits.
PLUGINS_ON_DIGITS: dict[str, dict[str, Any]] = {
    "balanced-contrastive": {"crop": 0.5},  # a fifth of 8 x 8 pixels shows nothing
    "bcl": {"crop": 0.5},
    "paco": {"crop": 0.5, "momentum": 0.95, "queue": 64},  # a memory of some of the few hundred steps
}

IMPRINTED = {"ucir": {"imprint": True}}  # embeddings of new classes, as in UCIR's own paper


def brought_by(method: str) -> Brings:
    """What a method brings with it; the user's own (`package.module:Class`) has the frame of UCIR and no row."""
    if is_own(method):
        return Brings(in_paper_frame=True)
    if method not in BRINGS:
        raise UsageError(
            f"no row '{method}' in BRINGS of bdr/configuration/frames.py: add one, Brings() where the frame will do"
        )
    return BRINGS[method]


def named(method: str, settings: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Settings of a method, keyed by its name as a configuration has them."""
    return {method: settings} if settings else {}


def own_fields(method: str) -> dict[str, Any]:
    """Memory, network and training of a method: its own if it brings any, else the usual ones."""
    brought = brought_by(method)
    return {
        "memory": brought.memory or "20/class",
        "net": brought.net or ("resnet18" if brought.in_paper_frame else "resnet18-der"),
        "statistics": brought.statistics or "default",
        "stage": brought.stage or Stage(),
        "settings": named(method, brought.settings),
    }


def cifar100(method: str = "ucir", *plugins: str) -> Config:
    """CIFAR-100 in the frame of the paper's table that has the method: ResNet-18, 20 exemplars a class."""
    frame = paper_frame if brought_by(method).in_paper_frame else der_frame
    return frame(method, *plugins)


def paper_frame(method: str, *plugins: str) -> Config:
    """The frame of the BDR and CwD experiments, in which tables 4 to 9 of the paper were made: 160 epochs a phase."""
    fields = {"base": 50, "step": 10} | own_fields(method) | brought_by(method).cifar100
    return fitted_to_plugins(Config(method=method, plugins=plugins, data="cifar100", **fields))


def der_frame(method: str, *plugins: str) -> Config:
    """DER's frame, in which the rows of table 2 were made: its class order, network, statistics and schedule."""
    brought = brought_by(method)
    usual = {
        "net": brought.net or "resnet18-der",
        "statistics": brought.statistics or "der",
        "stage": brought.stage or Stage(epochs=170, warmup=10, drops=(110, 130)),
    }
    protocol = {"order": "der-2", "base": 50, "step": 10, "herding": "dot", "augment": {"brightness": 63 / 255}}
    fields: dict[str, Any] = own_fields(method) | usual | protocol | brought.cifar100
    return fitted_to_plugins(Config(method=method, plugins=plugins, data="cifar100", **fields))


def fitted_to_plugins(frame: Config) -> Config:
    """The frame adapted to AANet, whose own code has ResNet-32, dot-product herding and imprinted embeddings."""
    if "aanet" not in frame.plugins:
        return frame
    settings = IMPRINTED if frame.method == "ucir" else {}
    return frame.model_copy(update={"net": "resnet32", "herding": "dot", "settings": settings})


def cifar10(method: str = "ucir", *plugins: str) -> Config:
    """CIFAR-10: four classes first, then two a phase."""
    return Config(method=method, plugins=plugins, data="cifar10", base=4, step=2, **own_fields(method))


def digits(method: str = "ucir", *plugins: str) -> Config:
    """Handwritten digits: four first, then two a phase, two exemplars of each. Real scarcity, in seconds."""
    brought = brought_by(method)
    of_plugins = {name: PLUGINS_ON_DIGITS[name] for name in plugins if name in PLUGINS_ON_DIGITS}
    return Config(
        method=method,
        plugins=plugins,
        settings=named(method, brought.digits.settings) | of_plugins,
        data="digits",
        base=4,
        step=2,
        memory=brought.memory or "2/class",
        net=brought.digits.net or "small",
        stage=replace(Stage(epochs=20, batch=32, drops=(12, 17)), **brought.digits.stage),
        stages=brought.digits.stages,
    )


def imagefolder(method: str = "ucir", *plugins: str) -> Config:
    """The user's own images: two classes a phase, 20 exemplars a class; a larger first phase is up to the user."""
    return Config(method=method, plugins=plugins, data="imagefolder", base=0, step=2, **own_fields(method))


FRAMES: dict[str, Callable[..., Config]] = {
    "cifar10": cifar10,
    "cifar100": cifar100,
    "digits": digits,
    "imagefolder": imagefolder,
}


def frame_of(data: str) -> Callable[..., Config]:
    """The frame of a data set by its name; the user's own data sets have that of a folder of images."""
    return FRAMES.get(data, imagefolder)
