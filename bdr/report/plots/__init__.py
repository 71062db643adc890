"""Plots as SVG text and their data as CSV, drawn without a library: small, and in the colours of their page."""

from __future__ import annotations

from bdr.report.colours import PALETTE, SHADES
from bdr.report.plots.boxes import box_plot
from bdr.report.plots.choice import evenly, later_phases, short_names, shown_groups
from bdr.report.plots.classes import class_bars, last_per_class
from bdr.report.plots.curves import accuracy_curve, forgetting_curve, part_curve
from bdr.report.plots.destruction import destruction_curve, has_series
from bdr.report.plots.matrix import accuracy_matrix
from bdr.report.plots.over_time import offset_plot, ratio_plot
from bdr.report.plots.plot import Plot

__all__ = [
    "PALETTE",
    "SHADES",
    "Plot",
    "accuracy_curve",
    "accuracy_matrix",
    "box_plot",
    "class_bars",
    "destruction_curve",
    "evenly",
    "forgetting_curve",
    "has_series",
    "last_per_class",
    "later_phases",
    "offset_plot",
    "part_curve",
    "ratio_plot",
    "short_names",
    "shown_groups",
]
