"""From names to the parts of a run: methods, plug-ins and networks of the tables, or of one's own."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from bdr.config import Config, checked
from bdr.describe import short
from bdr.errors import UsageError, unknown
from bdr.methods import METHODS, Method
from bdr.methods.base import Correction
from bdr.nets import NETS, Backbone, MakeNetwork, Network
from bdr.nets.base import H
from bdr.plugins import PLUGINS, Plugin
from bdr.refusals import check_order, check_roles
from bdr.seeding import seed_of
from bdr.types import ImageShape


def resolve(kind: str, name: str, table: Mapping[str, Any], base: type) -> Any:
    """A name of the table, or `package.module:Name` of one's own: a class derived from `base`, or what makes one."""
    if ":" not in name:
        if name not in table:
            raise unknown(kind, name, table)
        return table[name]
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise UsageError(f"{kind} '{name}' is not like package.module:Name")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except ImportError as error:
        raise UsageError(f"{kind} '{name}': cannot import {module} ({error}); is it on PYTHONPATH?") from None
    except AttributeError:
        raise UsageError(f"{kind} '{name}': {module} has no {attribute}") from None
    if not callable(found) or (isinstance(found, type) and not issubclass(found, base)):
        raise UsageError(f"'{name}' is not a {kind}: {found!r} does not derive from {base.__module__}.{base.__name__}")
    return found


def build(kind: Callable[..., Any], config: Config, name: str, *parts: Any, **options: Any) -> Any:
    """The class with the settings that are given for it."""
    settings = checked(kind, config.settings.get(short(name), {}), short(name))
    try:
        return kind(*parts, **options, **settings)
    except ValueError as error:
        raise UsageError(f"{short(name)}: {error}") from None


def make_plugins(config: Config) -> list[Plugin]:
    plugins = []
    for name in config.plugins:
        kind = resolve("plug-in", name, PLUGINS, Plugin)
        plugin = build(kind, config, name)
        if not isinstance(plugin, Plugin):
            raise UsageError(f"'{name}' is not a plug-in: {kind} does not derive from bdr.plugins.Plugin")
        plugin.name = short(name)
        plugins.append(plugin)
    check_roles(plugins)
    check_order(plugins)
    return plugins


def make_method(config: Config, shape: ImageShape, plugins: Sequence[Plugin]) -> Method:
    make = network_maker(config, shape)
    for plugin in plugins:
        make = plugin.net(make)
    kind = resolve("method", config.method, METHODS, Method)
    torch.manual_seed(seed_of(config.seed, "init"))
    method = build(kind, config, config.method, make)
    if not isinstance(method, Method):
        raise UsageError(f"'{config.method}' is not a method: {kind} does not derive from bdr.methods.Method")
    if any(plugin.corrects for plugin in plugins):
        method.correction = Correction()
    for plugin in plugins:
        plugin.attach(method.net)
    return method


def network_maker(config: Config, shape: ImageShape) -> MakeNetwork:
    kind = resolve("net", config.net, NETS, Backbone)

    def make(head: Callable[[int], H], **options: Any) -> Network[H]:
        backbone = build(kind, config, config.net, shape, **options)
        return Network(backbone, head(backbone.dim))

    return make


def source_of(method: Method) -> str | None:
    """The sha256 of the file that a network was read from; None for one that starts from random weights."""
    return next((m.source for m in method.modules() if isinstance(m, Backbone) and m.source), None)
