"""What stands in the folder of a plan already: this very run, whole or not, of this code and its defaults or not."""

from __future__ import annotations

from pathlib import Path

from bdr import records
from bdr.config import as_typed
from bdr.errors import UsageError
from bdr.own_code import library_version
from bdr.plan import Plan
from bdr.records import Run
from bdr.settings import differing


def is_begun(plan: Plan) -> bool:
    """The folder holds this very run; one that belongs to another configuration is refused when it is created."""
    path = plan.experiment.path
    if not records.is_begun(path):
        return False
    there = Run.open(path)
    return (there.fingerprint, there.seed) == (plan.info["fingerprint"], plan.info["seed"])


def is_done(plan: Plan) -> bool:
    return is_begun(plan) and Run.open(plan.experiment.path).whole


def refuse_late_analysis(plan: Plan) -> None:
    """A run is analysed from its first step to its last, or not at all."""
    path = plan.experiment.path
    if plan.config.analyse and not Run.open(path).info.get("analyse"):
        raise UsageError(
            f"{path} was begun without --analyse: choose another folder with --runs or --out, or remove it"
        )


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


def other_code(plan: Plan) -> list[str]:
    """The modules of one's own that are others now than when the run in the folder was trained, if there is one."""
    there = Run.open(plan.experiment.path).info if is_begun(plan) else {}
    return records.other_code(there, plan.info.get("own_code", {}))


def about_library(path: Path) -> list[str]:
    """A line where the library has changed since a run that is done was trained: it might come to others today."""
    changed = records.other_library(Run.open(path).info, library_version())
    return [f"note: {changed}: its numbers are of that code"] if changed else []
