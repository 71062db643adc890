"""Where the numbers come from: the protocol, the classes of each phase, and how each run was made."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from bdr.records import Run, differences
from bdr.report.groups import Group, by_protocol
from bdr.report.html import Html, facts, join, table, tag
from bdr.report.protocols import in_words
from bdr.report.results import card, section, several
from bdr.report.sheets import Sheet
from bdr.report.tables import class_names, code_of, run_sheet


def protocol(groups: list[Group]) -> Html:
    """The facts that all runs share, and a table of those that they do not."""
    runs = [run for group in groups for run in group.runs]
    different = differences(runs)
    shared: dict[str, object] = {
        fact: in_words(value) for fact, value in runs[0].protocol.items() if fact not in different
    }
    content = [card(facts(shared))]
    if different:
        content += [tag("h3", "What differs"), card(table(_differences_sheet(groups, list(different))))]
    return section("What was run", *content, name="protocol")


def _differences_sheet(groups: list[Group], different: list[str]) -> Sheet:
    """One row per protocol, or one per method if all share one and differ in facts such as the class order alone."""
    named = [(each[0].protocol, [run for group in each for run in group.runs]) for each in by_protocol(groups)]
    if not several(groups):
        named = [(group.label, group.runs) for group in groups]
    rows = [[name, *(_values(runs, fact) for fact in different)] for name, runs in named]
    return Sheet("What differs", ["protocol" if several(groups) else "method", *different], rows)


def _values(runs: Iterable[Run], fact: str) -> str:
    return ", ".join(dict.fromkeys(in_words(run.protocol.get(fact)) for run in runs))


def classes(groups: list[Group]) -> Html:
    """The class names of each phase, folded, once for each class order and split into phases."""
    orders: dict[str, tuple[Group, Run]] = {}
    for group in groups:
        for run in group.runs:
            orders.setdefault(json.dumps([run.info["classes"], run.info["phases"]]), (group, run))
    content = [_class_list(run, _run_name(group, run, groups)) for group, run in orders.values()]
    return section("Classes of each phase", card(*content), name="classes")


def _class_list(run: Run, name: str) -> Html:
    phases = range(len(run.info["phases"]))
    rows = [[str(phase), str(len(class_names(run, phase))), ", ".join(class_names(run, phase))] for phase in phases]
    sheet = Sheet("Classes of each phase", ["phase", "classes", "names"], rows, texts=(2,))
    return tag(
        "details", tag("summary", f"Order {run.protocol.get('order')}, as in {name}"), table(sheet, sortable=False)
    )


def _run_name(group: Group, run: Run, groups: list[Group]) -> str:
    place = f" of {group.protocol}" if several(groups) else ""
    return f"{group.label}, seed {run.seed}{place}"


def runs(groups: list[Group]) -> Html:
    """Configuration, fingerprint and phases of every run, folded."""
    entries = [_run(run, _run_name(group, run, groups), group.readout) for group in groups for run in group.runs]
    reading = "Each with its fingerprint, code, command, device, versions, configuration, and a table of its phases."
    return section("How each run was made", card(*entries), reading=reading, name="runs")


def _run(run: Run, name: str, readout: str | None) -> Html:
    state = "finished" if run.done else "not finished"
    return tag(
        "details",
        tag("summary", name),
        facts({"state": state, "fingerprint": run.fingerprint, "created": run.info.get("created"), "folder": run.path}),
        _labelled("code", code_of(run) or None),
        *(_labelled(fact, run.info.get(fact)) for fact in ("command", "device", "versions")),
        _labelled("configuration", run.info.get("config")),
        _labelled("settings in full", run.info.get("settings") or None),
        table(run_sheet(run, readout), sortable=False),
    )


def _labelled(name: str, value: Any) -> Html:
    if value is None:
        return Html("")
    return join(tag("h4", name.capitalize()), tag("pre", "\n".join(lines_of(value))))


def lines_of(value: Any, name: str = "") -> list[str]:
    """A nested value as lines such as `stage.lr: 0.1`; empty dictionaries are left out."""
    if isinstance(value, dict):
        return [line for key, item in value.items() for line in lines_of(item, f"{name}.{key}" if name else str(key))]
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return [f"{name}: {text}" if name else text]
