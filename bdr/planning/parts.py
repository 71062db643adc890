"""From names to the parts of a run: methods, plug-ins, networks and data sets, of the tables or the user's own."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import torch
from torch import nn

from bdr.configuration.config import Config, checked, is_own, short
from bdr.data.pool import evaluating
from bdr.errors import ALIKE, UsageError, nearest, unknown
from bdr.methods import METHODS, Method
from bdr.methods.base import ReadOffset
from bdr.nets import NETS, Backbone, Features, MakeNetwork, Network
from bdr.nets.base import DECIDED_BY_METHODS, H
from bdr.planning.own_code import told_with_place
from bdr.planning.refusals import check_order, check_roles, check_seams
from bdr.plugins import PLUGINS, Plugin
from bdr.seeding import seed_of
from bdr.types import ImageShape

PAGES = {
    "method": "docs/add-a-method.md",
    "plug-in": "docs/add-a-method.md#a-complete-plug-in",
    "net": "docs/add-a-network.md",
    "data set": "docs/add-a-data-set.md",
}
TRIED = 2  # how many images the user's own network is tried on before anything trains

CALL_SUPER = "call super().__init__() first in __init__"
UNBORN = "before Module.__init__() call"  # in torch's error for a part set before super().__init__()


def resolve(kind: str, name: str, table: Mapping[str, Any], base: type) -> Any:
    """Look up `name` in the table, or import `package.module:Name`: a class derived from `base`, or what makes one."""
    if not is_own(name):
        if name not in table:
            raise unknown(kind, name, table, own=True)
        return table[name]
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise UsageError(f"{kind} '{name}' is not like package.module:Name")
    refuse_path(kind, module, attribute)
    home = imported(module, f"{kind} '{name}'")
    if not hasattr(home, attribute):
        there = [each for each, value in vars(home).items() if fits(value, base) and value is not base]
        near = nearest(attribute, there, ALIKE)
        hint = f": did you mean '{near}'?" if near else ""
        raise UsageError(f"{kind} '{name}': {module} has no {attribute}{hint}")
    found = getattr(home, attribute)
    if not fits(found, base):
        wanted = f"{base.__module__.removesuffix('.base')}.{base.__name__}"
        lacks = f"does not return a {wanted}" if kind == "data set" else f"does not derive from {wanted}"
        raise UsageError(f"'{name}' is not a {kind}: {found!r} {lacks}; see {PAGES[kind]}")
    refuse_unfinished(found, PAGES[kind])
    return found


def refuse_path(kind: str, module: str, attribute: str) -> None:
    """Refuse `./own.py`, `own.py` and `.own`: modules are named as in an import, and found from PYTHONPATH."""
    if "/" not in module and not module.startswith(".") and not module.endswith(".py"):
        return
    file = Path(module.removesuffix(".py"))
    raise UsageError(
        f"{kind} '{module}:{attribute}' is not like package.module:Name: type {file.name.lstrip('.')}:{attribute}, "
        f"and PYTHONPATH={file.parent} before the command"
    )


def imported(module: str, wanted: str) -> ModuleType:
    """Import the user's own module. Errors inside it are shown with their place, as they are the module's own."""
    try:
        return importlib.import_module(module)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            raise UsageError(f"{wanted}: cannot import {module} ({error}); is it on PYTHONPATH?") from None
        raise UsageError(f"{wanted}: {told_with_place(error)}") from error


def fits(found: Any, base: type) -> bool:
    """Whether `found` may be what is wanted: a class derived from `base`, or a callable that may make one."""
    return callable(found) and (not isinstance(found, type) or issubclass(found, base))


def refuse_unfinished(found: Any, page: str) -> None:
    """Refuse the user's own class if it lacks methods its base demands; Python would say so three calls deeper."""
    if inspect.isabstract(found):
        lacks = " and ".join(f"{name}{asked_for(found, name)}" for name in sorted(found.__abstractmethods__))
        raise UsageError(f"{found.__name__} lacks {lacks}; see {page}")


def asked_for(kind: type, name: str) -> str:
    """The arguments of a method of a class, as in `(batch, phase, classify)`."""
    return f"({', '.join(list(inspect.signature(getattr(kind, name)).parameters)[1:])})"


def build(
    kind: Callable[..., Any],
    config: Config,
    name: str,
    parts: Sequence[Any] = (),
    options: Mapping[str, Any] = MappingProxyType({}),
    reserved: Sequence[str] = (),
    page: str = PAGES["method"],
) -> Any:
    """Make a part from what it is handed, and from its configured settings for the rest of its signature."""
    filled = {*filled_by(kind, name, parts, options, page), *reserved}
    settings = checked(kind, config.settings.get(short(name), {}), short(name), filled)
    try:
        made = kind(*parts, **options, **settings)
    except (OSError, ValueError) as error:
        raise UsageError(f"{short(name)}: {error}") from None
    except AttributeError as error:
        if UNBORN not in str(error):
            raise
        raise UsageError(f"{short(name)}: {CALL_SUPER} ({error})") from None
    if isinstance(made, nn.Module) and "_modules" not in vars(made):
        raise UsageError(f"{short(name)}: {CALL_SUPER}")
    return made


def filled_by(
    kind: Callable[..., Any],
    name: str,
    parts: Sequence[Any],
    options: Mapping[str, Any],
    page: str = PAGES["method"],
) -> Iterable[str]:
    """The parameters of a class that are filled by what it is handed."""
    try:
        return inspect.signature(kind).bind_partial(*parts, **options).arguments
    except TypeError as error:
        handed = ", ".join([*(type(part).__name__ for part in parts), *(f"{k}={v!r}" for k, v in options.items())])
        raise UsageError(f"'{name}' cannot be made from ({handed}), which it is handed: {error}; see {page}") from None


def make_plugins(config: Config) -> list[Plugin]:
    plugins = []
    for name in config.plugins:
        if name in METHODS:
            either = f"the second '{name}'" if name == config.method else f"'{name}' or '{config.method}'"
            raise UsageError(f"'{name}' is a method, and a run has one: leave out {either}")
        kind = resolve("plug-in", name, PLUGINS, Plugin)
        plugin = build(kind, config, name)
        if not isinstance(plugin, Plugin):
            raise UsageError(f"'{name}' is not a plug-in: {kind} does not derive from bdr.plugins.Plugin")
        if is_own(name):
            check_seams(plugin, name, Plugin)
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
    method = build(kind, config, config.method, [make])
    if not isinstance(method, Method):
        raise UsageError(f"'{config.method}' is not a method: {kind} does not derive from bdr.methods.Method")
    if not isinstance(getattr(method, "net", None), nn.Module):
        raise UsageError(f"'{config.method}' has no network: say `self.net = make(...)` in its __init__")
    if is_own(config.method):
        check_seams(method, config.method, Method)
    if any(plugin.corrects for plugin in plugins):
        method.correction = ReadOffset()
    for plugin in plugins:
        plugin.attach(method.net)
    return method


def network_maker(config: Config, shape: ImageShape) -> MakeNetwork:
    kind = resolve("net", config.net, NETS, Backbone)

    def make(head: Callable[[int], H], **options: Any) -> Network[H]:
        refuse_decided(config, options)
        backbone = build(kind, config, config.net, [shape], options, DECIDED_BY_METHODS, PAGES["net"])
        if is_own(config.net):
            check_backbone(backbone, config.net, shape)
        return Network(backbone, head(backbone.dim))

    return make


def check_backbone(made: Any, name: str, shape: ImageShape) -> None:
    """Check that the user's own network has the attributes it needs, and returns the right shape for a few images."""
    see = f"see {PAGES['net']}"
    if not isinstance(made, Backbone):
        raise UsageError(f"'{name}' made a {type(made).__name__}, and not a bdr.nets.Backbone; {see}")
    own = type(made).__name__
    if not hasattr(made, "dim"):
        raise UsageError(f"{own} has no 'dim', the number of its features: set it in __init__; {see}")
    shown = torch.zeros(TRIED, *shape)
    try:
        with torch.random.fork_rng(devices=[]), evaluating(made):
            seen: Any = made(shown)
    except Exception as error:
        raise UsageError(
            f"{own}.forward fails on images {tuple(shown.shape)}, (B, channels, height, width): "
            f"{told_with_place(error)}; {see}"
        ) from error
    if not isinstance(seen, Features):
        raise UsageError(f"{own}.forward returned a {type(seen).__name__}, and not bdr.nets.Features; {see}")
    if seen.pooled.shape != (TRIED, made.dim):
        raise UsageError(
            f"the features of {own} are {tuple(seen.pooled.shape)}, and its dim is {made.dim}: pool them to (B, dim); "
            f"{see}"
        )


def refuse_decided(config: Config, options: Mapping[str, Any]) -> None:
    """Refuse settings for what the method, or a plug-in, decides about the network."""
    for name, value in config.settings.get(short(config.net), {}).items():
        if name in options or name in DECIDED_BY_METHODS:
            setting = f"{short(config.net)}.{name} = {value!r}"
            decided = f" ({name}={options[name]!r})" if name in options else ""
            raise UsageError(f"{setting} is not allowed: {config.title} decides it{decided}; leave it out")


def source_of(method: Method) -> str | None:
    """The sha256 of the file that a network was read from; None for one that starts from random weights."""
    return next((m.source for m in method.modules() if isinstance(m, Backbone) and m.source), None)


def device_type(name: str) -> str:
    """The type of a named device, found without allocating on a GPU: a CUDA context lasts as long as its process."""
    gpus = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    named = {"auto", "cuda", *(f"cuda:{number}" for number in gpus)} if gpus else set()
    return "cuda" if name in named else choose_device(name).type


def choose_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        if reason.startswith("Expected one of"):  # a list of all that torch may ever have been built for
            reason = "there are cpu, cuda and cuda:1, cuda:2, ..."
        raise UsageError(f"device '{name}' cannot be used: {reason}; try --device cpu") from None
    return device
