"""Runs from folders that may hold anything: what cannot be read is left out with a warning and stops nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bdr.errors import BdrError
from bdr.metrics import summary
from bdr.records import Run, find_runs
from bdr.report.protocols import natural_order
from bdr.report.tables import run_sheet

MALFORMED = (KeyError, IndexError, TypeError, ValueError, AttributeError)


def gather(paths: Sequence[Path], begun: bool = False) -> tuple[list[Run], list[str]]:
    """The runs at and below the given folders, in the order of these folders, and warnings about what was skipped.

    With `begun`, runs that have no finished phase yet are included.
    """
    found: dict[Path, Run] = {}
    skipped: list[str] = []
    for path in paths:
        runs, warnings = find_runs(path, begun)
        if not runs and not warnings and len(paths) > 1:
            warnings = [f"skipped {path}: there is no run in it"]
        whole, malformed = parted(runs)
        skipped += [*warnings, *malformed]
        found |= {run.path.resolve(): run for run in sorted(whole, key=natural_order)}
    return list(found.values()), list(dict.fromkeys(skipped))


def parted(runs: Sequence[Run]) -> tuple[list[Run], list[str]]:
    """The runs that can be reported, and a warning for each one that is JSON but not a record that bdr wrote."""
    reasons = [what_is_wrong(run) for run in runs]
    whole = [run for run, reason in zip(runs, reasons, strict=True) if reason is None]
    return whole, [f"skipped {run.path}: {reason}" for run, reason in zip(runs, reasons, strict=True) if reason]


def what_is_wrong(run: Run) -> str | None:
    """Why a run cannot be summarised, or None if it can: other programs may also write a run.json."""
    if not run.title.strip():
        return "it has no title"
    try:
        natural_order(run)
        if run.phases:  # before the first phase there is nothing to summarise
            summary(run, run.told_readout())
            run_sheet(run)
    except MALFORMED as error:
        return f"its records are not as bdr writes them ({type(error).__name__}: {error})"
    except BdrError as error:
        return str(error)
    return None
