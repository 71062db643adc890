"""One self-contained page about a set of runs: it needs no network and no script, and reads the records alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from bdr.errors import BdrError
from bdr.records import Run, differences, write_atomically
from bdr.report import plots
from bdr.report.groups import Group, by_protocol
from bdr.report.html import Html, facts, join, listing, table, tag
from bdr.report.sheets import Sheet
from bdr.report.style import stylesheet, themed
from bdr.report.tables import Comparison, class_names, compare, comparison_sheets, run_sheet, seeds_sheets

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
    """Full, dashed or dotted, as the lines of the plots are where colours come again."""
    border = ("solid", "dashed", "dotted")[index // len(plots.PALETTE) % 3]
    accent = f"var(--series-{index % len(plots.PALETTE)})"
    look = f"background: {accent}" if border == "solid" else f"border: 2px {border} {accent}"
    return tag("span", class_="swatch", style=look, aria_hidden="true")


def _legend(groups: list[Group]) -> Html:
    return listing([join(_swatch(index), group.label) for index, group in enumerate(groups)], class_="legend")


def _figure(svg: str, caption: str = "", kind: str = "") -> Html:
    return tag("figure", tag("figcaption", caption) if caption else "", Html(themed(svg)), class_=kind)


def _plural(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def _heading(groups: list[Group], title: str) -> Html:
    runs = [run for group in groups for run in group.runs]
    protocols = [_plural(len(by_protocol(groups)), "protocol")] if _several(groups) else []
    methods = _plural(len({group.label for group in groups}), "method")
    seeds = _plural(len({run.seed for run in runs}), "seed")
    counts = ", ".join([methods, *protocols, seeds, _plural(len(runs), "run")])
    return tag("header", tag("h1", title), tag("p", counts, class_="soft"))


def _several(groups: list[Group]) -> bool:
    return len(by_protocol(groups)) > 1


def _for_each_protocol(groups: list[Group], card: Callable[[list[Group]], Html]) -> Html:
    """A card for each protocol, under its title where there are several."""
    several = _several(groups)
    return join(*(join(tag("h3", each[0].protocol) if several else "", card(each)) for each in by_protocol(groups)))


def _marked(sheet: Sheet, groups: list[Group]) -> Html:
    """A table of groups, each with the colour that it has in the plots of its protocol."""
    places = {group.label: index for index, group in enumerate(groups)}
    return _card(table(sheet, [_swatch(places[row[0]]) for row in sheet.rows]))


def _tables(groups: list[Group], sheets: list[Sheet]) -> Html:
    of_protocol = dict(zip((each[0].protocol for each in by_protocol(groups)), sheets, strict=True))
    return _for_each_protocol(groups, lambda each: _marked(of_protocol[each[0].protocol], each))


def _results(comparison: Comparison) -> Html:
    sheets = comparison_sheets(comparison)
    notes = listing(sheets[-1].notes, class_="notes")
    return _section("Results", _tables(comparison.groups, sheets), notes)


def _protocol(groups: list[Group]) -> Html:
    runs = [run for group in groups for run in group.runs]
    different = differences(runs)
    shared = {fact: value for fact, value in runs[0].protocol.items() if fact not in different}
    content = [_card(facts(shared))]
    if different:
        content += [tag("h3", "What differs"), _card(table(_differences_sheet(groups, list(different))))]
    return _section("What was run", *content)


def _differences_sheet(groups: list[Group], different: list[str]) -> Sheet:
    """A row a protocol; a row a method where all share one, and only their class orders differ."""
    named = [(each[0].protocol, [run for group in each for run in group.runs]) for each in by_protocol(groups)]
    if not _several(groups):
        named = [(group.label, group.runs) for group in groups]
    rows = [[name, *(_values(runs, fact) for fact in different)] for name, runs in named]
    return Sheet("What differs", ["protocol" if _several(groups) else "method", *different], rows)


def _values(runs: Iterable[Run], fact: str) -> str:
    return ", ".join(dict.fromkeys(str(run.protocol.get(fact)) for run in runs))


def _accuracy(groups: list[Group]) -> Html:
    def card(groups: list[Group]) -> Html:
        return _card(_legend(groups), _figure(plots.accuracy_curve(groups, legend=False), kind="wide"))

    return _section("Accuracy as classes arrive", _for_each_protocol(groups, card), reading=READ_ACCURACY)


def _destruction(groups: list[Group]) -> list[Html]:
    """A section for each of the two series that any run has recorded."""
    titled = {"ce_old": "Destruction and reconstruction", "distillation": "The distillation term"}
    readings = {"ce_old": READ_CE_OLD, "distillation": f"{READ_DISTILLATION} {_terms(groups)}"}
    sections = []
    for name, heading in titled.items():
        recorded = [group for each in by_protocol(groups) if _panels(each, name) for group in each]
        if recorded:
            content = _for_each_protocol(recorded, partial(_destruction_card, name))
            sections.append(_section(heading, content, reading=readings[name]))
    return sections


def _panels(groups: list[Group], name: str) -> list[int]:
    return [phase for phase in plots.shown_phases(groups) if plots.has_series(groups, phase, name)]


def _destruction_card(name: str, groups: list[Group]) -> Html:
    panels = [_figure(plots.destruction_curve(groups, phase, name, legend=False)) for phase in _panels(groups, name)]
    return _card(_legend(groups), tag("div", *panels, class_="panels"))


def _terms(groups: list[Group]) -> str:
    named = {group.label: group.runs[0].info.get("distillation") or "none" for group in groups}
    if len(named) > 1 and len(set(named.values())) == 1:
        return f"Here: {named[groups[0].label]} in all of them."
    return "Here: " + "; ".join(f"{label}: {term}" for label, term in named.items()) + "."


def _matrices(groups: list[Group]) -> Html:
    def card(groups: list[Group]) -> Html:
        captions = [join(_swatch(index), group.label) for index, group in enumerate(groups)]
        figures = [_figure(plots.accuracy_matrix(group), name) for group, name in zip(groups, captions, strict=True)]
        return _card(tag("div", *figures, class_="panels"))

    return _section("What is kept of each phase", _for_each_protocol(groups, card), reading=READ_MATRIX)


def _bars(groups: list[Group]) -> Html:
    def card(groups: list[Group]) -> Html:
        figures = [_class_figure(group, index) for index, group in enumerate(groups)]
        return _card(tag("div", *figures, class_="panels broad"))

    return _section("Every class at the end", _for_each_protocol(groups, card), reading=READ_BARS)


def _class_figure(group: Group, index: int) -> Html:
    try:
        return _figure(plots.class_bars(group, index), join(_swatch(index), group.label))
    except BdrError as error:
        if error.exit_code != 1:
            raise
        return tag("p", f"{group.label}: {error}", class_="soft")  # lost predictions should not cost the whole page


def _seeds(comparison: Comparison) -> Html:
    return _section("Every seed", _tables(comparison.groups, seeds_sheets(comparison)))


def _classes(groups: list[Group]) -> Html:
    """Class names a phase, once for each order of classes and way of parting them."""
    orders: dict[str, tuple[Group, Run]] = {}
    for group in groups:
        for run in group.runs:
            orders.setdefault(json.dumps([run.info["classes"], run.info["phases"]]), (group, run))
    headed = len(orders) > 1
    content = [_class_list(run, _run_name(group, run, groups) if headed else "") for group, run in orders.values()]
    return _section("Classes of each phase", *content)


def _class_list(run: Run, name: str) -> Html:
    phases = range(len(run.info["phases"]))
    rows = [[str(phase), str(len(class_names(run, phase))), ", ".join(class_names(run, phase))] for phase in phases]
    sheet = Sheet("Classes of each phase", ["phase", "classes", "names"], rows, texts=(2,))
    heading = tag("h3", f"Order {run.protocol.get('order')}, as in {name}") if name else ""
    return join(heading, _card(table(sheet)))


def _run_name(group: Group, run: Run, groups: list[Group]) -> str:
    place = f" of {group.protocol}" if _several(groups) else ""
    return f"{group.label}, seed {run.seed}{place}"


def _runs(groups: list[Group]) -> Html:
    entries = [_run(run, _run_name(group, run, groups)) for group in groups for run in group.runs]
    return _section("How each run was made", _card(*entries))


def _run(run: Run, name: str) -> Html:
    state = "finished" if run.done else "not finished"
    return tag(
        "details",
        tag("summary", name),
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
