"""Speed and cost: how long a method takes, on which device, and how large its network gets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from bdr.records import Run
from bdr.report.groups import Group, by_protocol
from bdr.report.html import Html
from bdr.report.results import keyed_tables, section
from bdr.report.sheets import Sheet
from bdr.report.tables import NOTHING, counted, number

READING = (
    "Medians over the runs of a row: seconds of a phase after the first, with its evaluation; images a second in "
    "training; the whole run; parameters that are kept for inference at the end, and on average over phases. "
    "Compare times only on the same device, and where runs did not share it."
)
SIZES = ("parameters_final", "parameters_average")
HEADER = [
    *("method", "seconds a phase", "images a second", "minutes in all"),
    *("parameters", "on average", "device", "engine"),
]


def cost(groups: list[Group]) -> Html:
    """One table per protocol, with one row per method."""
    sheets = [
        Sheet("Speed and cost", HEADER, [_row(group) for group in each], texts=(0, 6, 7))
        for each in by_protocol(groups)
    ]
    return section("Speed and cost", keyed_tables(groups, sheets), reading=READING, name="cost")


def _row(group: Group) -> list[str]:
    runs = group.runs
    return [
        group.label,
        number(median(_seconds(run) for run in runs), 1),
        counted(median(images_per_second(run) for run in runs)),
        number(median(sum(line.get("seconds") or 0 for line in run.phases) / 60 for run in runs), 1),
        *(counted(median(each.get(name) for each in group.summaries)) for name in SIZES),
        _said(device_name(run) for run in runs),
        _said(str(run.info.get("engine") or NOTHING) for run in runs),
    ]


def median(values: Iterable[float | None]) -> float | None:
    """The median of the values that are not None; None if there are none."""
    found = [value for value in values if value is not None]
    return float(np.median(found)) if found else None


def _seconds(run: Run) -> float | None:
    return median(line.get("seconds") for line in run.phases if line["phase"] > 0)


def images_per_second(run: Run) -> float | None:
    """The median over epochs after the first phase, or else over all: a run's first epoch compiles and warms up."""
    later = [line.get("images_per_second") for line in run.epochs if line.get("phase")]
    return median(later or [line.get("images_per_second") for line in run.epochs])


def device_name(run: Run) -> str:
    device: Any = run.info.get("device")
    if isinstance(device, dict):
        return str(device.get("name") or device.get("type") or NOTHING)
    return str(device or NOTHING)


def _said(values: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(values))
