"""Commands that hold runs against the paper."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from bdr.cli.options import AsJson, Device, Markdown, OnlyWhatEnds, Root, RunsFolder, Until

Only = Annotated[str | None, typer.Option(help='Which cells: "cifar100 & (ucir|cwd) & S=10".')]
Formula = Annotated[str, typer.Option(help="Of BDR, for all cells: corrected, released or anchored.")]


def reproduce(
    tables: Annotated[list[str], typer.Argument(metavar="TABLE...", help="Tables of the paper: T1 to T9, or all.")],
    only: Only = None,
    with_: Annotated[
        str | None,
        typer.Option("--with", help="Plug-ins that every row is run with too, also where the paper did not."),
    ] = None,
    seeds: Annotated[
        str, typer.Option(help="How many of 1993, 1994, 1995 (3: all three, not seed 3); or a list: 1993,1994.")
    ] = "3",
    formula: Formula = "corrected",
    tolerance: Annotated[float, typer.Option(help="Points that may be missing to the paper's number.")] = 0.5,
    results: Annotated[list[Path] | None, typer.Option(help="Where to look, instead of results.")] = None,
    runs: RunsFolder = Path("runs"),
    root: Root = None,
    device: Device = None,
    jobs: Annotated[int, typer.Option(help="Runs at once.")] = 1,
    until: Until = None,
    only_what_ends: OnlyWhatEnds = False,
    check: Annotated[bool, typer.Option("--check", help="Judge what is there, run nothing.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would run, and how long it takes.")] = False,
    json: AsJson = False,
    markdown: Markdown = False,
) -> None:
    """Run what is missing of the paper's tables, and say of each number whether it was reached.

    For example: bdr reproduce T4 --only "cifar100 & (ucir|cwd)" --root DIR --seeds 3
    """
    from bdr.paper.reproduce import Asked
    from bdr.paper.reproduce import reproduce as answer
    from bdr.terminal import Conditions, Manner

    by = {"added": with_, "seeds": seeds, "formula": formula, "tolerance": tolerance}
    asked = Asked(**by, results=results or (), root=root, device=device)  # type: ignore[arg-type]
    manner = Manner(check=check, dry_run=dry_run, as_json=json, markdown=markdown)
    answer(tables, only, asked, Conditions(runs, jobs, until, only_what_ends), manner)


class Form(StrEnum):
    latex = "latex"
    markdown = "markdown"
    csv = "csv"


def table(
    name: Annotated[str, typer.Argument(metavar="TABLE", help="A table of the paper: T1 to T9, or all.")],
    runs: Annotated[list[Path] | None, typer.Argument(help="Folders of runs, instead of results and runs.")] = None,
    format: Annotated[Form | None, typer.Option(help="As FILE's name ends if not given; else markdown.")] = None,
    only: Only = None,
    formula: Formula = "corrected",
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="A file to write it into.")] = None,
) -> None:
    """Write a table of the paper with ours beside it, as LaTeX, Markdown or CSV.

    For example: bdr table T4 --only cifar100 --format latex -o table4.tex
    """
    from bdr.paper.table import write_table

    write_table(name, runs or [], format and format.value, only, formula, out)
