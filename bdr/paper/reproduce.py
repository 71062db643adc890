"""`bdr reproduce`: runs what is missing of the paper's tables, and judges what is there."""

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


@dataclass(frozen=True)
class Question:
    """Which cells, judged how, from which folders."""

    cells: list[Cell]
    seeds: list[int]
    formula: str
    tolerance: float
    results: list[Path]
    runs: Path
    device: str
    jobs: int

    def check(self) -> None:
        if self.formula not in FORMULAS:
            raise unknown("formula", self.formula, FORMULAS)
        if not 0 <= self.tolerance < float("inf"):
            raise UsageError(f"--tolerance {self.tolerance} is not allowed: it is 0 or more, in points")

    def folders(self) -> list[Path]:
        """Where results are looked for; a folder that was named must be there, the usual ones need not."""
        return [*self.results, *usual_folders(self.runs, without_results=bool(self.results))]


def usual_folders(runs: Path = RUNS, without_results: bool = False) -> list[Path]:
    """Where results are looked for if nobody says otherwise; only those that are there."""
    return [folder for folder in (*(() if without_results else (RESULTS,)), runs) if folder.is_dir()]


def say_if_nothing_is_there(folders: Sequence[Path], advice: str, runs: Path = RUNS) -> None:
    """Outside of a clone no cell has a result, however many runs there are elsewhere."""
    if not folders:
        tell(f"note: there is neither {RESULTS}/ nor {runs}/ here; name folders {advice}")


@dataclass(frozen=True)
class Answer:
    question: Question
    judged: list[Judged]
    schedule: Schedule
    warnings: list[str]


def reproduce(
    tables: Sequence[str],
    only: str | None = None,
    *,
    added: str | None = None,
    seeds: str = "3",
    formula: str = "corrected",
    tolerance: float = 0.5,
    results: Sequence[Path] = (),
    runs: Path = RUNS,
    root: Path | None = None,
    device: str | None = None,
    jobs: int = 1,
    until: str | None = None,
    only_what_ends: bool = False,
    check: bool = False,
    dry_run: bool = False,
    as_json: bool = False,
    markdown: bool = False,
) -> None:
    """Says what the cells ask for, runs what is missing (not with `check` or `dry_run`), and prints the judgement."""
    manner = Manner(check=check, dry_run=dry_run, as_json=as_json, markdown=markdown)
    manner.refuse_contradictions()
    cells, where = beside(chosen(tables, only), named(added)), device_type(device or "auto")
    question = Question(cells, counted_seeds(seeds), formula, tolerance, list(results), runs, where, jobs)
    question.check()
    if check or dry_run:
        say_if_nothing_is_there(question.folders(), "with --results DIR", runs)
    found = answer(question)
    if not (check or dry_run) and (missing := found.schedule.missing):
        manner.refuse_mixed_output(len(missing), f"then with --check {manner.form}; or add --dry-run")
        show(run_sheet(found.schedule), markdown=False)
        crew, reason = train_missing(missing, Conditions(runs, jobs, until, only_what_ends), machine(root, device))
        present(answer(question), manner)
        say_what_is_left(crew, reason, until)
    else:
        present(found, manner)


def chosen(tables: Sequence[str], only: str | None) -> list[Cell]:
    picks = parse_only(only)
    cells = [cell for cell in cells_of(list(tables)) if picks(cell)]
    if not cells:
        raise UsageError(f"no cell of {', '.join(tables) or 'no table'} fits --only '{only}'; try --only cifar100")
    return cells


def named(plugins: str | None) -> list[str]:
    """`bdr,la`"""
    names = [] if plugins is None else [name.strip() for name in plugins.split(",")]
    for name in names:
        if name not in PLUGINS:
            raise unknown("plug-in", name, PLUGINS)
    return list(dict.fromkeys(names))


def answer(question: Question) -> Answer:
    results: Results = gather(question.folders())
    judged = judge(question.cells, results, question.formula, question.tolerance)
    schedule = schedule_of(judged, results, question.seeds, question.device, question.jobs)
    return Answer(question, judged, schedule, results.warnings)


def machine(root: Path | None, device: str | None) -> dict[str, Any]:
    """What belongs to this machine and not to the result."""
    return {name: str(value) for name, value in {"root": root, "device": device}.items() if value is not None}


def train_missing(
    missing: Sequence[tuple[Wanted, int]], conditions: Conditions, here: dict[str, Any]
) -> tuple[Crew, str]:
    """As a sweep: one that fails keeps no other from its turn. What became of each, and why it ended."""
    end = end_of(conditions.until)
    checked_jobs(conditions.jobs, cuda=False)  # now, and not after all has been planned
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
    question = found.question
    for warning in found.warnings:
        tell(f"warning: {warning}")
    for sheet in [] if dry_run else cell_sheets(found.judged, question.formula, question.tolerance):
        show(sheet, markdown)
    if found.schedule.jobs:
        show(run_sheet(found.schedule), markdown)
    lines = commands(found) if dry_run else record_lines(found.judged)
    list_lines("Would run" if dry_run else "Records behind these numbers", lines, markdown)
    if not dry_run:
        print(("\n" if markdown else "") + tally(found.judged))


def commands(found: Answer) -> list[str]:
    """What would run, and why the rest would not."""
    reasons = [each.reason.text for each in found.judged if each.reason]
    left = [f"not run, {reasons.count(text)} cells: {text}" for text in dict.fromkeys(reasons)]
    return [wanted.command(seed) for wanted, seed in found.schedule.missing] + left


def plain_answer(found: Answer) -> dict[str, Any]:
    question = found.question
    jobs = [
        {**plain_wanted(job.wanted), "have": job.have, "missing": job.missing, "seconds": job.seconds}
        for job in found.schedule.jobs
    ]
    return {
        "formula": question.formula,
        "tolerance": question.tolerance,
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
    """Lines that are too long for a table: commands and paths, never broken."""
    if not lines:
        return
    print(f"### {title}\n" if markdown else title)
    for line in lines:
        print(f"- {line}" if markdown else f"  {line}")
