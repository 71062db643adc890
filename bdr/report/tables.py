"""Comparisons and single runs as sheets, and as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from bdr.errors import UsageError, shortened
from bdr.metrics import OverSeeds, over_seeds, summary
from bdr.records import Run
from bdr.records.files import plain
from bdr.report.conditions import as_facts, condition_notes
from bdr.report.groups import MOST_NAMED, Group, by_protocol, group_runs, protocol_notes
from bdr.report.pairing import paired_differences, references_of, together_notes, unpaired_notes
from bdr.report.protocols import cut_short
from bdr.report.readouts import readout_notes
from bdr.report.sheets import Sheet

COLUMNS = {
    "average": "average",
    "last": "last",
    "old": "old",
    "new": "new",
    "forgetting_max": "forgetting (max)",
    "destruction_peak": "destruction peak",
}
NOTHING = "–"  # noqa: RUF001


@dataclass(frozen=True)
class Comparison:
    """Groups side by side; differences are paired over common seeds, against one group of the same protocol."""

    groups: list[Group]
    values: list[dict[str, OverSeeds]]
    differences: list[dict[str, OverSeeds] | None]  # mean, standard error, n; None for the reference itself
    notes: list[str]
    references: list[Group | None]  # what each group is compared with; None where its protocol has no such row
    wanted: str | None = None  # the reference that was asked for; None stands for what each row is built on


def compare(runs: list[Run], readout: str | None = None, reference: str | None = None) -> Comparison:
    """Group the runs by method and put the groups side by side; `reference` is a label or a method."""
    if not runs:
        raise UsageError("there is no run to compare: name a folder that holds runs with at least one finished phase")
    groups = group_runs(runs, readout)
    bases = references_of(groups, reference)
    pairs = [
        None if base is None or base is group else paired_differences(group, base)
        for group, base in zip(groups, bases, strict=True)
    ]
    values = [over_seeds(group.summaries) for group in groups]
    paired = [] if reference else [*together_notes(groups, bases), *unpaired_notes(groups, bases)]
    notes = [*protocol_notes(groups, runs), *readout_notes(groups), *paired, *condition_notes(groups, bases)]
    return Comparison(groups, values, pairs, notes, bases, reference)


def number(value: float | None, digits: int = 2, sign: bool = False) -> str:
    """A number for a cell; a dash where there is none."""
    if value is None or not math.isfinite(value):
        return NOTHING
    return f"{value:{'+' if sign else ''}z.{digits}f}".replace("-", "−")  # noqa: RUF001


def counted(value: float | None) -> str:
    """A count for a cell, `11,220,132`; a dash where there is none."""
    return NOTHING if value is None else f"{value:,.0f}"


def with_spread(value: OverSeeds, sign: bool = False) -> str:
    """A mean with its spread, `68.37 ± 0.21`, or the number alone for one seed."""
    text = number(value.mean, sign=sign)
    return text if value.spread is None else f"{text} ± {number(value.spread)}"


def comparison_sheets(comparison: Comparison, title: str | None = "Comparison") -> list[Sheet]:
    """One table per protocol, one row per method: mean ± spread over seeds, and the paired difference of the average.

    A single table has the given title. Several tables, or one without a given title, are named after their protocols.
    The last table has the notes of all.
    """
    sharing = by_protocol(comparison.groups)
    titles = [groups[0].protocol for groups in sharing]
    if title is not None and len(sharing) == 1:
        titles = [", ".join([title, *cut_short(comparison.groups[0].runs[0].protocol)])]
    header = ["method", "seeds", "average", *(["gain"] if _has_gains(comparison) else []), *list(COLUMNS.values())[1:]]
    rows = {id(group): row for group, row in zip(comparison.groups, _rows(comparison), strict=True)}
    sheets = [
        Sheet(named, header, [rows[id(group)] for group in groups])
        for named, groups in zip(titles, sharing, strict=True)
    ]
    return [*sheets[:-1], replace(sheets[-1], notes=[*_reading(comparison), *comparison.notes])]


def _has_gains(comparison: Comparison) -> bool:
    return any(pairs is not None for pairs in comparison.differences)


def _rows(comparison: Comparison) -> Iterator[list[str]]:
    several = _has_gains(comparison)
    for group, values, pairs in zip(comparison.groups, comparison.values, comparison.differences, strict=True):
        cells = [with_spread(values[key]) for key in COLUMNS]
        gain = NOTHING if pairs is None else with_spread(pairs["average"], sign=True)
        yield [group.label, str(len(group.runs)), cells[0], *([gain] if several else []), *cells[1:]]


def _reading(comparison: Comparison) -> list[str]:
    notes = ["Accuracies in percent; mean ± sample standard deviation over seeds."]
    if _has_gains(comparison):
        notes.append(f"gain: difference in average to {_reference(comparison)}, ± its standard error.")
        notes.append(f"Gains are over the seeds that both have{_fewer_seeds(comparison)}.")
    return notes


def _fewer_seeds(comparison: Comparison) -> str:
    """`; of ucir+bdr, 1 of 3` for each gain that is over fewer seeds than its row has."""
    pairs = zip(comparison.groups, comparison.differences, strict=True)
    counts = [(group, gains["average"].n) for group, gains in pairs if gains]
    fewer = [f"of {group.label}, {n} of {len(group.runs)}" for group, n in counts if n < len(group.runs)]
    if len(fewer) >= MOST_NAMED:
        return f"; in {len(fewer)} rows these are fewer than the row's"
    return "".join(f"; {each}" for each in fewer)


def _reference(comparison: Comparison) -> str:
    several = len(by_protocol(comparison.groups)) > 1
    if comparison.wanted is None:
        pairs = zip(comparison.references, comparison.differences, strict=True)
        bases = [base.label for base, gains in pairs if base and gains]
        return bases[0] if len(comparison.groups) == 2 else "the same row without the last plug-in"
    lacking = f" ({NOTHING} in a table without it)" if None in comparison.references else ""
    return f"{comparison.wanted} of {'its table' if several else 'the same protocol'}{lacking}"


def seeds_sheets(comparison: Comparison) -> list[Sheet]:
    """One table per protocol, one row per run: the numbers behind the means."""
    return [
        Sheet(groups[0].protocol, ["method", "seed", *COLUMNS.values()], list(_seed_rows(groups)))
        for groups in by_protocol(comparison.groups)
    ]


def _seed_rows(groups: list[Group]) -> Iterator[list[str]]:
    for group in groups:
        for run, each in zip(group.runs, group.summaries, strict=True):
            yield [group.label, str(run.seed), *(number(each[key]) for key in COLUMNS)]


def class_names(run: Run, phase: int) -> list[str]:
    """Names of the classes that arrive in a phase."""
    old, seen = run.info["phases"][phase]
    return [str(name) for name in run.info["classes"][old:seen]]


def run_sheet(run: Run, readout: str | None = None) -> Sheet:
    """One run as a sheet, with one row per phase."""
    readout = readout or run.told_readout()
    rows = [_phase_row(run, line, readout) for line in run.phases]
    found = summary(run, readout)
    notes = [f"Average {number(found['average'])}, last {number(found['last'])}, phase 0 included."]
    notes += [] if run.done else [f"Not finished: {len(run.phases)} of {len(run.info['phases'])} phases."]
    notes += [f"Code {code_of(run)}."] if code_of(run) else []
    held = ["held out"] if has_validation(run) else []
    header = ["phase", "seen", "accuracy", *held, "top-5", "old", "new", "seconds", "parameters", "new classes"]
    return Sheet(f"{run.title}, seed {run.seed} ({readout})", header, rows, notes, texts=(len(header) - 1,))


def code_of(run: Run) -> str:
    """The version of the library's source: `1f0c..., from phase 2 on 9d3e...`; "" if the records do not state it."""
    since = [f"from phase {change['phase']} on {change['code']}" for change in run.info.get("code_since", [])]
    return ", ".join([str(run.info["code"]), *since]) if "code" in run.info else ""


def has_validation(run: Run) -> bool:
    return any(line.get("val") for line in run.phases)


def _phase_row(run: Run, line: dict[str, Any], readout: str) -> list[str]:
    held = ("val",) if has_validation(run) else ()
    parts = ("accuracy", *held, "top5", "accuracy_old", "accuracy_new")
    cells = [number((line.get(part) or {}).get(readout)) for part in parts]
    names = shortened(class_names(run, line["phase"]), 4)
    size = counted(line["parameters"])
    return [str(line["phase"]), str(line["seen"]), *cells, number(line.get("seconds"), 0), size, names]


def as_json(comparison: Comparison) -> dict[str, Any]:
    """All numbers of a comparison for a program, as strict JSON (null where there is none)."""
    places = range(len(comparison.groups))
    return {"groups": [_group_json(comparison, place) for place in places], "notes": comparison.notes}


def _group_json(comparison: Comparison, place: int) -> dict[str, Any]:
    group, reference, pairs = comparison.groups[place], comparison.references[place], comparison.differences[place]
    return {
        "method": group.name,
        "protocol": group.protocol,
        "readout": group.told_readout,
        "seeds": [run.seed for run in group.runs],
        "runs": [str(run.path) for run in group.runs],
        "conditions": as_facts(group),
        "values": _named(comparison.values[place], "spread"),
        "reference": None if reference is None else reference.name,
        "difference_to_reference": None if pairs is None else _named(pairs, "standard_error"),
        "per_seed": [plain(each) for each in group.summaries],
    }


def _named(values: dict[str, OverSeeds], second: str) -> dict[str, Any]:
    return {key: plain({"mean": each.mean, second: each.spread, "n": each.n}) for key, each in values.items()}
