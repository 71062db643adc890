"""From a finished run and a data set with further classes to a plan that goes on from its weights."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from bdr.configuration.config import Config, changed, is_own, owners, short
from bdr.configuration.frames import frame_of
from bdr.configuration.overrides import SCALED, laid_over, with_settings, with_stage_settings
from bdr.data import DATASETS
from bdr.data.exemplars import Found, Kept, count_alike, find
from bdr.data.images import DataSet
from bdr.data.store import Store
from bdr.engine.checkpoint import Checkpoints, Position, State, position_info, read_state
from bdr.engine.inherit import Earlier
from bdr.errors import BdrError, UsageError, as_word, shortened, unknown
from bdr.planning.assemble import plan_run
from bdr.planning.describe import shared_facts
from bdr.planning.loading import image_shape
from bdr.planning.plan import Plan
from bdr.planning.rereading import classes_known, exemplars_told, found_again, other_tests, read_again
from bdr.records import Extends, Run, kept_phase, model_checksum, open_whole, other_code, other_library
from bdr.records.reader import exemplars_file
from bdr.scenario import split_evenly
from bdr.types import Stage

# Fields that may differ from the run that is extended; all others made its network, its images or its exemplars.
FREE = ("root", "seed", "precision", "device", "engine", "keep", "checkpoint_every", "log", "uneven")


def plan_extension(
    path: Path,
    data: DataSet | None = None,
    step: int | None = None,
    settings: Iterable[tuple[str, Any]] = (),
    fields: Mapping[str, Any] | None = None,
    out: Path | None = None,
    runs: Path = Path("runs"),
) -> Plan:
    """The plan of a run whose first phases are those of a finished run."""
    run = finished(path)
    refuse_its_own_folder(run, out)
    model, state = model_checksum(path, kept_phase(path, len(run.phases) - 1)), state_after(run)
    config, notes = config_of(run, settings, fields or {})
    data = data or data_of(run, config)
    known, new = classes_known(run), new_classes(run, data)
    check_images(run, data)
    extends = extension_of(run, model, split_evenly(len(new), step, config.uneven))
    order = ",".join(str(data.classes.index(name)) for name in [*known, *new])
    plan = plan_run(changed(config, {"order": order, "phases": None}), out, runs, data, extends, notes)
    refuse_all_images(plan)
    found = exemplars_of(run, state, plan, data)
    experiment = replace(plan.experiment, earlier=Earlier(run, state, found.rows))
    return replace(plan, experiment=experiment, notes=(*plan.notes, *what_changed(run, plan, found, data.by_place)))


def extension_of(run: Run, model: str, counts: Sequence[int]) -> Extends:
    """The extension of a run by `counts` classes a phase; `model` is the checksum of the model that it begins with."""
    known = len(classes_known(run))
    mean, std = run.normalisation
    before = [(line["old"], line["seen"]) for line in run.phases]
    return Extends(
        run=str(run.path.resolve()),
        fingerprint=run.fingerprint,
        seed=run.seed,
        protocol=shared_facts(run.protocol),
        model=model,
        phases=len(run.phases),
        classes=known,
        mean=mean,
        std=std,
        bounds=(*before, *pairwise(accumulate(counts, initial=known))),
    )


def finished(path: Path) -> Run:
    run = open_whole(path, begun=True)  # all of it will be copied, and nothing may begin with damaged files
    if not run.whole or not run.phases:
        done, planned = len(run.phases), len(run.info["phases"])
        raise UsageError(
            f"{path} is not finished ({done} of {planned} phases): finish it first with bdr resume {as_word(path)}"
        )
    return run


def refuse_its_own_folder(run: Run, out: Path | None) -> None:
    if out is not None and out.resolve() == run.path.resolve():
        raise UsageError(
            f"--out {out} is the run that is extended, which stays as it is: name another folder, or leave --out out"
        )


def config_of(run: Run, settings: Iterable[tuple[str, Any]], fields: Mapping[str, Any]) -> tuple[Config, list[str]]:
    """The run's own configuration with the given changes, if they are allowed, and notes on what was adapted."""
    config, settings = found_again(run), list(settings)
    moved = f"{short(config.net)}.weights"  # where the file of weights lies is no part of a run
    parts = [*(owner for owner in owners(config) if owner != short(config.net)), "stage", "augment"]
    for name in [*fields, *(name for name, _ in settings)]:
        owner = name.rpartition(".")[0]
        if not owner and name in Config.model_fields and name not in FREE:
            raise UsageError(
                f"{name} is that of {run.path} and cannot be another when it is extended; what can is "
                f"{', '.join(FREE)}, and the settings of {', '.join(parts)}"
            )
        if owner and name != moved and not owner.startswith("stage.") and owner not in parts:
            raise unknown("part with settings that can change when a run is extended", owner, parts)
    refuse_a_start(run, config, [name for name, _ in settings])
    config = as_in_its_frame(config, [name for name, _ in settings])
    return with_settings(changed(config, fields), settings)


def refuse_a_start(run: Run, config: Config, names: Sequence[str]) -> None:
    """Refuse to set where the scale of a classifier starts: this classifier has been trained already."""
    start = run.info.get("scale_setting")
    if start in names:
        raise UsageError(
            f"{start} is where the scale of a new classifier starts, and that of {run.path} has been trained: leave it "
            f"out, or train anew with bdr run {config.title} --set {start}=..."
        )


def as_in_its_frame(config: Config, given: Collection[str]) -> Config:
    """Where epochs are given, go back to drops and warm-up of the frame: a run of few epochs has rounded them."""
    frame = frame_of(config.data)(config.method, *config.plugins)
    stage = whole(frame.stage, config.stage) if "stage.epochs" in given else config.stage
    named = {
        name: whole_fields(name, frame.stages.get(name, {}), mine)
        for name, mine in config.stages.items()
        if f"stage.{name}.epochs" in given
    }
    return changed(config, {"stage": stage, "stages": config.stages | named})


def whole(frame: Stage, stage: Stage) -> Stage:
    """The stage before its epochs were changed, if its drops and warm-up are those of the frame, scaled."""
    scaled, _ = with_stage_settings(frame, {"epochs": stage.epochs})
    if any(getattr(scaled, name) != getattr(stage, name) for name in SCALED):
        return stage
    return replace(stage, **{name: getattr(frame, name) for name in ("epochs", *SCALED)})


def whole_fields(name: str, frame: Mapping[str, Any], mine: Mapping[str, Any]) -> dict[str, Any]:
    """The same for the settings of a single stage."""
    (now, _), (scaled, _) = laid_over(name, [mine]), laid_over(name, [frame, {"epochs": mine.get("epochs", 1)}])
    if any(scaled.get(field) != now.get(field) for field in SCALED):
        return now
    return now | {field: frame[field] for field in ("epochs", *SCALED) if field in frame}


def data_of(run: Run, config: Config) -> DataSet:
    if config.data not in DATASETS and not is_own(config.data):
        raise UsageError(
            f"{run.path} was trained on '{config.data}', which was given as a data set in Python: extend it there, "
            f"bdr.extend({str(run.path)!r}, data=data)"
        )
    return read_again(run, config)


def new_classes(run: Run, data: DataSet) -> list[str]:
    """The classes that the run does not know: first those it planned but did not reach, then as in the data set."""
    known = classes_known(run)
    refuse_lost_classes(run, data)
    planned = [name for name in run.info["classes"][len(known) :] if name in data.classes]
    new = [*planned, *(name for name in data.classes if name not in known and name not in planned)]
    if not new:
        raise UsageError(
            f"there is nothing new in the data: {run.path} knows all of its {len(data.classes)} classes; add images of "
            "further ones (a folder each), or name another place with --root"
        )
    return new


def refuse_lost_classes(run: Run, data: DataSet) -> None:
    known = classes_known(run)
    if lost := [name for name in known if name not in data.classes]:
        raise UsageError(
            f"the data has no class {shortened(lost)}, and {run.path} knows {len(known)} classes that must all be "
            f"there, each with its exemplars and its test images; there are {shortened(data.classes)}: add what is "
            "missing"
        )


def check_images(run: Run, data: DataSet) -> None:
    """Check that images have the size and channels that the network was made for, and each known class test images."""
    here, there = list(image_shape(data)), list(run.info["image"])
    if here != there:
        said = [f"{channels} x {height} x {width}" for channels, height, width in (here, there)]
        raise UsageError(
            f"images are {said[0]} (channels x height x width) here and {said[1]} where {run.path} was trained: "
            "they must be of the same size"
        )
    counts = np.bincount(data.test.labels, minlength=len(data.classes))
    for name in classes_known(run):
        if not counts[data.classes.index(name)]:
            raise UsageError(f"class '{name}', which {run.path} knows, has no test image any more: put them back")


def refuse_all_images(plan: Plan) -> None:
    if not plan.learner.method.extensible:
        raise UsageError(
            f"'{plan.config.method}' trains on all images of all classes in every phase and cannot be extended from "
            f"exemplars: run it anew, bdr run {plan.config.title} --data {plan.config.data} ..."
        )


def state_after(run: Run) -> State:
    """The state after the last phase; the run is only read, even where it is damaged."""
    saved = Checkpoints(run.path / "checkpoint").saved()
    if not saved:
        raise UsageError(
            f"{run.path} has no checkpoint any more, which holds what its method goes on from (bdr clean removes it): "
            "train it again into another folder, and extend it before it is cleaned"
        )
    state = read_state(saved[-1])
    if state.info["position"] != position_info(Position(len(run.phases))):
        raise BdrError(f"{saved[-1]} is not of the end of {run.path}: train it again into another folder")
    return state


def exemplars_of(run: Run, state: State, plan: Plan, data: DataSet) -> Found:
    """The exemplars of a run, found again as rows of the training images of a plan."""
    told = run.exemplars(len(run.phases) - 1)
    if told is None:
        if not any(state.info["exemplars"]):  # a method without a memory
            return Found(state.info["exemplars"], [], [])
        raise UsageError(
            f"{exemplars_file(run.path, len(run.phases) - 1)} is missing, by which exemplars are found in other data: "
            "put it back, or train the run again into another folder, and extend that"
        )
    names = classes_known(run)
    found = find(plan.learner.train, exemplars_told(run, told))
    if found.missing:
        refuse_missing(run, plan, data, names, found.missing)
    return found


def refuse_missing(
    run: Run, plan: Plan, data: DataSet, names: Sequence[str], missing: Sequence[tuple[int, Kept]]
) -> None:
    lost = [[each for at, each in missing if at == label] for label in range(len(names))]
    held = [("test", plan.experiment.test, data.by_place), ("validation", plan.experiment.validation, True)]
    also = "".join(held_now(split, store, lost, by_place) for split, store, by_place in held if store is not None)
    said, them = ("exemplar of {} is", "it") if len(missing) == 1 else ("exemplars of {} are", "them")
    raise UsageError(
        f"{len(missing)} {said.format(run.path)} not among the training images: "
        f"{shortened([f'{names[label]}/{kept}' for label, kept in missing])}{also}; put {them} back"
    )


def held_now(split: str, store: Store, lost: Sequence[Sequence[Kept]], by_place: bool) -> str:
    """Say how many missing exemplars are `split` images now: images held out by place move when others come."""
    count = count_alike(store, lost)
    if not count:
        return ""
    which = "it" if sum(map(len, lost)) == 1 else f"{count} of them"
    what = f"{which} is a {split} image" if count == 1 else f"{which} are {split} images"
    why = " now, held out by place in the class: leave the images of known classes as they were" if by_place else ""
    return f"; {what}{why}"


def spelled_alike(known: Sequence[str], new: Sequence[str]) -> list[str]:
    """Sentences on new classes that may be known ones, typed with other capitals, spaces or hyphens."""
    bare = {plainly(name): name for name in known}
    return [f"the new class '{name}' reads like '{bare[plainly(name)]}'" for name in new if plainly(name) in bare]


def plainly(name: str) -> str:
    return " ".join(name.casefold().replace("_", " ").replace("-", " ").split()) or name


def what_changed(run: Run, plan: Plan, found: Found, by_place: bool) -> list[str]:
    """Notes on what has changed since the run was trained, which may be intended."""
    names, notes = classes_known(run), []
    if alike := spelled_alike(names, plan.info["classes"][len(names) :]):
        notes.append(
            f"warning: {shortened(alike)}, which {run.path} knows: put its pictures into that folder if they are the "
            "same class"
        )
    if others := other_tests(run, plan.experiment.test, names, by_place):
        notes.append(
            f"warning: {others}: the numbers of its phases, which are taken over, are of other images than those that "
            "follow"
        )
    if found.altered:
        altered = shortened([f"{names[label]}/{kept}" for label, kept in found.altered])
        said = "exemplar has" if len(found.altered) == 1 else "exemplars have"
        notes.append(f"warning: {len(found.altered)} {said} other pixels than {run.path} saw: {altered}")
    if code := other_code(run.info, plan.info.get("own_code", {})):
        notes.append(f"warning: {', '.join(code)} changed since {run.path} was trained: it is extended by other code")
    if library := other_library(run.info, plan.info["code"]):
        notes.append(f"note: {library}: {run.path} is extended by other code")
    return notes
