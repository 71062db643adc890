"""The command line. Nothing heavy is imported before a command needs it: `bdr --help` knows neither torch nor numpy."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from bdr.bench.commands import bench_app
from bdr.errors import BdrError, UsageError
from bdr.version import __version__

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Teach a trained classifier new classes without losing the old ones: BDR, and the methods it plugs into.",
    epilog="Start with: bdr demo",
)
data_app = typer.Typer(no_args_is_help=True, help="Fetch published data sets, and check the copies you have.")
app.add_typer(data_app, name="data")
app.add_typer(bench_app, name="bench")

RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory, as printed by bdr run.")]
RunsFolder = Annotated[Path, typer.Option("--runs", help="The folder that runs are kept in.")]
Root = Annotated[Path | None, typer.Option(help="The folder that the data set is in.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1; chosen by itself if not given.")]
Data = Annotated[str | None, typer.Option(help="A data set; see bdr list data. Default: digits.")]
Base = Annotated[int | None, typer.Option(help="Classes of the first phase; 0: as many as a step.")]
Step = Annotated[int | None, typer.Option(help="Classes that each later phase brings.")]
Memory = Annotated[str | None, typer.Option(help="Exemplars: 20/class, or 2000 in total.")]
Herding = Annotated[str | None, typer.Option(help="How exemplars are chosen: distance, dot or random.")]
Order = Annotated[str | None, typer.Option(help="Class order: seed-1993, natural, podnet-1, a list, ...")]
Net = Annotated[str | None, typer.Option(help="The backbone; see bdr list nets.")]
Phases = Annotated[int | None, typer.Option(help="Stop after so many phases.")]
Precision = Annotated[str | None, typer.Option(help="fp32, tf32 or bf16; bf16 on a GPU if not given.")]
Engine = Annotated[str | None, typer.Option(help="eager, compile or graph; graph on a GPU if not given.")]
Keep = Annotated[str | None, typer.Option(help="Models to keep: last, all (of every phase) or none.")]
Settings = Annotated[list[str] | None, typer.Option("--set", help="Any field: bdr.m=0.5, stage.epochs=2.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class Listing(StrEnum):
    methods = "methods"
    plugins = "plugins"
    data = "data"
    nets = "nets"
    recipes = "recipes"
    runs = "runs"


def version(shown: bool) -> None:
    if shown:
        typer.echo(f"bdr {__version__}")
        raise typer.Exit


@app.callback()
def top(
    _: Annotated[bool, typer.Option("--version", callback=version, is_eager=True, help="Print the version.")] = False,
) -> None:
    pass


@contextmanager
def stoppable() -> Iterator[Callable[[], bool]]:
    """Ctrl-C and SIGTERM ask the run to save itself; a second Ctrl-C leaves at once."""
    asked: list[int] = []

    def ask(number: int, _: Any) -> None:
        if asked:
            typer.echo("bdr: left at once; the last checkpoint is kept", err=True)
            raise SystemExit(130)  # typer would take a KeyboardInterrupt for itself
        asked.append(number)
        typer.echo("stopping after this step, and saving ... (once more to leave at once)", err=True)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@app.command()
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
    from bdr.commands import run_seeds

    chosen = parse_seeds(seed, seeds)
    if out is not None and len(chosen) > 1:
        raise UsageError("--out names one run and --seeds asks for several; use --runs DIR, or one seed")
    run_seeds(what, data, fields, set_ or [], config, chosen, out, runs, print_config, dry_run, stoppable)


def parse_seeds(seed: int | None, seeds: str | None) -> list[int | None]:
    if seeds is None:
        return [seed]
    if seed is not None:
        raise UsageError("give --seed or --seeds, not both")
    try:
        return [int(part) for part in seeds.split(",")]
    except ValueError:
        raise UsageError(f"--seeds '{seeds}' is not like 1993,1994,1995") from None


@app.command()
def resume(run: RunPath, root: Root = None, device: Device = None) -> None:
    """Go on where a run stopped: after Ctrl-C, a kill, or a crash of the machine."""
    from bdr.commands import resume_run

    resume_run(run, root, device, stoppable)


@app.command()
def show(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Runs, or folders of runs to compare.")],
    json: AsJson = False,
    readout: Annotated[str | None, typer.Option(help="cnn or nme.")] = None,
    reference: Annotated[
        str | None, typer.Option(metavar="ROW", help="The row that gains are over; the first one if not given.")
    ] = None,
) -> None:
    """Show the table of a run, or compare several over their seeds."""
    from bdr.commands import show_runs

    show_runs(runs, json, readout, reference)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Runs, or folders of runs.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The page to write.")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="Its heading.")] = "Class-incremental learning",
    figures: Annotated[Path | None, typer.Option(help="A folder for the plots as SVG and CSV files.")] = None,
) -> None:
    """Write one HTML page with tables and curves of the runs; it needs no network."""
    from bdr.commands import report_runs

    report_runs(runs, out, title, figures)


@app.command()
def figure(
    which: Annotated[
        str | None, typer.Argument(metavar="FIGURE", help="1, 3, 4, 5, 6 or 7 of the paper, or gradients.")
    ] = None,
    runs: Annotated[list[Path] | None, typer.Argument(metavar="RUN...", help="Runs, or folders of runs.")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="A folder, or a file: figure.pdf.")] = Path("figures"),
    format_: Annotated[str | None, typer.Option("--format", help="pdf, png, svg; all if not given.")] = None,
    phase: Annotated[int | None, typer.Option(min=1, help="Which phase 1, 4 and gradients show.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="Say what each figure shows and needs.")] = False,
) -> None:
    """Draw a figure of the paper from run directories, with its numbers and its caption.

    For example: bdr figure 4 runs -o figures --format pdf; bdr figure --list says what each shows and needs.
    """
    if list_:
        from bdr.commands import list_figures

        return list_figures()
    if which is None or not runs:
        raise UsageError("name a figure and the runs to draw it from: bdr figure 4 runs; bdr figure --list says more")
    from bdr.commands import draw_figure

    return draw_figure(which, runs, out, format_, phase)


@app.command()
def watch(
    runs: Annotated[list[Path] | None, typer.Argument(metavar="[RUN...]", help="Runs, or folders of runs.")] = None,
    port: Annotated[
        int | None, typer.Option(help="Where to serve; the first free one from 8000 on if not given.")
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen at.")] = "127.0.0.1",
    exposed: Annotated[bool, typer.Option("--exposed", help="Allow a --host that others can reach.")] = False,
    open_: Annotated[
        bool | None, typer.Option("--open/--no-open", help="Open a browser; by itself where there is a screen.")
    ] = None,
) -> None:
    """Show running and finished runs live, on a page that only this machine can open.

    For example: bdr watch runs
    """
    from bdr.watch.command import watch_runs

    watch_runs(runs or [Path("runs")], host, port, exposed, open_)


@app.command()
def log(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Runs, or folders of runs.")],
    to: Annotated[str, typer.Option(help="Where to: tensorboard, wandb, mlflow; a name, or a list.")],
) -> None:
    """Hand what runs have recorded to TensorBoard, Weights & Biases or MLflow."""
    from bdr.trackers.commands import log_runs

    log_runs(runs, [name.strip() for name in to.split(",") if name.strip()])


@app.command()
def evaluate(
    run: RunPath,
    phase: Annotated[int | None, typer.Option(help="Which phase's model; the last one kept if not given.")] = None,
    root: Root = None,
    device: Device = None,
    json: AsJson = False,
) -> None:
    """Predict the test images anew with a kept model, and measure."""
    from bdr.commands import evaluate_run

    evaluate_run(run, phase, root, device, json)


@app.command("list")
def list_(what: Listing, runs: RunsFolder = Path("runs")) -> None:
    """List methods, plugins, data, nets, recipes or runs."""
    from bdr.commands import list_things

    list_things(what.value, runs)


@app.command()
def doctor() -> None:
    """Check the installation: versions, device, memory, what is missing."""
    from bdr.commands import examine

    examine()


@app.command()
def clean(
    runs: RunsFolder = Path("runs"),
    yes: Annotated[bool, typer.Option("--yes", help="Remove; without it, only say what would be removed.")] = False,
) -> None:
    """Remove what finished runs no longer need: checkpoints, shared first phases, half-written files."""
    from bdr.commands import clean_runs

    clean_runs(runs, yes)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where runs and the page go.")] = Path("demo"),
    seeds: Annotated[str, typer.Option(help="Seeds, one run of each method for each.")] = "1993,1994,1995,1996,1997",
) -> None:
    """Compare CwD with and without BDR on handwritten digits, in two minutes on a CPU, and write a page."""
    from bdr.commands import run_demo

    run_demo(out, parse_seeds(None, seeds), stoppable)


def fields_given(**options: Any) -> dict[str, Any]:
    """The fields of a configuration that were typed."""
    return {k: str(v) if isinstance(v, Path) else v for k, v in options.items() if v is not None}


def seeds_given(seeds: str | None) -> list[int] | None:
    return None if seeds is None else [seed for seed in parse_seeds(None, seeds) if seed is not None]


@app.command()
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


@app.command()
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


@app.command()
def reproduce(
    tables: Annotated[list[str], typer.Argument(metavar="TABLE...", help="Tables of the paper: T1 to T9, or all.")],
    only: Annotated[str | None, typer.Option(help='Which cells: "cifar100 & (ucir|cwd) & S=10".')] = None,
    seeds: Annotated[str, typer.Option(help="How many of 1993, 1994, 1995; or a list: 1993,1994.")] = "3",
    formula: Annotated[str, typer.Option(help="Of BDR, for all cells: corrected, released or anchored.")] = "corrected",
    tolerance: Annotated[float, typer.Option(help="Points that may be missing to the paper's number.")] = 0.5,
    results: Annotated[list[Path] | None, typer.Option(help="Where to look, instead of results.")] = None,
    runs: RunsFolder = Path("runs"),
    root: Root = None,
    device: Device = None,
    jobs: Annotated[int, typer.Option(help="Runs at once.")] = 1,
    until: Annotated[str | None, typer.Option(help="Stop after this time, and save: 26m, 90s, 1h30m.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Judge what is there, run nothing.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would run, and how long it takes.")] = False,
    json: AsJson = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
) -> None:
    """Run what is missing of the paper's tables, and say of each number whether it was reached.

    For example: bdr reproduce T4 --only "cifar100 & (ucir|cwd)" --root DIR --seeds 3
    """
    from bdr.paper.reproduce import reproduce as answer

    places = results or [], runs, root, device
    answer(tables, only, seeds, formula, tolerance, *places, jobs, until, check, dry_run, json, markdown, stoppable)


class Form(StrEnum):
    latex = "latex"
    markdown = "markdown"
    csv = "csv"


@app.command()
def table(
    name: Annotated[str, typer.Argument(metavar="TABLE", help="A table of the paper: T1 to T9, or all.")],
    runs: Annotated[list[Path] | None, typer.Argument(help="Folders of runs, instead of results and runs.")] = None,
    format: Annotated[Form | None, typer.Option(help="As FILE's name ends if not given; else markdown.")] = None,
    only: Annotated[str | None, typer.Option(help='Which cells: "cifar100 & (ucir|cwd) & S=10".')] = None,
    formula: Annotated[str, typer.Option(help="Of BDR, for all cells: corrected, released or anchored.")] = "corrected",
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="A file to write it into.")] = None,
) -> None:
    """Write a table of the paper with ours beside it, as LaTeX, Markdown or CSV.

    For example: bdr table T4 --only cifar100 --format latex -o table4.tex
    """
    from bdr.paper.table import write_table

    write_table(name, runs or [], format and format.value, only, formula, out)


@data_app.command("fetch")
def data_fetch(
    name: Annotated[str, typer.Argument(help="cifar10 or cifar100.")],
    root: Annotated[Path, typer.Option(help="The folder to put it in.")] = Path("data"),
    url: Annotated[str | None, typer.Option(help="Another place to download the published archive from.")] = None,
) -> None:
    """Download a published data set, go on with a broken download, check it."""
    from bdr.commands import fetch_data

    fetch_data(name, root, url)


@data_app.command("verify")
def data_verify(
    name: Annotated[str, typer.Argument(help="cifar10 or cifar100.")],
    root: Annotated[Path, typer.Option(help="The folder that it is in.")] = Path("data"),
) -> None:
    """Check the files of a data set against the published checksums."""
    from bdr.commands import verify_data

    verify_data(name, root)


def main() -> None:
    try:
        app()
    except BdrError as error:
        typer.echo(f"bdr: {error}", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        typer.echo("bdr: left at once; the last checkpoint is kept", err=True)
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(1)


if __name__ == "__main__":
    main()
