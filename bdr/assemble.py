"""From a configuration to an experiment, checked before anything trains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from bdr.config import Config, check_names, checked_stage, short
from bdr.data.images import DataSet, Images
from bdr.data.memory import Memory, Quota
from bdr.data.store import Store
from bdr.describe import Extends, describe, first_phase_key
from bdr.engine.experiment import Experiment
from bdr.engine.learner import Learner
from bdr.engine.step import choose_engine, choose_precision
from bdr.errors import UsageError
from bdr.loading import hold_out, image_shape, load_data, store_of
from bdr.methods import Method
from bdr.overrides import with_stage_settings
from bdr.parts import make_method, make_plugins, source_of
from bdr.plan import Plan
from bdr.plugins import Plugin
from bdr.refusals import (
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
from bdr.scenario import Given, Protocol, class_order
from bdr.settings import Settings, recorded, without_defaults
from bdr.trackers import check_tracker
from bdr.types import Phase, Stage


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


def stages_of(config: Config, method: Method, plugins: Sequence[Plugin], phase: Phase) -> tuple[list[Stage], list[str]]:
    """The stages of a phase as they will run: the method's, with what is set for single ones, as plug-ins draw them.

    And what was adapted in them, as sentences.
    """
    stages, notes = list[Stage](), list[str]()
    for declared in method.stages(phase, config.stage):
        stage, said = with_stage_settings(declared, config.stages.get(declared.name, {}))
        stages.append(stage)
        notes += said
    for plugin in plugins:
        stages = plugin.stages(phase, stages)
    return [with_alternate_settings(config, stage) for stage in stages], notes


def with_alternate_settings(config: Config, stage: Stage) -> Stage:
    """An alternate has no epochs of its own, so nothing in it is scaled."""
    if stage.alternate is None:
        return stage
    settings = config.stages.get(stage.alternate.name, {})
    if "epochs" in settings:
        alternate = stage.alternate.name
        raise UsageError(f"stage.{alternate}.epochs is not allowed: '{alternate}' follows each epoch of '{stage.name}'")
    return replace(stage, alternate=with_stage_settings(stage.alternate, settings)[0])


def arrivals(config: Config, classes: int, extends: Extends | None) -> Protocol | Given:
    if extends is None:
        return Protocol(class_order(config.order, classes), config.base, config.step, config.uneven)
    return Given(class_order(config.order, classes), extends.bounds)


@dataclass(frozen=True)
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

    def store(self, images: Images) -> Store:
        return store_of(images, self.data, self.protocol.order, self.device)


def check_words(config: Config) -> None:
    """What a configuration alone gives away."""
    check_names(config)
    for tracker in config.log:
        check_tracker(tracker)
    checked_stage(config.stage)
    check_settings(config)


def check_size(config: Config, data: DataSet) -> None:
    """Of what is begun: who asked for another size before, and got none, may go on."""
    if data.size is None and config.size != Config.model_fields["size"].default:
        height, width = data.train.pixels.shape[1:3]
        raise UsageError(
            f"--size {config.size} is for folders of images, and those of '{data.name}' are {height} x {width}: leave "
            "--size out"
        )


def check_method(config: Config, method: Method, plugins: Sequence[Plugin], quota: Quota) -> None:
    """What no memory can mend comes first, so that nobody is sent to a memory in vain."""
    check_parameters(method, config.method, plugins)
    check_targets(method, config.method, plugins)
    check_softmax(method, config.method, plugins)
    check_exemplars(quota, method, config.method, plugins)


def checked(config: Config, data: DataSet | None, extends: Extends | None) -> Checked:
    """Refuses what cannot be, each thing as soon as what it takes to see it is there: reading data may take long."""
    check_words(config)
    plugins = make_plugins(config)
    quota = Quota.parse(config.memory)
    data = load_data(config, data)
    if extends is not None:
        data = replace(data, mean=extends.mean, std=extends.std)
    protocol = arrivals(config, len(data.classes), extends)
    quota.check(len(data.classes))
    device = choose_device(config.device)
    precision, engine = choose_precision(config.precision, device), choose_engine(config.engine, device)
    method = make_method(config, image_shape(data), plugins)
    check_method(config, method, plugins, quota)
    told = [stages_of(config, method, plugins, phase) for phase in protocol]
    stages = [of_phase for of_phase, _ in told]
    notes = tuple(dict.fromkeys(note for _, said in told[: config.phases] for note in said))
    check_stages(config, method, stages)  # of all phases: what is set for a later one may be typed for a shorter run
    check_acting(plugins, list(protocol), stages)
    phases, stages = list(protocol)[: config.phases], stages[: config.phases]
    check_held(quota, method, config.method, phases)
    train, held = hold_out(data.train, config.val)
    check_counts(data, train)
    how = device, precision, engine, notes
    return Checked(data, train, held, protocol, phases, stages, method, plugins, quota, *how)


def plan_run(
    config: Config,
    path: Path | None,
    runs: Path,
    data: DataSet | None = None,
    extends: Extends | None = None,
    told: Settings | None = None,
) -> Plan:
    """Checks everything that can be checked before anything trains.

    `told` are the settings that the fingerprint of a run that exists already was made of.
    """
    made = checked(config, data, extends)
    if told is None and extends is None:
        check_size(config, made.data)
    config = without_defaults(config) if told is None else config
    info = information(config, made, extends, told)
    path = path or runs / folder_name(config, made.data) / f"seed{config.seed}-{info['fingerprint']}"
    key = first_phase_key(config, info, made.plugins, made.phases[0], made.stages[0])
    experiment = Experiment(
        learner=learner_of(config, made),
        test=made.store(made.data.test),
        validation=None if made.held is None else made.store(made.held),
        classes=info["classes"],
        path=path,
        keep=config.keep,
        analyse=config.analyse,
        checkpoint_every=config.checkpoint_every,
        shared=shared_folder(config, path, runs, key),
        taken_over=extends.phases if extends else 0,
        code=info["code"],
        own_code=info.get("own_code", {}),
    )
    plan = Plan(config, experiment, info, made.notes)
    return replace(plan, info=info | {"work": plan.work()})  # whoever reads the record knows how much is left


def information(config: Config, made: Checked, extends: Extends | None, told: Settings | None) -> dict[str, Any]:
    """What the record says of a run before it begins."""
    method = made.method
    info = describe(
        config,
        data=made.data,
        protocol=made.protocol,
        phases=made.phases,
        precision=made.precision,
        engine=made.engine,
        device=made.device,
        readout=method.readout,
        weights=source_of(method),
        extends=extends,
        settings=told,
    )
    correcting = [plugin.name for plugin in made.plugins if plugin.corrects]
    return info | {
        "settings": recorded(config),
        **({"corrected_by": correcting} if correcting else {}),
        "distillation": method.distillation,
        "image": list(image_shape(made.data)),
    }


def learner_of(config: Config, made: Checked) -> Learner:
    return Learner(
        phases=made.phases,
        stages=made.stages,
        train=made.store(made.train),
        method=made.method,
        plugins=made.plugins,
        memory=Memory(made.quota, config.herding),
        seed=config.seed,
        engine=made.engine,
        precision=made.precision,
    )


def shared_folder(config: Config, path: Path, runs: Path, key: str) -> Path | None:
    """Runs share inside their common folder; one that was put elsewhere by name leaves nothing beside itself."""
    return runs / ".shared" / key if config.share and runs.resolve() in path.resolve().parents else None


def folder_name(config: Config, data: DataSet) -> Path:
    parts = [short(config.method), *map(short, config.plugins)]
    return Path(f"{data.name}-b{config.base}s{config.step}") / "-".join(parts)
