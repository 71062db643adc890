"""Refuses what cannot work or has no effect before anything trains: what was given, why not, what to type."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Iterable, Sequence

import numpy as np
from torch import nn

from bdr.configuration.config import Config, owners
from bdr.data.images import DataSet, Images
from bdr.data.memory import EVERYTHING, Quota
from bdr.errors import UsageError, nearest, unknown
from bdr.methods import METHODS, Method
from bdr.nets import NETS, Network
from bdr.plugins import PLUGINS, Plugin
from bdr.types import Phase, Stage, has_name

ALIKE_A_SEAM = 0.75  # how similar to the name of a seam a method's name must be to look misspelt


def check_settings(config: Config) -> None:
    known = owners(config)
    for owner in config.settings:
        if owner not in known:
            error = unknown("part of this run with settings", owner, [*known, "stage", "augment"])
            raise UsageError(f"{error}; {name_it}") if (name_it := how_to_name(owner, config)) else error


def how_to_name(part: str, config: Config) -> str | None:
    """What to type to add a part that exists but is missing in this run; None if there is no such part."""
    instead = {
        **dict.fromkeys(NETS, f"--net {part}"),
        **dict.fromkeys(PLUGINS, f"{config.title}+{part}"),
        **dict.fromkeys(METHODS, f"{'+'.join([part, *config.plugins])}, in place of {config.method}"),
    }
    return f"to have '{part}' name it: {instead[part]}" if part in instead else None


def check_seams(part: Method | Plugin, name: str, base: type[nn.Module]) -> None:
    """Check the seams of the user's own part: one that is misspelt is never called, and nobody would see it."""
    seams = set(dir(base)) - set(dir(nn.Module))
    own = {seam for seam in seams if getattr(type(part), seam) is not getattr(base, seam)}
    meant = misspelt(type(part), base, seams - own)
    slips = ", ".join(f"{typed}: did you mean {seam}?" for typed, seam in meant.items())
    if base is Plugin and not own:
        raise UsageError(
            f"plug-in '{name}' has no member of bdr.Plugin of its own, such as classify, and would do nothing"
            f"{'; ' + slips if slips else ': see docs/add-a-method.md'}"
        )
    if slips:
        warnings.warn(f"'{name}' has methods that bdr does not call; {slips}", stacklevel=2)
    for seam in sorted(own):
        check_arguments(part, seam, base, name)


def check_arguments(part: Method | Plugin, seam: str, base: type[nn.Module], name: str) -> None:
    """Refuse an override that cannot be called as the seam is; arguments of its own must have defaults."""
    mine, theirs = getattr(part, seam), getattr(base, seam)
    if not inspect.isroutine(mine) or not inspect.isfunction(theirs):
        return
    static = isinstance(inspect.getattr_static(base, seam), staticmethod)
    handed = [*inspect.signature(theirs).parameters][0 if static else 1 :]
    try:
        inspect.signature(mine).bind(*handed)
    except TypeError:
        takes, needs = ", ".join(inspect.signature(mine).parameters), ", ".join(handed)
        raise UsageError(
            f"{seam} of '{name}' takes ({takes}), and bdr calls it with ({needs}): let it take these"
        ) from None


def misspelt(kind: type, base: type, seams: Iterable[str]) -> dict[str, str]:
    """Methods that a class adds to its base under almost the name of a seam, each with that seam.

    Only those with as many arguments as the seam count: a helper that happens to have such a name seldom has.
    """
    found = {}
    for name in added(kind, base):
        alike = [seam for seam in seams if arguments(base, seam) == arguments(kind, name)]
        if seam := nearest(name, alike, ALIKE_A_SEAM):
            found[name] = seam
    return found


def added(kind: type, base: type) -> list[str]:
    """Public methods that the user's own classes add to their base."""
    own = [each for each in kind.__mro__ if each not in base.__mro__ and not each.__module__.startswith("bdr.")]
    methods = [name for each in own for name, member in vars(each).items() if inspect.isfunction(member)]
    return [name for name in dict.fromkeys(methods) if not name.startswith("_") and name not in dir(base)]


def arguments(kind: type, name: str) -> int | None:
    """How many arguments a method takes; None for a member that is not a method."""
    member = getattr(kind, name)
    return len(inspect.signature(member).parameters) if inspect.isfunction(member) else None


def check_roles(plugins: Sequence[Plugin]) -> None:
    taken: dict[str, str] = {}
    for plugin in plugins:
        if plugin.name in [other.name for other in plugins if other is not plugin]:
            raise UsageError(f"plug-in '{plugin.name}' is named twice; name it once")
        for role in sorted(plugin.roles):
            if role in taken:
                raise UsageError(f"'{taken[role]}' and '{plugin.name}' both set the {role}: use one of them")
            taken[role] = plugin.name


def check_order(plugins: Sequence[Plugin]) -> None:
    """Refuse plug-ins that need minus log-probabilities after one that multiplies or adds up losses."""
    weighing: Plugin | None = None
    for plugin in plugins:
        if plugin.by_likelihood and weighing is not None:
            raise UsageError(
                f"'{plugin.name}' takes losses for probabilities, and '{weighing.name}' makes something else of them "
                f"before: {instead_of(weighing, plugin)}"
            )
        weighing = plugin if plugin.weighs else weighing


def instead_of(inner: Plugin, outer: Plugin) -> str:
    """What to do instead: name the two in the other order, unless that is as wrong."""
    if inner.by_likelihood and outer.weighs:
        return "no order of the two is right, use one of them"
    return f"name '{outer.name}' first, ...+{outer.name}+{inner.name}"


def check_exemplars(quota: Quota, method: Method, name: str, plugins: Sequence[Plugin]) -> None:
    """Check that method, memory and plug-ins agree on exemplars; no error advises what is refused next."""
    needy = next((plugin.name for plugin in plugins if plugin.needs_exemplars), None)
    why = f"plug-in '{needy}' balances old classes against new ones and needs an exemplar of each class"
    if needy is not None and goes_with(method) == ("none",):
        raise UsageError(
            f"{why}; '{name}' keeps none: use another method, such as replay+{needy}, or leave the plug-in out"
        )
    check_kept(quota, method, name)
    if needy is not None and quota.count == 0:
        raise UsageError(f"{why}; --memory is 0: use 20/class, or leave the plug-in out")


def goes_with(method: Method) -> tuple[str, ...]:
    """What may be kept of earlier classes: a method that reads out by means of exemplars needs some."""
    return tuple(kind for kind in method.keeps if kind != "none" or method.readout != "nme")


def check_kept(quota: Quota, method: Method, name: str) -> None:
    """Refuse a memory that does not go with the method, which may need exemplars, or have none."""
    kind = {0: "none", EVERYTHING: "all"}.get(quota.count, "some")
    if kind not in goes_with(method):
        wanted = " or ".join(
            {"none": "--memory 0", "some": "--memory 20/class", "all": "--memory all"}[k] for k in goes_with(method)
        )
        raise UsageError(f"'{name}' does not go with --memory {quota}: use {wanted}, or another method")


def check_held(quota: Quota, method: Method, name: str, phases: Sequence[Phase]) -> None:
    """Check that what is held out leaves something to train on, also when a shared memory has shrunk."""
    old = phases[-1].old
    if method.held and old and (each := quota.each(old)) < 2:
        raise UsageError(
            f"'{name}' holds an exemplar of each class out of training, and --memory {quota} comes to {each} of each: "
            f"use --memory 2/class or more"
        )


def check_counts(data: DataSet, train: Images) -> None:
    counts = np.bincount(train.labels, minlength=len(data.classes))
    if counts.min() == 0:
        raise UsageError(f"class '{data.classes[int(counts.argmin())]}' of {data.name} has no training image")


def check_parameters(method: Method, name: str, plugins: Sequence[Plugin]) -> None:
    """Refuse plug-ins that add parameters after the first phase if the method keeps something for each parameter."""
    for plugin in plugins:
        if method.counts_parameters and plugin.adds_parameters:
            raise UsageError(
                f"'{name}' needs all parameters of its network from the start, and plug-in '{plugin.name}' adds some "
                "after the first phase: use another method, or leave the plug-in out"
            )


def check_targets(method: Method, name: str, plugins: Sequence[Plugin]) -> None:
    """Refuse plug-ins that mix classes beside a method or plug-in that needs one class per image."""
    mixing = next((plugin.name for plugin in plugins if plugin.mixes), None)
    taker = next((plugin.name for plugin in plugins if not plugin.soft_targets), None)
    mixes = f"plug-in '{mixing}' mixes images of different classes, and"
    if mixing and not method.soft_targets:
        raise UsageError(
            f"{mixes} method '{name}' needs the one class of each image: leave '{mixing}' out, or use another method, "
            f"such as dytox+{mixing}"
        )
    if mixing and taker:
        raise UsageError(f"{mixes} plug-in '{taker}' needs the one class of each image: use one of them")


def check_softmax(method: Method, name: str, plugins: Sequence[Plugin]) -> None:
    """Refuse plug-ins that need competing classes, or losses that are likelihoods, if the criterion is no softmax."""
    for plugin in plugins:
        if method.softmax or not (plugin.needs_softmax or plugin.by_likelihood):
            continue
        wants = "lets images compete with the classes of a softmax"
        if not plugin.needs_softmax:
            wants = "takes losses for minus the logarithm of the right class's probability"
        raise UsageError(
            f"plug-in '{plugin.name}' {wants}, and '{name}' has another classification loss: leave '{plugin.name}' "
            f"out, or use another method, such as ucir+{plugin.name}"
        )


def check_stages(config: Config, method: Method, stages: Sequence[Sequence[Stage]]) -> None:
    """Check that all stages named in settings exist, and that every stage has an objective and something that moves."""
    every = [stage for of_phase in stages for stage in of_phase]
    every += [stage.alternate for stage in every if stage.alternate is not None]
    names = {stage.name for stage in every}
    there = parameters_ever(method) if any(stage.train for stage in every) else []
    for name in config.stages:
        if name not in {*names, *method.optional_stages}:
            raise unknown("stage", name, names)
    for stage in every:
        if not callable(getattr(method, stage.loss, None)):
            raise UsageError(
                f"stage '{stage.name}' of {config.method} has loss='{stage.loss}', and {config.method} has no function "
                "of that name: write one, or name 'loss' or 'classification'"
            )
        check_moving(config.method, there, stage)
        if stage.draw == "held" and not method.held:
            raise UsageError(f"stage.draw = 'held' is not allowed: {config.method} holds no images out of training")


def parameters_ever(method: Method) -> list[str]:
    """The names of all parameters that a method will ever have, also once its network is split."""
    there, net = [name for name, _ in method.named_parameters()], method.net
    if isinstance(net, Network) and net.splitting is not None:
        later = copy.deepcopy(net)
        later.split()
        there += [f"net.{name}" for name, _ in later.named_parameters()]
    return there


def check_moving(name: str, there: Sequence[str], stage: Stage) -> None:
    """Check that the parameters a stage says it trains exist."""
    for wanted in stage.train:
        if not any(has_name(parameter, wanted) for parameter in there):
            parts = sorted({".".join(parameter.split(".")[:2]) for parameter in there})  # net.backbone, net.head, ...
            raise unknown(f"part of {name} for stage.{stage.name}.train", wanted, parts)


def check_acting(plugins: Sequence[Plugin], phases: Sequence[Phase], stages: Sequence[Sequence[Stage]]) -> None:
    """Refuse a plug-in that takes part in no stage: it would do nothing, and nobody would see it."""
    every = [(phase, stage) for phase, mine in zip(phases, stages, strict=True) for stage in mine]
    later = ", ".join(dict.fromkeys(stage.draw for phase, stage in every if not phase.first))
    drawing = next((plugin.name for plugin in plugins if plugin.role == "draw"), None)
    instead = "set stage.draw=all" if drawing is None else f"'{drawing}', which makes them draw so"
    for plugin in plugins:
        if len(phases) > 1 and not any(plugin.acts(phase, stage) for phase, stage in every):
            raise UsageError(
                f"plug-in '{plugin.name}' would act in no stage of this run: after the first phase they draw {later}; "
                f"leave '{plugin.name}' out, or {instead}"
            )
