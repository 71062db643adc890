"""One self-contained page about a set of runs, made from their records alone; it loads nothing from any network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bdr.records import Run, write_atomically
from bdr.report import plots, provenance
from bdr.report.chapter import chapter
from bdr.report.cost import cost
from bdr.report.findings import findings
from bdr.report.groups import Group, by_protocol
from bdr.report.html import Html, tag
from bdr.report.parts import MOST_PANELS
from bdr.report.protocols import file_name
from bdr.report.results import every_seed, results, several, warnings_of
from bdr.report.style import head_style
from bdr.report.tables import compare
from bdr.version import __version__

MOST_OPEN = 3  # chapters; further ones are folded, so that a page with many protocols opens at once
ALL_POINTS = 16_000  # points of all long curves together: a page of a hundred runs stays below 2 MB
LEAST_POINTS, MOST_POINTS = 40, 240  # points of one curve


def write_page(
    runs: list[Run], path: Path, title: str, readout: str | None = None, skipped: Sequence[str] = ()
) -> Path:
    """Write the page about these runs to a file, and return the file's path."""
    path = Path(path)
    write_atomically(path, page(runs, title, readout, skipped))
    return path


def page(runs: list[Run], title: str, readout: str | None = None, skipped: Sequence[str] = ()) -> str:
    """The page as text; `skipped` are warnings about folders that could not be read."""
    comparison = compare(runs, readout)
    groups = comparison.groups
    content = [
        _heading(groups, title),
        warnings_of(comparison, skipped),
        findings(comparison),
        results(comparison),
        _chapters(groups),
        cost(groups),
        every_seed(comparison),
        provenance.protocol(groups),
        provenance.classes(groups),
        provenance.runs(groups),
        _footer(groups),
    ]
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        head_style(),
    )
    return "<!doctype html>\n" + tag("html", head, tag("body", _bar(), tag("main", *content)), lang="en") + "\n"


def _footer(groups: list[Group]) -> Html:
    made = f"Made by bdr {__version__} from {plural(len(_all_runs(groups)), 'run')}."
    return tag("footer", f"{made} This page is one file, and asks nothing of any network.")


def plural(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def _all_runs(groups: Sequence[Group]) -> list[Run]:
    return [run for group in groups for run in group.runs]


def _heading(groups: list[Group], title: str) -> Html:
    runs = _all_runs(groups)
    protocols = [plural(len(by_protocol(groups)), "protocol")] if several(groups) else []
    methods = plural(len({group.label for group in groups}), "method")
    seeds = plural(len({run.seed for run in runs}), "seed")
    counts = ", ".join([methods, *protocols, seeds, plural(len(runs), "run")])
    return tag("header", tag("h1", title), tag("p", counts, class_="soft"))


def _bar() -> Html:
    """The bar with links to the parts of the page, and the switch between light and dark."""
    names = {
        "results": "Results",
        "plots": "Curves",
        "cost": "Speed",
        "seeds": "Seeds",
        "protocol": "Protocol",
        "runs": "Runs",
    }
    links = [tag("a", name, href=f"#{target}") for target, name in names.items()]
    switch = tag("button", "Dark page", type="button", class_="switch")
    return tag("div", tag("div", tag("nav", *links, aria_label="Parts of this page"), switch), class_="bar")


def _chapters(groups: list[Group]) -> Html:
    """The plots of each protocol."""
    points = points_of_a_curve(groups)
    if not several(groups):
        return tag("section", tag("h2", "Curves"), chapter(groups, points), id="plots")
    made = [_folded(each, number, points) for number, each in enumerate(by_protocol(groups))]
    return tag("section", *made, id="plots")


def _folded(groups: list[Group], number: int, points: int) -> Html:
    protocol = groups[0].protocol
    opened = {"open": ""} if number < MOST_OPEN else {}
    content = chapter(groups, points, f"{file_name(protocol)}-")
    return tag("details", tag("summary", tag("h2", protocol)), content, class_="protocol", **opened)


def points_of_a_curve(groups: list[Group]) -> int:
    """How many points each curve may have on a page with this many; the spread over seeds takes two more lines."""
    drawn = [plots.shown_groups(each) for each in by_protocol(groups)]
    lines = sum(3 if len(group.runs) > 1 else 1 for each in drawn for group in each)
    return max(LEAST_POINTS, min(MOST_POINTS, ALL_POINTS // max(1, lines * 2 * MOST_PANELS)))
