"""Commands that look at runs: tables, pages, figures, and whoever else wants to see them."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from bdr.cli.options import AsJson, Device, Root, RunPath, Weights
from bdr.errors import UsageError

Readout = Annotated[str | None, typer.Option(help="cnn or nme for all; each method's own if not given.")]


class ShownAs(StrEnum):
    text = "text"
    latex = "latex"
    markdown = "markdown"
    csv = "csv"
    json = "json"


def show(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Runs, or folders of runs to compare.")],
    json: AsJson = False,
    readout: Readout = None,
    reference: Annotated[
        str | None, typer.Option(metavar="ROW", help="The row that gains are over, whatever it is.")
    ] = None,
    format_: Annotated[
        ShownAs | None, typer.Option("--format", help="As FILE's name ends if not given; else text.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="A file to write it into.")] = None,
) -> None:
    """Show the table of a run, or compare several over their seeds.

    For example: bdr show runs, or bdr show runs --format latex -o table.tex
    """
    from bdr.commands.looking import show_runs

    show_runs(runs, json, readout, reference, format_ and format_.value, out)


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Runs, or folders of runs.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The page to write.")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="Its heading.")] = "Class-incremental learning",
    figures: Annotated[Path | None, typer.Option(help="A folder for the plots as SVG and CSV files.")] = None,
    readout: Readout = None,
) -> None:
    """Write one HTML page with tables and curves of the runs; it needs no network."""
    from bdr.commands.looking import report_runs

    report_runs(runs, out, title, figures, readout)


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
        from bdr.commands.looking import list_figures

        return list_figures()
    if which is None or not runs:
        raise UsageError("name a figure and the runs to draw it from: bdr figure 4 runs; bdr figure --list says more")
    from bdr.commands.looking import draw_figure
    from bdr.paper.printed import printed

    return draw_figure(which, runs, out, format_, phase, printed())


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


def log(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Runs, or folders of runs.")],
    to: Annotated[str, typer.Option(help="Where to: tensorboard, wandb, mlflow; a name, or a list.")],
) -> None:
    """Hand what runs have recorded to TensorBoard, Weights & Biases or MLflow."""
    from bdr.commands.tracking import log_runs

    log_runs(runs, [name.strip() for name in to.split(",") if name.strip()])


def predict(
    run: RunPath,
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE...|FOLDER", help="Pictures, or folders of them.")],
    top: Annotated[int, typer.Option(min=1, help="How many classes to name of each.")] = 5,
    phase: Annotated[int | None, typer.Option(help="Which phase's model; the last one kept if not given.")] = None,
    readout: Annotated[str | None, typer.Option(help="cnn or nme; the method's own if not given.")] = None,
    weights: Weights = None,
    device: Device = None,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV: a row a class of a picture.")] = False,
    json: AsJson = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write it instead: found.csv or found.json.")
    ] = None,
) -> None:
    """Say what pictures of your own show, with a kept model: class names and probabilities.

    For example: bdr predict RUN new.png, or bdr predict RUN folder --top 1 -o found.csv
    """
    from bdr.commands.looking import form_of_predictions, predict_pictures

    form = form_of_predictions(csv, json, out)
    predict_pictures(run, images, top, phase, readout, device, form, weights, out)


def export(
    run: RunPath,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="What to write: model.pt2 or model.onnx.")],
    phase: Annotated[int | None, typer.Option(help="Which phase's model; the last one kept if not given.")] = None,
    readout: Annotated[str | None, typer.Option(help="cnn or nme; the method's own if not given.")] = None,
    probabilities: Annotated[bool, typer.Option("--probabilities", help="Probabilities instead of scores.")] = False,
    weights: Weights = None,
    device: Annotated[str, typer.Option(help="cpu, cuda: where a .pt2 will run.")] = "cpu",
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
) -> None:
    """Write a kept model into one file that takes pixels and is used without bdr: torch.export or ONNX.

    For example: bdr export RUN -o model.onnx
    """
    from bdr.commands.looking import export_run

    export_run(run, out, phase, readout, probabilities, device, force, weights)


def evaluate(
    run: RunPath,
    phase: Annotated[int | None, typer.Option(help="Which phase's model; the last one kept if not given.")] = None,
    root: Root = None,
    weights: Weights = None,
    device: Device = None,
    json: AsJson = False,
) -> None:
    """Predict the test images anew with a kept model, and measure."""
    from bdr.commands.looking import evaluate_run

    evaluate_run(run, phase, root, device, json, weights)
