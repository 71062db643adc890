"""What the folder of a plan already holds, and whether this may go on: with the same defaults, analysis and code."""

from __future__ import annotations

from bdr import records
from bdr.configuration.overrides import as_typed
from bdr.errors import UsageError, as_word
from bdr.planning.own_code import library_version
from bdr.planning.plan import Plan
from bdr.planning.settings import differing
from bdr.records import Run


def run_there(plan: Plan) -> Run | None:
    """The run in the plan's folder, if it is this very run; any other is refused when a run is created there."""
    path = plan.experiment.path
    if not records.is_begun(path):
        return None
    there = Run.open(path)
    same = (there.fingerprint, there.seed) == (plan.info["fingerprint"], plan.info["seed"])
    return there if same else None


def refuse_beginning(plan: Plan) -> None:
    """Raise the error that would keep a plan from beginning or going on in its folder; leave nothing there."""
    there = run_there(plan)
    if there is None:
        records.check_place(plan.experiment.path, plan.info)
    else:
        refuse_going_on(plan, there)


def refuse_going_on(plan: Plan, there: Run) -> None:
    """Refuse a run with other defaults, without the analysis asked for or, if whole, of other code."""
    refuse_other_defaults(plan, there)
    refuse_late_analysis(plan, there)
    if there.whole:
        refuse_other_code(plan, there)


def refuse_late_analysis(plan: Plan, there: Run) -> None:
    """Refuse --analyse for a run begun without it: a run is analysed from its first step to its last, or not at all."""
    if plan.config.analyse and not there.info.get("analyse"):
        raise UsageError(f"{there.path} was begun without --analyse: choose another folder with --runs, or remove it")


def refuse_other_defaults(plan: Plan, there: Run) -> None:
    """Refuse defaults that changed since a run began: its folder keeps its name, but this would be another run."""
    path, settings = there.path, there.info.get("settings", {})  # older records lack them
    found = differing(settings, plan.info["settings"], plan.config)
    if not found:
        return
    said = ", ".join(f"{name} was {as_typed(old)} and is {as_typed(new)} now" for name, (old, new) in found.items())
    before = " ".join(f"--set {name}={as_typed(old)}" for name, (old, _) in found.items())
    resumed = "" if there.whole else f"go on as it was begun with bdr resume {as_word(path)}, or "
    raise UsageError(
        f"{path} was made with other defaults: {said}; {resumed}type {before} to train with what was, in a folder of "
        "its own, or name another folder with --runs or --out to train with what is"
    )


def refuse_other_code(plan: Plan, there: Run) -> None:
    """Refuse a finished run of changed code: its numbers are those of the code that trained it."""
    if changed := other_code(plan, there):
        raise UsageError(
            f"{there.path} is already done with other code of {', '.join(changed)}: to keep it, put the new run into "
            "another folder with --runs or --out; to replace it, remove it first"
        )


def other_code(plan: Plan, there: Run) -> list[str]:
    """The user's own modules that have changed since the run in the folder was trained."""
    return records.other_code(there.info, plan.info.get("own_code", {}))


def about_library(there: Run) -> list[str]:
    """A note if the library has changed since a finished run was trained: its numbers might be others today."""
    changed = records.other_library(there.info, library_version())
    return [f"note: {changed}: its numbers are of that code"] if changed else []
