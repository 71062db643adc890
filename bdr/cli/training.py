"""Commands that train: one run, one that stopped, many, and the demonstration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bdr.cli.options import (
    AsJson,
    Base,
    Data,
    Device,
    Engine,
    Herding,
    Keep,
    Memory,
    Net,
    Order,
    Phases,
    Precision,
    Root,
    RunPath,
    RunsFolder,
    Settings,
    Step,
    fields_given,
    parse_seeds,
    seeds_given,
    stoppable,
)
from bdr.errors import UsageError


def run(
    what: Annotated[
        str | None, typer.Argument(help="METHOD+PLUGIN+..., a recipe, or package.module:MyMethod+bdr.")
    ] = None,
    data: Data = None,
    root: Root = None,
    base: Base = None,
    step: Step = None,
    uneven: Annotated[bool, typer.Option("--uneven", help="Allow a smaller last phase.")] = False,
    memory: Memory = None,
    herding: Herding = None,
    order: Order = None,
    net: Net = None,
    seed: Annotated[int | None, typer.Option(help="Seed of training (the class order has its own).")] = None,
    seeds: Annotated[str | None, typer.Option(help="Several, one run each: 1993,1994,1995.")] = None,
    set_: Settings = None,
    config: Annotated[Path | None, typer.Option(help="A YAML file of fields, as --print-config prints.")] = None,
    out: Annotated[Path | None, typer.Option(help="The run directory itself, instead of one below --runs.")] = None,
    runs: RunsFolder = Path("runs"),
    phases: Phases = None,
    precision: Precision = None,
    device: Device = None,
    engine: Engine = None,
    keep: Keep = None,
    val: Annotated[float | None, typer.Option(help="Share of the training images held out for validation.")] = None,
    size: Annotated[int | None, typer.Option(help="Pixels a side, for folders of images.")] = None,
    analyse: Annotated[bool, typer.Option("--analyse", help="Log gradients, features and test losses too.")] = False,
    checkpoint_every: Annotated[float | None, typer.Option(help="Seconds between checkpoints (20).")] = None,
    share: Annotated[bool | None, typer.Option("--share/--no-share", help="Train equal first phases once.")] = None,
    log: Annotated[str | None, typer.Option(help="Write to tensorboard, wandb, mlflow too: a name, or a list.")] = None,
    print_config: Annotated[bool, typer.Option("--print-config", help="Print the configuration and stop.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, estimate time and disk, stop.")] = False,
) -> None:
    """Train a method over all phases.

    For example: bdr run ucir+cwd+bdr --data cifar100 --root DIR --base 50 --step 10 --memory 20/class --seed 1993
    """
    scenario = fields_given(root=root, base=base, step=step, memory=memory, herding=herding, order=order)
    fields = scenario | fields_given(net=net, phases=phases, precision=precision, device=device, engine=engine)
    fields |= fields_given(keep=keep, val=val, size=size, checkpoint_every=checkpoint_every)
    fields |= fields_given(share=share, uneven=uneven or None, analyse=analyse or None, log=log)
    from bdr.commands.training import run_seeds

    chosen = parse_seeds(seed, seeds)
    if out is not None and len(chosen) > 1:
        raise UsageError("--out names one run and --seeds asks for several; use --runs DIR, or one seed")
    run_seeds(what, data, fields, set_ or [], config, chosen, out, runs, print_config, dry_run, stoppable)


def resume(run: RunPath, root: Root = None, device: Device = None) -> None:
    """Go on where a run stopped: after Ctrl-C, a kill, or a crash of the machine."""
    from bdr.commands.training import resume_run

    resume_run(run, root, device, stoppable)


def extend(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A finished run, as printed by bdr run.")],
    root: Annotated[
        Path | None, typer.Option(help="The folder of the data set with further classes, if it is another.")
    ] = None,
    step: Annotated[int | None, typer.Option(help="New classes a phase; all in one phase if not given.")] = None,
    set_: Settings = None,
    seed: Annotated[int | None, typer.Option(help="Seed of training; that of RUN if not given.")] = None,
    out: Annotated[Path | None, typer.Option(help="The run directory itself, instead of one below --runs.")] = None,
    runs: RunsFolder = Path("runs"),
    device: Device = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, estimate time and disk, stop.")] = False,
) -> None:
    """Teach a finished run the classes that its data has got since, from its weights and exemplars.

    For example: bdr extend RUN, after adding a folder of images for each new class
    """
    from bdr.commands.training import extend_run

    extend_run(run, step, fields_given(root=root, seed=seed, device=device), set_ or [], out, runs, dry_run, stoppable)


def sweep(
    what: Annotated[list[str], typer.Argument(metavar="FILE|RECIPE...", help="Grid files, methods, recipes.")],
    jobs: Annotated[int | None, typer.Option(help="Runs at a time; 1, or 3 on a GPU with MPS, if not given.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds, a run each: 1993,1994,1995.")] = None,
    until: Annotated[str | None, typer.Option(help="Stop after this time, and save: 26m, 90s, 1h30m.")] = None,
    data: Data = None,
    root: Root = None,
    base: Base = None,
    step: Step = None,
    memory: Memory = None,
    herding: Herding = None,
    order: Order = None,
    net: Net = None,
    phases: Phases = None,
    precision: Precision = None,
    engine: Engine = None,
    keep: Keep = None,
    device: Device = None,
    set_: Settings = None,
    runs: RunsFolder = Path("runs"),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, list the runs, stop.")] = False,
) -> None:
    """Train every combination of a grid, several runs at a time; type it again to go on.

    For example: bdr sweep ucir+cwd ucir+cwd+bdr --seeds 1993,1994,1995, or bdr sweep grid.yaml --jobs 3 --until 26m
    """
    scenario = fields_given(data=data, root=root, base=base, step=step, memory=memory, herding=herding, order=order)
    training = fields_given(net=net, phases=phases, keep=keep, precision=precision, device=device, engine=engine)
    fields, chosen = scenario | training, seeds_given(seeds)
    from bdr.sweep import run_sweep

    run_sweep(what, fields, set_ or [], chosen, runs, jobs, until, dry_run, stoppable)


def method_and_base(what: str | None, base: str | None) -> tuple[str, int | None]:
    """The method may be named by --base too: no number of classes is spelled like one."""
    if base is None or base.lstrip("-").isdecimal():
        if what is None:
            raise UsageError("name the method that plug-ins are added to: bdr compare ucir+cwd")
        return what, None if base is None else int(base)
    if what is not None:
        raise UsageError(f"--base {base} names a method, and so does {what}; for the first phase give --base a number")
    return base, None


def compare(
    what: Annotated[
        str | None, typer.Argument(metavar="METHOD", help="What is added to: METHOD+PLUGIN+..., or a recipe.")
    ] = None,
    with_: Annotated[
        str, typer.Option("--with", help="What is added, a row each: none,la,focal+bdr.")
    ] = "none,la,reweight,resample,focal,ldam,bdr",
    seeds: Annotated[str | None, typer.Option(help="Seeds, a run each: 1993,1994,1995.")] = None,
    jobs: Annotated[int | None, typer.Option(help="Runs at a time; 1, or 3 on a GPU with MPS, if not given.")] = None,
    until: Annotated[str | None, typer.Option(help="Stop after this time, and save: 26m, 90s, 1h30m.")] = None,
    data: Data = None,
    root: Root = None,
    base: Annotated[
        str | None, typer.Option(help="Classes of the first phase, as in bdr run; or METHOD: --base ucir+cwd.")
    ] = None,
    step: Step = None,
    memory: Memory = None,
    herding: Herding = None,
    order: Order = None,
    net: Net = None,
    phases: Phases = None,
    precision: Precision = None,
    engine: Engine = None,
    keep: Keep = None,
    device: Device = None,
    set_: Settings = None,
    runs: RunsFolder = Path("runs"),
    check: Annotated[bool, typer.Option("--check", help="Compare what is there, run nothing.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, list the runs, stop.")] = False,
    json: AsJson = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
) -> None:
    """Compare plug-ins on one method: run what is missing, print one table with the gain of each.

    For example: bdr compare ucir+cwd --with none,la,reweight,bdr --seeds 1993,1994,1995
    """
    method, first = method_and_base(what, base)
    scenario = fields_given(data=data, root=root, base=first, step=step, memory=memory, herding=herding, order=order)
    training = fields_given(net=net, phases=phases, keep=keep, precision=precision, device=device, engine=engine)
    fields, chosen = scenario | training, seeds_given(seeds)
    from bdr.sweep.compare import compare_plugins

    asked = fields, set_ or [], chosen, runs
    compare_plugins(method, with_, *asked, jobs, until, check, dry_run, json, markdown, stoppable)


def demo(
    out: Annotated[Path, typer.Option(help="Where runs and the page go.")] = Path("demo"),
    seeds: Annotated[str, typer.Option(help="Seeds, one run of each method for each.")] = "1993,1994,1995,1996,1997",
) -> None:
    """Compare CwD with and without BDR on handwritten digits, in two minutes on a CPU, and write a page."""
    from bdr.commands.training import run_demo

    run_demo(out, parse_seeds(None, seeds), stoppable)
