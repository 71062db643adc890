"""`bdr reproduce`: training the missing runs of the paper's tables and judging those that are there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bdr.balance import FORMULAS
from bdr.errors import UsageError, unknown
from bdr.paper.beyond import beside
from bdr.paper.cells import Cell, cells_of
from bdr.paper.found import Results, gather
from bdr.paper.mapping import Wanted
from bdr.paper.only import parse_only
from bdr.paper.schedule import Schedule, counted_seeds, schedule_of
from bdr.paper.sheets import as_plain, cell_sheets, plain_wanted, record_lines, run_sheet, tally
from bdr.paper.verdicts import Judged, judge
from bdr.planning.parts import device_type
from bdr.plugins import PLUGINS
from bdr.report.sheets import Sheet, as_markdown
from bdr.sweep.crew import Crew
from bdr.sweep.grid import Wish
from bdr.sweep.plan import plan_sweep
from bdr.sweep.run import checked_jobs, end_of, said, say_what_is_left, train_all
from bdr.terminal import Conditions, Manner, print_sheets, tell

RESULTS, RUNS = Path("results"), Path("runs")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The options that apply to all cells: plug-ins to add, seeds, formula, tolerance, folders of results, machine."""

    added: str | None = None
    seeds: str = "3"
    formula: str = "corrected"
    tolerance: float = 0.5
    results: Sequence[Path] = ()
    root: Path | None = None
    device: str | None = None

    def __post_init__(self) -> None:
        if self.formula not in FORMULAS:
            raise unknown("formula", self.formula, FORMULAS)
        if not 0 <= self.tolerance < float("inf"):
            raise UsageError(f"--tolerance {self.tolerance} is not allowed: it is 0 or more, in points")

    def folders(self, runs: Path) -> list[Path]:
        """The folders in which results are searched: named ones, which must exist, and the usual ones that do."""
        return [*self.results, *usual_folders(runs, without_results=bool(self.results))]

    def machine(self) -> dict[str, str]:
        """The fields that concern this machine and not the result."""
        here = {"root": self.root, "device": self.device}
        return {name: str(value) for name, value in here.items() if value is not None}


@dataclass(frozen=True)
class Question:
    """The cells to judge, the seeds they need, and the options and conditions that apply."""

    cells: list[Cell]
    seeds: list[int]
    asked: Asked
    conditions: Conditions
    device: str


def usual_folders(runs: Path = RUNS, without_results: bool = False) -> list[Path]:
    """The folders in which results are searched by default, as far as they exist."""
    return [folder for folder in (*(() if without_results else (RESULTS,)), runs) if folder.is_dir()]


def say_if_nothing_is_there(folders: Sequence[Path], advice: str, runs: Path = RUNS) -> None:
    """Print a note if no folder of results exists, as is usual outside a clone: then no cell can have a result."""
    if not folders:
        tell(f"note: there is neither {RESULTS}/ nor {runs}/ here; name folders {advice}")


@dataclass(frozen=True)
class Answer:
    question: Question
    judged: list[Judged]
    schedule: Schedule
    warnings: list[str]


def reproduce(tables: Sequence[str], only: str | None, asked: Asked, conditions: Conditions, manner: Manner) -> None:
    """Train the runs that cells lack, unless `check` or `dry_run` is set, and print the judgement."""
    manner.refuse_contradictions()
    if manner.dry_run and asked.root is not None and not asked.root.is_dir():
        raise UsageError(f"there is no folder '{asked.root}'; name the one that the data set is in with --root")
    cells, where = beside(chosen(tables, only), named(asked.added)), device_type(asked.device or "auto")
    question = Question(cells, counted_seeds(asked.seeds), asked, conditions, where)
    looks = manner.check or manner.dry_run
    if looks:
        say_if_nothing_is_there(asked.folders(conditions.runs), "with --results DIR", conditions.runs)
    found = answer(question)
    if not looks and (missing := found.schedule.missing):
        manner.refuse_mixed_output(len(missing), f"then with --check {manner.form}; or add --dry-run")
        show(run_sheet(found.schedule), markdown=False)
        crew, reason = train_missing(missing, conditions, asked.machine())
        present(answer(question), manner)
        say_what_is_left(crew, reason, conditions.until)
    else:
        present(found, manner)


def chosen(tables: Sequence[str], only: str | None) -> list[Cell]:
    picks = parse_only(only)
    cells = [cell for cell in cells_of(list(tables)) if picks(cell)]
    if not cells:
        raise UsageError(f"no cell of {', '.join(tables) or 'no table'} fits --only '{only}'; try --only cifar100")
    return cells


def named(plugins: str | None) -> list[str]:
    """The plug-ins in a list such as `bdr,la`; raises for an unknown one."""
    names = [] if plugins is None else [name.strip() for name in plugins.split(",")]
    for name in names:
        if name not in PLUGINS:
            raise unknown("plug-in", name, PLUGINS)
    return list(dict.fromkeys(names))


def answer(question: Question) -> Answer:
    asked, conditions = question.asked, question.conditions
    results: Results = gather(asked.folders(conditions.runs))
    judged = judge(question.cells, results, asked.formula, asked.tolerance)
    schedule = schedule_of(judged, results, question.seeds, question.device, conditions.jobs or 1)
    return Answer(question, judged, schedule, results.warnings)


def train_missing(
    missing: Sequence[tuple[Wanted, int]], conditions: Conditions, here: dict[str, Any]
) -> tuple[Crew, str]:
    """Train missing runs as a sweep, so that one failure stops no other; return the crew and why it ended."""
    end = end_of(conditions.until)
    checked_jobs(conditions.jobs, cuda=False)  # a wrong number is refused before everything is planned
    planned = said(plan_sweep([wish_of(wanted, seed, here) for wanted, seed in missing], conditions.runs))
    return train_all(planned, conditions, end)


def wish_of(wanted: Wanted, seed: int, here: dict[str, Any]) -> Wish:
    told = {"data": wanted.data, **dict(wanted.fields), **here, **dict(wanted.settings)}
    return Wish(wanted.spec, file=(), typed=tuple(told.items()), seed=seed)


def present(found: Answer, manner: Manner) -> None:
    dry_run, markdown = manner.dry_run, manner.markdown
    if manner.as_json:
        print(json.dumps(plain_answer(found), indent=2, ensure_ascii=False))
        return
    asked = found.question.asked
    for warning in found.warnings:
        tell(f"warning: {warning}")
    for sheet in [] if dry_run else cell_sheets(found.judged, asked.formula, asked.tolerance):
        show(sheet, markdown)
    if found.schedule.jobs:
        show(run_sheet(found.schedule), markdown)
    lines = commands(found) if dry_run else record_lines(found.judged)
    list_lines("Would run" if dry_run else "Records behind these numbers", lines, markdown)
    if not dry_run:
        print(("\n" if markdown else "") + tally(found.judged))


def commands(found: Answer) -> list[str]:
    """The commands of missing runs, and the reasons why cells are not run."""
    reasons = [each.reason.text for each in found.judged if each.reason]
    left = [f"not run, {reasons.count(text)} cells: {text}" for text in dict.fromkeys(reasons)]
    runs = found.question.conditions.runs
    here = found.question.asked.machine() | ({} if runs == RUNS else {"runs": str(runs)})
    return [wanted.command(seed, here) for wanted, seed in found.schedule.missing] + left


def plain_answer(found: Answer) -> dict[str, Any]:
    question = found.question
    jobs = [
        {**plain_wanted(job.wanted), "have": job.have, "missing": job.missing, "seconds": job.seconds}
        for job in found.schedule.jobs
    ]
    return {
        "formula": question.asked.formula,
        "tolerance": question.asked.tolerance,
        "seeds": question.seeds,
        "cells": [as_plain(each) for each in found.judged],
        "runs": jobs,
        "notes": list(found.schedule.notes),
        "warnings": found.warnings,
    }


def show(sheet: Sheet, markdown: bool) -> None:
    if markdown:
        print(as_markdown(sheet))
    else:
        print_sheets([sheet])


def list_lines(title: str, lines: Sequence[str], markdown: bool) -> None:
    """Print lines that are too long for a table, such as commands and paths, without breaking them."""
    if not lines:
        return
    print(f"### {title}\n" if markdown else title)
    for line in lines:
        print(f"- {line}" if markdown else f"  {line}")
