"""How the page looks: one column, system fonts, light and dark."""

from __future__ import annotations

from bdr.report.plots import PALETTE

# the accents of the plots, lifted where the page is dark
DARK_PALETTE = ("#56b1ea", "#f58a4b", "#35c79b", "#dd8fbd", "#8ccbf2", "#e3b04b")

CSS = """
:root { color-scheme: light dark; --page: #fbfbfa; --card: #ffffff; --text: #1c1f24; --soft: #5b626d;
  --rule: #e3e5e8; --accent: #0072b2; LIGHT }
@media (prefers-color-scheme: dark) { :root { --page: #121519; --card: #1a1e24; --text: #e8eaed; --soft: #a2aab5;
  --rule: #2f353d; --accent: #56b1ea; DARK } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text);
  font: 17px/1.6 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 72rem; margin: 0 auto; padding: 2.5rem 1.25rem 5rem; }
h1 { font-size: clamp(1.8rem, 5vw, 2.6rem); line-height: 1.15; letter-spacing: -.02em; margin: 0 0 .4rem; }
h2 { font-size: 1.4rem; letter-spacing: -.01em; margin: 3.2rem 0 .5rem; }
h3 { font-size: 1rem; margin: 1.6rem 0 .4rem; }
p { margin: .3rem 0 1rem; max-width: 46rem; overflow-wrap: anywhere; }
.soft, .notes { color: var(--soft); }
.notes { font-size: .9rem; padding-left: 1.1rem; margin: .8rem 0 0; overflow-wrap: anywhere; }
a { color: var(--accent); }
a:focus-visible, summary:focus-visible, .scroll:focus-visible { outline: 3px solid var(--accent); outline-offset: 2px; }
.card { background: var(--card); border: 1px solid var(--rule); border-radius: 14px; padding: 1.1rem 1.2rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .95rem; }
th, td { padding: .5rem .45rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--rule); }
thead th { color: var(--soft); font-weight: 600; font-size: .82rem; vertical-align: bottom;
  white-space: normal; line-height: 1.3; }
td small { color: var(--soft); font-size: .8em; }
tbody tr:last-child > * { border-bottom: 0; }
th.word, td.word { text-align: left; }
td.word { white-space: normal; width: 100%; min-width: 12rem; overflow-wrap: anywhere; }
tbody th { font-weight: 600; white-space: normal; }
tbody th.word { min-width: 10.5rem; }
.facts { display: grid; grid-template-columns: repeat(auto-fill, minmax(11rem, 1fr)); gap: .9rem 1.5rem; margin: 0; }
.facts dt { color: var(--soft); font-size: .82rem; }
.facts dd { margin: 0; overflow-wrap: anywhere; }
.legend { display: flex; flex-wrap: wrap; gap: .3rem 1.3rem; list-style: none; margin: 0 0 .6rem; padding: 0; }
.swatch { display: inline-block; width: .8rem; height: .8rem; border-radius: 3px; margin-right: .5rem; }
figure { margin: 0; }
figure svg { display: block; width: 100%; height: auto; }
figcaption { font-size: .95rem; font-weight: 600; margin-bottom: .4rem; overflow-wrap: anywhere; }
.wide svg { max-width: 42rem; margin: 0 auto; }
.panels { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 18rem), 1fr)); gap: 1.4rem; }
.panels figure { max-width: 30rem; }
.panels.broad { grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); }
.panels.broad figure { max-width: none; }
details { border-top: 1px solid var(--rule); padding: .6rem 0; }
details:first-of-type { border-top: 0; }
summary { cursor: pointer; font-weight: 600; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; font-size: .85rem; margin: .4rem 0; }
@media (max-width: 34rem) { body { font-size: 16px; } .card { padding: .9rem .8rem; border-radius: 10px; } }
@media print { .card { break-inside: avoid; } }
"""


def _variables(colours: tuple[str, ...]) -> str:
    return " ".join(f"--series-{index}: {each};" for index, each in enumerate(colours))


def stylesheet() -> str:
    """The whole style sheet, with the accents as variables."""
    return CSS.replace("LIGHT", _variables(PALETTE)).replace("DARK", _variables(DARK_PALETTE)).strip()


def themed(svg: str) -> str:
    """A plot whose accents follow the page from light to dark."""
    for index, each in enumerate(PALETTE):
        svg = svg.replace(each, f"var(--series-{index})")
    return svg
