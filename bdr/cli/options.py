"""Options that several commands share, and what is made of what was typed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from bdr.errors import UsageError, shortened

ROOT, DEVICE = "The folder that the data set is in.", "cpu, cuda, cuda:1; chosen by itself if not given."

RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory, as printed by bdr run.")]
RunsFolder = Annotated[Path, typer.Option("--runs", help="The folder that runs are kept in.")]
OutFolder = Annotated[Path | None, typer.Option(help="The run directory itself, instead of one below --runs.")]
Root = Annotated[Path | None, typer.Option(help=ROOT)]
Weights = Annotated[Path | None, typer.Option(help="The file of the network's weights, if it has moved.")]
Device = Annotated[str | None, typer.Option(help=DEVICE)]
Engine = Annotated[str | None, typer.Option(help="eager, compile or graph; as the run began if not given.")]
Settings = Annotated[list[str] | None, typer.Option("--set", help="Any field: bdr.m=0.5, stage.epochs=2.")]
Seeds = Annotated[str | None, typer.Option(help="Seeds, a run each: 1993,1994,1995; 3 is the one seed 3.")]
Jobs = Annotated[int | None, typer.Option(help="Runs at a time; 1, or 3 on a GPU with MPS, if not given.")]
Until = Annotated[str | None, typer.Option(help="Stop after this time, and save: 26m, 90s, 1h30m.")]
OnlyWhatEnds = Annotated[
    bool, typer.Option("--only-what-ends", help="Start no run that cannot end by --until, instead of starting it last.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check everything, estimate time and disk, stop.")]
DryRuns = Annotated[
    bool, typer.Option("--dry-run", help="Check everything, list the runs and how much work they are, stop.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Markdown = Annotated[bool, typer.Option("--markdown", help="Print Markdown.")]

of_data = partial(typer.Option, rich_help_panel="Data and phases")
of_memory = partial(typer.Option, rich_help_panel="Memory and network")
of_machine = partial(typer.Option, rich_help_panel="Machine and records")

# The fields of a configuration that have an option, in the order of the help.
FIELDS: dict[str, Any] = {
    "data": Annotated[str | None, of_data(help="See bdr list data, or package.module:function. Default: digits.")],
    "root": Annotated[Path | None, of_data(help=ROOT)],
    "size": Annotated[int | None, of_data(help="Pixels a side, for folders of images.")],
    "base": Annotated[int | None, of_data(help="Classes of the first phase; 0: as many as a step.")],
    "step": Annotated[int | None, of_data(help="Classes that each later phase brings.")],
    "uneven": Annotated[bool | None, of_data("--uneven", help="Allow a smaller last phase.")],
    "order": Annotated[str | None, of_data(help="Class order: seed-1993, natural, podnet-1, numbers or names.")],
    "phases": Annotated[int | None, of_data(help="Stop after so many phases.")],
    "val": Annotated[float | None, of_data(help="Share of the training images held out for validation.")],
    "memory": Annotated[str | None, of_memory(help="Exemplars: 20/class, or 2000 in total.")],
    "herding": Annotated[str | None, of_memory(help="How exemplars are chosen: distance, dot, distributed or random.")],
    "net": Annotated[str | None, of_memory(help="The backbone; see bdr list nets.")],
    "precision": Annotated[str | None, of_machine(help="fp32, tf32 or bf16; bf16 on a GPU if not given.")],
    "device": Annotated[str | None, of_machine(help=DEVICE)],
    "engine": Annotated[str | None, of_machine(help="eager, compile or graph; graph on a GPU if not given.")],
    "share": Annotated[bool | None, of_machine("--share/--no-share", help="Train equal first phases once.")],
    "keep": Annotated[str | None, of_machine(help="Models to keep: last, all (of every phase) or none.")],
    "checkpoint_every": Annotated[float | None, of_machine(help="Seconds between checkpoints (20).")],
    "analyse": Annotated[bool | None, of_machine("--analyse", help="Log gradients, features and test losses too.")],
    "log": Annotated[str | None, of_machine(help="Write to tensorboard, wandb, mlflow too: a name, or a list.")],
}
TYPED = "typed"  # the parameter by which a command gets the fields that were typed


def takes_fields(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command an option for every field, but for those it has itself, and hands it what was typed of them.

    They stand where the parameter `typed` is, which is one mapping: fields, overridden by --set.
    """
    own = dict(inspect.signature(command, eval_str=True).parameters)
    fields = {**FIELDS, "set_": Settings}
    added = {name: keyword_only(name, kind) for name, kind in fields.items() if name not in own}
    names = [each for name in own for each in (added if name == TYPED else [name])]
    options = [(own | added)[name].replace(kind=inspect.Parameter.KEYWORD_ONLY) for name in names]

    @wraps(command)
    def with_what_was_typed(**given: Any) -> None:
        chosen = {name: given.pop(name) for name in added}
        command(**given, **{TYPED: typed_fields(chosen.pop("set_"), **chosen)})

    with_what_was_typed.__dict__["__signature__"] = inspect.Signature(options)
    with_what_was_typed.__annotations__ = {option.name: option.annotation for option in options}
    return with_what_was_typed


def keyword_only(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def typed_fields(settings: Sequence[str] | None, **options: Any) -> dict[str, Any]:
    """The fields that were typed as options, then those of --set: the last one wins."""
    from bdr.configuration.overrides import parse_setting

    given = {name: str(value) if isinstance(value, Path) else value for name, value in options.items()}
    chosen = {name: value for name, value in given.items() if value is not None}
    return chosen | dict(parse_setting(text) for text in settings or [])


def listed_seeds(text: str) -> list[int]:
    """`1993,1994`: these; `3` is seed 3, and not three seeds as `bdr reproduce` has it."""
    try:
        seeds = [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"--seeds '{text}' is not like 1993,1994,1995") from None
    if twice := [seed for seed in dict.fromkeys(seeds) if seeds.count(seed) > 1]:
        raise UsageError(f"--seeds '{text}' has {shortened(twice)} more than once: name every seed once")
    return seeds


def one_or_several(seed: int | None, seeds: str | None) -> list[int | None]:
    """What --seed and --seeds ask for; None: the seed that the configuration has."""
    if seed is not None and seeds is not None:
        raise UsageError("give --seed or --seeds, not both")
    return [seed] if seeds is None else [*listed_seeds(seeds)]
