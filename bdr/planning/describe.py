"""What a run records of itself: the facts that make results comparable, its fingerprint, its versions."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bdr.configuration.config import Config, short
from bdr.data.augment import Augment
from bdr.errors import UsageError
from bdr.planning.checked import Checked
from bdr.planning.loading import image_shape
from bdr.planning.own_code import code_version, library_version, own_versions
from bdr.planning.settings import Settings, recorded
from bdr.records import OF_A_FILE, OF_A_METHOD
from bdr.types import Stage
from bdr.version import __version__

SIDE_BY_SIDE = "BDR_SIDE_BY_SIDE"  # the environment variable that says how many runs share the machine


def shared_facts(protocol: dict[str, Any]) -> str:
    """A checksum of the facts that runs of different methods have in common if they can be compared.

    It is taken of values as the record writes them; otherwise a run that is extended again would get another
    fingerprint.
    """
    return digest({fact: value for fact, value in protocol.items() if fact not in OF_A_METHOD})[:6]


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def protocol_facts(config: Config, made: Checked) -> dict[str, Any]:
    """What must be equal for two results to be comparable: the facts that papers leave out."""
    stage, data = config.stage, made.data
    return {
        "data": data.name,
        "source": data.source,
        **({"size": data.size} if data.size is not None else {}),
        "classes": len(data.classes),
        "order": config.order if len(config.order) < 40 else f"list-{digest(config.order)[:6]}",
        "base": config.base,
        "step": config.step,
        "memory": config.memory,
        "herding": config.herding if config.memory not in ("0", "0/class") else "none",
        "net": config.net,
        **({"weights": made.weights[:12]} if made.weights else {}),
        "augment": augment_facts(data.augment),
        "normalise": f"mean {data.mean}, std {data.std}",
        "epochs": stage.epochs,
        "batch": stage.batch,
        "optimizer": f"{stage.optimizer} lr {stage.lr:g} wd {stage.weight_decay:g} {stage.schedule} {stage.drops}",
        "precision": made.precision,
        "held_out": config.val,
        "phases": len(made.phases),
        "readout": made.method.readout,
        **(made.extends.facts() if made.extends else {}),
    }


def augment_facts(augment: Augment) -> str:
    """The augmentation in words; options added after the first records are named only where they are on."""
    later = {name: value for name, value in asdict(augment).items() if name not in ("pad", "flip", "brightness")}
    if not augment.randaugment:
        del later["randaugment_std"]  # the spread of nothing
    named = "".join(f", {name} {value:g}" for name, value in later.items() if value)
    return f"pad {augment.pad}, flip {augment.flip}, brightness {augment.brightness:g}{named}"


def describe(config: Config, made: Checked, settings: Settings) -> dict[str, Any]:
    """run.json: what was run, on what, and how to run it again. `settings` are those that make the fingerprint."""
    facts = protocol_facts(config, made)
    own = own_versions(config.method, config.net, config.data, *config.plugins)
    correcting = [plugin.name for plugin in made.plugins if plugin.corrects]
    return {
        "title": config.title,
        "seed": config.seed,
        "fingerprint": fingerprint(config, made, facts, settings),
        "protocol": facts,
        **about_classes(made),
        **({"extends": made.extends.record()} if made.extends else {}),
        **({"weights": made.weights} if made.weights else {}),  # sha256
        "code": library_version(),
        **({"own_code": own} if own else {}),
        "config": config.model_dump(mode="json"),
        **({"root": str(Path(config.root).resolve())} if config.root and Path(config.root).exists() else {}),
        "told_stage": told(config.stage),
        "analyse": config.analyse,
        "engine": made.engine,
        "device": describe_device(made.device),
        "versions": versions(),
        "side_by_side": side_by_side(),
        "settings": recorded(config),
        **({"corrected_by": correcting} if correcting else {}),
        "distillation": made.method.distillation,
        **({"scale_setting": f"{short(config.method)}.{scale}"} if (scale := made.method.scale_setting) else {}),
        "image": list(image_shape(made.data)),
    }


def fingerprint(config: Config, made: Checked, facts: dict[str, Any], settings: Settings) -> str:
    """A hash of what a run is made of. Existing runs must keep theirs: nothing may be added or reordered for them."""
    settings = placeless(settings) if made.weights else settings
    made_of = [facts, made.protocol.order, config.title, settings, told(config.stage), config.stages]
    made_of += made.extends.trained_by(config.seed) if made.extends else []
    return digest(made_of)[:6]


def about_classes(made: Checked) -> dict[str, Any]:
    """The classes in order of arrival, the phases they come in, and how their images are normalised."""
    order, data = made.protocol.order, made.data
    return {
        "order": list(order),
        "classes": [data.classes[label] for label in order],
        "phases": [[phase.old, phase.seen] for phase in made.phases],
        "mean": [float(value) for value in data.mean],
        "std": [float(value) for value in data.std],
    }


def placeless(settings: Settings) -> Settings:
    """Settings without the place and the expected checksum of a file of weights: its checksum is among the facts."""
    return {owner: {k: v for k, v in mine.items() if k not in OF_A_FILE} for owner, mine in settings.items()}


def told(stage: Stage) -> dict[str, Any]:
    """The fields that differ from a default stage, so that fields which stages get later change no fingerprint."""
    return {k: v for k, v in asdict(stage).items() if v != asdict(Stage())[k]}


def side_by_side() -> int:
    """How many runs may be training side by side, this one included: 1, unless a sweep says otherwise to its runs."""
    told = os.environ.get(SIDE_BY_SIDE, "1")
    if not told.isdecimal() or int(told) < 1:
        raise UsageError(f"{SIDE_BY_SIDE}={told} is not allowed: it is how many runs are side by side, 1 or more")
    return int(told)


def describe_device(device: torch.device) -> dict[str, Any]:
    if device.type != "cuda":
        return {"type": device.type, "name": "CPU", "threads": torch.get_num_threads()}
    about = torch.cuda.get_device_properties(device)
    return {"type": "cuda", "name": about.name, "memory_gib": round(about.total_memory / 2**30, 1)}


def versions() -> dict[str, str]:
    found = {
        "bdr": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }
    return found | ({"cuda": str(torch.version.cuda)} if torch.version.cuda else {})


def first_phase_key(config: Config, info: dict[str, Any], made: Checked) -> str:
    """A hash of all that training the first phase reads; not of memory, later steps, or plug-ins that rest in it.

    A plug-in that changes the network counts even if it rests, unless it only splits the network later: the weights of
    another network do not fit. So does one that corrects scores: its model has one part more.
    """
    facts = {k: v for k, v in info["protocol"].items() if k not in ("step", "base", "memory", "herding", "phases")}
    facts["order"] = info["order"][: info["phases"][0][1]]
    phase, stages = made.phases[0], made.stages[0]
    lasting = [plugin.corrects or ("net" in plugin.roles and not plugin.splits) for plugin in made.plugins]
    acting = [any(plugin.acts(phase, stage) for stage in stages) for plugin in made.plugins]
    resting = [not lasts and not acts for lasts, acts in zip(lasting, acting, strict=True)]
    active = [name for name, rests in zip(config.plugins, resting, strict=True) if not rests]
    settings = {name: config.settings.get(name, {}) for name in map(short, (config.net, *active))}
    of_method = config.settings.get(short(config.method), {})
    settings[short(config.method)] = {name: of_method[name] for name in of_method if name not in made.method.later}
    machine = [info["engine"], info["device"]["name"], info["versions"]]
    trained = [told(stage) for stage in stages]
    code = code_version(config.method, config.net, *active)
    return digest([facts, config.method, active, settings, trained, config.seed, machine, code])[:16]
