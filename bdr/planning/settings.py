"""All settings of the parts of a run with defaults written out, so that records stay true when defaults change."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from bdr.configuration.config import Config, changed, checked, fields_of, short
from bdr.configuration.overrides import with_setting
from bdr.methods import METHODS, Method
from bdr.nets import NETS, Backbone
from bdr.nets.base import DECIDED_BY_METHODS
from bdr.planning.parts import filled_by, resolve
from bdr.plugins import PLUGINS, Plugin

Settings = Mapping[str, Mapping[str, Any]]  # by the name of the part, then of the setting


@dataclass(frozen=True)
class Part:
    """How a method, plug-in or net is made, and which settings it has."""

    owner: str  # the name that its settings begin with
    kind: Callable[..., Any]
    handed: Collection[str] = ()  # parameters that it is handed: no settings

    def defaults(self) -> dict[str, Any]:
        fields = fields_of(self.kind, self.handed).items()
        return {name: default for name, (_, default) in fields if default is not ...}

    def told(self, config: Config) -> dict[str, Any]:
        """Its settings in the configuration, in the right types."""
        return checked(self.kind, config.settings.get(self.owner, {}), self.owner, self.handed)

    def not_default(self, config: Config) -> list[str]:
        defaults = self.defaults()
        return [name for name, value in self.told(config).items() if name not in defaults or defaults[name] != value]


def parts_of(config: Config) -> list[Part]:
    method = resolve("method", config.method, METHODS, Method)
    net = resolve("net", config.net, NETS, Backbone)
    plugins = [Part(short(name), resolve("plug-in", name, PLUGINS, Plugin)) for name in config.plugins]
    return [
        Part(short(config.method), method, [*filled_by(method, config.method, [None], {})]),
        *plugins,
        Part(short(config.net), net, [*filled_by(net, config.net, [None], {}), *DECIDED_BY_METHODS]),
    ]


def in_full(config: Config) -> dict[str, dict[str, Any]]:
    """The values of all settings of all parts."""
    return {part.owner: part.defaults() | part.told(config) for part in parts_of(config)}


def recorded(config: Config) -> dict[str, dict[str, Any]]:
    """The same as run.json has it, without defaults that JSON cannot hold: the recorded code identifies those."""
    return {owner: as_json(mine) for owner, mine in in_full(config).items()}


def as_json(values: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for name, value in values.items():
        try:
            found[name] = json.loads(json.dumps(value, allow_nan=False))
        except (TypeError, ValueError):
            continue
    return found


def without_defaults(config: Config) -> Config:
    """The configuration without settings that equal their defaults, so that the same run has one fingerprint."""
    other = {(part.owner, name) for part in parts_of(config) for name in part.not_default(config)}
    named = {owner: {k: v for k, v in mine.items() if (owner, k) in other} for owner, mine in config.settings.items()}
    return changed(config, {"settings": {owner: mine for owner, mine in named.items() if mine}})


def differing(there: Settings, here: Settings, config: Config) -> dict[str, tuple[Any, Any]]:
    """Settings such as `bdr.m` that both have and `config` does not set: the values there and here, if they differ."""
    return {
        f"{owner}.{name}": (value, here[owner][name])
        for owner, mine in there.items()
        for name, value in mine.items()
        if name in here.get(owner, {}) and here[owner][name] != value and name not in config.settings.get(owner, {})
    }


def as_recorded(info: Mapping[str, Any]) -> Config:
    """The configuration of a run.json, with defaults of then written out where they are others now.

    Settings that the run.json does not have were added since, and have the defaults of today.
    """
    config, there = Config.model_validate(info.get("config") or {}), info.get("settings") or {}
    if not there:  # an older record, from before they were kept
        return config
    for name, (value, _) in differing(there, recorded(config), config).items():
        owner, _, field = name.rpartition(".")
        config = with_setting(config, owner, field, value)
    return config
