"""The configuration of a run: one frozen, validated value, and errors that say what to type instead."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
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

DECLARED = ("name", "loss", "alternate")  # of a stage; no settings: methods and plug-ins tell stages by them
LEAST = {"epochs": 1, "batch": 2, "repeat": 1, "warmup": 0, "floor": 0, "weight_decay": 0, "momentum": 0}


class Config(BaseModel):
    """All that a run is made from. Settings of its parts and stages are checked against their own signatures."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: str = "ucir"  # a name of METHODS, or package.module:Class
    plugins: tuple[str, ...] = ()  # names of PLUGINS, or package.module:Class
    settings: dict[str, dict[str, Any]] = Field(default_factory=dict)  # of method, plug-ins and network, by name
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
    phases: Annotated[int | None, Field(ge=1)] = None  # stop after this many
    analyse: bool = False  # log what the figures of destruction and reconstruction need
    checkpoint_every: Annotated[float, Field(ge=0.0)] = 20.0
    share: bool = True  # train a first phase once for all runs that have the same one
    log: tuple[str, ...] = ()  # names of TRACKERS

    @field_validator("memory", mode="before")
    @classmethod
    def memory_is_a_quota(cls, value: Any) -> str:
        return str(Quota.parse(str(value)))

    @field_validator("log", mode="before")
    @classmethod
    def log_is_a_list(cls, value: Any) -> Any:
        """Split `tensorboard,mlflow`, as it is typed on the command line."""
        return [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value

    @property
    def title(self) -> str:
        return "+".join((self.method, *self.plugins))


def fields_of(target: Callable[..., Any], filled: Iterable[str] = ()) -> dict[str, tuple[Any, Any]]:
    """The settings that a class takes, with type and default: the parameters of its signature not in `filled`."""
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
    """The given settings of a class, converted to the right types; unknown ones are refused with the nearest name."""
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
    """The fields of a part of a run that are settings; of a stage, those that methods and plug-ins do not declare."""
    return fields_of(target, DECLARED if target is Stage else ())


def refuse_declared(given: Mapping[str, Any]) -> None:
    for name in DECLARED:
        if name in given:
            raise UsageError(
                f"stage.{name} = {given[name]!r} is not allowed: the method declares it, and it is no setting; leave "
                f"stage.{name} out (settings of a stage are {', '.join(sorted(settable(Stage)))})"
            )


def unknown_field(name: str) -> UsageError:
    """The error for an unknown setting; for `epochs` and the like, it names the owner, such as a stage."""
    for owner, target in {"stage": Stage, "augment": Augment}.items():
        if name in settable(target):
            return UsageError(
                f"no setting '{name}'; it belongs to {owner}: type --set {owner}.{name}=VALUE "
                f"(set={{'{owner}.{name}': VALUE}} in Python)"
            )
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
    plain, given = Stage(), config.stage  # in Python a whole Stage may be given, with fields that are no settings
    refuse_declared({name: getattr(given, name) for name in DECLARED if getattr(given, name) != getattr(plain, name)})


def to_yaml(config: Config) -> str:
    stage = {k: v for k, v in asdict(config.stage).items() if k not in DECLARED}
    plain = config.model_dump(mode="json") | {"stage": stage}
    plain["stage"]["drops"] = list(config.stage.drops)
    plain["stage"]["train"] = list(config.stage.train)
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)


def text_of(file: Path, called: str) -> str:
    """The text of a YAML file, which errors call `called`."""
    try:
        return file.read_text()
    except OSError as error:
        raise UsageError(f"{called} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{called} is not YAML: it is not text") from None


def from_yaml(text: str, source: str) -> dict[str, Any]:
    """The fields that the text of a configuration file changes."""
    found = read_yaml(text, source) or {}
    if not isinstance(found, dict):
        raise UsageError(f"{source} holds {kind_of(found)}, and must hold fields such as `base: 50`")
    for name in found:
        if not isinstance(name, str):
            raise unknown(f"setting in {source}", str(name), Config.model_fields)
    return found


class Unambiguous(yaml.SafeLoader):
    """Refuses a key that stands twice in one mapping, of which YAML would take the last without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                said = f"'{key.value}' stands here for the second time: leave one of the two"
                raise yaml.constructor.ConstructorError(None, None, said, key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


def read_yaml(text: str, source: str) -> Any:
    """The value of a YAML text from the file `source`; an error says at which line and column it is not YAML."""
    try:
        return Unambiguous(text).get_single_data()
    except yaml.MarkedYAMLError as error:
        raise UsageError(told_in_words(error, source)) from None
    except yaml.YAMLError as error:
        raise UsageError(f"{source} is not YAML: {str(error).splitlines()[0]}") from None


def told_in_words(error: yaml.MarkedYAMLError, source: str) -> str:
    """A YAML error in one line.

    `a.yaml, line 2, column 5: expected ',' or ']', but got ':' (while parsing a flow sequence from line 1 on)`
    """
    mark, start = error.problem_mark, error.context_mark
    where = f"{source}, line {mark.line + 1}, column {mark.column + 1}" if mark else source
    said = (error.problem or "this is not YAML").replace("'<stream end>'", "the end of the file")
    context = f" ({error.context} from line {start.line + 1} on)" if error.context and start else ""
    return f"{where}: {said}{context}"


def kind_of(value: Any) -> str:
    """What errors call the value of a file that should hold names and values, and does not."""
    return {list: "a list", str: "a text", bool: "true or false"}.get(type(value), f"{value}")


def is_own(name: str) -> bool:
    """Whether a method, plug-in, network or data set is the user's own, `package.module:Name`, not the library's."""
    return ":" in name


def short(name: str) -> str:
    """The name of a part of a run in settings and records: `Name` for `package.module:Name`."""
    return name.rpartition(":")[2]


def owners(config: Config) -> list[str]:
    """The names of method, plug-ins and network, with which their settings begin; `stage` and `augment` come on top."""
    return [short(name) for name in (config.method, *config.plugins, config.net)]
