"""Named recipes as functions, a few lines for a row of the paper; and `configure`, from what is typed to a `Config`."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import replace
from typing import Any

from bdr.configuration.config import Config, changed, is_own
from bdr.configuration.frames import IMPRINTED, cifar100, der_frame, digits, frame_of
from bdr.configuration.overrides import flattened, with_settings
from bdr.errors import UsageError, unknown
from bdr.methods import METHODS
from bdr.plugins import PLUGINS
from bdr.types import Stage

# The share of an extractor that pruned DER keeps in table 2, by base and step, from the sizes printed there.
PRUNED = {
    (0, 10): 0.0807,
    (0, 5): 0.0615,
    (0, 2): 0.0356,
    (50, 25): 0.1746,
    (50, 10): 0.1568,
    (50, 5): 0.1312,
}


def but(frame: Config, **fields: Any) -> Config:
    """A recipe: a frame, made with all plug-ins that are asked for, with some fields changed.

    Settings given for a method replace all those that its frame has for it.
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
    stage = Stage(epochs=250, drops=(100, 150, 200), weight_decay=2e-4)
    plain = {"augment": {}, "statistics": "default", "order": "seed-1993"}
    return but(cifar100("wa", *plugins), net="resnet32", base=0, step=20, memory="2000", stage=stage, **plain)


def icarl_original(*plugins: str) -> Config:
    """iCaRL as its paper has it: ResNet-32, 100 outputs in its mean, 10 classes a phase, 2,000 exemplars in total."""
    frame = cifar100("icarl", *plugins)
    decay = 2 * 1e-5  # its penalty is 1e-5 times the squared weights, and their gradient has a factor of two
    own = {"stage": replace(frame.stage, weight_decay=decay), "augment": {}, "order": "seed-1993"}
    own |= {"statistics": "default", "settings": {"icarl": {"outputs": 100}}}
    return but(frame, net="resnet32", base=0, step=10, memory="2000", **own)


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
    """Pruned DER as small as in table 2 at the configured base and step; a note where the table has no size."""
    base = 0 if config.base == config.step else config.base  # both give the same phases
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
    """AANet as its own code has it: two ResNet-32, imprinted embeddings, dot-product herding."""
    return cifar100("ucir", "aanet", *plugins)


def aanet_resnet18(*plugins: str) -> Config:
    """AANet of table 4: the same with two ResNet-18, the network of the other rows."""
    return but(aanet(*plugins), net="resnet18")


def aanet_readme(*plugins: str) -> Config:
    """AANet as its README runs it: the same with 2,000 exemplars in total, 40 a class at first."""
    return but(aanet(*plugins), memory="2000")


def digits_cwd(*plugins: str) -> Config:
    """CwD on handwritten digits: trains in seconds on a CPU."""
    return digits("ucir", "cwd", *plugins)


def digits_cwd_bdr(*plugins: str) -> Config:
    """CwD with BDR on handwritten digits."""
    return digits("ucir", "cwd", "bdr", *plugins)


RECIPES: dict[str, Callable[..., Config]] = {
    "aanet": aanet,
    "aanet-readme": aanet_readme,
    "aanet-resnet18": aanet_resnet18,
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


# Recipes with settings that follow the protocol asked for, unless they are given; each returns notes too.
FOLLOWING: dict[str, Callable[[Config, Container[str]], tuple[Config, list[str]]]] = {"der-pruned": pruned_as_printed}


def configure(
    what: str,
    data: str | None = None,
    settings: Iterable[tuple[str, Any]] = (),
    fields: Mapping[str, Any] | None = None,
    file: Mapping[str, Any] | None = None,
) -> tuple[Config, list[str]]:
    """The configuration of `ucir+cwd+bdr`, a recipe's name, or `package.module:MyMethod+bdr`, with changes; and notes.

    A file changes the recipe; what is typed (fields, then settings) changes both. A file that has everything takes the
    place of the recipe. The notes are sentences on what was adapted.
    """
    layers = [list((file or {}).items()), [*(fields or {}).items(), *settings]]
    named = [data, *(value for layer in layers for name, value in layer if name == "data")]
    layers = [[each for each in flattened(layer) if each[0] != "data"] for layer in layers]
    start = begun(what, named[-1])
    if is_whole(file or {}):
        start = changed(start, {"settings": {}, "stages": {}, "augment": {}})  # what it does not name stays empty
        return with_settings(start, *layers)
    config, notes = with_settings(start, *layers)
    follow = FOLLOWING.get(what.split("+")[0], lambda config, _: (config, []))
    config, further = follow(config, {name for layer in layers for name, _ in layer})
    return config, notes + further


def is_whole(file: Mapping[str, Any]) -> bool:
    """Whether a file has all fields of a configuration, as --print-config prints them; what to run may be typed."""
    return file.keys() >= Config.model_fields.keys() - {"method", "plugins"}


def refuse_other_signs(what: str) -> None:
    """Refuse other signs than `+`: `ucir-bdr`, as the folder of a run is called, or `ucir,bdr`."""
    method, *plugins = re.findall(r"[^-+,;/&\s]+", what) or [""]
    if plugins and method in (*METHODS, *RECIPES) and all(name in PLUGINS for name in plugins):
        raise UsageError(f"'{what}' is not like METHOD+PLUGIN+PLUGIN: type {'+'.join([method, *plugins])}")


def begun(what: str, data: str | None) -> Config:
    """The configuration before any changes: a recipe, or a method in the frame of a data set, with plug-ins."""
    name, *plugins = what.split("+")
    if not name or not all(plugins):
        raise UsageError(f"'{what}' is not like METHOD+PLUGIN+PLUGIN, for example ucir+cwd+bdr")
    if name in RECIPES:
        config = RECIPES[name](*plugins)
        if data not in (None, config.data):
            raise UsageError(f"recipe '{name}' is for {config.data}, not for {data}; name a method: {config.title}")
        return config
    if name in PLUGINS:
        method = next((part for part in plugins if part in METHODS or part in RECIPES), "ucir")
        ordered = "+".join([method, name, *(part for part in plugins if part != method)])
        raise UsageError(f"'{name}' is a plug-in: name a method before it, such as {ordered}")
    if name not in METHODS and not is_own(name):
        refuse_other_signs(what)
        raise unknown("method or recipe", name, [*METHODS, *RECIPES], own=True)
    chosen = changed(Config(), {} if data is None else {"data": data}).data
    return changed(frame_of(chosen)(name, *plugins), {"data": chosen})
