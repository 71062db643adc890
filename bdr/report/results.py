"""The top of the page: the table of all methods, what to know before reading it, and what was left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from bdr.metrics import OverSeeds
from bdr.report.groups import Group, by_protocol
from bdr.report.html import Html, join, listing, table, tag
from bdr.report.plots import shown_groups
from bdr.report.protocols import IN_A_WORD, in_words, telling_facts
from bdr.report.sheets import Sheet
from bdr.report.significance import FEWEST, paired_p, told_p
from bdr.report.style import key
from bdr.report.tables import NOTHING, Comparison, comparison_sheets, seeds_sheets

T_TEST = (
    "p: two-sided paired t-test of that difference over the n seeds that both have; with few seeds it finds large "
    "differences only, and it is not corrected for the number of rows."
)
TOO_FEW = f"A paired t-test is made from {FEWEST} common seeds on: here no row has as many."


def section(heading: str, *content: str, reading: str = "", name: str = "") -> Html:
    told = tag("p", reading, class_="soft") if reading else ""
    return tag("section", tag("h2", heading), told, *content, **({"id": name} if name else {}))


def card(*content: str) -> Html:
    return tag("div", *content, class_="card")


def several(groups: Sequence[Group]) -> bool:
    return len(by_protocol(list(groups))) > 1


def for_each_protocol(groups: list[Group], made: Callable[[list[Group]], Html]) -> Html:
    """What `made` returns for the groups of each protocol, under the protocol's title if there are several."""
    headed = several(groups)
    return join(*(join(tag("h3", each[0].protocol) if headed else "", made(each)) for each in by_protocol(groups)))


def keyed(sheet: Sheet, groups: list[Group]) -> Html:
    """A table of groups, each marked with its line in the plots of its protocol."""
    drawn = [group.label for group in shown_groups(groups)]
    keys = [key(drawn.index(row[0])) if row[0] in drawn else Html("") for row in sheet.rows]
    return card(table(sheet, keys))


def keyed_tables(groups: list[Group], sheets: list[Sheet]) -> Html:
    of_protocol = dict(zip((each[0].protocol for each in by_protocol(groups)), sheets, strict=True))
    return for_each_protocol(groups, lambda each: keyed(of_protocol[each[0].protocol], each))


def results(comparison: Comparison) -> Html:
    """The summary table of each protocol, and the notes below."""
    sheets = sheets_with_p(comparison)
    notes = listing(sheets[-1].notes, class_="notes")
    return section("Results", keyed_tables(comparison.groups, sheets), notes, name="results")


def sheets_with_p(comparison: Comparison) -> list[Sheet]:
    """The sheets of a comparison, with a p value beside each gain if any row has enough pairs."""
    sheets = comparison_sheets(comparison)
    if "gain" not in sheets[0].header:
        return sheets
    tested = [_tested(pairs) for pairs in comparison.differences]
    if all(cell == NOTHING for cell in tested):
        return [*sheets[:-1], replace(sheets[-1], notes=[*sheets[-1].notes, TOO_FEW])]
    cells = {id(group): cell for group, cell in zip(comparison.groups, tested, strict=True)}
    sharing = by_protocol(comparison.groups)
    widened = [
        _widened(sheet, [cells[id(group)] for group in each]) for sheet, each in zip(sheets, sharing, strict=True)
    ]
    return [*widened[:-1], replace(widened[-1], notes=[*widened[-1].notes, T_TEST])]


def _tested(pairs: dict[str, OverSeeds] | None) -> str:
    """The p value of a gain as `0.034 (n = 5)`, or a dash if there is none."""
    found = told_p(paired_p(pairs["average"])) if pairs else ""
    return f"{found} (n = {pairs['average'].n})" if pairs and found else NOTHING


def _widened(sheet: Sheet, cells: list[str]) -> Sheet:
    place = sheet.header.index("gain") + 1
    rows = [[*row[:place], cell, *row[place:]] for row, cell in zip(sheet.rows, cells, strict=True)]
    return replace(sheet, header=[*sheet.header[:place], "p of the gain", *sheet.header[place:]], rows=rows)


def every_seed(comparison: Comparison) -> Html:
    return section("Every seed", keyed_tables(comparison.groups, seeds_sheets(comparison)), name="seeds")


def warnings_of(comparison: Comparison, skipped: Sequence[str]) -> Html:
    """What must be seen before the numbers: protocols side by side, and runs that could not be read."""
    return join(_protocol_warning(comparison.groups), _skipped_warning(skipped))


def _protocol_warning(groups: list[Group]) -> Html:
    if not several(groups):
        return Html("")
    runs = [group.runs[0] for group in groups]
    told = [_told(fact, [run.protocol.get(fact) for run in runs]) for fact in telling_facts(runs)]
    heading = tag("h2", f"{len(by_protocol(groups))} protocols stand side by side")
    reading = f"Compare numbers within a table, never across. They differ in {', '.join(told)}."
    return tag("aside", heading, tag("p", reading), class_="warning protocols")


def _told(fact: str, values: list[object]) -> str:
    """A fact with the values it has: `step (2 or 5)`"""
    words = dict.fromkeys(NOTHING if value is None else in_words(value) for value in values)
    return IN_A_WORD.get(fact) or f"{fact.replace('_', ' ')} ({' or '.join(words)})"


def _skipped_warning(skipped: Sequence[str]) -> Html:
    if not skipped:
        return Html("")
    count = "One folder was skipped" if len(skipped) == 1 else f"{len(skipped)} folders were skipped"
    heading = tag("h2", f"{count}: not all that was found is on this page")
    return tag("aside", heading, listing(list(skipped)), class_="warning skipped")
