"""One self-contained page about a set of runs: it needs no network and no script, and reads the records alone."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bdr.errors import BdrError
from bdr.records import Run, differences, write_atomically
from bdr.report import plots
from bdr.report.groups import Group
from bdr.report.html import Html, facts, join, listing, table, tag
from bdr.report.style import stylesheet, themed
from bdr.report.tables import Comparison, Sheet, class_names, compare, comparison_sheet, run_sheet, seeds_sheet

READ_ACCURACY = (
    "After each phase the model is tested on every class it has seen so far. A line that stays high forgets little; "
    "the band is the standard deviation over seeds, and each thin line is one seed."
)
READ_CE_OLD = (
    "The cross-entropy of the old classes' samples while new classes are learned, as a one-epoch moving mean. "
    "It rises at first (destruction) and comes down again (reconstruction): a lower peak means that less was destroyed."
)
READ_DISTILLATION = (
    "The method's own distillation term, unweighted, over the same steps. "
    "Methods measure it in different ways: compare heights only where the term is the same."
)
READ_MATRIX = (
    "A row is the state after a phase, a column the classes that came with a phase. "
    "Read a column downwards to see how one set of classes is forgotten."
)
READ_BARS = "Accuracy on each class after the last phase, in order of arrival. Dotted lines part the phases."


def write_page(runs: list[Run], path: Path, title: str, readout: str | None = None) -> Path:
    """Write the page about these runs to a file, and return the file's path."""
    path = Path(path)
    write_atomically(path, page(runs, title, readout))
    return path


def page(runs: list[Run], title: str, readout: str | None = None) -> str:
    """The page as text."""
    comparison = compare(runs, readout)
    groups = comparison.groups
    sections = [
        _heading(groups, title),
        _results(comparison),
        _protocol(groups),
        _accuracy(groups),
        *_destruction(groups),
        _matrices(groups),
        _bars(groups),
        _seeds(comparison),
        _classes(groups),
        _runs(groups),
    ]
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        tag("style", Html(stylesheet())),
    )
    return "<!doctype html>\n" + tag("html", head, tag("body", tag("main", *sections)), lang="en") + "\n"


def _section(heading: str, *content: str, reading: str = "") -> Html:
    return tag("section", tag("h2", heading), tag("p", reading, class_="soft") if reading else "", *content)


def _card(*content: str) -> Html:
    return tag("div", *content, class_="card")


def _swatch(index: int) -> Html:
    accent = f"background: var(--series-{index % len(plots.PALETTE)})"
    return tag("span", class_="swatch", style=accent, aria_hidden="true")


def _legend(groups: list[Group]) -> Html:
    return listing([join(_swatch(index), group.label) for index, group in enumerate(groups)], class_="legend")


def _figure(svg: str, caption: str = "", kind: str = "") -> Html:
    return tag("figure", tag("figcaption", caption) if caption else "", Html(themed(svg)), class_=kind)


def _plural(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def _heading(groups: list[Group], title: str) -> Html:
    runs = [run for group in groups for run in group.runs]
    seeds = len({run.seed for run in runs})
    counts = ", ".join([_plural(len(groups), "method"), _plural(seeds, "seed"), _plural(len(runs), "run")])
    return tag("header", tag("h1", title), tag("p", counts, class_="soft"))


def _results(comparison: Comparison) -> Html:
    sheet = comparison_sheet(comparison)
    marks = [_swatch(index) for index in range(len(comparison.groups))]
    return _section("Results", _card(table(sheet, marks)), listing(sheet.notes, class_="notes"))


def _protocol(groups: list[Group]) -> Html:
    runs = [run for group in groups for run in group.runs]
    different = differences(runs)
    shared = {fact: value for fact, value in runs[0].protocol.items() if fact not in different}
    content = [_card(facts(shared))]
    if different:
        rows = [[group.label, *(_values(group.runs, fact) for fact in different)] for group in groups]
        sheet = Sheet("What differs between the methods", ["method", *different], rows)
        content += [tag("h3", sheet.title), _card(table(sheet))]
    return _section("What was run", *content)


def _values(runs: Iterable[Run], fact: str) -> str:
    return ", ".join(dict.fromkeys(str(run.protocol.get(fact)) for run in runs))


def _accuracy(groups: list[Group]) -> Html:
    figure = _figure(plots.accuracy_curve(groups, legend=False), kind="wide")
    return _section("Accuracy as classes arrive", _card(_legend(groups), figure), reading=READ_ACCURACY)


def _destruction(groups: list[Group]) -> list[Html]:
    """A section for each of the two series that any run has recorded."""
    titled = {"ce_old": "Destruction and reconstruction", "distillation": "The distillation term"}
    readings = {"ce_old": READ_CE_OLD, "distillation": f"{READ_DISTILLATION} {_terms(groups)}"}
    sections = []
    for name, heading in titled.items():
        phases = [phase for phase in plots.shown_phases(groups) if plots.has_series(groups, phase, name)]
        panels = [_figure(plots.destruction_curve(groups, phase, name, legend=False)) for phase in phases]
        if panels:
            content = _card(_legend(groups), tag("div", *panels, class_="panels"))
            sections.append(_section(heading, content, reading=readings[name]))
    return sections


def _terms(groups: list[Group]) -> str:
    named = [(group.label, group.runs[0].info.get("distillation")) for group in groups]
    return "Here: " + "; ".join(f"{label}: {term or 'none'}" for label, term in named) + "."


def _matrices(groups: list[Group]) -> Html:
    figures = [
        _figure(plots.accuracy_matrix(group), join(_swatch(index), group.label)) for index, group in enumerate(groups)
    ]
    return _section("What is kept of each phase", _card(tag("div", *figures, class_="panels")), reading=READ_MATRIX)


def _bars(groups: list[Group]) -> Html:
    figures = [_class_figure(group, index) for index, group in enumerate(groups)]
    return _section("Every class at the end", _card(tag("div", *figures, class_="panels broad")), reading=READ_BARS)


def _class_figure(group: Group, index: int) -> Html:
    try:
        return _figure(plots.class_bars(group, index), join(_swatch(index), group.label))
    except BdrError as error:
        if error.exit_code != 1:
            raise
        return tag("p", f"{group.label}: {error}", class_="soft")  # lost predictions should not cost the whole page


def _seeds(comparison: Comparison) -> Html:
    places = {group.label: index for index, group in enumerate(comparison.groups)}
    sheet = seeds_sheet(comparison)
    return _section(sheet.title, _card(table(sheet, [_swatch(places[row[0]]) for row in sheet.rows])))


def _classes(groups: list[Group]) -> Html:
    """Class names a phase, once for each order of classes."""
    orders: dict[str, Run] = {}
    for group in groups:
        for run in group.runs:
            orders.setdefault(json.dumps([run.info["classes"], run.info["phases"]]), run)
    several = len(orders) > 1
    content = [_class_list(run, several) for run in orders.values()]
    return _section("Classes of each phase", *content)


def _class_list(run: Run, several: bool) -> Html:
    phases = range(len(run.info["phases"]))
    rows = [[str(phase), str(len(class_names(run, phase))), ", ".join(class_names(run, phase))] for phase in phases]
    sheet = Sheet("Classes of each phase", ["phase", "classes", "names"], rows, texts=(2,))
    heading = tag("h3", f"Order {run.protocol.get('order')}, as in {run.title}, seed {run.seed}") if several else ""
    return join(heading, _card(table(sheet)))


def _runs(groups: list[Group]) -> Html:
    return _section("How each run was made", _card(*(_run(run) for group in groups for run in group.runs)))


def _run(run: Run) -> Html:
    state = "finished" if run.done else "not finished"
    return tag(
        "details",
        tag("summary", f"{run.title}, seed {run.seed}"),
        facts({"state": state, "fingerprint": run.fingerprint, "created": run.info.get("created")}),
        _labelled("command", run.info.get("command")),
        _labelled("device", run.info.get("device")),
        _labelled("versions", run.info.get("versions")),
        _labelled("configuration", run.info.get("config")),
        table(run_sheet(run)),
    )


def _labelled(name: str, value: Any) -> Html:
    if value is None:
        return Html("")
    text = value if isinstance(value, str) else json.dumps(value, indent=1, ensure_ascii=False)
    return join(tag("h3", name.capitalize()), tag("pre", text))
