"""From a configuration to a plan: an experiment, and what is recorded of it before anything trains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bdr.configuration.config import Config, short
from bdr.data.images import DataSet
from bdr.data.memory import Memory
from bdr.engine.experiment import Experiment
from bdr.engine.learner import Learner
from bdr.errors import UsageError
from bdr.planning.checked import Checked, checked
from bdr.planning.describe import describe, first_phase_key
from bdr.planning.plan import Plan
from bdr.planning.settings import Settings, without_defaults
from bdr.records import Extends


def plan_run(
    config: Config,
    path: Path | None,
    runs: Path,
    data: DataSet | None = None,
    extends: Extends | None = None,
    notes: Sequence[str] = (),
) -> Plan:
    """The plan of a new run, with everything checked that can be before anything trains.

    `notes` say what was adapted in the configuration; notes on its stages are added after them.
    """
    made = checked(config, data, extends)
    if extends is None:
        check_size(config, made.data)
    config = without_defaults(config)
    plan = planned(config, made, config.settings, path, runs)
    return replace(plan, notes=(*notes, *plan.notes))


def plan_again(
    config: Config, path: Path, runs: Path, data: DataSet, extends: Extends | None, settings: Settings
) -> Plan:
    """The plan of an existing run, whose fingerprint is made from these `settings` whatever the defaults are now."""
    return planned(config, checked(config, data, extends), settings, path, runs)


def planned(config: Config, made: Checked, settings: Settings, path: Path | None, runs: Path) -> Plan:
    info = describe(config, made, settings)
    path = path or runs / folder_name(config, made.data) / f"seed{config.seed}-{info['fingerprint']}"
    experiment = Experiment(
        learner=learner_of(config, made),
        test=made.store(made.data.test),
        validation=None if made.held is None else made.store(made.held),
        classes=info["classes"],
        path=path,
        keep=config.keep,
        analyse=config.analyse,
        checkpoint_every=config.checkpoint_every,
        shared=shared_folder(config, path, runs, first_phase_key(config, info, made)),
        taken_over=made.extends.phases if made.extends else 0,
        code=info["code"],
        own_code=info.get("own_code", {}),
    )
    plan = Plan(config, experiment, info, made.notes)
    return replace(plan, info=info | {"work": plan.work()})  # so that readers of the record know how much is left


def check_size(config: Config, data: DataSet) -> None:
    """Refuse --size for other data than folders, but only in new runs: older ones that ignored it may go on."""
    if data.size is None and config.size != Config.model_fields["size"].default:
        height, width = data.train.pixels.shape[1:3]
        raise UsageError(
            f"--size {config.size} is for folders of images, and those of '{data.name}' are {height} x {width}: leave "
            "--size out"
        )


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
    """The folder to share a first phase in, inside `runs`; none for a run outside, which leaves nothing beside it."""
    return runs / ".shared" / key if config.share and runs.resolve() in path.resolve().parents else None


def folder_name(config: Config, data: DataSet) -> Path:
    parts = [short(config.method), *map(short, config.plugins)]
    return Path(f"{data.name}-b{config.base}s{config.step}") / "-".join(parts)
