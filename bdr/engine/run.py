"""Begin a run, or go on where it stopped: it takes over what other runs have trained, and runs the phases left."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from bdr.engine.course import Course
from bdr.engine.experiment import Company, Experiment
from bdr.engine.inherit import published
from bdr.engine.saving import resting_in
from bdr.errors import BdrError
from bdr.records import Run, RunWriter


def begin_run(experiment: Experiment, info: dict[str, Any], company: Company) -> None:
    """Run from the first phase on, or after the phases that another run has trained already."""
    writer = RunWriter.create(experiment.path, info)
    course = Course(experiment, writer, company)
    with writer.withdrawn_on_failure():
        rehearse(course, company)
    with course.records.logged_failure():
        take_up_phases(course)
        go(course)


def resume_run(experiment: Experiment, company: Company) -> None:
    """Go on from the newest whole checkpoint; without one, begin again."""
    analysed = bool(Run.open(experiment.path).info.get("analyse"))  # all of a run, or none of it
    course = Course(replace(experiment, analyse=analysed), RunWriter.alone(experiment.path), company)
    with course.records.logged_failure():
        if take_up_checkpoint(course):
            say_other_code(course)
        else:
            begin_anew(course, company)
        go(course)


def begin_anew(course: Course, company: Company) -> None:
    """Begin in a folder in which an earlier attempt has left nothing to go on from."""
    experiment = course.experiment
    rehearse(course, company)
    course.records.writer.begins_anew_with(dict(experiment.own_code), experiment.code)
    take_up_phases(course)


def rehearse(course: Course, company: Company) -> None:
    """Try whatever can be tried of a run that begins, before anything in it changes."""
    with course.learner.at_work(), course.records.heard_warnings():
        company.rehearse()


def take_up_checkpoint(course: Course) -> bool:
    """Restore the newest checkpoint, cut the records back to it, and return whether there was a whole one."""
    writer = course.records.writer
    with course.records.heard_warnings():
        state = course.checkpoints.newest(lambda state: writer.lost(state.info["offsets"]))
    offsets = state.info["offsets"] if state else {}
    writer.refuse_lost(offsets)
    writer.cut_back(offsets)
    if state is not None:
        course.restore(state)
        course.checkpoints.trust(resting_in(course.learner))
    # into the log too: whatever the run ended with before is over
    course.records.note(place_of(course) if state is not None else "there is no checkpoint: the run begins anew")
    return state is not None


def place_of(course: Course) -> str:
    """Where a run goes on, as in `going on in phase 0 after epoch 57 of 400`."""
    at = course.position
    stages = course.learner.stages[at.phase] if at.phase < len(course.phases) else []
    if at.stage == len(stages):
        return f"going on at the end of {f'phase {at.phase}' if stages else 'the last phase'}"
    stage = stages[at.stage]
    phase = f"phase {at.phase}" + (f", stage {stage.name}," if len(stages) > 1 else "")
    if at.step:
        return f"going on in {phase} in epoch {at.epoch + 1} of {stage.epochs}"
    return f"going on in {phase} after epoch {at.epoch} of {stage.epochs}" if at.epoch else f"going on with {phase}"


def say_other_code(course: Course) -> None:
    """Note code that has changed: what is trained from here on may be another method, under the same name."""
    if course.position.phase == len(course.phases):  # all is trained: only the end was not marked yet
        return
    own, library = dict(course.experiment.own_code), course.experiment.code
    for line in course.records.writer.goes_on_with(own, library, course.position.phase):
        course.records.note(line)


def take_up_phases(course: Course) -> None:
    """Begin after what another run has trained: the run that this one extends, or one with an equal first phase."""
    experiment = course.experiment
    if experiment.taken_over:
        take_over(course)
    elif experiment.shared is not None:
        adopt(course, experiment.shared)


def adopt(course: Course, folder: Path) -> None:
    """Begin after the first phase, if an equal run has left it in this folder."""
    state = published(folder, course.records.note)
    if state is None:
        return
    course.restore(state)
    for line in state.info["epochs"]:
        course.records.writer.epoch(line)
    course.records.note(f"the first phase was trained before by an equal run: taken from {folder}")
    course.save()


def take_over(course: Course) -> None:
    """Begin where the extended run ended, with its records and its state."""
    experiment, earlier = course.experiment, course.experiment.earlier
    if earlier is None:
        raise BdrError(f"nothing was saved in {experiment.path} yet: type the bdr extend that began it once more")
    course.records.writer.take_over(earlier.run)
    try:
        course.restore(earlier.handed_over())
    except (RuntimeError, KeyError) as error:
        said = f"the model of {earlier.run.path} does not fit these settings ({str(error).splitlines()[0]})"
        raise BdrError(f"{said}: leave out --set") from None
    earlier.renumber(course.learner)
    course.records.note(f"extends {earlier.run.path}, which trained the first {experiment.taken_over} phases")
    course.save()


def go(course: Course) -> None:
    """Run the phases that are left."""
    try:
        with course.learner.at_work(), course.records.heard_warnings():
            for phase in course.phases[course.position.phase :]:
                course.run_phase(phase)
    except torch.OutOfMemoryError as error:
        batch = max(stage.batch for stage in course.learner.stages[course.position.phase])
        raise BdrError(
            f"out of memory on {course.device} with a batch of {batch}: try --set stage.batch={max(1, batch // 2)}; "
            f"what was saved is kept in {course.experiment.path}"
        ) from error
    finally:
        course.checkpoints.wait()
    course.records.writer.finish()
    course.listener.run_ends()
