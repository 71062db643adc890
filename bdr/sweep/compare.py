"""`bdr compare`: one method with several plug-ins in turn; missing runs are trained, and one table shows all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from bdr import report
from bdr.errors import BdrError, UsageError
from bdr.records import Run
from bdr.sweep.plan import Planned
from bdr.sweep.run import Asked, end_of, plan_runs, readable, say_what_is_left, say_what_is_to_do, train_all
from bdr.terminal import Conditions, Manner, print_comparison, say

NOTHING = "none"  # the method alone


def compare_plugins(method: str, added: str, asked: Asked, conditions: Conditions, manner: Manner) -> None:
    """Train what is missing (not with `check` or `dry_run`) and print the table."""
    manner.refuse_contradictions()
    if manner.dry_run and manner.form:
        raise UsageError("--dry-run lists runs and prints no table: leave out --json and --markdown, or use --check")
    end = end_of(conditions.until)
    planned = plan_runs(rows_of(method, added), asked, conditions.runs)
    missing = [run for run in planned if not run.done]
    if manner.dry_run:
        say_what_is_to_do(planned, conditions)
    elif manner.check or not missing:
        show(method, planned, conditions.runs, manner)
    else:
        manner.refuse_mixed_output(len(missing), "or add --check")
        crew, reason = train_all(planned, conditions, end)
        if any(run.done for run in planned):
            show(method, planned, conditions.runs, manner)
        say_what_is_left(crew, reason, conditions.until)


def rows_of(method: str, added: str) -> list[str]:
    """The specs to run: the method alone, which gains are measured over, and with each of the named plug-ins."""
    names = [name.strip() for name in added.split(",")]
    if not all(names):
        raise UsageError(f"--with '{added}' is not like none,la,focal+bdr")
    return list(dict.fromkeys([method, *(f"{method}+{name}" for name in names if name != NOTHING)]))


def show(method: str, planned: Sequence[Planned], folder: Path, manner: Manner) -> None:
    """Print the table of finished runs, with gains over the method alone, and name the runs that are missing."""
    missing = [run.name for run in planned if not run.done]
    runs = readable([run for run in planned if run.done])
    if not runs:
        raise BdrError(
            f"none of the {len(planned)} runs is there yet, in {folder}; make them with the same command without "
            "--check, or name another folder with --runs"
        )
    comparison = report.compare(runs, reference=title_of(method, planned))
    if manner.as_json:
        print(json.dumps(report.as_json(comparison) | {"missing": missing}, indent=2))
    elif manner.markdown:
        for sheet in report.comparison_sheets(comparison):
            print(report.as_markdown(sheet))
    else:
        print_comparison(comparison)
    if missing and not manner.as_json:
        say(f"Not there yet: {', '.join(missing)}.")


def title_of(method: str, planned: Sequence[Planned]) -> str | None:
    """The method's title in records, which differs from the name of a recipe; None while no run of it is done."""
    done = [run for run in planned if run.done and run.label == method]
    return Run.open(done[0].path).title if done else None
