"""The configuration of a run: one frozen, validated value; overrides by name; errors that say what to type instead."""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, field_validator

from bdr.data.augment import Augment
from bdr.data.memory import HERDINGS, Quota
from bdr.data.pool import DRAWS
from bdr.errors import UsageError, unknown
from bdr.schedules import SCHEDULES
from bdr.types import OPTIMIZERS, Stage

Statistics = Literal["default", "der", "half"]  # mean and std that images are normalised with

DECLARED = ("name", "loss", "alternate")  # of a stage: methods and plug-ins tell stages apart by them; no settings
SCALED = ("drops", "warmup")  # places in a stage that move with its epochs
OWNED = {
    "settings": "",
    "stages": "stage.",
}  # settings of several, and what their dotted names begin with
LEAST = {"epochs": 1, "batch": 2, "repeat": 1, "warmup": 0, "floor": 0, "weight_decay": 0, "momentum": 0}


class Config(BaseModel):
    """All that a run is made from. Fields of methods, plug-ins and stages are checked against their own signatures."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: str = "ucir"  # a name of METHODS, or package.module:Class
    plugins: tuple[str, ...] = ()  # names of PLUGINS, or package.module:Class
    settings: dict[str, dict[str, Any]] = Field(default_factory=dict)  # of the method and the plug-ins, by their name
    data: str = "digits"
    root: str | None = None
    size: Annotated[int, Field(ge=4)] = 32  # pixels a side, for folders of images
    statistics: Statistics = "default"
    augment: dict[str, Any] = Field(default_factory=dict)  # what differs from the data set's own augmentation
    base: int = 50
    step: int = 10
    order: str = "seed-1993"
    uneven: bool = False
    memory: str = "20/class"
    herding: str = "distance"
    net: str = "resnet18"
    seed: Annotated[int, Field(ge=0)] = 1993
    stage: Stage = Stage()
    stages: dict[str, dict[str, Any]] = Field(default_factory=dict)  # what differs in single stages, by their name
    precision: Literal["auto", "fp32", "tf32", "bf16"] = "auto"
    device: str = "auto"
    engine: Literal["auto", "eager", "compile", "graph"] = "auto"
    keep: Literal["last", "all", "none"] = "last"
    val: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    phases: Annotated[int | None, Field(ge=1)] = None  # stop after so many
    analyse: bool = False  # log what the figures of destruction and reconstruction need
    checkpoint_every: Annotated[float, Field(ge=0.0)] = 20.0
    share: bool = True  # train a first phase once for all runs that have the same
    log: tuple[str, ...] = ()  # names of TRACKERS

    @field_validator("memory", mode="before")
    @classmethod
    def memory_is_a_quota(cls, value: Any) -> str:
        return str(Quota.parse(str(value)))

    @field_validator("log", mode="before")
    @classmethod
    def log_is_a_list(cls, value: Any) -> Any:
        """`tensorboard,mlflow` on the command line."""
        return [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value

    @property
    def title(self) -> str:
        return "+".join((self.method, *self.plugins))


def fields_of(target: Callable[..., Any], filled: Iterable[str] = ()) -> dict[str, tuple[Any, Any]]:
    """The settings that a class takes: the annotated parameters of its signature, but for those that are filled."""
    hints = typing.get_type_hints(target.__init__ if inspect.isclass(target) else target)
    parameters = inspect.signature(target).parameters.values()
    named = [p for p in parameters if p.name not in filled and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return {p.name: (hints.get(p.name, Any), ... if p.default is p.empty else p.default) for p in named}


@cache
def model_of(target: Callable[..., Any], filled: frozenset[str]) -> type[BaseModel]:
    fields: dict[str, Any] = fields_of(target, filled)
    rules = ConfigDict(extra="forbid", allow_inf_nan=False)
    return create_model(getattr(target, "__name__", "Settings"), __config__=rules, **fields)


def checked(
    target: Callable[..., Any], given: Mapping[str, Any], owner: str, filled: Iterable[str] = ()
) -> dict[str, Any]:
    """The given settings of a class in their right types, or a refusal with the nearest right name."""
    names = fields_of(target, filled)
    for name in given:
        if name not in names:
            raise unknown(f"setting of {owner}", name, names)
    try:
        values = model_of(target, frozenset(filled))(**given).model_dump()
    except ValidationError as error:
        raise refusal(error, owner) from None
    return {name: values[name] for name in given}


def refusal(error: ValidationError, owner: str = "") -> UsageError:
    first = error.errors()[0]
    name = ".".join(str(part) for part in (owner, *first["loc"]) if part != "")
    if first["type"] == "missing":
        return UsageError(f"{name} has no default, and needs a value: type --set {name}=VALUE")
    said = first["msg"].removeprefix("Value error, ")
    return UsageError(f"{name} = {first.get('input')!r} is not allowed: {said[0].lower()}{said[1:]}")


def settable(target: Callable[..., Any]) -> dict[str, tuple[Any, Any]]:
    """The fields of a part of a run that are settings: of a stage, those that nobody declares."""
    return fields_of(target, DECLARED if target is Stage else ())


def refuse_declared(given: Mapping[str, Any]) -> None:
    for name in DECLARED:
        if name in given:
            raise UsageError(
                f"stage.{name} = {given[name]!r} is not allowed: the method declares it, and it is no setting; leave "
                f"stage.{name} out (settings of a stage are {', '.join(sorted(settable(Stage)))})"
            )


def unknown_field(name: str) -> UsageError:
    """`epochs` and its like belong to a stage."""
    for owner, target in {"stage": Stage, "augment": Augment}.items():
        if name in settable(target):
            return UsageError(f"no setting '{name}'; it belongs to {owner}: type --set {owner}.{name}=VALUE")
    return unknown("setting", name, Config.model_fields)


def changed(config: Config, changes: Mapping[str, Any]) -> Config:
    """The configuration with some fields changed, validated anew."""
    for name in changes:
        if name not in Config.model_fields:
            raise unknown_field(name)
    try:
        return Config.model_validate({**dict(config), **changes})
    except ValidationError as error:
        raise refusal(error) from None


def parse_setting(text: str) -> tuple[str, Any]:
    """`bdr.m=0.5` -> ("bdr.m", 0.5); values are read as YAML."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise UsageError(f"'{text}' is not like NAME=VALUE, for example --set stage.epochs=2")
    try:
        return name.strip(), yaml.safe_load(value)
    except yaml.YAMLError:
        raise UsageError(f"the value of '{text}' cannot be read") from None


def as_typed(value: Any) -> str:
    """A value as YAML in one line."""
    plain = list(value) if isinstance(value, tuple) else value
    text = yaml.safe_dump(plain, default_flow_style=True, width=sys.maxsize, allow_unicode=True)
    return text.removesuffix("...\n").strip()


def with_settings(config: Config, *layers: Iterable[tuple[str, Any]]) -> tuple[Config, list[str]]:
    """Applies dotted settings, later layers over earlier ones; returns what was adapted with them as sentences."""
    of_stage: list[dict[str, Any]] = []
    of_named: list[dict[str, dict[str, Any]]] = []
    for layer in layers:
        of_stage.append({})
        of_named.append({})
        for name, value in flattened(layer):
            owner, _, field = name.rpartition(".")
            if owner == "stage":
                of_stage[-1][field] = value
            elif owner.startswith("stage."):
                of_named[-1].setdefault(owner.removeprefix("stage."), {})[field] = value
            else:
                config = with_setting(config, owner, field, value)
    config, notes = with_named_stages(config, of_named)
    if not any(of_stage):
        return config, notes
    stage, further = with_stage_settings(config.stage, *of_stage)
    return changed(config, {"stage": stage}), further + notes


def with_named_stages(config: Config, layers: Sequence[Mapping[str, Mapping[str, Any]]]) -> tuple[Config, list[str]]:
    """What differs in single stages, by their name, in the same way."""
    stages, notes = dict(config.stages), list[str]()
    for name in dict.fromkeys(name for layer in layers for name in layer):
        given = [stages.get(name, {}), *(layer[name] for layer in layers if name in layer)]
        stages[name], further = laid_over(name, given)
        notes += further
    return (changed(config, {"stages": stages}) if stages != config.stages else config), notes


def laid_over(name: str, layers: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], list[str]]:
    """Fields of a stage whose others the method declares: what is scaled is what was given together with its epochs."""
    fields: dict[str, Any] = {}
    meant: dict[str, int | None] = {}
    for layer in layers:
        refuse_declared(layer)
        fields |= checked(Stage, layer, f"stage.{name}", DECLARED)
        meant |= {field: fields.get("epochs") for field in SCALED if field in layer}
    scaled = {field: moved(fields[field], fields["epochs"], epochs) for field, epochs in meant.items() if epochs}
    notes = [
        f"stage.{name}.{field} scaled with the epochs: {fields[field]} -> {value}"
        for field, value in scaled.items()
        if value != fields[field]
    ]
    return fields | scaled, notes


def flattened(settings: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """`stage: {epochs: 2}` as ("stage.epochs", 2): what a mapping does not name stays as it is."""
    for name, value in settings:
        if name in ("stage", "augment") and isinstance(value, dict):
            yield from ((f"{name}.{field}", inner) for field, inner in value.items())
        elif name in OWNED and isinstance(value, dict) and all(isinstance(mine or {}, dict) for mine in value.values()):
            for owner, mine in value.items():
                yield from ((f"{OWNED[name]}{owner}.{field}", inner) for field, inner in (mine or {}).items())
        else:
            yield name, value


def with_setting(config: Config, owner: str, field: str, value: Any) -> Config:
    if owner == "augment":
        return changed(config, {"augment": {**config.augment, field: value}})
    if owner:
        return changed(config, {"settings": merged(config.settings, owner, field, value)})
    return changed(config, {field: value})


def merged(settings: Mapping[str, dict[str, Any]], owner: str, field: str, value: Any) -> dict[str, dict[str, Any]]:
    return {**settings, owner: {**settings.get(owner, {}), field: value}}


def with_stage_settings(stage: Stage, *layers: Mapping[str, Any]) -> tuple[Stage, list[str]]:
    """A stage with fields changed, later layers over earlier ones; drops and warm-up keep their place in the epochs.

    They are scaled once, from the epochs that held where they were given: a detour over few epochs would round them.
    """
    meant = dict.fromkeys(SCALED, stage.epochs)
    for given in layers:
        refuse_declared(given)
        values = checked(Stage, given, "stage", DECLARED)
        stage = checked_stage(replace(stage, **values))
        meant |= {name: stage.epochs for name in SCALED if name in values}
    scaled: dict[str, Any] = {name: moved(getattr(stage, name), stage.epochs, epochs) for name, epochs in meant.items()}
    notes = [
        f"{stage.name}.{name} scaled with the epochs: {getattr(stage, name)} -> {value}{fallen_together(stage, name)}"
        for name, value in scaled.items()
        if value != getattr(stage, name) and (name != "drops" or stage.schedule == "steps")  # others know none
    ]
    return replace(stage, **scaled), notes


def fallen_together(stage: Stage, name: str) -> str:
    """What few epochs have rounded to one place is at one place in many too: whoever types more is told."""
    places = getattr(stage, name) if name == "drops" else ()
    if len(set(places)) == len(places):
        return ""
    spread = ",".join(f"E{number}" for number, _ in enumerate(places, 1))
    return f"; two of them fall together: type --set stage.drops=[{spread}] for others"


def moved(given: int | tuple[int, ...], epochs: int, meant: int) -> int | tuple[int, ...]:
    """Epochs of so many as the same share of others. A rate that drops has held for an epoch at least."""
    if epochs == meant:
        return given
    share = epochs / meant
    return round(given * share) if isinstance(given, int) else tuple(max(1, round(each * share)) for each in given)


def checked_stage(stage: Stage) -> Stage:
    for name, allowed in {"optimizer": OPTIMIZERS, "schedule": SCHEDULES, "draw": DRAWS}.items():
        if getattr(stage, name) not in allowed:
            raise unknown(f"{name} for stage.{name}", getattr(stage, name), allowed)
    for name, least in LEAST.items():
        if getattr(stage, name) < least:
            raise UsageError(f"stage.{name} = {getattr(stage, name)} is not allowed: it is {least} or more")
    for name in ("lr", "drop", "clip", "warmup_lr"):
        if (value := getattr(stage, name)) is not None and value <= 0:
            raise UsageError(f"stage.{name} = {value} is not allowed: it is more than 0")
    return stage


def checked_augment(own: Augment, given: Mapping[str, Any]) -> Augment:
    augment = replace(own, **checked(Augment, given, "augment"))
    for name in ("pad", "brightness", "additive", "rotation", "randaugment_std"):
        if getattr(augment, name) < 0:
            raise UsageError(f"augment.{name} = {getattr(augment, name)} is not allowed: it is 0 or more")
    for name in ("contrast", "uncropped"):
        if not 0 <= getattr(augment, name) <= 1:
            raise UsageError(f"augment.{name} = {getattr(augment, name)} is not allowed: it is from 0 to 1")
    if not 0 <= augment.randaugment <= 10:
        raise UsageError(f"augment.randaugment = {augment.randaugment} is not allowed: it is from 0 (off) to 10")
    return augment


def check_names(config: Config) -> None:
    if config.herding not in HERDINGS:
        raise unknown("herding", config.herding, HERDINGS)
    plain, given = Stage(), config.stage  # which may be handed over whole in Python
    refuse_declared({name: getattr(given, name) for name in DECLARED if getattr(given, name) != getattr(plain, name)})


def to_yaml(config: Config) -> str:
    stage = {k: v for k, v in asdict(config.stage).items() if k not in DECLARED}
    plain = config.model_dump(mode="json") | {"stage": stage}
    plain["stage"]["drops"] = list(config.stage.drops)
    plain["stage"]["train"] = list(config.stage.train)
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)


def from_yaml(text: str, source: str) -> dict[str, Any]:
    """The fields that a configuration file changes."""
    try:
        found = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise UsageError(f"{source} is not YAML: {error}") from None
    if not isinstance(found, dict):
        raise UsageError(f"{source} holds {type(found).__name__}, and must hold fields such as `base: 50`")
    for name in found:
        if not isinstance(name, str):
            raise unknown(f"setting in {source}", str(name), Config.model_fields)
    return found


def is_own(name: str) -> bool:
    """Whether a method, plug-in, network or data set is one's own, `package.module:Name`, and none of the library's."""
    return ":" in name


def short(name: str) -> str:
    """The name by which settings and records speak of a part of a run."""
    return name.rpartition(":")[2]


def owners(config: Config) -> list[str]:
    """The parts of a run that have settings, by the names that these begin with; `stage` and `augment` come on top."""
    return [short(name) for name in (config.method, *config.plugins, config.net)]
