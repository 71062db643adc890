"""Commands that train: one run, one that stopped, many, and the demonstration."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from bdr.cli.options import (
    AsJson,
    Device,
    DryRun,
    DryRuns,
    Engine,
    Jobs,
    Markdown,
    OnlyWhatEnds,
    OutFolder,
    Root,
    RunPath,
    RunsFolder,
    Seeds,
    Settings,
    Until,
    Weights,
    listed_seeds,
    one_or_several,
    takes_fields,
    typed_fields,
)
from bdr.errors import UsageError


@takes_fields
def run(
    typed: dict[str, Any],
    what: Annotated[
        str | None, typer.Argument(help="METHOD+PLUGIN+..., a recipe, or package.module:MyMethod+bdr.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of training (the class order has its own).")] = None,
    seeds: Seeds = None,
    config: Annotated[Path | None, typer.Option(help="A YAML file of fields, as --print-config prints.")] = None,
    out: OutFolder = None,
    runs: RunsFolder = Path("runs"),
    print_config: Annotated[bool, typer.Option("--print-config", help="Print the configuration and stop.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Train a method over all phases.

    For example: bdr run ucir+cwd+bdr --data cifar100 --root DIR --base 50 --step 10 --memory 20/class --seed 1993
    """
    from bdr.commands.training import run_seeds

    chosen = one_or_several(seed, seeds)
    if out is not None and len(chosen) > 1:
        raise UsageError("--out names one run and --seeds asks for several; use --runs DIR, or one seed")
    run_seeds(
        what,
        typed,
        chosen,
        file=config,
        path=out,
        runs=runs,
        print_config=print_config,
        dry_run=dry_run,
    )


def resume(
    run: RunPath, root: Root = None, weights: Weights = None, device: Device = None, engine: Engine = None
) -> None:
    """Go on where a run stopped: after Ctrl-C, a kill, or a crash of the machine."""
    from bdr.commands.looking import places_now
    from bdr.commands.training import resume_run

    resume_run(run, places_now(root, device, weights, engine))


def extend(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A finished run, as printed by bdr run.")],
    root: Annotated[
        Path | None, typer.Option(help="The folder of the data set with further classes, if it is another.")
    ] = None,
    step: Annotated[int | None, typer.Option(help="New classes a phase; all in one phase if not given.")] = None,
    set_: Settings = None,
    seed: Annotated[int | None, typer.Option(help="Seed of training; that of RUN if not given.")] = None,
    out: OutFolder = None,
    runs: RunsFolder = Path("runs"),
    device: Device = None,
    dry_run: DryRun = False,
) -> None:
    """Teach a finished run the classes that its data has got since, from its weights and exemplars.

    For example: bdr extend RUN, after adding a folder of images for each new class
    """
    from bdr.commands.training import extend_run

    typed = typed_fields(set_, root=root, seed=seed, device=device)
    extend_run(run, step, typed, folder=out, runs=runs, dry_run=dry_run)


@takes_fields
def sweep(
    what: Annotated[list[str], typer.Argument(metavar="FILE|RECIPE...", help="Grid files, methods, recipes.")],
    typed: dict[str, Any],
    jobs: Jobs = None,
    seeds: Seeds = None,
    until: Until = None,
    only_what_ends: OnlyWhatEnds = False,
    runs: RunsFolder = Path("runs"),
    dry_run: DryRuns = False,
) -> None:
    """Train every combination of a grid, several runs at a time; type it again to go on.

    For example: bdr sweep ucir+cwd ucir+cwd+bdr --seeds 1993,1994,1995, or bdr sweep grid.yaml --jobs 3 --until 26m
    """
    from bdr.sweep.run import Asked, run_sweep
    from bdr.terminal import Conditions

    asked = Asked(typed, None if seeds is None else listed_seeds(seeds))
    run_sweep(what, asked, Conditions(runs, jobs, until, only_what_ends), dry_run=dry_run)


def the_only_method(named: Sequence[str], added: str) -> str | None:
    if len(named) > 1 and (added.endswith(",") or named[1].startswith(",")):
        raise UsageError(f"--with takes names without spaces between them: type --with {added}{''.join(named[1:])}")
    if len(named) > 1:
        raise UsageError(
            f"bdr compare adds plug-ins to one method, and {', '.join(named)} are {len(named)}; for several: "
            f"bdr sweep {' '.join(named)}, which ends with a table of all"
        )
    return next(iter(named), None)


def method_and_base(what: str | None, base: str | None) -> tuple[str, int | None]:
    """The method may be named by --base too: no number of classes is spelled like one."""
    if base is None or base.lstrip("-").isdecimal():
        if what is None:
            raise UsageError("name the method that plug-ins are added to: bdr compare ucir+cwd")
        return what, None if base is None else int(base)
    if what is not None:
        raise UsageError(f"--base {base} names a method, and so does {what}; for the first phase give --base a number")
    return base, None


@takes_fields
def compare(
    typed: dict[str, Any],
    what: Annotated[
        list[str] | None, typer.Argument(metavar="METHOD", help="What is added to: METHOD+PLUGIN+..., or a recipe.")
    ] = None,
    with_: Annotated[
        str, typer.Option("--with", help="What is added, a row each: none,la,focal+bdr.")
    ] = "none,la,reweight,resample,focal,ldam,bdr",
    base: Annotated[
        str | None, typer.Option(help="Classes of the first phase, as in bdr run; or METHOD: --base ucir+cwd.")
    ] = None,
    seeds: Seeds = None,
    jobs: Jobs = None,
    until: Until = None,
    only_what_ends: OnlyWhatEnds = False,
    runs: RunsFolder = Path("runs"),
    check: Annotated[bool, typer.Option("--check", help="Compare what is there, run nothing.")] = False,
    dry_run: DryRuns = False,
    json: AsJson = False,
    markdown: Markdown = False,
) -> None:
    """Compare plug-ins on one method: run what is missing, print one table with the gain of each.

    For example: bdr compare ucir+cwd --with none,la,reweight,bdr --seeds 1993,1994,1995
    """
    method, first = method_and_base(the_only_method(what or [], with_), base)
    from bdr.sweep.compare import compare_plugins
    from bdr.sweep.run import Asked
    from bdr.terminal import Conditions, Manner

    fields = typed if first is None else {"base": first, **typed}
    asked = Asked(fields, None if seeds is None else listed_seeds(seeds))
    manner = Manner(check=check, dry_run=dry_run, as_json=json, markdown=markdown)
    compare_plugins(method, with_, asked, Conditions(runs, jobs, until, only_what_ends), manner)


def demo(
    out: Annotated[Path, typer.Option(help="Where runs and the page go.")] = Path("demo"),
    seeds: Annotated[str, typer.Option(help="Seeds, one run of each method for each.")] = "1993,1994,1995,1996,1997",
) -> None:
    """Compare CwD with and without BDR on handwritten digits, in two minutes on a CPU, and write a page."""
    from bdr.commands.training import run_demo

    run_demo(out, listed_seeds(seeds))
