"""From a configuration to what a run is made of, each part checked as soon as it can be."""

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

FEW = 5  # exemplars of a class, so few of which may be a slip


def stages_of(config: Config, method: Method, plugins: Sequence[Plugin], phase: Phase) -> tuple[list[Stage], list[str]]:
    """The stages of a phase as they will run: the method's, with what is set for single ones, as plug-ins draw them.

    And what was adapted in them, as sentences.
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
    """A method or a plug-in of one's own may slip."""
    if isinstance(stages, list | tuple) and all(isinstance(stage, Stage) for stage in stages):
        return list(stages)
    raise UsageError(
        f"`stages` of '{name}' must return a list of stages, [base], and returned a {type(stages).__name__}"
    )


def with_alternate_settings(config: Config, stage: Stage) -> Stage:
    """An alternate has no epochs of its own, so nothing in it is scaled."""
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
    """What a run is made of, read and built, all of it fit for the rest."""

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
    notes: tuple[str, ...]  # what was adapted in stages that the method declares
    extends: Extends | None

    @property
    def weights(self) -> str | None:
        """The sha256 of the file that its network was read from."""
        return source_of(self.method)

    def store(self, images: Images) -> Store:
        return store_of(images, self.data, self.protocol.order, self.device)


def check_words(config: Config) -> None:
    """What a configuration alone gives away."""
    check_names(config)
    for tracker in config.log:
        check_tracker(tracker)
    checked_stage(config.stage)
    check_settings(config)


def check_method(config: Config, method: Method, plugins: Sequence[Plugin], quota: Quota) -> None:
    """What no memory can mend comes first, so that nobody is sent to a memory in vain."""
    check_parameters(method, config.method, plugins)
    check_targets(method, config.method, plugins)
    check_softmax(method, config.method, plugins)
    check_exemplars(quota, method, config.method, plugins)


def checked_stages(
    config: Config, method: Method, plugins: Sequence[Plugin], protocol: Protocol | Given
) -> tuple[list[list[Stage]], tuple[str, ...]]:
    """Those of the phases that are to run, and what was adapted in them, as sentences."""
    told = [stages_of(config, method, plugins, phase) for phase in protocol]
    stages = [of_phase for of_phase, _ in told]
    notes = tuple(dict.fromkeys(note for _, said in told[: config.phases] for note in said))
    check_stages(config, method, stages)  # of all phases: what is set for a later one may be typed for a shorter run
    check_acting(plugins, list(protocol), stages)
    return stages[: config.phases], notes


def told_of_memory(quota: Quota, phases: Sequence[Phase]) -> tuple[str, ...]:
    """A total that is shared by ever more classes: so small a one was perhaps meant for each of them."""
    first, last = (quota.each(phase.seen) for phase in (phases[0], phases[-1]))
    if quota.per_class or quota.count == 0 or first == last or last >= FEW:
        return ()
    return (f"memory {quota} in total: {first} a class at first, {last} at the end; {FEW}/class keeps {FEW} of each",)


def told_of_phases(config: Config, phases: Sequence[Phase]) -> tuple[str, ...]:
    """Where a run was to end later than it does."""
    if config.phases is None or config.phases <= len(phases):
        return ()
    return (f"--phases {config.phases} is more than there are: all {len(phases)} are run",)


def checked(config: Config, data: DataSet | None, extends: Extends | None) -> Checked:
    """Refuses what cannot be, each thing as soon as what it takes to see it is there: reading data may take long."""
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
