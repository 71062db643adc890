"""`bdr compare`: one method with several plug-ins in turn, run where it is missing, and one table of all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bdr import report
from bdr.commands.looking import print_comparison
from bdr.errors import BdrError, UsageError
from bdr.records import Run
from bdr.sweep import end_of, plan_runs, readable, say_what_is_left, train_all
from bdr.sweep.plan import Planned
from bdr.sweep.view import list_table
from bdr.terminal import Stoppable, out, refuse_contradictions

NOTHING = "none"  # the method as it is


def compare_plugins(
    method: str,
    added: str,
    fields: dict[str, Any],
    settings: Sequence[str],
    seeds: Sequence[int] | None,
    runs: Path,
    jobs: int | None,
    until: str | None,
    check: bool,
    dry_run: bool,
    as_json: bool,
    markdown: bool,
    stoppable: Stoppable,
) -> None:
    """Trains what is missing (not with `check` or `dry_run`), and prints the table."""
    refuse_contradictions(check, dry_run, as_json, markdown)
    if dry_run and (as_json or markdown):
        raise UsageError("--dry-run lists runs and prints no table: leave out --json and --markdown, or use --check")
    end = end_of(until)
    planned = plan_runs(rows_of(method, added), fields, settings, seeds, runs)
    missing = [run for run in planned if not run.done]
    if dry_run:
        out.print(list_table(planned))
    elif check or not missing:
        show(method, planned, as_json, markdown)
    else:
        refuse_mixed_output(len(missing), as_json, markdown)
        crew, reason = train_all(planned, runs, jobs, end, stoppable)
        if any(run.done for run in planned):
            show(method, planned, as_json, markdown)
        say_what_is_left(crew, reason, until)


def rows_of(method: str, added: str) -> list[str]:
    """The method as it is, which gains are over, and with each of the plug-ins that are named."""
    names = [name.strip() for name in added.split(",")]
    if not all(names):
        raise UsageError(f"--with '{added}' is not like none,la,focal+bdr")
    return list(dict.fromkeys([method, *(f"{method}+{name}" for name in names if name != NOTHING)]))


def refuse_mixed_output(missing: int, as_json: bool, markdown: bool) -> None:
    if as_json or markdown:
        option = "--json" if as_json else "--markdown"
        raise UsageError(
            f"{missing} runs are missing, and their display would be mixed with the output of {option}: run without it "
            f"first, or add --check"
        )


def show(method: str, planned: Sequence[Planned], as_json: bool, markdown: bool) -> None:
    """The table of what is there, with gains over the method as it is; and what is not there."""
    missing = [run.name for run in planned if not run.done]
    runs = readable([run for run in planned if run.done])
    if not runs:
        raise BdrError(f"none of the {len(planned)} runs is there yet; make them with the same command without --check")
    comparison = report.compare(runs, reference=title_of(method, planned))
    if as_json:
        print(json.dumps(report.as_json(comparison) | {"missing": missing}, indent=2))
    elif markdown:
        for sheet in report.comparison_sheets(comparison):
            print(report.as_markdown(sheet))
    else:
        print_comparison(comparison)
    if missing and not as_json:
        out.print(f"Not there yet: {', '.join(missing)}.", markup=False)


def title_of(method: str, planned: Sequence[Planned]) -> str | None:
    """What the records call the method: a recipe has another name there. None while no run of it is done."""
    done = [run for run in planned if run.done and run.label == method]
    return Run.open(done[0].path).title if done else None
