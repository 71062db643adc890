"""The front door: run, resume, extend, load, predict and evaluate from Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from bdr import metrics, records
from bdr.assemble import Plan, choose_device, plan_run
from bdr.config import Config, as_typed, changed
from bdr.data.images import DataSet
from bdr.data.pictures import Unreadable
from bdr.describe import Extends
from bdr.engine.checkpoint import load_model
from bdr.engine.evaluate import Predictions, measure
from bdr.engine.evaluate import predict as predict_all
from bdr.engine.listen import Listener, Several
from bdr.engine.step import choose_precision, set_precision
from bdr.errors import UsageError, shortened
from bdr.extension import plan_extension
from bdr.methods import Method
from bdr.own_code import library_version
from bdr.parts import make_method, make_plugins
from bdr.readouts import readout_of
from bdr.recipes import configure
from bdr.recognition import Recognised, picture_paths, readable, recognise
from bdr.records import Run, kept_phase, model_folder
from bdr.rehearsal import rehearse
from bdr.rereading import found_again, read_again, with_weights
from bdr.settings import as_recorded, differing
from bdr.trackers.follow import Following
from bdr.types import ImageShape, Phase

RUNS = Path("runs")


@dataclass(frozen=True, eq=False)
class Result:
    """What a run came to."""

    path: Path
    accuracies: list[float]  # percent, over all seen classes, after each phase
    average: float  # their mean, phase 0 included
    last: float
    matrix: np.ndarray  # a_ij: accuracy on phase j's classes after phase i; NaN above the diagonal
    summary: dict[str, Any]
    readouts: dict[str, list[float]]

    @classmethod
    def of(cls, path: Path) -> Result:
        run = Run.open(path)
        summary = metrics.summary(run, run.readout)
        rows = [line["by_phase"][run.readout] for line in run.phases]
        names = run.phases[-1]["accuracy"]
        readouts = {name: [line["accuracy"].get(name) for line in run.phases] for name in names}
        found = summary["accuracies"]
        return cls(path, found, summary["average"], summary["last"], metrics.matrix(rows), summary, readouts)


def run(
    what: str = "ucir+cwd+bdr",
    data: str | DataSet | None = None,
    *,
    out: str | Path | None = None,
    runs: str | Path = RUNS,
    set: Mapping[str, Any] | None = None,
    listener: Listener | None = None,
    **fields: Any,
) -> Result:
    """Trains a method over all phases and returns what came of it.

    `data` is a name or a DataSet (see `from_arrays`); `set` holds dotted settings such as {"bdr.m": 0.5,
    "stage.epochs": 2}; further keywords are fields of the configuration: base, step, memory, seed, net, order, ...
    """
    given = data if isinstance(data, DataSet) else None
    name = given.name if given is not None else data
    config, notes = configure(what, name if isinstance(name, str) else None, (set or {}).items(), fields)
    plan = plan_run(config, Path(out) if out else None, Path(runs), given)
    tell(listener, notes)
    return execute(plan, listener)


def execute(
    plan: Plan, listener: Listener | None = None, stopping: Callable[[], bool] | None = None, command: str = ""
) -> Result:
    """Trains a checked plan; one that is done already is not trained again."""
    experiment = plan.experiment
    if is_begun(plan):
        refuse_other_defaults(plan)
        analyse_as_begun(plan)
        if is_done(plan):
            refuse_other_code(plan)
            tell(listener, about_library(experiment.path))
        else:
            go_on(plan, listener, stopping)
    else:
        command = command or f"bdr.run({plan.config.title!r})"
        with followed(plan, listener) as heard:
            prepare(plan, heard, stopping)
            experiment.start(plan.info | {"command": command, "created": now()})
    return Result.of(experiment.path)


@contextmanager
def followed(plan: Plan, listener: Listener | None) -> Iterator[Listener]:
    """The listener, and the trackers that the configuration names; these are closed however the run ends."""
    following = Following(plan.config.log, plan.experiment.path)
    try:
        yield Several([listener or Listener(), following])
    finally:
        following.close()


def prepare(plan: Plan, listener: Listener, stopping: Callable[[], bool] | None) -> None:
    experiment = plan.experiment
    experiment.listener = listener
    experiment.stopping = stopping or (lambda: False)
    experiment.rehearse = lambda found: rehearse(plan.info, plan.learner, found)
    experiment.listener.run_begins(plan.config.title, list(experiment.phases), str(experiment.path))


def is_begun(plan: Plan) -> bool:
    """The folder holds this very run; one that belongs to another configuration is refused when it is created."""
    path = plan.experiment.path
    if not records.is_begun(path):
        return False
    there = Run.open(path)
    return (there.fingerprint, there.seed) == (plan.info["fingerprint"], plan.info["seed"])


def analyse_as_begun(plan: Plan) -> None:
    """A run is analysed from its first step to its last, or not at all."""
    path, there = plan.experiment.path, Run.open(plan.experiment.path)
    if plan.config.analyse and not there.info.get("analyse"):
        raise UsageError(
            f"{path} was begun without --analyse: choose another folder with --runs or --out, or remove it"
        )
    plan.experiment.analyse = bool(there.info.get("analyse"))


def refuse_other_defaults(plan: Plan) -> None:
    """A default that has changed since a run was begun leaves its folder's name as it is, and makes another run."""
    path = plan.experiment.path
    there = Run.open(path).info.get("settings", {}) if is_begun(plan) else {}  # records of before lack them
    found = differing(there, plan.info["settings"], plan.config)
    if not found:
        return
    said = ", ".join(f"{name} was {as_typed(old)} and is {as_typed(new)} now" for name, (old, new) in found.items())
    before = " ".join(f"--set {name}={as_typed(old)}" for name, (old, _) in found.items())
    resumed = "" if is_done(plan) else f"go on as it was begun with bdr resume {path}, or "
    raise UsageError(
        f"{path} was made with other defaults: {said}; {resumed}type {before} to train with what was, in a folder of "
        "its own, or name another folder with --runs or --out to train with what is"
    )


def refuse_other_code(plan: Plan) -> None:
    """The numbers of a run that is done are those of the code that trained it."""
    if changed := other_code(plan):
        raise UsageError(
            f"{plan.experiment.path} is already done with other code of {', '.join(changed)}: put the new one into "
            "another folder with --runs or --out, or remove this one"
        )


def about_library(path: Path) -> list[str]:
    """A line where the library has changed since a run that is done was trained: it might come to others today."""
    changed = records.other_library(Run.open(path).info, library_version())
    return [f"note: {changed}: its numbers are of that code"] if changed else []


def tell(listener: Listener | None, notes: Iterable[str]) -> None:
    for note in notes:
        (listener or Listener()).note(note)


def other_code(plan: Plan) -> list[str]:
    """The modules of one's own that are others now than when the run in the folder was trained, if there is one."""
    there = Run.open(plan.experiment.path).info if is_begun(plan) else {}
    return records.other_code(there, plan.info.get("own_code", {}))


def is_done(plan: Plan) -> bool:
    return is_begun(plan) and Run.open(plan.experiment.path).whole


def resume(
    path: str | Path,
    listener: Listener | None = None,
    stopping: Callable[[], bool] | None = None,
    data: DataSet | None = None,
    **fields: Any,
) -> Result:
    """Goes on where a run stopped; `fields` may change what does not touch the result, such as root or device.

    `weights` is one: where the file lies now that the network was read from.
    """
    if Run.open(Path(path)).whole:
        tell(listener, about_library(Path(path)))
    else:
        go_on(plan_of(Path(path), data, **fields), listener, stopping)
    return Result.of(Path(path))


def go_on(plan: Plan, listener: Listener | None = None, stopping: Callable[[], bool] | None = None) -> None:
    keep_root(plan)
    with followed(plan, listener) as heard:
        prepare(plan, heard, stopping)
        plan.experiment.resume()


def keep_root(plan: Plan) -> None:
    """Where the data has moved to, now that its checksum has agreed: whoever opens the run next finds it there."""
    path, root, place = plan.experiment.path, plan.config.root, plan.info.get("root")
    if root is None or place is None or place == Run.open(path).info.get("root"):
        return
    writer = records.RunWriter.alone(path)
    try:
        writer.moved(root, place)
    finally:
        writer.close()


def plan_of(path: Path, data: DataSet | None = None, weights: str | Path | None = None, **fields: Any) -> Plan:
    """The plan of a run that exists already, checked to be the same; `weights` is where a file of them was moved to."""
    there = Run.open(path)
    told = Config.model_validate(there.info["config"]).settings
    as_it_was = {"precision": there.protocol["precision"]}  # "auto" may mean another on another device
    config = with_weights(there, changed(found_again(there), as_it_was | fields), weights)
    data = data if data is not None else read_again(there, config, only=list(map(str, there.info["classes"])))
    refuse_other_classes(there, data, config)
    plan = plan_run(config, path, runs_folder(path), data, Extends.of(there.info), told)
    if plan.info["fingerprint"] != there.fingerprint:
        raise UsageError(f"{path} does not fit what is here now: {why_not(there, plan)}")
    return plan


def refuse_other_classes(there: Run, data: DataSet, config: Config) -> None:
    """Before anything else: with other classes, phases do not split and checksums differ, and neither says why."""
    trained, here = list(map(str, there.info["classes"])), list(data.classes)
    if sorted(trained) == sorted(here):
        return
    changes = {"new": sorted(set(here) - set(trained)), "missing": sorted(set(trained) - set(here))}
    told = "; ".join(f"{which}: {shortened(names)}" for which, names in changes.items() if names)
    where = config.root or data.name
    further = f"; bdr extend {there.path} teaches it the new ones" if there.done and not changes["missing"] else ""
    raise UsageError(
        f"{where} now has {len(here)} classes, and {there.path} was trained on {len(trained)} ({told}): let it hold "
        f"those and no others, or name another folder with --root{further}; the model itself loads with bdr.load"
    )


def why_not(there: Run, plan: Plan) -> str:
    differing = [k for k, v in plan.info["protocol"].items() if there.protocol.get(k) != v]
    if differing == ["source"]:
        return f"the images of {plan.info['protocol']['data']} are not those it was trained on (another checksum)"
    return f"{', '.join(differing) or 'its configuration'} would differ"


def runs_folder(path: Path) -> Path:
    """The folder that a run's shared first phase is looked for in: the nearest one that has such a place, if any."""
    shared = [folder for folder in path.resolve().parents if (folder / ".shared").is_dir()]
    return shared[0] if shared else path.resolve()


def extend(
    run: str | Path,
    data: DataSet | None = None,
    *,
    step: int | None = None,
    out: str | Path | None = None,
    runs: str | Path = RUNS,
    set: Mapping[str, Any] | None = None,
    listener: Listener | None = None,
    **fields: Any,
) -> Result:
    """Teaches a finished run the classes of the data that it does not know, from its weights and exemplars.

    `data` is what the run was trained on with further classes, read anew where it has a name; `step` says how many
    classes a phase brings, all at once if not given. The run itself is not changed: what comes out is another.
    """
    given = (set or {}).items(), fields
    plan, notes = plan_extension(Path(run), data, step, *given, Path(out) if out else None, Path(runs))
    tell(listener, notes)
    return execute(plan, listener, command=f"bdr.extend({str(run)!r})")


def load(path: str | Path, phase: int | None = None, device: str = "auto", weights: str | Path | None = None) -> Method:
    """The trained module of a run, as it stood after a phase (the last one that was kept, if none is named).

    No data is needed: `load(RUN).readouts(x)` takes a batch normalised as `run.json` says. `weights` is where the file
    lies now that the network was read from, if it was moved.
    """
    run, where = Run.open(Path(path)), choose_device(device)
    config = with_weights(run, as_recorded(run.info), weights)
    method = make_method(config, ImageShape(*run.info["image"]), make_plugins(config))
    load_model(model_folder(run.path, kept_phase(run.path, phase)), method, where)
    set_precision(method, choose_precision(config.precision, where), where)
    return method.eval()


def predict(
    run: str | Path,
    images: str | Path | Iterable[str | Path],
    *,
    top: int = 5,
    phase: int | None = None,
    readout: str | None = None,
    device: str = "auto",
    unreadable: Callable[[Unreadable], None] | None = None,
    weights: str | Path | None = None,
) -> Iterator[Recognised]:
    """What the kept model of a run says of pictures, or of all pictures in a folder: class names and probabilities.

    `readout` is cnn or nme; the one by which the method's results are told if not given. A picture that cannot be read
    raises when its turn comes; with `unreadable`, this is called with the error instead.
    """
    there, number = Run.open(Path(run)), kept_phase(Path(run), phase)
    chosen = readout_of(there, number, readout)
    paths = picture_paths([Path(each) for each in ([images] if isinstance(images, str | Path) else images)])
    found = recognise(there, number, load(run, number, device, weights), paths, top, choose_device(device), chosen)
    return readable(found, unreadable)


def evaluate(
    path: str | Path, phase: int | None = None, data: DataSet | None = None, **fields: Any
) -> tuple[int, dict[str, Any]]:
    """Predicts the test images anew with the model of a phase, and measures: nothing of the run is changed."""
    plan, number = plan_of(Path(path), data, **fields), kept_phase(Path(path), phase)
    experiment = plan.experiment
    load_model(model_folder(Path(path), number), experiment.method, experiment.device)
    experiment.learner.settle()
    now_at = experiment.phases[number]
    found: Predictions = predict_all(experiment.method, experiment.test, now_at.seen)
    boundaries = [(p.old, p.seen) for p in experiment.phases[: number + 1]]
    return number, measure(found, Phase(number, now_at.old, now_at.seen), boundaries)


def now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")
