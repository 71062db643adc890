"""What the commands do: the side of the command line that may import everything."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bdr import api
from bdr.assemble import Plan, plan_run
from bdr.config import Config, from_yaml, parse_setting, to_yaml, with_settings
from bdr.display import Lines, Workload, display
from bdr.engine.run import Interrupted
from bdr.errors import BdrError, UsageError
from bdr.records import Run, find_runs

if TYPE_CHECKING:
    from bdr.report import Comparison

Stoppable = Callable[[], AbstractContextManager[Callable[[], bool]]]
out = Console(highlight=False, emoji=False)  # `bad:Boom` is a name
err = Console(stderr=True, highlight=False, emoji=False)
# what libraries and data sets warn of, in the words they chose and nothing else
warnings.showwarning = lambda message, *_, **__: err.print(f"warning: {message}", markup=False)


def command_line() -> str:
    return shlex.join(["bdr", *sys.argv[1:]])


def configurations(
    what: str | None,
    data: str | None,
    fields: dict[str, Any],
    settings: Sequence[str],
    file: Path | None,
    seeds: Sequence[int | None],
) -> tuple[list[Config], list[str]]:
    """One configuration a seed: the recipe, then the file, then options, then --set."""
    from_file = {} if file is None else read_config(file)
    named = spelled(what, from_file, file)
    made, notes = api.configure(named, data or from_file.get("data"), flattened(from_file))
    made, further = with_settings(api.changed(made, fields), [parse_setting(text) for text in settings])
    return [made if seed is None else api.changed(made, {"seed": seed}) for seed in seeds], notes + further


def spelled(what: str | None, from_file: dict[str, Any], file: Path | None) -> str:
    """METHOD+PLUGIN+... as typed, or as the file has it; not two different ones."""
    parts = [from_file.get("method"), *(from_file.get("plugins") or [])]
    there = "+".join(map(str, parts)) if parts[0] else None
    if what is None and there is None:
        raise UsageError("name what to run, for example: bdr run ucir+cwd+bdr; bdr list methods says what there is")
    if what is not None and there not in (None, api.configure(what, from_file.get("data"))[0].title):
        raise UsageError(f"{file} is of {there} and you typed {what}: leave out one of them")
    return str(what or there)


def read_config(file: Path) -> dict[str, Any]:
    try:
        return from_yaml(file.read_text(), str(file))
    except OSError as error:
        raise UsageError(f"--config {file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"--config {file} is not YAML: it is not text") from None


def flattened(fields: dict[str, Any]) -> list[tuple[str, Any]]:
    """Fields of a file as dotted settings; method and plug-ins are named on the command line."""
    flat: list[tuple[str, Any]] = []
    for name, value in fields.items():
        if name == "stage" and isinstance(value, dict):
            flat += [(f"stage.{field}", inner) for field, inner in value.items()]
        elif name in ("settings", "stages") and isinstance(value, dict):
            prefix = "" if name == "settings" else "stage."
            flat += [
                (f"{prefix}{owner}.{field}", v) for owner, mine in value.items() for field, v in (mine or {}).items()
            ]
        elif name not in ("method", "plugins", "data"):
            flat.append((name, value))
    return flat


def run_seeds(
    what: str | None,
    data: str | None,
    fields: dict[str, Any],
    settings: Sequence[str],
    file: Path | None,
    seeds: Sequence[int | None],
    path: Path | None,
    runs: Path,
    print_config: bool,
    dry_run: bool,
    stoppable: Stoppable,
) -> None:
    configs, notes = configurations(what, data, fields, settings, file, seeds)
    if print_config:
        if len(configs) > 1:
            raise UsageError("--print-config prints one configuration and --seeds asks for several; use --seed")
        print(to_yaml(configs[0]), end="")
        return
    for note in notes:
        err.print(note, markup=False)
    for place, config in enumerate(configs):
        plan = plan_run(config, path, runs)
        if dry_run:
            from bdr.dryrun import estimate

            out.print(estimate(plan))
            continue
        try:
            train(plan, stoppable)
        except Interrupted as stop:
            raise with_seeds_left(stop, configs[place + 1 :]) from None


def with_seeds_left(stop: Interrupted, left: Sequence[Config]) -> Interrupted:
    if not left:
        return stop
    seeds = ", ".join(str(config.seed) for config in left)
    return Interrupted(f"{stop}; or type the same command again, which goes on and then does the seeds left: {seeds}")


def train(plan: Plan, stoppable: Stoppable) -> api.Result:
    """Runs a plan on the terminal, and shows what came of it."""
    path = plan.experiment.path
    if api.is_done(plan):
        out.print(f"already done: {path}", markup=False, soft_wrap=True)
    elif api.is_begun(plan):
        out.print(f"going on with {path}", markup=False, soft_wrap=True)
    listener = display(out, Workload(plan.workload()))
    with stoppable() as stopping, closing(listener):
        result = api.execute(plan, listener, stopping, command_line())
    show_runs([path], as_json=False, readout=None)
    return result


class closing:
    """Leaves the terminal as it was, whatever happens."""

    def __init__(self, listener: Lines) -> None:
        self.listener = listener

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        self.listener.run_ends()


def resume_run(path: Path, root: Path | None, device: str | None, stoppable: Stoppable) -> None:
    fields: dict[str, Any] = {k: str(v) for k, v in {"root": root, "device": device}.items() if v is not None}
    if Run.open(path).done:
        out.print(f"already done: {path}", markup=False, soft_wrap=True)
    else:
        plan = api.plan_of(path, **fields)
        listener = display(out, Workload(plan.workload()))
        with stoppable() as stopping, closing(listener):
            api.go_on(plan, listener, stopping)
    show_runs([path], as_json=False, readout=None)


def gathered(paths: Sequence[Path]) -> list[Run]:
    """The runs at and below the given folders, in the order in which these were named; what is damaged is skipped."""
    from bdr.report import natural_order

    found: dict[Path, Run] = {}
    for path in paths:
        if (path / "run.json").is_file():
            found[path.resolve()] = Run.open(path)
            continue
        runs, warnings = find_runs(path)
        for warning in warnings:
            err.print(f"warning: {warning}", markup=False)
        found |= {run.path.resolve(): run for run in sorted(runs, key=natural_order)}
    if not found:
        raise UsageError(f"there is no run in {', '.join(map(str, paths))}; make one with: bdr run ucir+cwd+bdr")
    return list(found.values())


def show_runs(paths: Sequence[Path], as_json: bool, readout: str | None, reference: str | None = None) -> None:
    from bdr import report

    runs = gathered(paths)
    if len(runs) == 1 and not runs[0].phases:
        raise BdrError(f"{runs[0].path} has no finished phase yet; go on with: bdr resume {runs[0].path}")
    comparison = report.compare(runs, readout, reference)
    if as_json:
        print(json.dumps(report.as_json(comparison), indent=2))
        return
    if len(runs) == 1:
        out.print(report.as_rich(report.run_sheet(runs[0], readout)))
    else:
        print_comparison(comparison)


def print_comparison(comparison: Comparison, title: str = "Comparison") -> None:
    """A table a protocol on the terminal."""
    from bdr import report

    sheets = report.comparison_sheets(comparison, title)
    # the notes below the tables and not as captions, which would be as narrow as the last table
    for table in report.as_rich_tables([replace(sheet, notes=[]) for sheet in sheets], out.width):
        out.print(table, crop=False)
    for note in sheets[-1].notes:
        out.print(note, markup=False)


def report_runs(paths: Sequence[Path], page: Path, title: str, figures: Path | None = None) -> None:
    from bdr.report import gather, write_figures, write_page

    runs, skipped = gather(paths)
    for warning in skipped:
        err.print(f"warning: {warning}", markup=False, soft_wrap=True)
    if not runs and skipped:
        raise BdrError(f"no run in {', '.join(map(str, paths))} can be read; the warnings above say why")
    if not runs:
        raise UsageError(f"there is no run in {', '.join(map(str, paths))}; make one with: bdr run ucir+cwd+bdr")
    page_path = write_page(runs, page, title, skipped=skipped)
    written = [page_path, *(write_figures(runs, figures) if figures else [])]
    for path in written:
        out.print(f"written: {path}", markup=False, soft_wrap=True)


def draw_figure(which: str, paths: Sequence[Path], place: Path, formats: str | None, phase: int | None) -> None:
    from bdr.paper.printed import printed
    from bdr.report.paper_figures import Asked, write_figure

    asked = Asked(gathered(paths), phase, printed(), lambda text: err.print(text, markup=False, soft_wrap=True))
    written, notes = write_figure(which, asked, place, formats)
    for note in notes:
        err.print(f"note: {note}", markup=False, soft_wrap=True)
    for path in written:
        out.print(f"written: {path}", markup=False, soft_wrap=True)


def list_figures() -> None:
    from bdr.report.paper_figures import contents

    table = Table("figure", "shows", "needs", box=None, padding=(0, 2, 0, 0))
    for row in contents():
        table.add_row(*row)
    out.print(table)


def evaluate_run(path: Path, phase: int | None, root: Path | None, device: str | None, as_json: bool) -> None:
    fields: dict[str, Any] = {k: str(v) for k, v in {"root": root, "device": device}.items() if v is not None}
    number, found = api.evaluate(path, phase, **fields)
    if as_json:
        print(json.dumps({"phase": number} | found, indent=2))
        return
    table = Table(title=f"{path}: model of phase {number}, on the test images")
    for column in ("readout", "accuracy", "top 5", "old", "new"):
        table.add_column(column, justify="left" if column == "readout" else "right")
    for name, accuracy in found["accuracy"].items():
        old = found["accuracy_old"][name]
        numbers = accuracy, found["top5"][name], old, found["accuracy_new"][name]
        table.add_row(name, *("-" if value is None else f"{value:.2f}" for value in numbers))
    out.print(table)


def list_things(what: str, runs: Path) -> None:
    if what == "runs":  # in plain lines: a table would cut the paths, and they are there to be copied
        for run in gathered([runs]):
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
    return [(name, first_line(thing)) for name, thing in sorted(table_of(what).items())]


def table_of(what: str) -> dict[str, Any]:
    from bdr.methods import METHODS
    from bdr.nets import NETS
    from bdr.plugins import PLUGINS
    from bdr.recipes import RECIPES

    tables: dict[str, dict[str, Any]] = {"methods": METHODS, "plugins": PLUGINS, "nets": NETS, "recipes": RECIPES}
    return tables[what]


def first_line(thing: Any) -> str:
    """What a recipe or net says of itself; for a method or plug-in, the first sentence of its file."""
    own = vars(thing).get("__doc__") if isinstance(thing, type) else thing.__doc__
    text = own or (sys.modules[thing.__module__].__doc__ if isinstance(thing, type) else "")
    return (text or "").strip().splitlines()[0]


def about_run(run: Run) -> str:
    state = "done" if run.done else f"{len(run.phases)}/{len(run.info['phases'])} phases"
    last = f", {run.phases[-1]['accuracy'].get(run.readout, float('nan')):.2f} %" if run.phases else ""
    return f"{run.title} seed {run.seed}: {state}{last}"


def examine() -> None:
    from bdr.doctor import findings

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for mark, name, about in findings():
        table.add_row(mark, name, escape(about))  # 'bdr[report]' is no markup
    out.print(table)


def clean_runs(runs: Path, yes: bool) -> None:
    doomed = removable(runs)
    freed = sum(size_of(path) for path in doomed)
    for path in doomed:
        done = "removed" if yes else "would remove"
        out.print(f"{done} {path} ({size_of(path) / 2**20:.1f} MiB)", markup=False, soft_wrap=True)
        if yes:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    hint = "" if yes or not doomed else "; add --yes to remove"
    out.print(f"{freed / 2**20:.1f} MiB {'freed' if yes else 'to free'}{hint}")


def removable(runs: Path) -> list[Path]:
    """Checkpoints of finished runs, shared first phases, and what a killed process left half-written."""
    if not runs.is_dir():
        raise UsageError(f"there is no folder '{runs}'; name one with --runs")
    finished = [run.path for run in find_runs(runs)[0] if run.done]
    checkpoints = [path / "checkpoint" for path in finished if (path / "checkpoint").is_dir()]
    partial = [file for path in finished for file in path.glob("*.partial")]
    return checkpoints + partial + [path for path in (runs / ".shared").glob("*") if path.is_dir()]


def size_of(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def run_demo(folder: Path, seeds: Sequence[int | None], stoppable: Stoppable) -> None:
    """CwD with and without BDR on digits: the table on the terminal, and the page."""
    for recipe in ("digits-cwd", "digits-cwd-bdr"):
        for seed in seeds:
            config, _ = api.configure(recipe, fields={"seed": seed, "keep": "none"})
            plan = plan_run(config, None, folder / "runs")
            listener = Lines(out, Workload(plan.workload()), every=30.0)
            with stoppable() as stopping:
                api.execute(plan, listener, stopping, command_line())
    show_runs([folder / "runs"], as_json=False, readout=None)
    report_runs([folder / "runs"], folder / "report.html", "CwD with and without BDR on handwritten digits")


def fetch_data(name: str, root: Path, url: str | None) -> None:
    from rich.progress import Progress

    from bdr.data.fetch import fetch

    with Progress(console=err, transient=True) as progress:
        task = progress.add_task(f"fetching {name}", total=None)
        state = fetch(name, root, url, lambda done, total: progress.update(task, completed=done, total=total))
    out.print(f"{name}: {state} in {root}", markup=False, soft_wrap=True)


def verify_data(name: str, root: Path) -> None:
    from bdr.data.fetch import verify

    states = verify(name, root)
    for file, state in states:
        out.print(f"{state:8} {file}", markup=False, soft_wrap=True)
    if any(state != "ok" for _, state in states):
        raise BdrError(f"{name} in {root} is not whole; get it with: bdr data fetch {name} --root {root}")
