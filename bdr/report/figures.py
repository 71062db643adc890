"""The plots of a page as files of their own, for a paper, a README or a talk."""

from __future__ import annotations

from pathlib import Path

from bdr.records import Run, write_atomically
from bdr.records.files import writing
from bdr.report import plots
from bdr.report.groups import by_protocol, group_runs
from bdr.report.html import Html, tag
from bdr.report.parts import plots_of
from bdr.report.plots import Plot
from bdr.report.protocols import file_name
from bdr.report.style import plot_style

POINTS = 400  # points of a curve: a separate file has more room than a page


def write_figures(runs: list[Run], folder: Path, readout: str | None = None) -> list[Path]:
    """Write all plots of each protocol as SVG on white, each with its data as CSV beside it; return the files."""
    sharing = by_protocol(group_runs(runs, readout))
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    written = []
    for groups in sharing:
        place = f"{file_name(groups[0].protocol)}-" if len(sharing) > 1 else ""
        for plot in plots_of(plots.shown_groups(groups), POINTS):
            files = {"svg": on_paper(plot), "csv": plot.csv}
            for kind, content in files.items():
                write_atomically(folder / f"{place}{plot.name}.{kind}", content)
                written.append(folder / f"{place}{plot.name}.{kind}")
    return written


def on_paper(plot: Plot) -> str:
    """The plot as an SVG file that stands alone, with its size, its style sheet and a white background."""
    width, height = (f"{side:g}" for side in plot.size)
    below = tag("style", Html(plot_style())) + tag("rect", width=width, height=height, fill="#ffffff")
    svg = plot.svg.replace("</title>", f"</title>{below}", 1)
    return svg.replace("<svg ", f'<svg width="{width}" height="{height}" ', 1) + "\n"
