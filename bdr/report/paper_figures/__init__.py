"""The figures of the BDR paper (arXiv 2308.01698), from run directories alone.

style      how they look
drawing    what is asked of a figure, and what it gives back
pairs      which runs are a method without and with BDR
retyping   what to type for a run that is missing
series     the loss on old knowledge, step by step
embedding  old classes on a plane
captions   what a figure shows, of which runs, and where it differs from the paper
files      pictures, numbers and caption on disk
figureN_*  one figure each; gradients has no counterpart in the paper

Figure 2 is a drawing of the method, and shows no data.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType

from bdr.errors import UsageError, as_word, unknown
from bdr.report.paper_figures.drawing import Anchor, Asked, Printed
from bdr.report.paper_figures.files import place_of, write_drawing
from bdr.report.paper_figures.style import styled

FIGURES = {
    "1": "figure1_destruction",
    "3": "figure3_boxes",
    "4": "figure4_curves",
    "5": "figure5_momenta",
    "6": "figure6_exemplars",
    "7": "figure7_phases",
    "gradients": "gradients",
}

__all__ = ["FIGURES", "Anchor", "Asked", "Printed", "contents", "write_figure"]


def module_of(name: str) -> ModuleType:
    """The module that draws a figure; each has ABOUT, NEEDS and draw."""
    if name == "2":
        raise UsageError(
            f"figure 2 of the paper is a drawing of the method, without data; there are {', '.join(FIGURES)}"
        )
    if name not in FIGURES:
        raise unknown("figure", name, FIGURES)
    return import_module(f"{__name__}.{FIGURES[name]}")


def contents() -> list[tuple[str, str, str]]:
    """For each figure, its name, what it shows and what it needs."""
    return [(name, module_of(name).ABOUT, module_of(name).NEEDS) for name in FIGURES]


def write_figure(name: str, asked: Asked, out: Path, formats: str | None = None) -> tuple[list[Path], list[str]]:
    """Draw a figure and write its pictures, numbers and caption; return the files and notes on what was left out."""
    module = module_of(name)
    place, chosen = place_of(out, name, formats)
    for run in asked.runs:
        if not run.phases:
            raise UsageError(
                f"{run.path} has no finished phase yet: leave it out, or go on with: bdr resume {as_word(run.path)}"
            )
    with styled():
        drawing = module.draw(asked)
        written = write_drawing(name, drawing, place, chosen)
    return written, [note for note in drawing.notes if note.startswith(("Left out", "Shown"))]
