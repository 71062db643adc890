"""The plots of a page as files of their own, for a paper, a README or a talk."""

from __future__ import annotations

import re
from pathlib import Path

from bdr.records import Run, write_atomically
from bdr.records.files import writing
from bdr.report.groups import Group, by_protocol, group_runs
from bdr.report.plots import accuracy_curve, accuracy_matrix, destruction_curve, has_series, shown_phases

INK, PAPER = "#1c1f24", "#ffffff"


def write_figures(runs: list[Run], folder: Path, readout: str | None = None) -> list[Path]:
    """SVG files on white: accuracy, one destruction curve a phase, and a matrix a method, of each protocol."""
    sharing = by_protocol(group_runs(runs, readout))
    figures: dict[str, str] = {}
    for groups in sharing:
        place = f"{file_name(groups[0].protocol)}-" if len(sharing) > 1 else ""
        figures |= {f"{place}{name}": svg for name, svg in figures_of(groups).items()}
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for name, svg in figures.items():
        write_atomically(folder / f"{name}.svg", on_paper(svg))
    return [folder / f"{name}.svg" for name in figures]


def figures_of(groups: list[Group]) -> dict[str, str]:
    figures = {"accuracy": accuracy_curve(groups)}
    for phase in shown_phases(groups):
        for name in ("ce_old", "distillation"):
            if has_series(groups, phase, name):
                figures[f"{name.replace('_', '-')}-phase-{phase:02d}"] = destruction_curve(groups, phase, name)
    return figures | {f"matrix-{number}": accuracy_matrix(group) for number, group in enumerate(groups)}


def file_name(protocol: str) -> str:
    """`cifar-100-b50-s10-20-class`"""
    return re.sub(r"[^a-z0-9.]+", "-", protocol.lower()).strip("-.")


def on_paper(svg: str) -> str:
    """A plot that stands alone has no page to take its colours from."""
    opening, rest = svg.split(">", 1)
    return f'{opening} style="color: {INK}">\n<rect width="100%" height="100%" fill="{PAPER}"/>{rest}'
