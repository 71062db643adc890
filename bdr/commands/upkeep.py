"""The commands for upkeep: listing, examining, cleaning, and data sets."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from bdr.commands.looking import gathered
from bdr.errors import BdrError, UsageError, as_word
from bdr.records import Run, find_runs
from bdr.records.log import failure_of
from bdr.terminal import err, out, say


def list_things(what: str, runs: Path) -> None:
    if what == "runs":  # in plain lines: a table would cut the paths, which people want to copy
        for run in gathered([runs], begun=True):
            print(f"{run.path}  {about_run(run)}")
        return
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, about in listing(what):
        table.add_row(name, about)
    out.print(table)


def listing(what: str) -> list[tuple[str, str]]:
    if what == "data":
        from bdr.data import ABOUT

        return list(ABOUT.items())
    from bdr.plugins import ALIASES

    return [(name, ALIASES.get(name) or first_paragraph(thing)) for name, thing in sorted(table_of(what).items())]


def table_of(what: str) -> dict[str, Any]:
    from bdr.configuration.recipes import RECIPES
    from bdr.methods import METHODS
    from bdr.nets import NETS
    from bdr.plugins import PLUGINS

    tables: dict[str, dict[str, Any]] = {"methods": METHODS, "plugins": PLUGINS, "nets": NETS, "recipes": RECIPES}
    return tables[what]


def first_paragraph(thing: Any) -> str:
    """The first paragraph of the docstring of a recipe or net, or of the file of a method or plug-in, in one line."""
    own = vars(thing).get("__doc__") if isinstance(thing, type) else thing.__doc__
    text = own or (sys.modules[thing.__module__].__doc__ if isinstance(thing, type) else "")
    return " ".join((text or "").strip().partition("\n\n")[0].split())


def about_run(run: Run) -> str:
    name, failure = f"{run.title} seed {run.seed}", "" if run.done else failure_of(run.path)
    failed = f"failed: {failure}; try again with: bdr resume {as_word(run.path)}" if failure else ""
    if not run.phases:
        stopped = f"stopped in phase 0, or still in it; go on with: bdr resume {as_word(run.path)}"
        return f"{name}: {failed or stopped}"
    state = "done" if run.done else f"{len(run.phases)}/{len(run.info['phases'])} phases"
    last = "" if run.last_accuracy is None else f", {run.last_accuracy:.2f} %"
    return f"{name}: {'; '.join(part for part in (f'{state}{last}', failed) if part)}"


def examine() -> None:
    from bdr.doctor import findings

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for mark, name, about in findings():
        table.add_row(mark, name, escape(about))  # 'bdr[report]' is text, not markup
    out.print(table)


def keep_pictures(run: Path, to: Path, root: Path | None) -> None:
    from bdr.trained.keeping import keep

    kept = keep(run, to, root)
    extend = shlex.join(["bdr", "extend", str(run), "--root", str(to)])
    say(
        f"{kept.exemplars} exemplars and {kept.tests} test images of {kept.classes} classes are in {to}; with a folder "
        f"for each new class in {to / 'train'} and {to / 'test'}, type: {extend}"
    )


def clean_runs(folders: Sequence[Path], yes: bool) -> None:
    doomed = {path.resolve(): path for folder in folders for path in removable(folder)}.values()
    freed = sum(size_of(path) for path in doomed)
    for path in doomed:
        done, size = "removed" if yes else "would remove", size_of(path)
        if yes:
            remove(path)
        say(f"{done} {path} ({size / 2**20:.1f} MiB)")
    hint = "" if yes or not doomed else "; add --yes to remove"
    say(f"{freed / 2**20:.1f} MiB {'freed' if yes else 'to free'}{hint}")


def remove(path: Path) -> None:
    try:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    except OSError as error:
        raise BdrError(f"cannot remove {path}: {error.strerror}; nothing else was removed after that") from error


def removable(runs: Path) -> list[Path]:
    """What `bdr clean` removes: checkpoints of finished runs, half-written files in them, and shared first phases."""
    if not runs.is_dir():
        raise UsageError(f"there is no folder '{runs}'; name the one that the runs are in: bdr clean DIR")
    finished = [run.path for run in find_runs(runs)[0] if run.done and not run.steps_lost]
    checkpoints = [path / "checkpoint" for path in finished if (path / "checkpoint").is_dir()]
    partial = [file for path in finished for file in path.glob("*.partial")]
    return checkpoints + partial + [path for path in (runs / ".shared").glob("*") if path.is_dir()]


def size_of(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def fetch_data(name: str, root: Path, url: str | None) -> None:
    from rich.progress import Progress

    from bdr.data.fetch import fetch

    with Progress(console=err, transient=True) as progress:
        task = progress.add_task(f"fetching {name}", total=None)
        state = fetch(name, root, url, lambda done, total: progress.update(task, completed=done, total=total))
    say(f"{name}: {state} in {root}")


def verify_data(name: str, root: Path) -> None:
    from bdr.data.fetch import verify

    states = verify(name, root)
    for file, state in states:
        say(f"{state:8} {file}")
    if any(state != "ok" for _, state in states):
        raise BdrError(f"{name} in {root} is not whole; get it with: bdr data fetch {name} --root {root}")
