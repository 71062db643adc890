"""Options that several commands share, and what is made of what was typed."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from bdr.errors import UsageError

RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory, as printed by bdr run.")]
RunsFolder = Annotated[Path, typer.Option("--runs", help="The folder that runs are kept in.")]
Root = Annotated[Path | None, typer.Option(help="The folder that the data set is in.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1; chosen by itself if not given.")]
Data = Annotated[str | None, typer.Option(help="See bdr list data, or package.module:function. Default: digits.")]
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


def fields_given(**options: Any) -> dict[str, Any]:
    """The fields of a configuration that were typed."""
    return {k: str(v) if isinstance(v, Path) else v for k, v in options.items() if v is not None}


def parse_seeds(seed: int | None, seeds: str | None) -> list[int | None]:
    if seeds is None:
        return [seed]
    if seed is not None:
        raise UsageError("give --seed or --seeds, not both")
    try:
        return [int(part) for part in seeds.split(",")]
    except ValueError:
        raise UsageError(f"--seeds '{seeds}' is not like 1993,1994,1995") from None


def seeds_given(seeds: str | None) -> list[int] | None:
    return None if seeds is None else [seed for seed in parse_seeds(None, seeds) if seed is not None]


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
