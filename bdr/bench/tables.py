"""Measurements as tables and as JSON: speeds, and the ratios that matter."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.table import Table

from bdr.bench.cases import Timing
from bdr.planning.describe import describe_device, versions
from bdr.records import write_atomically
from bdr.records.files import flows
from bdr.terminal import command_line, out, say, tell


@dataclass
class Measured:
    """The result of a benchmark: a title, the device it was measured on, and rows of named values."""

    title: str
    device: torch.device
    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)


def measured_table(measured: Measured) -> Table:
    table = Table(title=measured.title, title_justify="left")
    for name, value in measured.rows[0].items():
        table.add_column(name, justify="left" if isinstance(value, str) else "right")
    for row in measured.rows:
        table.add_row(*(in_words(value) for value in row.values()))
    return table


def show_measured(
    measured: Measured, file: Path | None, further: Sequence[Table] = (), beside: Mapping[str, Any] | None = None
) -> None:
    """Print the measurements and `further` tables; write the rows, with `beside`, to a file if one is given."""
    found = {"title": measured.title, "rows": measured.rows, **(beside or {})}
    show_tables([measured_table(measured), *further], file, found, measured.device)


def show_tables(tables: Sequence[Table], file: Path | None, found: dict[str, Any], device: torch.device) -> None:
    """Print tables, and write what was found to a file if one is given."""
    for table in tables:
        out.print(table)
    if file is not None:
        keep(file, found, device)
        (tell if flows(file) else say)(f"written: {file}")


def in_phase(timing: Timing) -> str:
    return f"{timing.phase} phase ({timing.number})" if timing.number else f"{timing.phase} phase"


def in_words(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if isinstance(value, int) or abs(value) >= 1000 else f"{value:.2f}"


def keep(file: Path, measured: dict[str, Any], device: torch.device) -> None:
    """Write numbers as JSON, with the command that measured them, the device and the versions."""
    about = {"command": command_line(), "device": describe_device(device), "versions": versions()}
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, json.dumps(measured | about, indent=2) + "\n")


def speed_table(timings: Sequence[Timing], peak: float | None, about: str) -> Table:
    """One row for each timing; the share is that of the bf16 peak measured on this device in the same run."""
    # Ten columns fit into eighty characters only without padding between them.
    table = Table(title=f"Training steps, {about}", title_justify="left", box=box.SIMPLE_HEAD, padding=0)
    said = ("case", "net", "batch", "engine", "phase")
    for name in (*said, "images/s", "ms/step", "first step s", "memory GiB", "of peak"):
        words = name in said and name != "batch"
        table.add_column(name, justify="left" if words else "right", min_width=0 if words else len(name.split()[0]))
    for each in timings:
        memory = "-" if each.memory_gib is None else f"{each.memory_gib:.2f}"
        share = f"{100 * each.teraflops / peak:.1f} %" if peak and each.teraflops else "-"
        numbers = f"{each.images_per_second:,.0f}", f"{each.ms_per_step:.3f}", f"{each.first_step_seconds:.1f}"
        table.add_row(each.case, each.net, str(each.batch), each.engine, each.phase, *numbers, memory, share)
    return table


def ratios(timings: Sequence[Timing], reference: str) -> dict[str, float]:
    """The factors between timings of one run: plug-ins over `reference`, engines over eager, ours over a plain loop.

    Only timings with the same network and batch size are compared.
    """
    speed = {(t.case, t.engine, t.phase, (t.net, t.batch)): t.images_per_second for t in timings}
    found: dict[str, float] = {}
    for (case, engine, phase, size), value in speed.items():
        plain = speed.get((reference, engine, phase, size))
        if plain and case != reference and engine != "plain":
            found[f"time of {case} over {reference}, {phase} phase, {engine}"] = plain / value
        eager = speed.get((case, "eager", phase, size))
        if eager and engine not in ("eager", "plain"):
            found[f"speed of {engine} over eager, {case}, {phase} phase"] = value / eager
        loop = speed.get(("a plain loop", "plain", phase, size))
        if loop and engine != "plain" and case == reference:
            found[f"speed of {engine} over a plain loop, {case}, {phase} phase"] = value / loop
    return found


def ratio_table(found: dict[str, float]) -> Table:
    table = Table(title="Ratios", title_justify="left", show_header=False)
    table.add_column("what")
    table.add_column("factor", justify="right")
    for name, value in found.items():
        table.add_row(name, f"{value:.3f}")
    return table
