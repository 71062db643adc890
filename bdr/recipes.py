"""Recipes: a function a published setting, a frame a data set; and the way from what was typed to a configuration."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import replace
from typing import Any

from bdr.config import Config, changed, flattened, with_settings
from bdr.errors import UsageError, unknown
from bdr.methods import METHODS
from bdr.plugins import PLUGINS
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

# What rows of pruned DER in table 2 keep of an extractor, by base and step, from the sizes that they print.
PRUNED = {
    (0, 10): 0.0807,
    (0, 5): 0.0615,
    (0, 2): 0.0356,
    (50, 25): 0.1746,
    (50, 10): 0.1568,
    (50, 5): 0.1312,
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


def but(frame: Config, **fields: Any) -> Config:
    """A recipe: a frame, made with all plug-ins that are asked for, in which some fields are others.

    The settings of a method take the place of those that its frame has for it.
    """
    return changed(frame, fields | {"settings": frame.settings | fields.get("settings", {})})


def ucir_original(*plugins: str) -> Config:
    """UCIR as its own paper has it: ResNet-32, imprinted embeddings, dot-product herding."""
    return but(cifar100("ucir", *plugins), net="resnet32", herding="dot", settings=IMPRINTED)


def ucir_der(*plugins: str) -> Config:
    """UCIR in DER's frame, to stand beside the other methods of table 2: imprinted embeddings, as in its own paper."""
    return but(der_frame("ucir", *plugins), settings=IMPRINTED)


def bic_original(*plugins: str) -> Config:
    """BiC as its own paper has it: ResNet-32, 20 classes a phase, 2,000 exemplars in total."""
    plain = {"augment": {}, "statistics": "default", "order": "seed-1993", "herding": "distance"}
    return but(cifar100("bic", *plugins), net="resnet32", base=0, step=20, memory="2000", **plain)


def wa_der(*plugins: str) -> Config:
    """WA as it was run again for table 2: its classifier is drawn anew after the warm-up."""
    return but(der_frame("wa", *plugins), settings={"wa": {"reset_after_warmup": True}})


def wa_original(*plugins: str) -> Config:
    """WA as its own paper has it: ResNet-32, 250 epochs a phase, 20 classes in each, 2,000 exemplars in total."""
    plain = {"augment": {}, "statistics": "default", "order": "seed-1993", "stage": OWN_STAGES["bic"]}
    return but(cifar100("wa", *plugins), net="resnet32", base=0, step=20, memory="2000", **plain)


def icarl_original(*plugins: str) -> Config:
    """iCaRL as its paper has it: ResNet-32, 100 outputs in its mean, 10 classes a phase, 2,000 exemplars in total."""
    own = {"stage": replace(OWN_STAGES["icarl"], weight_decay=1e-5), "augment": {}, "order": "seed-1993"}
    own |= {"statistics": "default", "settings": {"icarl": {"outputs": 100}}}
    return but(cifar100("icarl", *plugins), net="resnet32", base=0, step=10, memory="2000", **own)


def e2e_original(*plugins: str) -> Config:
    """E2E as its own paper has it: ResNet-32, 40 epochs of twelve images for every one, 2,000 exemplars in total."""
    stage = Stage(epochs=12 * 40, drops=(120, 240, 360), weight_decay=1e-4)  # of the twelve, an epoch here draws one
    plain: dict[str, Any] = {"statistics": "default", "order": "seed-1993", "base": 0, "step": 10}
    plain |= {"settings": {"e2e": {"noise_epoch": 12}}}
    return but(cifar100("e2e", *plugins), net="resnet32", memory="2000", stage=stage, **plain)


def dytox_original(*plugins: str) -> Config:
    """DyTox as its own paper has it: 10 classes a phase, 2,000 exemplars in total."""
    return but(cifar100("dytox", *plugins), base=0, step=10, memory="2000")


def dytox_plus(*plugins: str) -> Config:
    """DyTox+, the same with mix-up."""
    return dytox_original("mixup", *plugins)


def podnet_original(*plugins: str) -> Config:
    """PODNet as its own paper has it: ResNet-32."""
    return but(cifar100("podnet", *plugins), net="resnet32")


def rpsnet_original(*plugins: str) -> Config:
    """RPSNet as its own paper has it: classes in natural order, 2,000 exemplars in total, chosen by chance."""
    plain = {"statistics": "default", "order": "natural", "herding": "random", "base": 0, "step": 10}
    return but(cifar100("rpsnet", *plugins), memory="2000", **plain)


def der_pruned(*plugins: str) -> Config:
    """DER with pruning, extractors as small as table 2 has them at a base and step: 1.75 M parameters at B50 S=10."""
    frame = cifar100("der", *plugins)
    return but(frame, settings={"der": {"keep": PRUNED[frame.base, frame.step]}})


def pruned_as_printed(config: Config, given: Container[str]) -> tuple[Config, list[str]]:
    """Pruned DER as small as table 2 has it at the base and step that are asked for; a sentence where it has none."""
    base = 0 if config.base == config.step else config.base  # the same phases
    keep = PRUNED.get((base, config.step))
    if "der.keep" in given:
        return config, []
    if keep is None:
        there = f"table 2 has no size for --base {config.base} --step {config.step}"
        return config, [f"{there}: der.keep is that of B50 S=10, choose another with --set der.keep=SHARE"]
    return but(config, settings={"der": config.settings["der"] | {"keep": keep}}), []


def cwd(*plugins: str) -> Config:
    """CwD, row 3 of table 4: UCIR with class-wise decorrelation in the first phase."""
    return cifar100("ucir", "cwd", *plugins)


def cwd_bdr(*plugins: str) -> Config:
    """CwD with BDR, row 4 of table 4."""
    return cifar100("ucir", "cwd", "bdr", *plugins)


def aanet(*plugins: str) -> Config:
    """AANet of table 4, as its own code has it: ResNet-32, imprinted embeddings, dot-product herding."""
    return cifar100("ucir", "aanet", *plugins)


def aanet_readme(*plugins: str) -> Config:
    """AANet as its README runs it: the same with 2,000 exemplars in total, 40 a class at first."""
    return but(aanet(*plugins), memory="2000")


def digits_cwd(*plugins: str) -> Config:
    """CwD on handwritten digits: trains in seconds on a CPU."""
    return digits("ucir", "cwd", *plugins)


def digits_cwd_bdr(*plugins: str) -> Config:
    """CwD with BDR on handwritten digits."""
    return digits("ucir", "cwd", "bdr", *plugins)


FRAMES: dict[str, Callable[..., Config]] = {
    "cifar10": cifar10,
    "cifar100": cifar100,
    "digits": digits,
    "imagefolder": imagefolder,
}


def frame_of(data: str) -> Callable[..., Config]:
    """What training is like on a data set; one of one's own is taken for a folder of pictures."""
    return FRAMES.get(data, imagefolder)


RECIPES: dict[str, Callable[..., Config]] = {
    "aanet": aanet,
    "aanet-readme": aanet_readme,
    "bic-original": bic_original,
    "cwd": cwd,
    "cwd-bdr": cwd_bdr,
    "der-pruned": der_pruned,
    "digits-cwd": digits_cwd,
    "digits-cwd-bdr": digits_cwd_bdr,
    "dytox-original": dytox_original,
    "dytox-plus": dytox_plus,
    "e2e-original": e2e_original,
    "icarl-original": icarl_original,
    "podnet-original": podnet_original,
    "rpsnet-original": rpsnet_original,
    "ucir-der": ucir_der,
    "ucir-original": ucir_original,
    "wa-der": wa_der,
    "wa-original": wa_original,
}


# Recipes that follow the protocol that is asked for, but for the settings that are given; and what is to be said of it.
FOLLOWING: dict[str, Callable[[Config, Container[str]], tuple[Config, list[str]]]] = {"der-pruned": pruned_as_printed}


def configure(
    what: str,
    data: str | None = None,
    settings: Iterable[tuple[str, Any]] = (),
    fields: Mapping[str, Any] | None = None,
    file: Mapping[str, Any] | None = None,
) -> tuple[Config, list[str]]:
    """`ucir+cwd+bdr`, a recipe's name, or `package.module:MyMethod+bdr`, with what is changed in it.

    A file changes the recipe, what is typed (fields, then settings) changes both; and what was adapted, as sentences.
    A file that has everything takes the place of the recipe.
    """
    layers = [list((file or {}).items()), [*(fields or {}).items(), *settings]]
    named = [data, *(value for layer in layers for name, value in layer if name == "data")]
    layers = [[each for each in flattened(layer) if each[0] != "data"] for layer in layers]
    start = begun(what, named[-1])
    if is_whole(file or {}):
        start = changed(start, {"settings": {}, "stages": {}, "augment": {}})  # what it does not name is not there
        return with_settings(start, *layers)
    config, notes = with_settings(start, *layers)
    follow = FOLLOWING.get(what.split("+")[0], lambda config, _: (config, []))
    config, further = follow(config, {name for layer in layers for name, _ in layer})
    return config, notes + further


def is_whole(file: Mapping[str, Any]) -> bool:
    """Whether it has all fields of a configuration, as --print-config prints them; what to run may be typed instead."""
    return file.keys() >= Config.model_fields.keys() - {"method", "plugins"}


def begun(what: str, data: str | None) -> Config:
    """A recipe, or a method in the frame of a data set, with plug-ins."""
    name, *plugins = what.split("+")
    if not name or not all(plugins):
        raise UsageError(f"'{what}' is not like METHOD+PLUGIN+PLUGIN, for example ucir+cwd+bdr")
    if name in RECIPES:
        config = RECIPES[name](*plugins)
        if data not in (None, config.data):
            raise UsageError(f"recipe '{name}' is for {config.data}, not for {data}; name a method: {config.title}")
        return config
    if name in PLUGINS:
        raise UsageError(f"'{name}' is a plug-in: name a method before it, such as ucir+{what}")
    if name not in METHODS and ":" not in name:
        raise unknown("method or recipe", name, [*METHODS, *RECIPES])
    chosen = changed(Config(), {} if data is None else {"data": data}).data
    return changed(frame_of(chosen)(name, *plugins), {"data": chosen})
