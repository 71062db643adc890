"""Settings by name, laid over a configuration in layers: over those of a recipe come a file's, then typed ones."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import yaml

from bdr.configuration.config import DECLARED, Config, changed, checked, checked_stage, refuse_declared
from bdr.errors import UsageError
from bdr.types import Stage

SCALED = ("drops", "warmup")  # fields of a stage that scale with its epochs
OWNED = {
    "settings": "",
    "stages": "stage.",
}  # fields with settings of several owners, and what comes before the owner in a dotted name


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


def checked_settings(given: object) -> Iterable[tuple[str, Any]]:
    if given is None or isinstance(given, Mapping):
        return (given or {}).items()
    raise UsageError(f'set is a {type(given).__name__}, and must be a mapping such as {{"stage.epochs": 2}}')


def with_settings(config: Config, *layers: Iterable[tuple[str, Any]]) -> tuple[Config, list[str]]:
    """Apply dotted settings, later layers over earlier ones; also return sentences on what was adapted with them."""
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
    """The same for settings of single stages, by the name of the stage."""
    stages, notes = dict(config.stages), list[str]()
    for name in dict.fromkeys(name for layer in layers for name in layer):
        given = [stages.get(name, {}), *(layer[name] for layer in layers if name in layer)]
        stages[name], further = laid_over(name, given)
        notes += further
    return (changed(config, {"stages": stages}) if stages != config.stages else config), notes


def laid_over(name: str, layers: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], list[str]]:
    """Merge layers of settings of one stage, whose other fields the method declares.

    Drops and warm-up that were given together with epochs are scaled if a later layer changes the epochs.
    """
    fields: dict[str, Any] = {}
    meant: dict[str, int | None] = {}
    for layer in layers:
        refuse_declared(layer)
        fields |= checked(Stage, layer, f"stage.{name}", DECLARED)
        meant |= {field: fields.get("epochs") for field in SCALED if field in layer}
    scaled = {field: moved(fields[field], fields["epochs"], epochs) for field, epochs in meant.items() if epochs}
    notes = [
        f"{name}.{field} scaled with the epochs: {fields[field]} -> {value}"
        for field, value in scaled.items()
        if value != fields[field]
    ]
    return fields | scaled, notes


def flattened(settings: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield `stage: {epochs: 2}` as ("stage.epochs", 2), so that fields not named in a mapping stay as they are."""
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

    They are scaled only once, from the epochs in force when they were given, as scaling to a few epochs in between
    would round them.
    """
    meant = dict.fromkeys(SCALED, stage.epochs)
    for given in layers:
        refuse_declared(given)
        values = checked(Stage, given, "stage", DECLARED)
        stage = checked_stage(replace(stage, **values))
        meant |= {name: stage.epochs for name in SCALED if name in values}
    scaled: dict[str, Any] = {name: moved(getattr(stage, name), stage.epochs, epochs) for name, epochs in meant.items()}
    if stage.warmup_lr is not None and scaled["warmup"] == 1 < stage.warmup:
        scaled["warmup"] = 2  # the first epoch is spent at that rate, so one alone would warm up nothing
    notes = [
        f"{stage.name}.{name} scaled with the epochs: {getattr(stage, name)} -> {value}{fallen_together(stage, name)}"
        for name, value in scaled.items()
        if value != getattr(stage, name) and (name != "drops" or stage.schedule == "steps")  # others have none
    ]
    return replace(stage, **scaled), notes


def fallen_together(stage: Stage, name: str) -> str:
    """A note on drops that few epochs have rounded to the same place: with more epochs they fall together too."""
    places = getattr(stage, name) if name == "drops" else ()
    if len(set(places)) == len(places):
        return ""
    spread = ",".join(f"E{number}" for number, _ in enumerate(places, 1))
    owner = "stage" if stage.name == Stage().name else f"stage.{stage.name}"
    return f"; two of them fall together: type --set {owner}.drops=[{spread}] for others"


def moved(given: int | tuple[int, ...], epochs: int, meant: int) -> int | tuple[int, ...]:
    """Scale places among `meant` epochs to the same share of `epochs`; a drop comes after at least one epoch."""
    if epochs == meant:
        return given
    share = epochs / meant
    return round(given * share) if isinstance(given, int) else tuple(max(1, round(each * share)) for each in given)
