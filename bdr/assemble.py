"""From a configuration to an experiment: names become classes, labels become ids, and what cannot be is refused."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bdr.config import Config, check_names, checked, checked_augment, checked_stage, with_stage_settings
from bdr.data import DATASETS
from bdr.data.images import DataSet, Images
from bdr.data.memory import EVERYTHING, Memory, Quota
from bdr.data.pool import Store
from bdr.data.sets import CIFAR100_DER
from bdr.describe import describe, first_phase_key, short
from bdr.engine.fit import has_name
from bdr.engine.run import Experiment
from bdr.engine.step import choose_engine, choose_precision
from bdr.errors import UsageError, unknown
from bdr.methods import METHODS, Method
from bdr.methods.base import Correction
from bdr.nets import NETS, Backbone, MakeNetwork, Network
from bdr.nets.base import H
from bdr.plugins import PLUGINS, Plugin
from bdr.scenario import Protocol, class_order
from bdr.seeding import seed_of
from bdr.types import ImageShape, Phase, Stage


@dataclass(frozen=True)
class Plan:
    """A run that has been checked and not yet begun."""

    config: Config
    experiment: Experiment
    info: dict[str, Any]

    def new_images(self, phase: Phase) -> int:
        return len(self.experiment.train.of_classes(phase.old, phase.seen))

    def exemplars(self, classes: int) -> int:
        """How many images of the first so many classes the memory will hold."""
        if classes == 0:
            return 0
        there = self.experiment.train.labels.bincount(minlength=classes)[:classes]
        return int(there.clamp(max=self.experiment.memory.quota.each(classes)).sum())

    def drawn(self, phase: Phase, stage: Stage) -> int:
        """Images that an epoch of a stage draws."""
        if stage.draw in ("memory", "rarest", "fresh"):
            return self.exemplars(phase.seen)
        if stage.draw == "held":
            fewest = int(self.experiment.train.labels.bincount().min())
            fewest = min(fewest, self.experiment.memory.quota.each(phase.old))
            return max(1, int(self.experiment.method.held * fewest)) * phase.seen
        return self.new_images(phase) + self.exemplars(phase.old)

    def workload(self) -> list[list[int]]:
        """Images that pass through training, of every stage of every phase."""
        pairs = zip(self.experiment.phases, self.experiment.stages, strict=True)
        return [[self.drawn(phase, stage) * stage.epochs for stage in stages] for phase, stages in pairs]


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


def choose_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"device '{name}' cannot be used: {str(error).splitlines()[0]}; try --device cpu") from None
    return device


def check_data(config: Config) -> None:
    if config.data not in DATASETS:
        if Path(config.data).is_dir():
            raise UsageError(f"'{config.data}' is a folder: type --data imagefolder --root {config.data}")
        raise unknown("data set", config.data, DATASETS)
    if config.data == "digits" and config.root is not None:
        raise UsageError(
            f"digits come with scikit-learn and read nothing from --root {config.root}; "
            "for pictures of your own add --data imagefolder"
        )


def load_data(config: Config, given: DataSet | None = None) -> DataSet:
    if given is None:
        check_data(config)
        extra = {"size": config.size} if config.data == "imagefolder" else {}
        given = DATASETS[config.data](config.root, **extra)
    if config.statistics == "der":
        given = replace(given, mean=CIFAR100_DER[0], std=CIFAR100_DER[1])
    if config.statistics == "half":  # from -1 to 1, as vision transformers of timm want images
        given = replace(given, mean=(0.5,) * len(given.mean), std=(0.5,) * len(given.std))
    return replace(given, augment=checked_augment(given.augment, config.augment))


def image_shape(data: DataSet) -> ImageShape:
    height, width, channels = data.train.pixels.shape[1:]
    return ImageShape(channels, height, width)


def hold_out(images: Images, share: float) -> tuple[Images, Images | None]:
    """Every class gives the same share of its training images for validation, evenly spread; none if share is 0."""
    if share == 0:
        return images, None
    held = np.zeros(len(images), dtype=bool)
    for label in np.unique(images.labels):
        mine = np.flatnonzero(images.labels == label)
        count = max(1, round(share * len(mine)))
        if count >= len(mine):
            raise UsageError(f"--val {share} leaves no training image of a class that has {len(mine)}")
        held[mine[np.linspace(0, len(mine) - 1, count).round().astype(int)]] = True
    return Images(images.pixels[~held], images.labels[~held]), Images(images.pixels[held], images.labels[held])


def store_of(images: Images, data: DataSet, order: Sequence[int], device: torch.device) -> Store:
    """Images on the device, labels remapped to the order of arrival: the one place where that happens."""
    arrival = np.empty(len(order), dtype=np.int64)
    arrival[list(order)] = np.arange(len(order))
    labels = torch.from_numpy(arrival[images.labels])
    return Store(torch.from_numpy(images.pixels), labels, data.mean, data.std, data.augment, device)


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
    """A loss that was multiplied is no longer minus the logarithm of a probability."""
    weighing: Plugin | None = None
    for plugin in plugins:
        if plugin.by_likelihood and weighing is not None:
            raise UsageError(
                f"'{plugin.name}' takes losses for probabilities, and '{weighing.name}' multiplies them before: "
                f"name '{plugin.name}' first, ...+{plugin.name}+{weighing.name}"
            )
        weighing = plugin if plugin.weighs else weighing


def build(kind: Callable[..., Any], config: Config, name: str, *parts: Any, **options: Any) -> Any:
    """The class with the settings that are given for it."""
    settings = checked(kind, config.settings.get(short(name), {}), short(name))
    try:
        return kind(*parts, **options, **settings)
    except ValueError as error:
        raise UsageError(f"{short(name)}: {error}") from None


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


def check_settings(config: Config) -> None:
    known = [short(config.method), *map(short, config.plugins), short(config.net)]
    for owner in config.settings:
        if owner not in known:
            raise unknown("part of this run with settings", owner, [*known, "stage", "augment"])


def check_memory(quota: Quota, classes: int, plugins: Sequence[Plugin]) -> None:
    quota.check(classes)
    for plugin in plugins:
        if plugin.needs_exemplars and quota.count == 0:
            raise UsageError(
                f"plug-in '{plugin.name}' balances old classes against new ones and needs an exemplar of each "
                "class; --memory is 0: use 20/class, or leave the plug-in out"
            )


def check_parameters(method: Method, name: str, plugins: Sequence[Plugin]) -> None:
    """A method that keeps something of each parameter cannot be given further ones on the way."""
    for plugin in plugins:
        if method.counts_parameters and plugin.adds_parameters:
            raise UsageError(
                f"'{name}' needs all parameters of its network from the start, and plug-in '{plugin.name}' adds some "
                "after the first phase: use another method, or leave the plug-in out"
            )


def check_kept(quota: Quota, method: Method, name: str) -> None:
    """A method may need exemplars, or be one that has none."""
    kind = {0: "none", EVERYTHING: "all"}.get(quota.count, "some")
    if kind not in method.keeps:
        wanted = " or ".join(
            {"none": "--memory 0", "some": "--memory 20/class", "all": "--memory all"}[k] for k in method.keeps
        )
        raise UsageError(f"'{name}' does not go with --memory {quota}: use {wanted}, or another method")


def check_targets(method: Method, name: str, plugins: Sequence[Plugin]) -> None:
    """What mixes classes stands beside nothing that takes whole ones alone."""
    takers = [f"method '{name}'"] * (not method.soft_targets)
    takers += [f"plug-in '{plugin.name}'" for plugin in plugins if not plugin.soft_targets]
    for plugin in plugins:
        if plugin.mixes and takers:
            raise UsageError(
                f"plug-in '{plugin.name}' mixes images of different classes, and {takers[0]} needs the one class of "
                f"each image: leave '{plugin.name}' out, or use another method, such as dytox+{plugin.name}"
            )


def check_softmax(method: Method, name: str, plugins: Sequence[Plugin]) -> None:
    """What competes with the classes needs classes that compete."""
    for plugin in plugins:
        if plugin.needs_softmax and not method.softmax:
            raise UsageError(
                f"plug-in '{plugin.name}' lets images compete with the classes of a softmax, and '{name}' has another "
                f"classification loss: leave '{plugin.name}' out, or use another method, such as ucir+{plugin.name}"
            )


def check_held(quota: Quota, method: Method, name: str, phases: Sequence[Phase]) -> None:
    """What is held out of training leaves something to train on, also when a shared memory has shrunk."""
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


def stages_of(config: Config, method: Method, plugins: Sequence[Plugin], phase: Phase) -> list[Stage]:
    """The stages of a phase as they will run: the method's, with what is set for single ones, as plug-ins draw them."""
    declared = method.stages(phase, config.stage)
    stages = [with_stage_settings(stage, config.stages.get(stage.name, {}))[0] for stage in declared]
    for plugin in plugins:
        stages = plugin.stages(phase, stages)
    return [with_alternate_settings(config, stage) for stage in stages]


def with_alternate_settings(config: Config, stage: Stage) -> Stage:
    if stage.alternate is None:
        return stage
    settings = config.stages.get(stage.alternate.name, {})
    if "epochs" in settings:
        alternate = stage.alternate.name
        raise UsageError(f"stage.{alternate}.epochs is not allowed: '{alternate}' follows each epoch of '{stage.name}'")
    return replace(stage, alternate=with_stage_settings(stage.alternate, settings)[0])


def check_stages(config: Config, method: Method, stages: Sequence[Sequence[Stage]]) -> None:
    """Every name that settings speak of is a stage, and every stage has an objective and something that moves."""
    every = [stage for of_phase in stages for stage in of_phase]
    every += [stage.alternate for stage in every if stage.alternate is not None]
    for name in config.stages:
        if name not in (names := {stage.name for stage in every}):
            raise unknown("stage", name, names)
    for stage in every:
        if not callable(getattr(method, stage.loss, None)):
            raise UsageError(f"stage.loss = '{stage.loss}' is not allowed: {config.method} has no such objective")
        check_moving(config.method, method, stage)
        if stage.draw == "held" and not method.held:
            raise UsageError(f"stage.draw = 'held' is not allowed: {config.method} holds no images out of training")


def check_acting(plugins: Sequence[Plugin], phases: Sequence[Phase], stages: Sequence[Sequence[Stage]]) -> None:
    """A plug-in that takes part in no stage would do nothing, and nobody would see it."""
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


def check_moving(name: str, method: Method, stage: Stage) -> None:
    """What a stage says that it trains is there."""
    there = [parameter for parameter, _ in method.named_parameters()]
    for wanted in stage.train:
        if not any(has_name(parameter, wanted) for parameter in there):
            parts = sorted({".".join(parameter.split(".")[:2]) for parameter in there})  # net.backbone, net.head, ...
            raise unknown(f"part of {name} for stage.{stage.name}.train", wanted, parts)


def plan_run(config: Config, path: Path | None, runs: Path, data: DataSet | None = None) -> Plan:
    """Checks everything that can be checked before anything trains."""
    check_names(config)
    checked_stage(config.stage)
    check_settings(config)
    plugins = make_plugins(config)
    quota = Quota.parse(config.memory)
    data = load_data(config, data)
    classes = len(data.classes)
    protocol = Protocol(class_order(config.order, classes), config.base, config.step, config.uneven)
    check_memory(quota, classes, plugins)
    device = choose_device(config.device)
    precision, engine = choose_precision(config.precision, device), choose_engine(config.engine, device)
    shape = image_shape(data)
    method = make_method(config, shape, plugins)
    check_kept(quota, method, config.method)
    check_parameters(method, config.method, plugins)
    check_targets(method, config.method, plugins)
    check_softmax(method, config.method, plugins)
    stages = [stages_of(config, method, plugins, phase) for phase in protocol]
    check_stages(config, method, stages)  # of all phases: what is set for a later one may be typed for a shorter run
    check_acting(plugins, list(protocol), stages)
    phases, stages = list(protocol)[: config.phases], stages[: config.phases]
    check_held(quota, method, config.method, phases)
    train, held = hold_out(data.train, config.val)
    check_counts(data, train)
    weights = source_of(method)
    info = describe(config, data, protocol, phases, precision, engine, device, method.readout, weights)
    info |= {"distillation": method.distillation, "image": list(shape)}
    path = path or runs / folder_name(config, data) / f"seed{config.seed}-{info['fingerprint']}"
    experiment = Experiment(
        phases=phases,
        train=store_of(train, data, protocol.order, device),
        test=store_of(data.test, data, protocol.order, device),
        validation=None if held is None else store_of(held, data, protocol.order, device),
        method=method,
        plugins=plugins,
        memory=Memory(quota, config.herding),
        stages=stages,
        seed=config.seed,
        classes=info["classes"],
        path=path,
        engine=engine,
        precision=precision,
        keep=config.keep,
        checkpoint_every=config.checkpoint_every,
        shared=shared_folder(config, path, runs, first_phase_key(config, info, plugins, phases[0], stages[0])),
    )
    return Plan(config, experiment, info)


def shared_folder(config: Config, path: Path, runs: Path, key: str) -> Path | None:
    """Runs share inside their common folder; one that was put elsewhere by name leaves nothing beside itself."""
    return runs / ".shared" / key if config.share and runs.resolve() in path.resolve().parents else None


def folder_name(config: Config, data: DataSet) -> Path:
    parts = [short(config.method), *map(short, config.plugins)]
    return Path(f"{data.name}-b{config.base}s{config.step}") / "-".join(parts)
