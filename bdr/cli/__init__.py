"""The command line. Nothing heavy is imported before a command needs it: `bdr --help` knows neither torch nor numpy."""

from __future__ import annotations

import errno
import logging
import os
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from bdr.cli.bench import bench_app
from bdr.cli.hints import Hinting
from bdr.cli.looking import evaluate, export, figure, log, predict, report, show, watch
from bdr.cli.papers import reproduce, table
from bdr.cli.training import compare, demo, extend, resume, run, sweep
from bdr.cli.upkeep import clean, data_fetch, data_verify, doctor, keep, list_
from bdr.errors import BdrError, UsageError
from bdr.version import __version__

# in the order in which the help shows them
COMMANDS: dict[str, Callable[..., None]] = {
    "run": run,
    "resume": resume,
    "extend": extend,
    "keep": keep,
    "show": show,
    "report": report,
    "figure": figure,
    "watch": watch,
    "log": log,
    "evaluate": evaluate,
    "predict": predict,
    "export": export,
    "list": list_,
    "doctor": doctor,
    "clean": clean,
    "demo": demo,
    "sweep": sweep,
    "compare": compare,
    "reproduce": reproduce,
    "table": table,
}
DATA_COMMANDS: dict[str, Callable[..., None]] = {"fetch": data_fetch, "verify": data_verify}

BY_PLACE = ("show", "report", "figure", "watch", "log", "table")  # commands whose runs are arguments, not options


class RunsByPlace(Hinting):
    """A command that has no --runs, which others have: whoever types it is told what to type instead."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # Any: typer may bring its own click
        words = [part for word in args for part in (word.split("=", 1) if word.startswith("--runs=") else [word])]
        if "--runs" in words:
            place = words.index("--runs")
            named = words[place + 1 : place + 2] or ["DIR"]
            instead = shlex.join(["bdr", str(self.name), *words[:place], *words[place + 2 :], *named])
            raise UsageError(f"{self.name} takes runs, and folders of them, without --runs: {instead}")
        return super().parse_args(ctx, args)


app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Teach a trained classifier new classes without losing the old ones: BDR, and the methods it plugs into.",
    epilog="Start with: bdr demo",
)
data_app = typer.Typer(no_args_is_help=True, help="Fetch published data sets, and check the copies you have.")
app.add_typer(data_app, name="data")
app.add_typer(bench_app, name="bench")
for name, command in COMMANDS.items():
    app.command(name, cls=RunsByPlace if name in BY_PLACE else Hinting)(command)
for name, command in DATA_COMMANDS.items():
    data_app.command(name, cls=Hinting)(command)


def version(shown: bool) -> None:
    if shown:
        typer.echo(f"bdr {__version__}")
        raise typer.Exit


@app.callback()
def top(
    _: Annotated[bool, typer.Option("--version", callback=version, is_eager=True, help="Print the version.")] = False,
) -> None:
    pass


def say_warning(message: Warning | str, *_: object, **__: object) -> None:
    """What libraries and data sets warn of, in the words they chose and nothing else."""
    from bdr.terminal import tell

    tell(f"warning: {message}")


class Said(logging.Handler):
    """What the package logs of long waits, as lines beside the output."""

    def emit(self, record: logging.LogRecord) -> None:
        from bdr.terminal import tell

        tell(record.getMessage())


@contextmanager
def heard() -> Iterator[None]:
    """Inside, what is logged is said."""
    logger, said = logging.getLogger("bdr"), Said()
    before = logger.level
    logger.addHandler(said)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(said)
        logger.setLevel(before)


def main() -> None:
    try:
        with warnings.catch_warnings(), heard():
            warnings.showwarning = say_warning
            app()
    except BdrError as error:
        typer.echo(f"bdr: {error}", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        typer.echo("bdr: left at once; the last checkpoint is kept", err=True)
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(1)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        typer.echo(f"bdr: the output cannot be written: {error.strerror}", err=True)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or flushing would fail again at exit
        sys.exit(1)
