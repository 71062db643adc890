"""From a configuration to the parts of a run, each checked as soon as it can be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from bdr.configuration.config import Config, check_names, checked_stage
from bdr.configuration.overrides import with_stage_settings
from bdr.data.images import DataSet, Images
from bdr.data.memory import Quota
from bdr.data.store import Store
from bdr.engine.step import choose_engine, choose_precision
from bdr.errors import UsageError
from bdr.methods import Method
from bdr.planning.loading import hold_out, image_shape, load_data, store_of
from bdr.planning.parts import choose_device, make_method, make_plugins, source_of
from bdr.planning.refusals import (
    check_acting,
    check_counts,
    check_exemplars,
    check_held,
    check_parameters,
    check_settings,
    check_softmax,
    check_stages,
    check_targets,
)
from bdr.plugins import Plugin
from bdr.records import Extends
from bdr.scenario import Given, Protocol, class_order
from bdr.trackers import check_tracker
from bdr.types import Phase, Stage

FEW = 5  # fewer exemplars of a class than this may be a slip


def stages_of(config: Config, method: Method, plugins: Sequence[Plugin], phase: Phase) -> tuple[list[Stage], list[str]]:
    """The stages of a phase as they will run, and sentences on what was adapted in them.

    The method declares them, settings for single stages are laid over them, and plug-ins change how they draw.
    """
    stages, notes = list[Stage](), list[str]()
    for declared in declared_stages(config.method, method.stages(phase, config.stage)):
        stage, said = with_stage_settings(declared, config.stages.get(declared.name, {}))
        stages.append(stage)
        notes += said
    for plugin in plugins:
        stages = declared_stages(plugin.name, plugin.stages(phase, stages))
    return [with_alternate_settings(config, stage) for stage in stages], notes


def declared_stages(name: str, stages: object) -> list[Stage]:
    """Check what `stages` of a method or plug-in returned: the user's own code may slip."""
    if isinstance(stages, list | tuple) and all(isinstance(stage, Stage) for stage in stages):
        return list(stages)
    raise UsageError(
        f"`stages` of '{name}' must return a list of stages, [base], and returned a {type(stages).__name__}"
    )


def with_alternate_settings(config: Config, stage: Stage) -> Stage:
    """Apply settings to the stage that alternates with this one; it has no epochs of its own, so nothing is scaled."""
    if stage.alternate is None:
        return stage
    settings = config.stages.get(stage.alternate.name, {})
    if "epochs" in settings:
        alternate = stage.alternate.name
        raise UsageError(f"stage.{alternate}.epochs is not allowed: '{alternate}' follows each epoch of '{stage.name}'")
    return replace(stage, alternate=with_stage_settings(stage.alternate, settings)[0])


def arrivals(config: Config, names: Sequence[str], extends: Extends | None) -> Protocol | Given:
    order = class_order(config.order, len(names), names)
    return Protocol(order, config.base, config.step, config.uneven) if extends is None else Given(order, extends.bounds)


@dataclass(frozen=True, kw_only=True)
class Checked:
    """The parts of a run, read and built, and checked to fit each other."""

    data: DataSet
    train: Images
    held: Images | None
    protocol: Protocol | Given
    phases: list[Phase]
    stages: list[list[Stage]]
    method: Method
    plugins: list[Plugin]
    quota: Quota
    device: torch.device
    precision: str
    engine: str
    notes: tuple[str, ...]  # what was adapted in stages; what may surprise in memory and phases
    extends: Extends | None

    @property
    def weights(self) -> str | None:
        """The sha256 of the file that the network was read from, if there is one."""
        return source_of(self.method)

    def store(self, images: Images) -> Store:
        return store_of(images, self.data, self.protocol.order, self.device)


def check_words(config: Config) -> None:
    """Check what can be checked in the configuration alone."""
    check_names(config)
    for tracker in config.log:
        check_tracker(tracker)
    checked_stage(config.stage)
    check_settings(config)


def check_method(config: Config, method: Method, plugins: Sequence[Plugin], quota: Quota) -> None:
    """Check that method, plug-ins and memory fit; what no memory mends comes first, so that none is advised in vain."""
    check_parameters(method, config.method, plugins)
    check_targets(method, config.method, plugins)
    check_softmax(method, config.method, plugins)
    check_exemplars(quota, method, config.method, plugins)


def checked_stages(
    config: Config, method: Method, plugins: Sequence[Plugin], protocol: Protocol | Given
) -> tuple[list[list[Stage]], tuple[str, ...]]:
    """The stages of the phases that are to run, and sentences on what was adapted in them."""
    told = [stages_of(config, method, plugins, phase) for phase in protocol]
    stages = [of_phase for of_phase, _ in told]
    notes = tuple(dict.fromkeys(note for _, said in told[: config.phases] for note in said))
    check_stages(config, method, stages)  # of all phases: a shorter run may have settings for a later one
    check_acting(plugins, list(protocol), stages)
    return stages[: config.phases], notes


def told_of_memory(quota: Quota, phases: Sequence[Phase]) -> tuple[str, ...]:
    """A note on a total memory, shared by ever more classes, that is so small that it was perhaps meant per class."""
    first, last = (quota.each(phase.seen) for phase in (phases[0], phases[-1]))
    if quota.per_class or quota.count == 0 or first == last or last >= FEW:
        return ()
    return (f"memory {quota} in total: {first} a class at first, {last} at the end; {FEW}/class keeps {FEW} of each",)


def told_of_phases(config: Config, phases: Sequence[Phase]) -> tuple[str, ...]:
    """A note if more phases are asked for than there are."""
    if config.phases is None or config.phases <= len(phases):
        return ()
    return (f"--phases {config.phases} is more than there are: all {len(phases)} are run",)


def checked(config: Config, data: DataSet | None, extends: Extends | None) -> Checked:
    """Make the parts of a run, and check each thing as early as possible, because reading data may take long."""
    check_words(config)
    plugins = make_plugins(config)
    quota = Quota.parse(config.memory)
    data = load_data(config, data)
    if extends is not None:
        data = replace(data, mean=extends.mean, std=extends.std)
    protocol = arrivals(config, data.classes, extends)
    quota.check(len(data.classes))
    device = choose_device(config.device)
    precision, engine = choose_precision(config.precision, device), choose_engine(config.engine, device)
    method = make_method(config, image_shape(data), plugins)
    check_method(config, method, plugins, quota)
    stages, notes = checked_stages(config, method, plugins, protocol)
    phases = list(protocol)[: config.phases]
    check_held(quota, method, config.method, phases)
    train, held = hold_out(data.train, config.val)
    check_counts(data, train)
    return Checked(
        data=data,
        train=train,
        held=held,
        protocol=protocol,
        phases=phases,
        stages=stages,
        method=method,
        plugins=plugins,
        quota=quota,
        device=device,
        precision=precision,
        engine=engine,
        notes=notes + told_of_memory(quota, phases) + told_of_phases(config, phases),
        extends=extends,
    )
