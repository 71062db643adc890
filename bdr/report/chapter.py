"""The plots of one protocol as a part of the page, with one legend for all of them."""

from __future__ import annotations

from collections.abc import Sequence

from bdr.report.groups import Group
from bdr.report.html import Html, join, tag
from bdr.report.parts import Part, parts_of
from bdr.report.plots import Plot, shown_groups
from bdr.report.style import key

FORMS = {"svg": "drawing", "csv": "data"}


def chapter(groups: Sequence[Group], points: int, place: str = "") -> Html:
    """All plots of groups that share one protocol; `place` is put before the names of the plot files."""
    shown = shown_groups(groups)
    made = [_part(part, place) for part in parts_of(shown, points) if part.plots or part.lost]
    return tag("div", legend(shown, len(groups)), *made, class_="chapter")


def legend(shown: Sequence[Group], count: int) -> Html:
    """The legend: one button per line, which hides or shows that line in all plots of the chapter."""
    buttons = [
        tag("li", tag("button", key(index), group.label, type="button", aria_pressed="true", data_series=str(index)))
        for index, group in enumerate(shown)
    ]
    told = f"Plots show {len(shown)} of {count} rows: the best of those without settings of their own."
    return join(tag("ul", *buttons, class_="legend"), tag("p", told, class_="soft") if count > len(shown) else "")


def _part(part: Part, place: str) -> Html:
    panels = tag(
        "div", *(figure(plot, place) for plot in part.plots), class_="panels small" if part.small else "panels"
    )
    lost = [tag("p", each, class_="soft") for each in part.lost]
    return join(tag("h3", part.heading), tag("p", part.reading, class_="soft"), panels, *lost)


def figure(plot: Plot, place: str = "") -> Html:
    """A plot under its title, or under the label of its only group, with buttons to save its drawing and its data."""
    caption = join(key(plot.whose[0]), plot.whose[1]) if plot.whose else plot.title
    return tag(
        "figure",
        tag("figcaption", caption),
        plot.svg,
        tag("div", *(_save(plot, form) for form in FORMS), class_="tools"),
        tag("template", plot.stored_csv),
        data_name=f"{place}{plot.name}",
    )


def _save(plot: Plot, form: str) -> Html:
    said = f"Save the {FORMS[form]} of {plot.title} as {form.upper()}"
    return tag("button", form.upper(), type="button", data_save=form, title=said, aria_label=said)
