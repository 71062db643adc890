"""Planning every run of a sweep, with its folder and first phase; all are checked before anything trains."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bdr.configuration.config import Config, changed
from bdr.configuration.overrides import SCALED, as_typed
from bdr.configuration.recipes import configure
from bdr.data.images import DataSet
from bdr.errors import BdrError, UsageError
from bdr.planning.assemble import plan_run
from bdr.planning.begun import about_library, other_code, refuse_late_analysis, refuse_other_defaults, run_there
from bdr.planning.loading import load_data
from bdr.planning.plan import setup_of
from bdr.records import is_begun, is_done
from bdr.records.place import refuse_file
from bdr.records.speed import Setup
from bdr.sweep.grid import Wish

Labelled = tuple[str, Config, list[str]]  # the run's label, its configuration, and notes on what was adapted in it


@dataclass(frozen=True)
class Planned:
    """A run that has been checked, and the words that start it."""

    label: str
    seed: int
    words: tuple[str, ...]  # what is typed after `bdr`
    path: Path
    shared: Path | None  # the folder in which an equal first phase is, or will be
    title: str  # method and plug-ins, whatever the label calls them
    setup: Setup
    images: tuple[int, ...]  # how many the run trains on, by phase
    other_code: tuple[str, ...] = ()  # the user's modules that have changed since the run was trained
    other_library: bool = False  # whether the library has changed since then
    notes: tuple[str, ...] = ()  # what was adapted in it, as sentences

    @property
    def name(self) -> str:
        return f"{self.label} seed {self.seed}"

    @property
    def cuda(self) -> bool:
        return self.setup.device == "cuda"

    @property
    def begun(self) -> bool:
        return is_begun(self.path)

    @property
    def done(self) -> bool:
        return is_done(self.path)


def plan_sweep(wishes: Sequence[Wish], runs: Path) -> list[Planned]:
    """Check all wishes and plan each distinct configuration once."""
    refuse_file(runs)
    made: dict[str, tuple[Wish, Config, list[str]]] = {}
    for wish in wishes:
        config, notes = configuration(wish)
        made.setdefault(config.model_dump_json(), (wish, config, notes))
    labelled = [(wish.label, config, notes) for wish, config, notes in made.values()]
    # A CUDA context in this process would hold memory and bypass MPS for as long as the sweep lasts.
    find = facts_elsewhere if may_use_cuda(config for _, config, _ in labelled) else facts_of
    found = find(labelled, runs)
    pairs = zip(made.values(), found, strict=True)
    planned = [made_of(wish, config, facts, runs) for (wish, config, _), facts in pairs]
    check_folders(planned)
    return planned


def configuration(wish: Wish) -> tuple[Config, list[str]]:
    try:
        config, notes = configure(wish.what, settings=wish.typed, file=dict(wish.file))
        return (config if wish.seed is None else changed(config, {"seed": wish.seed})), notes
    except UsageError as error:
        raise UsageError(f"{wish.label}: {error}") from None


def may_use_cuda(configs: Iterable[Config]) -> bool:
    return any(config.device != "cpu" for config in configs) and torch.cuda.is_available()


def facts_of(configs: Sequence[Labelled], runs: Path) -> list[dict[str, Any]]:
    """The facts of every run, such as its folder and first phase; each data set is loaded once."""
    loaded: dict[tuple[Any, ...], DataSet] = {}
    found = []
    for label, config, notes in configs:
        try:
            key = config.data, config.root, config.size
            if key not in loaded:
                loaded[key] = load_data(changed(config, {"statistics": "default", "augment": {}}))
            found.append(facts(config, runs, loaded[key], notes))
        except BdrError as error:
            raise type(error)(f"{label}: {error}") from None
    return found


def facts(config: Config, runs: Path, data: DataSet | None, notes: Sequence[str] = ()) -> dict[str, Any]:
    plan = plan_run(config, None, runs, data, notes=notes)
    experiment, there = plan.experiment, run_there(plan)
    if there is not None:
        refuse_other_defaults(plan, there)
        refuse_late_analysis(plan, there)
    return {
        "path": str(experiment.path),
        "shared": None if experiment.shared is None else str(experiment.shared),
        "setup": setup_of(plan),
        "images": [sum(of_phase) for of_phase in plan.workload()],
        "notes": list(plan.notes),
        "other_code": other_code(plan, there) if there else [],
        "other_library": bool(there and about_library(there)),
    }


def facts_elsewhere(configs: Sequence[Labelled], runs: Path) -> list[dict[str, Any]]:
    """The same facts, found by another process on the runs' device, so that keys of first phases equal theirs."""
    told = [(label, config.model_dump(mode="json"), notes) for label, config, notes in configs]
    asked = {"runs": str(runs), "configs": told}
    code = "from bdr.sweep.plan import answer; answer()"
    said = subprocess.run([sys.executable, "-c", code], input=json.dumps(asked), capture_output=True, text=True)
    if said.returncode:
        reason = (said.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise BdrError(f"the runs could not be checked: {reason}")
    answered = json.loads(said.stdout.splitlines()[-1])
    if "error" in answered:
        raise (UsageError if answered["usage"] else BdrError)(answered["error"])
    return answered["facts"]


def answer() -> None:
    """Read configurations from stdin and print their facts, or the error of one that cannot be run."""
    asked = json.load(sys.stdin)
    try:
        configs = [(label, Config.model_validate(config), notes) for label, config, notes in asked["configs"]]
        print(json.dumps({"facts": facts_of(configs, Path(asked["runs"]))}))
    except BdrError as error:
        print(json.dumps({"error": str(error), "usage": isinstance(error, UsageError)}))


def made_of(wish: Wish, config: Config, found: dict[str, Any], runs: Path) -> Planned:
    net, device, image, precision = found["setup"]  # a list if another process found it
    return Planned(
        wish.label,
        config.seed,
        words=tuple(words_of(wish, config, runs)),
        path=Path(found["path"]),
        shared=None if found["shared"] is None else Path(found["shared"]),
        title=config.title,
        setup=Setup(net, device, tuple(image), precision),
        images=tuple(found["images"]),
        other_code=tuple(found["other_code"]),
        other_library=found["other_library"],
        notes=tuple(found["notes"]),
    )


def words_of(wish: Wish, config: Config, runs: Path) -> list[str]:
    """The words of the `bdr run` command that makes exactly this configuration."""
    named = wish.settings
    data = ["--data", named.pop("data")] if named.get("data") is not None else []
    # Stage settings from a file may have been scaled to the number of epochs that was typed.
    now = {f"stage.{name}": getattr(config.stage, name) for name in SCALED}
    now |= {f"stage.{stage}.{name}": value for stage, mine in config.stages.items() for name, value in mine.items()}
    named |= {name: value for name, value in now.items() if name in named}
    settings = [f"{name}={as_typed(value)}" for name, value in named.items()]
    chosen = ["--seed", str(config.seed), "--runs", str(runs)]
    return ["run", wish.what, *data, *chosen, *(word for setting in settings for word in ("--set", setting))]


def check_folders(planned: Sequence[Planned]) -> None:
    """Raise if two runs have the same folder: they differ only in settings that do not affect the result."""
    taken: dict[Path, Planned] = {}
    for run in planned:
        if (other := taken.setdefault(run.path, run)) is not run:
            raise UsageError(
                f"{other.name} and {run.name} are the same run, {run.path}: they differ only in what does not touch "
                "the result, such as keep or device, or in a default that is written out; leave one out"
            )
