"""Commands that look after the house: what there is, what is missing, what can go, and the data."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from bdr.cli.options import Root, RunsFolder


class Listing(StrEnum):
    methods = "methods"
    plugins = "plugins"
    data = "data"
    nets = "nets"
    recipes = "recipes"
    runs = "runs"


def list_(
    what: Annotated[Listing, typer.Argument(help=f"{', '.join(Listing)}.")], runs: RunsFolder = Path("runs")
) -> None:
    """List methods, plugins, data, nets, recipes or runs."""
    from bdr.commands.upkeep import list_things

    list_things(what.value, runs)


def doctor() -> None:
    """Check the installation: versions, device, memory, what is missing."""
    from bdr.commands.upkeep import examine

    examine()


def keep(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A finished run, as printed by bdr run.")],
    to: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder: DIR/train gets exemplars, DIR/test tests.")],
    root: Root = None,
) -> None:
    """Copy the pictures that later extensions of a run need, its exemplars and tests, into a folder by itself.

    For example: bdr keep RUN small, and later, with folders of new classes beside them: bdr extend RUN --root small
    """
    from bdr.commands.upkeep import keep_pictures

    keep_pictures(run, to, root)


def clean(
    folders: Annotated[list[Path] | None, typer.Argument(metavar="[RUN...]", help="Runs, or folders of runs.")] = None,
    runs: Annotated[Path | None, typer.Option(help="The same: the folder that runs are kept in.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Remove; without it, only say what would be removed.")] = False,
) -> None:
    """Remove what finished runs do without: checkpoints, shared first phases, half-written files.

    A run without its checkpoint is shown and evaluated as before, and can no longer be extended by further classes.
    Without a folder, those in runs are cleaned.
    """
    from bdr.commands.upkeep import clean_runs

    named = [*(folders or []), *([] if runs is None else [runs])]
    clean_runs(named or [Path("runs")], yes)


def data_fetch(
    name: Annotated[str, typer.Argument(help="cifar10 or cifar100.")],
    root: Annotated[Path, typer.Option(help="The folder to put it in.")] = Path("data"),
    url: Annotated[str | None, typer.Option(help="Another place to download the published archive from.")] = None,
) -> None:
    """Download a published data set, go on with a broken download, check it."""
    from bdr.commands.upkeep import fetch_data

    fetch_data(name, root, url)


def data_verify(
    name: Annotated[str, typer.Argument(help="cifar10 or cifar100.")],
    root: Annotated[Path, typer.Option(help="The folder that it is in.")] = Path("data"),
) -> None:
    """Check the files of a data set against the published checksums."""
    from bdr.commands.upkeep import verify_data

    verify_data(name, root)
