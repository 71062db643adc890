"""What a run says of itself: the facts that make results comparable, its fingerprint, its versions."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bdr.config import Config, short
from bdr.data.augment import Augment
from bdr.data.images import DataSet
from bdr.errors import UsageError
from bdr.own_code import code_version, library_version, own_versions
from bdr.plugins import Plugin
from bdr.records import OF_A_FILE, OF_A_METHOD
from bdr.scenario import Given, Protocol
from bdr.types import Phase, Stage
from bdr.version import __version__

SIDE_BY_SIDE = "BDR_SIDE_BY_SIDE"  # the environment variable that says how many runs share the machine


@dataclass(frozen=True)
class Extends:
    """The run that another one extends, as run.json has it; and the bounds of all phases, its own first."""

    run: str  # its folder
    fingerprint: str
    seed: int
    protocol: str  # a checksum of the facts that results of other methods share with it
    model: str  # the sha256 of its tensors
    phases: int  # that were taken over
    classes: int  # that it knew
    mean: tuple[float, ...]  # its images were normalised so, and further ones are too
    std: tuple[float, ...]
    bounds: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, info: dict[str, Any]) -> Extends | None:
        """What a run.json says; None for a run that extends no other."""
        if "extends" not in info:
            return None
        told = info["extends"] | {"bounds": tuple((old, seen) for old, seen in info["phases"])}
        return cls(**told | {"mean": tuple(told["mean"]), "std": tuple(told["std"])})

    def record(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "bounds"}

    def facts(self) -> dict[str, Any]:
        """What sets such a run apart from one that trained all of its phases, and does not from other methods."""
        further = [seen - old for old, seen in self.bounds[self.phases :]]
        return {"extends": self.protocol, "further": "+".join(map(str, further))}

    def trained_by(self, seed: int) -> list[Any]:
        """Which run it was, for the fingerprint; its seed goes without saying where it is the same."""
        return [self.fingerprint, *([self.seed] if seed != self.seed else [])]


def shared_facts(protocol: dict[str, Any]) -> str:
    """A checksum of what runs of different methods have in common where they can be compared.

    Of values as the record writes them: taken otherwise, what is extended once more would get another fingerprint.
    """
    return digest({fact: value for fact, value in protocol.items() if fact not in OF_A_METHOD})[:6]


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def protocol_facts(
    config: Config, data: DataSet, protocol: Protocol | Given, precision: str, readout: str, weights: str | None
) -> dict[str, Any]:
    """What must be equal for two results to be comparable: the facts that papers leave out."""
    stage = config.stage
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
        **({"weights": weights[:12]} if weights else {}),
        "augment": augment_facts(data.augment),
        "normalise": f"mean {data.mean}, std {data.std}",
        "epochs": stage.epochs,
        "batch": stage.batch,
        "optimizer": f"{stage.optimizer} lr {stage.lr:g} wd {stage.weight_decay:g} {stage.schedule} {stage.drops}",
        "precision": precision,
        "held_out": config.val,
        "phases": len(list(protocol)[: config.phases]),
        "readout": readout,
    }


def augment_facts(augment: Augment) -> str:
    """In words; what came later than the first records is named where it is on."""
    later = {name: value for name, value in asdict(augment).items() if name not in ("pad", "flip", "brightness")}
    if not augment.randaugment:
        del later["randaugment_std"]  # of nothing
    named = "".join(f", {name} {value:g}" for name, value in later.items() if value)
    return f"pad {augment.pad}, flip {augment.flip}, brightness {augment.brightness:g}{named}"


def describe(
    config: Config,
    data: DataSet,
    protocol: Protocol | Given,
    phases: Sequence[Phase],
    precision: str,
    engine: str,
    device: torch.device,
    readout: str,
    weights: str | None = None,
    extends: Extends | None = None,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """run.json: what was run, on what, and how to run it again.

    `settings` make the fingerprint, where they are not all that the configuration has.
    """
    facts = protocol_facts(config, data, protocol, precision, readout, weights)
    facts |= extends.facts() if extends else {}
    settings = config.settings if settings is None else settings
    settings = placeless(settings) if weights else settings
    made_of = [facts, protocol.order, config.title, settings, told(config.stage), config.stages]
    made_of += extends.trained_by(config.seed) if extends else []
    own = own_versions(config.method, config.net, config.data, *config.plugins)
    return {
        "title": config.title,
        "seed": config.seed,
        "fingerprint": digest(made_of)[:6],
        "protocol": facts,
        "order": list(protocol.order),
        "classes": [data.classes[label] for label in protocol.order],
        "phases": [[phase.old, phase.seen] for phase in phases],
        "mean": [float(value) for value in data.mean],
        "std": [float(value) for value in data.std],
        **({"extends": extends.record()} if extends else {}),
        **({"weights": weights} if weights else {}),  # sha256
        "code": library_version(),
        **({"own_code": own} if own else {}),
        "config": config.model_dump(mode="json"),
        **({"root": str(Path(config.root).resolve())} if config.root and Path(config.root).exists() else {}),
        "told_stage": told(config.stage),
        "analyse": config.analyse,
        "engine": engine,
        "device": describe_device(device),
        "versions": versions(),
        "side_by_side": side_by_side(),
    }


def placeless(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Without where a file of weights lies, and which one was asked for: its checksum is among the facts."""
    return {owner: {k: v for k, v in mine.items() if k not in OF_A_FILE} for owner, mine in settings.items()}


def told(stage: Stage) -> dict[str, Any]:
    """What differs from a stage of which nothing is said: a field that stages get later changes no fingerprint."""
    return {k: v for k, v in asdict(stage).items() if v != asdict(Stage())[k]}


def side_by_side() -> int:
    """How many runs may be at work beside each other, this one included: a sweep tells its runs; a run alone is one."""
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


def first_phase_key(
    config: Config, info: dict[str, Any], plugins: Sequence[Plugin], phase: Phase, stages: Sequence[Stage]
) -> str:
    """A hash of all that training the first phase reads; not of memory, later steps, or plug-ins that rest in it.

    One that has a hand in the network never rests: the weights of another network are not this one's. Neither does one
    that corrects what is read: its model has a part more.
    """
    facts = {k: v for k, v in info["protocol"].items() if k not in ("step", "base", "memory", "herding", "phases")}
    facts["order"] = info["order"][: info["phases"][0][1]]
    lasting = ["net" in plugin.roles or plugin.corrects for plugin in plugins]
    acting = [any(plugin.acts(phase, stage) for stage in stages) for plugin in plugins]
    resting = [not lasts and not acts for lasts, acts in zip(lasting, acting, strict=True)]
    active = [name for name, rests in zip(config.plugins, resting, strict=True) if not rests]
    settings = {name: config.settings.get(name, {}) for name in map(short, (config.method, config.net, *active))}
    machine = [info["engine"], info["device"]["name"], info["versions"]]
    trained = [told(stage) for stage in stages]
    code = code_version(config.method, config.net, *active)
    return digest([facts, config.method, active, settings, trained, config.seed, machine, code])[:16]
