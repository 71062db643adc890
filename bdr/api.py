"""The front door: run, resume, extend, load, predict, export and evaluate from Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bdr import metrics, records
from bdr.configuration.overrides import checked_settings
from bdr.configuration.recipes import configure
from bdr.data.images import DataSet
from bdr.data.pictures import Unreadable
from bdr.display import Logged
from bdr.engine.checkpoint import load_model
from bdr.engine.evaluate import Predictions, measure
from bdr.engine.evaluate import predict as predict_all
from bdr.engine.experiment import Company
from bdr.engine.listen import Listener, Several
from bdr.engine.run import begin_run, resume_run
from bdr.engine.step import choose_precision, set_precision
from bdr.methods import Method
from bdr.planning.assemble import plan_run
from bdr.planning.begun import about_library, refuse_going_on, refuse_late_analysis, run_there
from bdr.planning.extension import plan_extension
from bdr.planning.loading import checked_data
from bdr.planning.parts import choose_device, make_method, make_plugins
from bdr.planning.plan import Plan
from bdr.planning.rehearsal import rehearse
from bdr.planning.rereading import plan_of, test_images, with_weights
from bdr.planning.settings import as_recorded
from bdr.records import Run, kept_phase, model_folder, open_uncut
from bdr.records.files import now
from bdr.trackers.follow import Following
from bdr.trained.handing_out import handed_out
from bdr.trained.readouts import readout_of
from bdr.trained.recognition import Recognised, picture_paths, readable, recognise
from bdr.types import ImageShape, Phase

RUNS = Path("runs")


@dataclass(frozen=True, eq=False)
class Result:
    """The results of a run."""

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


class Evaluation(NamedTuple):
    """How well the model of a phase does on test images."""

    phase: int
    measured: dict[str, Any]  # by the names in a line of phases.jsonl


def run(
    what: str = "ucir+cwd+bdr",
    *,
    data: str | DataSet | None = None,
    out: str | Path | None = None,
    runs: str | Path = RUNS,
    set: Mapping[str, Any] | None = None,
    listener: Listener | None = None,
    **fields: Any,
) -> Result:
    """Train a method over all phases and return the results.

    `data` is a name or a DataSet (see `from_arrays`); `set` holds dotted settings such as {"bdr.m": 0.5,
    "stage.epochs": 2}; further keywords are fields of the configuration: base, step, memory, seed, net, order, ...
    """
    given = None if isinstance(data, str) else checked_data(data)
    name = data if isinstance(data, str) else None if given is None else given.name
    config, notes = configure(what, name, checked_settings(set), fields)
    plan = plan_run(config, Path(out) if out else None, Path(runs), given, notes=notes)
    tell(listener, plan.notes)
    return execute(plan, listener)


def execute(
    plan: Plan, listener: Listener | None = None, stopping: Callable[[], bool] | None = None, command: str = ""
) -> Result:
    """Train a checked plan and return the results; a begun run goes on, and a finished one is not trained again."""
    path, there = plan.experiment.path, run_there(plan)
    if there is not None:
        refuse_going_on(plan, there)
        if there.whole:
            tell_done(there, listener)
        else:
            tell(listener, [f"going on with {path}"])
            go_on(plan, listener, stopping)
    else:
        command = command or f"bdr.run({plan.config.title!r})"
        with accompanied(plan, listener, stopping) as company:
            begin_run(plan.experiment, plan.info | {"command": command, "created": now()}, company)
    return Result.of(path)


@contextmanager
def accompanied(plan: Plan, listener: Listener | None, stopping: Callable[[], bool] | None) -> Iterator[Company]:
    """Yield the listener, joined by the trackers of the configuration, which are closed however the run ends."""
    path = plan.experiment.path
    following = Following(plan.config.log, path)
    heard = Several([listener or Logged(), following])
    heard.run_begins(plan.config.title, list(plan.learner.phases), str(path), plan.workload())
    try:
        yield Company(heard, stopping or (lambda: False), lambda: rehearse(plan))
    finally:
        following.close()


def tell(listener: Listener | None, notes: Iterable[str]) -> None:
    for note in notes:
        (listener or Logged()).note(note)


def tell_done(there: Run, listener: Listener | None) -> None:
    tell(listener, [f"already done: {there.path}", *about_library(there)])


def resume(
    run: str | Path,
    *,
    data: DataSet | None = None,
    listener: Listener | None = None,
    stopping: Callable[[], bool] | None = None,
    **fields: Any,
) -> Result:
    """Go on where a run stopped; `fields` may change what does not affect the result, such as root or device.

    Another of these fields is `weights`: where the file that the network was read from is now.
    """
    path, data = Path(run), checked_data(data)
    there = Run.open(path)
    if there.whole:
        if fields.get("root") is not None:
            keep_root(plan_of(path, data, **fields))
        tell_done(there, listener)
    else:
        plan = plan_of(path, data, **fields)
        refuse_late_analysis(plan, there)
        go_on(plan, listener, stopping)
    return Result.of(path)


def go_on(plan: Plan, listener: Listener | None = None, stopping: Callable[[], bool] | None = None) -> None:
    keep_root(plan)
    with accompanied(plan, listener, stopping) as company:
        resume_run(plan.experiment, company)


def keep_root(plan: Plan) -> None:
    """Record where the data is now, once its checksum has agreed, so that whoever opens the run next finds it."""
    path, root, place = plan.experiment.path, plan.config.root, plan.info.get("root")
    if root is None or place is None or place == Run.open(path).info.get("root"):
        return
    writer = records.RunWriter.alone(path)
    try:
        writer.moved(root, place)
    finally:
        writer.close()


def extend(
    run: str | Path,
    *,
    data: DataSet | None = None,
    step: int | None = None,
    out: str | Path | None = None,
    runs: str | Path = RUNS,
    set: Mapping[str, Any] | None = None,
    listener: Listener | None = None,
    **fields: Any,
) -> Result:
    """Teach a finished run the classes of the data that it does not know, starting from its weights and exemplars.

    `data` is what the run was trained on, with further classes; if it is not given, the data set that the run names is
    read again. `step` is the number of classes that a phase brings; by default one phase brings all of them. The run
    itself is not changed: the result is another run.
    """
    given = checked_settings(set), fields
    plan = plan_extension(Path(run), checked_data(data), step, *given, Path(out) if out else None, Path(runs))
    tell(listener, plan.notes)
    return execute(plan, listener, command=f"bdr.extend({str(run)!r})")


def load(
    run: str | Path, *, phase: int | None = None, device: str = "auto", weights: str | Path | None = None
) -> Method:
    """The trained module of a run as it was after a phase (by default the last one that was kept).

    It is for inference: teachers and other parts for training alone are None. Called with a batch of images, it gives
    scores (B, K), a column for each of its `classes`. The images have the shape `image` (channels, height, width); from
    their pixels, from 0 to 1, `mean` is subtracted, and the result is divided by `std`. `weights` says where the file
    that the network was read from is now, if it was moved.
    """
    there = open_uncut(Path(run))
    return load_as(there, kept_phase(there.path, phase), as_recorded(there.info).precision, device, weights)


def load_as(run: Run, phase: int, precision: str, device: str, weights: str | Path | None) -> Method:
    """The kept model of a phase, in this precision."""
    where, config = choose_device(device), with_weights(run, as_recorded(run.info), weights)
    method = make_method(config, ImageShape(*run.info["image"]), make_plugins(config))
    load_model(model_folder(run.path, phase), method, where)
    set_precision(method, choose_precision(precision, where), where)
    return handed_out(method, run, phase)


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
    """What the kept model of a run recognises in pictures, or in all pictures of a folder: classes and probabilities.

    `readout` is cnn or nme; by default the one that the method's results are given by. A picture that cannot be read
    raises an error when its turn comes; if `unreadable` is given, it is called with the error instead.
    """
    there, number = open_uncut(Path(run)), kept_phase(Path(run), phase)
    chosen = readout_of(there, number, readout)
    paths = picture_paths([Path(each) for each in ([images] if isinstance(images, str | Path) else images)])
    model = load(run, phase=number, device=device, weights=weights)
    return readable(recognise(there, number, model, paths, top, choose_device(device), chosen), unreadable)


def export(
    run: str | Path,
    file: str | Path,
    *,
    phase: int | None = None,
    readout: str | None = None,
    probabilities: bool = False,
    device: str = "cpu",
    weights: str | Path | None = None,
    force: bool = False,
) -> Path:
    """Write the kept model of a run into one file, `.pt2` (torch.export) or `.onnx`, that can be used without bdr.

    It takes pixels from 0 to 255, (B, channels, height, width) uint8 for any B, and gives scores (B, K), or
    probabilities; the class names and whatever else a user must know are inside. A `.pt2` file runs on the kind of
    `device` that is given here and on no other. A file that exists is overwritten only with `force`.
    """
    from bdr.trained.exporting import check_file, write_model  # slow to import, and needed for this alone

    there, number, place = open_uncut(Path(run)), kept_phase(Path(run), phase), Path(file)
    chosen = readout_of(there, number, readout)
    check_file(place, force)
    model = load(run, phase=number, device=device, weights=weights)
    write_model(place, model, there, number, chosen, probabilities, choose_device(device))
    return place


def evaluate(
    run: str | Path,
    *,
    phase: int | None = None,
    data: DataSet | None = None,
    root: str | Path | None = None,
    device: str = "auto",
    weights: str | Path | None = None,
) -> Evaluation:
    """Predict the test images anew with the model of a phase, and measure the result; the run is not changed.

    Of the data, only the test images are needed. If they are not those of the run, a warning says so.
    """
    there, number = open_uncut(Path(run)), kept_phase(Path(run), phase)
    test = test_images(there, number, checked_data(data), root, choose_device(device))
    method = load_as(there, number, str(there.protocol["precision"]), device, weights)
    boundaries = [(line["old"], line["seen"]) for line in there.phases[: number + 1]]
    old, seen = boundaries[-1]
    found: Predictions = predict_all(method, test, seen)
    return Evaluation(number, measure(found, Phase(number, old, seen), boundaries))
