"""How the page looks: system fonts, light and dark; the colours of lines are the same in plots, tables and legends."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path

from bdr.report.colours import DARK_PAGE, DARK_PALETTE, LIGHT_PAGE, PALETTE, SHADES
from bdr.report.html import Html, tag
from bdr.report.plots.marks import DASHES, OUTLINES, SHAPES

ASSETS = Path(__file__).with_name("assets")


@cache
def asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def line_colours(colours: tuple[str, ...], place: str = "") -> str:
    return "\n".join(f"{place}.s{index} {{ color: {each}; }}" for index, each in enumerate(colours))


@cache
def plot_style() -> str:
    """The style sheet of plots on white: on the light page, and in files of their own."""
    heat = "\n".join(f".plot .h{index} {{ fill: {each}; }}" for index, each in enumerate(SHADES))
    return f"{asset('plot.css')}{heat}\n{line_colours(PALETTE)}\n"


def _variables(page: dict[str, str]) -> str:
    return " ".join(f"--{name}: {value};" for name, value in page.items())


def _dark(place: str) -> str:
    """The rules that differ in the dark, for a page that matches the selector `place`."""
    ink = f"{place} .plot {{ color: var(--text); }} {place} .plot .tick, {place} .plot .axis {{ fill: var(--soft); }}"
    paper = f"{place} .plot .dot, {place} .plot .peak {{ stroke: var(--card); }}"
    grid = f"{place} .plot .grid {{ stroke: var(--rule); }}"
    theme = f"{place} {{ color-scheme: dark; {_variables(DARK_PAGE)} }}"
    return "\n".join([theme, ink, paper, grid, line_colours(DARK_PALETTE, f"{place} ")])


@cache
def page_style() -> str:
    """The style sheet of the page, which is dark if the system or the reader wants it so."""
    light = f":root {{ color-scheme: light; {_variables(LIGHT_PAGE)} }}"
    by_system = f"@media (prefers-color-scheme: dark) {{\n{_dark(':root:not([data-theme=light])')}\n}}"
    return "\n".join([light, asset("page.css"), by_system, _dark(":root[data-theme=dark]")])


@cache
def head_style() -> Html:
    """Both style sheets, the only script, and a security policy that lets the page load nothing else."""
    script = asset("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return Html(
        tag("meta", http_equiv="Content-Security-Policy", content=policy)
        + tag("link", rel="icon", href="data:,")
        + tag("style", Html(plot_style()), id="plot-style")
        + tag("style", Html(page_style()))
        + tag("script", Html(script))
    )


def key(index: int) -> Html:
    """A group's line and marker as a small drawing, to be put before its name."""
    place = index % len(SHAPES)
    dashes = {"stroke_dasharray": DASHES[place]} if DASHES[place] else {}
    shapes = (
        tag("path", d="M1 7H29", class_="line", **dashes),
        tag("path", d=OUTLINES[SHAPES[place]], transform="translate(15 7)", class_="dot"),
    )
    return tag("svg", tag("g", *shapes, class_=f"s{place}"), class_="plot key", viewBox="0 0 30 14", aria_hidden="true")
