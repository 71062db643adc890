"""The command `bdr bench growth`: the cost of a step in each phase of a growing method, and its extrapolation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.table import Table

from bdr.bench.cases import Settings, Shape, Timing, Told, random_images, time_case
from bdr.bench.tables import Measured, in_words, show_measured
from bdr.configuration.overrides import as_typed
from bdr.errors import UsageError
from bdr.planning.describe import describe_device

SETTLED = 2  # from this phase on, teachers have grown too: two branches, three experts
LEAST = SETTLED + 2  # the fewest phases to measure: a line needs two points
GROWING = ("ms/step", "memory GiB", "parameters")

ON_A_GPU = Shape(classes=10, base=10, step=10)
ON_A_CPU = Shape(classes=3, base=3, step=3, images=12, pixels=8, memory="3/class")


def bench_growth(what: str, phases: int, told: Told, settings: Settings = ()) -> Measured:
    """Measure every phase, one row each, on a fresh network that was brought there without training."""
    where, fields = told.where, told.fields(what)
    usual, steps = (ON_A_GPU, told.steps or 100) if where.type == "cuda" else (ON_A_CPU, told.steps or 3)
    shape = usual.seen(told.as_trained).up_to(phases - 1)
    data, measured = random_images(shape), Measured(title_of(what, fields, shape, where, settings), where)
    for number in range(phases):
        measured.add(row_of(time_case(what, number, shape, data, steps, fields, settings)))
    return measured


def check_phases(phases: int, extrapolate: int) -> None:
    if phases < LEAST:
        raise UsageError(f"--phases {phases}: a line through phases {SETTLED} and later needs {LEAST} phases or more")
    if extrapolate < phases:
        raise UsageError(f"--extrapolate {extrapolate}: {phases} phases are measured; give as many or more")


def title_of(what: str, fields: dict[str, Any], shape: Shape, device: torch.device, settings: Settings) -> str:
    what = " ".join([what, *(f"{name}={as_typed(value)}" for name, value in settings)])
    place = f"{describe_device(device)['name']}, {fields['engine']}"
    return f"A step of {what}, {fields['net']}, {shape.images_told}, phase by phase, {place}"


def row_of(timing: Timing) -> dict[str, Any]:
    speed = {"ms/step": timing.ms_per_step, "images/s": timing.images_per_second}
    size = {"parameters": timing.parameters, "memory GiB": timing.memory_gib}
    return {"phase": timing.number, "batch": timing.batch} | speed | size


@dataclass(frozen=True)
class Line:
    """A straight line through the measured phases, and its value in a phase that was not measured."""

    what: str
    at_zero: float
    slope: float  # per phase
    off_percent: float  # the largest deviation of a measured phase from the line
    last_over_first: float  # as measured
    extrapolated: float
    extrapolated_over_first: float


def line_through(what: str, values: Sequence[float], last: int) -> Line:
    """Fit a line to the values of phases 0, 1, ...; phases before SETTLED, not fully grown yet, are left out."""
    at, seen = np.arange(SETTLED, len(values)), np.array(values[SETTLED:])
    slope, start = (float(number) for number in np.polyfit(at, seen, 1))
    off = 100 * float((np.abs(seen - start - slope * at) / seen).max())
    ahead = start + slope * last
    return Line(what, start, slope, off, values[-1] / values[0], ahead, ahead / values[0])


def lines_of(measured: Measured, phases: int) -> list[Line]:
    """A line for each quantity that can grow, extrapolated to the last of so many phases."""
    known = [name for name in GROWING if measured.rows[0][name] is not None]
    return [line_through(name, [row[name] for row in measured.rows], phases - 1) for name in known]


def line_table(lines: Sequence[Line], measured: int, phases: int) -> Table:
    now, then = measured - 1, phases - 1
    title = f"Straight lines through phases {SETTLED} to {now}; phase {then} is extrapolated, not measured"
    table = Table(title=title, title_justify="left")
    for name in ("", f"{now} over 0", "a phase more", "furthest off", f"phase {then}", f"{then} over 0"):
        table.add_column(name, justify="right" if name else "left")
    for line in lines:
        off, values = f"{line.off_percent:.1f} %", (line.last_over_first, line.slope)
        ahead = line.extrapolated, line.extrapolated_over_first
        table.add_row(line.what, *map(in_words, values), off, *map(in_words, ahead))
    return table


def show_growth(measured: Measured, phases: int, file: Path | None) -> None:
    """Show what was measured and, in a table of its own, what was extrapolated; `file` takes both as JSON."""
    lines = lines_of(measured, phases)
    ahead = {"extrapolated_to_phase": phases - 1, "lines": [asdict(line) for line in lines]}
    show_measured(measured, file, [line_table(lines, len(measured.rows), phases)], ahead)
