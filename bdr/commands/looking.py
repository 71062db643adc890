"""The commands that look at runs; only `evaluate`, `export` and `predict` need torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from bdr.errors import BdrError, UsageError, as_word
from bdr.records import Run, find_runs, is_begun, kept_phase
from bdr.records.files import check_folder_of, flows
from bdr.terminal import out, print_comparison, say, tell

if TYPE_CHECKING:
    from bdr.data.pictures import Unreadable
    from bdr.report.paper_figures import Printed


def gathered(paths: Sequence[Path], begun: bool = False) -> list[Run]:
    """The runs at and below the given folders, in the order in which these were named; damaged runs are skipped.

    Runs without a finished phase are included with `begun`, or if a single run is named.
    """
    alone = len(paths) == 1 and is_begun(paths[0])
    return readable(paths, begun or alone)[0]


def readable(paths: Sequence[Path], begun: bool = False) -> tuple[list[Run], list[str]]:
    """The runs at and below folders, and a warning for each that was skipped; raises if there is no run."""
    from bdr.report import gather

    runs, skipped = gather(paths, begun)
    for warning in skipped:
        tell(f"warning: {warning}")
    if not runs:
        raise nothing_in(paths, skipped)
    for run in (run for run in runs if run.torn):
        go_on = "" if run.done else f"; go on with: bdr resume {as_word(run.path)}"
        said = f"note: the last line of {run.path / 'phases.jsonl'} is half-written and left out{go_on}"
        tell(said)
    return runs, skipped


def nothing_in(paths: Sequence[Path], skipped: Sequence[str]) -> BdrError:
    """An error that says why no run was found, and what to type to make one or to go on with one."""
    names = ", ".join(map(str, paths))
    begun = [run for path in paths for run in find_runs(path, begun=True)[0] if not run.phases]
    if begun:
        return BdrError(f"no run in {names} has a finished phase yet; go on with: bdr resume {as_word(begun[0].path)}")
    if skipped:
        return BdrError(f"no run in {names} can be read; the warnings above say why")
    return UsageError(f"there is no run in {names}; make one with: bdr run ucir+cwd+bdr")


def show_runs(
    paths: Sequence[Path],
    as_json: bool,
    readout: str | None,
    reference: str | None = None,
    form: str | None = None,
    file: Path | None = None,
) -> None:
    """Show one run, or compare several: on the terminal, or in another form, which the name of `file` may decide."""
    from bdr import report

    if as_json and form not in (None, "json"):
        raise UsageError(f"--json and --format {form} exclude each other: use one of them")
    form = "json" if as_json else form or report.form_of(file, report.SUFFIXES.values(), usual="text")
    runs = gathered(paths)
    if len(runs) == 1 and not runs[0].phases:
        raise BdrError(f"{runs[0].path} has no finished phase yet; go on with: bdr resume {as_word(runs[0].path)}")
    comparison = report.compare(runs, readout, reference)
    alone = len(runs) == 1
    if form == "text" and file is None:
        if alone:
            out.print(report.as_rich(report.run_sheet(runs[0], readout)))
        else:
            print_comparison(comparison)
        return
    of_phases = alone and form != "json"
    text = report.run_as(form, runs[0], readout) if of_phases else report.comparison_as(form, comparison)
    hand_over(text, file)


def hand_over(text: str, file: Path | None) -> None:
    from bdr.report import write_text

    if file is None:
        print(text, end="")
        return
    write_text(file, text)
    say_written(file)


def say_written(file: Path) -> None:
    """Say that a file was written; on stderr if it may be standard output that took the content."""
    (tell if flows(file) else say)(f"written: {file}")


def report_runs(
    paths: Sequence[Path], page: Path, title: str, figures: Path | None = None, readout: str | None = None
) -> None:
    from bdr.report import write_figures, write_page

    check_folder_of(page)
    runs, skipped = readable(paths)
    say_written(write_page(runs, page, title, readout, skipped))
    if figures:
        say(f"written: {len(write_figures(runs, figures, readout))} files in {figures}")


def draw_figure(
    which: str, paths: Sequence[Path], place: Path, formats: str | None, phase: int | None, printed: Printed
) -> None:
    from bdr.report.paper_figures import Asked, write_figure

    asked = Asked(gathered(paths), phase, printed, tell)
    written, notes = write_figure(which, asked, place, formats)
    for note in notes:
        tell(f"note: {note}")
    for path in written:
        say_written(path)


def list_figures() -> None:
    from bdr.report.paper_figures import contents

    table = Table("figure", "shows", "needs", box=None, padding=(0, 2, 0, 0))
    for row in contents():
        table.add_row(*row)
    out.print(table)


def predict_pictures(
    path: Path,
    images: Sequence[Path],
    top: int,
    phase: int | None,
    readout: str | None,
    device: str | None,
    form: str | None,
    weights: Path | None = None,
    file: Path | None = None,
) -> None:
    """Print predictions in plain lines as they come (a table would cut paths), or as `csv` or `json` at the end.

    A broken picture gives a warning, and an error at the end; the other pictures are predicted all the same.
    """
    from bdr import api

    told: list[dict[str, Any]] = []

    def pass_over(problem: Unreadable) -> None:
        told.append({"image": str(problem.path), "error": str(problem)})
        tell(f"warning: {problem}")

    options: dict[str, Any] = {"top": top, "phase": phase, "readout": readout, "weights": weights}
    options |= {"device": device or "auto"}
    for image, classes in api.predict(path, images, **options, unreadable=pass_over):
        told.append(as_plain(image, classes))
        if form is None:
            print(f"{image}  " + ", ".join(f"{name} {100 * chance:.1f} %" for name, chance in classes))
    if form is not None:
        hand_over(IN_FORM[form](told), file)
    if readout is None:
        say_which_readout(path, kept_phase(path, phase))
    if broken := sum("error" in each for each in told):
        raise BdrError(f"{broken} of {len(told)} pictures could not be used; the warnings above say why")


def form_of_predictions(as_csv: bool, as_json: bool, file: Path | None) -> str | None:
    """csv or json, from an option or the ending of the file; None for lines on the terminal."""
    asked = [form for form, given in (("csv", as_csv), ("json", as_json)) if given]
    if len(asked) > 1:
        raise UsageError("--csv and --json are two forms of the same: choose one")
    if file is None:
        return asked[0] if asked else None
    form = file.suffix.lower().removeprefix(".")
    if form not in IN_FORM:
        raise UsageError(f"'{file}' says no form that predictions are written in: end it in .csv or .json")
    if asked and asked != [form]:
        raise UsageError(f"--{asked[0]} and '{file}' do not agree: end it in .{asked[0]}, or leave --{asked[0]} out")
    check_folder_of(file)
    return form


def csv_of(told: Sequence[dict[str, Any]]) -> str:
    """One row for each predicted class of each picture, or one with the error for a picture that cannot be read."""
    from bdr.report.forms import as_csv

    empty = dict.fromkeys(("image", "rank", "class", "probability", "error"))
    named = [
        [{"image": each["image"], "rank": rank, **likely} for rank, likely in enumerate(each.get("classes", ()), 1)]
        for each in told
    ]
    return as_csv([empty | row for each, mine in zip(told, named, strict=True) for row in mine or [each]])


def json_of(told: Sequence[dict[str, Any]]) -> str:
    return json.dumps(told, indent=2, ensure_ascii=False) + "\n"


IN_FORM = {"csv": csv_of, "json": json_of}


def export_run(
    path: Path,
    file: Path,
    phase: int | None,
    readout: str | None,
    probabilities: bool,
    device: str,
    force: bool,
    weights: Path | None = None,
) -> None:
    from bdr import api

    options: dict[str, Any] = {"phase": phase, "readout": readout, "probabilities": probabilities, "weights": weights}
    say_written(api.export(path, file, **options, device=device, force=force))
    if readout is None:
        say_which_readout(path, kept_phase(path, phase), "export")


def say_which_readout(path: Path, phase: int = -1, command: str = "predict") -> None:
    """Print a note if the readout by which the run is reported is far behind another."""
    from bdr.trained.readouts import advice

    if line := advice(Run.open(path), phase, command):
        tell(f"note: {line}")


def as_plain(image: Path, classes: Sequence[tuple[str, float]]) -> dict[str, Any]:
    likely = [{"class": name, "probability": round(chance, 6)} for name, chance in classes]
    return {"image": str(image), "classes": likely}


def places_now(
    root: Path | None, device: str | None, weights: Path | None, engine: str | None = None
) -> dict[str, Any]:
    """The typed options that override where an existing run, by its record, finds its data, device and weights."""
    given = {"root": root, "device": device, "weights": weights, "engine": engine}
    return {name: str(value) for name, value in given.items() if value is not None}


def evaluate_run(
    path: Path,
    phase: int | None,
    root: Path | None,
    device: str | None,
    as_json: bool,
    weights: Path | None = None,
) -> None:
    from bdr import api

    number, found = api.evaluate(path, phase=phase, **places_now(root, device, weights))
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
