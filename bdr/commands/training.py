"""The commands that train."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bdr import api
from bdr.commands.looking import report_runs, say_which_readout, show_runs
from bdr.configuration.config import Config, changed, from_yaml, text_of, to_yaml
from bdr.configuration.recipes import configure
from bdr.display import Lines, display
from bdr.errors import Interrupted, UsageError, as_word
from bdr.planning.assemble import plan_run
from bdr.planning.begun import refuse_beginning
from bdr.planning.extension import plan_extension
from bdr.planning.plan import Plan
from bdr.records import Run, is_begun
from bdr.records.speed import finished_runs
from bdr.terminal import command_line, needs_a_reader, out, stoppable, tell


def configurations(
    what: str | None, typed: Mapping[str, Any], file: Path | None, seeds: Sequence[int | None]
) -> tuple[list[Config], list[str]]:
    """One configuration for each seed, and notes: the recipe, overridden by the file, overridden by what was typed."""
    found = {} if file is None else from_yaml(text_of(file, f"--config {file}"), str(file))
    named = spelled(what, found, file)
    rest = {name: value for name, value in found.items() if name not in ("method", "plugins")}
    made, notes = configure(named, settings=typed.items(), file=rest)
    return [made if seed is None else changed(made, {"seed": seed}) for seed in seeds], notes


def spelled(what: str | None, from_file: dict[str, Any], file: Path | None) -> str:
    """METHOD+PLUGIN+... as typed or as the file names it; raises if the two differ or both are missing."""
    parts = [from_file.get("method"), *(from_file.get("plugins") or [])]
    there = "+".join(map(str, parts)) if parts[0] else None
    if what is None and there is None:
        raise UsageError("name what to run, for example: bdr run ucir+cwd+bdr; bdr list methods says what there is")
    if what is not None and there not in (None, configure(what)[0].title):
        raise UsageError(f"{file} is of {there} and you typed {what}: leave out one of them")
    return str(what or there)


def run_seeds(
    what: str | None,
    typed: Mapping[str, Any],
    seeds: Sequence[int | None],
    *,
    file: Path | None,
    path: Path | None,
    runs: Path,
    print_config: bool,
    dry_run: bool,
) -> None:
    configs, notes = configurations(what, typed, file, seeds)
    if print_config:
        if len(configs) > 1:
            raise UsageError("--print-config prints one configuration and --seeds asks for several; use --seed")
        print(to_yaml(configs[0]), end="")
        return
    finished = finished_runs(runs) if dry_run else []
    trained: list[Path] = []
    for place, config in enumerate(configs):
        plan = plan_run(config, path, runs, notes=notes)
        for note in () if place else plan.notes:
            tell(note)
        if dry_run:
            print_estimate(plan, finished)
            continue
        try:
            trained.append(train(plan).path)
        except Interrupted as stop:
            raise with_seeds_left(stop, configs[place + 1 :]) from None
    if len(trained) > 1:
        show_runs(trained, as_json=False, readout=None)


def print_estimate(plan: Plan, finished: Sequence[Run]) -> None:
    from bdr.dryrun import TIMED_STEPS, estimate, speed_of

    refuse_beginning(plan)
    speed = speed_of(plan, finished)
    if speed is None:
        where = f"{plan.config.title} on {plan.experiment.device}"
        tell(f"timing {TIMED_STEPS} steps of each stage of {where} ...")
    out.print(estimate(plan, speed))


def with_seeds_left(stop: Interrupted, left: Sequence[Config]) -> Interrupted:
    if not left:
        return stop
    seeds = ", ".join(str(config.seed) for config in left)
    return Interrupted(f"{stop}; or type the same command again, which goes on and then does the seeds left: {seeds}")


def train(plan: Plan) -> api.Result:
    """Run a plan with its progress on the terminal, then show the result."""
    listener = display(out)
    with needs_a_reader(lambda: how_to_go_on(plan.experiment.path)), stoppable() as stopping, closing(listener):
        result = api.execute(plan, listener, stopping, command_line())
    show_result(result.path)
    return result


def how_to_go_on(path: Path) -> str:
    return f"go on with: bdr resume {as_word(path)}" if is_begun(path) else "type the same command again"


def show_result(path: Path) -> None:
    show_runs([path], as_json=False, readout=None)
    say_which_readout(path)


class closing:
    """A context that ends the display in any case, so that the terminal is left as it was."""

    def __init__(self, listener: Lines) -> None:
        self.listener = listener

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        self.listener.run_ends()


def resume_run(path: Path, places: Mapping[str, Any]) -> None:
    listener = display(out)
    with needs_a_reader(lambda: how_to_go_on(path)), stoppable() as stopping, closing(listener):
        api.resume(path, listener=listener, stopping=stopping, **places)
    show_result(path)


def extend_run(
    path: Path,
    step: int | None,
    typed: Mapping[str, Any],
    *,
    folder: Path | None,
    runs: Path,
    dry_run: bool,
) -> None:
    plan = plan_extension(path, None, step, typed.items(), out=folder, runs=runs)
    for note in plan.notes:
        tell(note)
    if dry_run:
        print_estimate(plan, finished_runs(runs))
    else:
        train(plan)


def run_demo(folder: Path, seeds: Sequence[int]) -> None:
    """Run CwD with and without BDR on digits; show the table and write the page."""
    import torch

    torch.set_num_threads(1)  # so small a network gains nothing from more, and one order of adding gives equal results
    for recipe in ("digits-cwd", "digits-cwd-bdr"):
        for seed in seeds:
            config, _ = configure(recipe, fields={"seed": seed, "keep": "none"})
            plan = plan_run(config, None, folder / "runs")
            with stoppable() as stopping:
                api.execute(plan, Lines(out, every=30.0), stopping, command_line())
    show_runs([folder / "runs"], as_json=False, readout=None)
    report_runs([folder / "runs"], folder / "report.html", "CwD with and without BDR on handwritten digits")
