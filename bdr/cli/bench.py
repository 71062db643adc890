"""The words after `bdr bench`, and their options; what they do is imported when it is asked for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bdr.cli.hints import Hinting
from bdr.cli.options import Device, Settings, typed_fields

if TYPE_CHECKING:
    from bdr.bench.tables import Measured

bench_app = typer.Typer(
    invoke_without_command=True, help="Measure speed: steps, kernels, start, herding, augmentation, scaling, growth."
)

USUAL = ["ucir", "ucir+cwd", "ucir+bdr"]  # the cases that are timed if none are named

AsTrained = Annotated[
    bool, typer.Option("--as-trained", help="The network and the batch that bdr run trains on CIFAR-100.")
]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="A JSON file to keep the numbers in.")]


def show(measured: Measured, out: Path | None) -> None:
    from bdr.bench.tables import show_measured

    show_measured(measured, out)


@bench_app.callback()
def bench(context: typer.Context) -> None:
    """Without a word after it: bdr bench steps."""
    if context.invoked_subcommand is None:
        bench_steps()


@bench_app.command("steps", cls=Hinting)
def bench_steps(
    what: Annotated[list[str] | None, typer.Argument(help="Cases; the others are compared to the first.")] = None,
    engine: Annotated[list[str] | None, typer.Option(help="eager, compile, graph; may be given several times.")] = None,
    device: Device = None,
    net: Annotated[str | None, typer.Option(help="The backbone; resnet18 on a GPU, small on a CPU.")] = None,
    batch: Annotated[int | None, typer.Option(help="Images a step: 128 on a GPU, 32 on a CPU.")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps a measurement: 300 on a GPU, 3 on a CPU.", min=1)] = None,
    baseline: Annotated[bool, typer.Option(help="Time a plain PyTorch loop with Pillow and a DataLoader too.")] = True,
    analyse: Annotated[bool, typer.Option("--analyse", help="Time later steps with analysis too.")] = False,
    phase: Annotated[int, typer.Option(help="The later phase that is timed beside the first.")] = 1,
    as_trained: AsTrained = False,
    out: Out = None,
) -> None:
    """Time training steps, first and later phase, with and without plug-ins, all in one run as ratios."""
    from bdr.bench.cases import Told
    from bdr.bench.run import bench_steps as measure

    cases, told = what or USUAL, Told(device=device, net=net, batch=batch, steps=steps, as_trained=as_trained)
    measure(cases, engine or [], told, out, baseline=baseline, analyse=analyse, phase=phase)


@bench_app.command("kernels", cls=Hinting)
def bench_kernels(
    what: Annotated[str, typer.Argument(help="The case.")] = "ucir+bdr",
    phase: Annotated[int, typer.Option(help="The phase; 0 is the first.", min=0)] = 1,
    engine: Annotated[str | None, typer.Option(help="eager, compile, graph.")] = None,
    device: Device = None,
    net: Annotated[str | None, typer.Option(help="The backbone; resnet18 on a GPU, small on a CPU.")] = None,
    batch: Annotated[int | None, typer.Option(help="Images a step: 128 on a GPU, 32 on a CPU.")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps that are looked at: 20 on a GPU, 2 on a CPU.", min=1)] = None,
    as_trained: AsTrained = False,
    top: Annotated[int, typer.Option(help="Kernels that are listed.", min=0)] = 15,
    out: Out = None,
) -> None:
    """Where the time of a step goes: kernels by kind, and those that take longest."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "5")  # otherwise torch's profiler prints when it starts and stops
    from bdr.bench.cases import Told
    from bdr.bench.kernels import bench_kernels as measure
    from bdr.bench.kernels import show_kernels

    told = Told(device=device, engine=engine, net=net, batch=batch, steps=steps, as_trained=as_trained)
    show_kernels(*measure(what, phase, told), top, out)


@bench_app.command("herding", cls=Hinting)
def bench_herding(
    device: Device = None,
    classes: Annotated[int, typer.Option(help="Classes.")] = 10,
    images: Annotated[int, typer.Option(help="Images of each.")] = 500,
    quota: Annotated[int, typer.Option(help="Exemplars of each.")] = 20,
    out: Out = None,
) -> None:
    """Time the choice of exemplars, all classes at once and one by one."""
    from bdr.bench.parts import bench_herding as measure

    show(measure(device or "auto", classes, images, quota), out)


@bench_app.command("augment", cls=Hinting)
def bench_augment(
    device: Device = None,
    batch: Annotated[int, typer.Option(help="Images at once.")] = 128,
    steps: Annotated[int, typer.Option(help="Batches.", min=1)] = 20,
    out: Out = None,
) -> None:
    """Time batched augmentation against Pillow."""
    from bdr.bench.parts import bench_augment as measure

    show(measure(device or "auto", batch, steps), out)


@bench_app.command("scaling", cls=Hinting)
def bench_scaling(
    device: Device = None,
    classes: Annotated[list[int] | None, typer.Option(help="Numbers of classes; may be given several times.")] = None,
    memory: Annotated[list[int] | None, typer.Option(help="Exemplars a class; may be given several times.")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps a measurement.", min=1)] = None,
    out: Out = None,
) -> None:
    """Time a later step as classes and memory grow."""
    from bdr.bench.parts import bench_scaling as measure

    show(measure(device or "auto", classes or [10, 100, 1000], memory or [5, 20], steps), out)


@bench_app.command("growth", cls=Hinting)
def bench_growth(
    what: Annotated[str, typer.Argument(help="What grows: der, der-pruned, simple-der, dytox, ucir+aanet.")] = "der",
    set_: Settings = None,
    phases: Annotated[int, typer.Option(help="Phases that are timed, one by one.")] = 5,
    extrapolate: Annotated[int, typer.Option(help="The number of phases that straight lines are drawn out to.")] = 50,
    engine: Annotated[str | None, typer.Option(help="eager, compile, graph.")] = None,
    device: Device = None,
    net: Annotated[str | None, typer.Option(help="The backbone; resnet18 on a GPU, small on a CPU.")] = None,
    batch: Annotated[int | None, typer.Option(help="Images a step: 128 on a GPU, 32 on a CPU.")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps a measurement: 100 on a GPU, 3 on a CPU.", min=1)] = None,
    as_trained: AsTrained = False,
    out: Out = None,
) -> None:
    """Time, memory and parameters of a step, phase by phase, and the straight lines through them."""
    from bdr.bench.cases import Told
    from bdr.bench.growth import bench_growth as measure
    from bdr.bench.growth import check_phases, show_growth

    check_phases(phases, extrapolate)
    told = Told(device=device, engine=engine, net=net, batch=batch, steps=steps, as_trained=as_trained)
    show_growth(measure(what, phases, told, list(typed_fields(set_).items())), extrapolate, out)


@bench_app.command("start", cls=Hinting)
def bench_start(
    what: Annotated[str, typer.Argument(help="The run that is started.")] = "ucir+cwd+bdr",
    device: Device = None,
    out: Out = None,
) -> None:
    """Time a run's way to its first step, and from phase to phase, with an empty and a filled compile cache."""
    from bdr.bench.start import bench_start as measure

    show(measure(what, device or "auto"), out)
