"""What to type for a run like another one: of another title, in another folder, or with further options."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Any

from bdr.records import Run
from bdr.records.command import is_of, options_of
from bdr.records.reader import by_name
from bdr.report.protocols import settings_of

MODULE = "bdr"
# the options that are typed for a run like another one: the data set decides the rest, except for single settings
TYPED = ("data", "root", "size", "base", "step", "order", "phases", "val", "memory", "herding", "net")
TRAINED = ("stage.epochs", "stage.batch", "stage.lr")
USUAL_SIZE = 32


def keeps_exemplars(run: Run) -> bool:
    """Whether a run keeps some images as exemplars, but not all."""
    return str(run.protocol.get("memory")) not in ("0", "0/class", "all")


def retyped(run: Run, title: str, without: Sequence[str] = ("--out",), *options: str) -> str:
    """The command that made a run, with another title and other options; one made from its record if that fails."""
    words = shlex.split(str(run.info.get("command") or ""))
    if words[:2] != ["bdr", "run"] or words.count(run.title) != 1:
        return command_for(run, title, *options)
    settings = () if MODULE in title.split("+") else (f"{MODULE}.",)  # of BDR, if the other run lacks it
    kept = [word for option in options_of(words) if not is_of(option, without, settings) for word in option]
    return shlex.join([*(title if word == run.title else word for word in kept), *options])


def command_for(run: Run, title: str | None = None, *options: str) -> str:
    """What to type for a run like this one, with another title or with further options."""
    another = title is not None and not keeps_exemplars(run)  # another method may need a memory of its own
    typed = options_like(run, title or run.title, without=("memory",) if another else ())
    return shlex.join(["bdr", "run", title or run.title, *typed, *options])


def sweep_for(what: Sequence[str], runs: Sequence[Run], title: str, changed: dict[str, Any], *without: str) -> str:
    """What to type for a sweep of runs like the first of these, over the seeds of all, with some options changed.

    `without` names settings that are left to the sweep.
    """
    typed = options_like(runs[0], title, (*changed, *without))
    seeds = ",".join(str(seed) for seed in sorted({run.seed for run in runs}))
    now = [word for name, value in changed.items() for word in (f"--{name}", str(value))]
    return shlex.join(["bdr", "sweep", *what, *typed, *now, "--seeds", seeds])


def options_like(run: Run, title: str, without: Sequence[str] = ()) -> list[str]:
    """All options for a run like this one, except the options and settings in `without`."""
    given = {name: value for name, value in facts_typed(run).items() if name not in without}
    words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    uneven = ["--uneven"] if (run.info.get("config") or {}).get("uneven") else []
    return [*words, *uneven, *_carried(run, title, without)]


def facts_typed(run: Run) -> dict[str, Any]:
    """The options that describe a run and are not the usual ones: data and phases, memory and network."""
    config = run.info.get("config") or {}
    found = {name: config.get(name, run.protocol.get(name)) for name in TYPED}
    found |= {"root": run.info.get("root") or found["root"]}
    plain = {"size": USUAL_SIZE, "val": 0.0}
    return {name: value for name, value in found.items() if value is not None and value != plain.get(name)}


def _carried(run: Run, title: str, without: Sequence[str]) -> list[str]:
    """`--set ucir.eta=5` and the like: what a run was given for its images, for parts of the title and for training."""
    config = run.info.get("config") or {}
    owners = [part.rpartition(":")[2] for part in (*title.split("+"), str(config.get("net")))]
    of_images = {} if config.get("statistics", "default") == "default" else {"statistics": config["statistics"]}
    of_images |= by_name({"augment": config.get("augment") or {}})
    of_parts = {name: value for name, value in settings_of(run).items() if name.partition(".")[0] in owners}
    trained = {name: value for name, value in settings_of(run).items() if name in TRAINED}
    same = title.split("+")[0] == run.title.split("+")[0]
    told = of_images | of_parts | (trained if same else {})
    kept = {name: value for name, value in told.items() if name not in without}
    return [word for name, value in kept.items() for word in ("--set", f"{name}={_as_typed(value)}")]


def _as_typed(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def analysed(run: Run) -> str:
    """What to type for the same run with --analyse, in another folder, since a run is analysed from its start."""
    elsewhere = "--seed", str(run.seed), "--analyse", "--runs", "analysed"
    return retyped(run, run.title, ("--out", "--runs", "--seed", "--seeds"), *elsewhere)
