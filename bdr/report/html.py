"""HTML that cannot forget to escape: text becomes HTML only through `tag`."""

from __future__ import annotations

from html import escape

from bdr.report.sheets import Sheet


class Html(str):
    """Text that is already HTML."""

    __slots__ = ()


VOID = {"meta", "link", "br", "hr"}


def tag(name: str, /, *children: str, **attributes: str) -> Html:
    """An element; children that are not Html are escaped; `class_` stands for class, `_` for `-`."""
    named = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items()}
    opened = name + "".join(f' {key}="{escape(value)}"' for key, value in named.items())
    return Html(f"<{opened}>" if name in VOID else f"<{opened}>{join(*children)}</{name}>")


def join(*children: str) -> Html:
    """Children one after the other, escaped where they are not Html."""
    return Html("".join(child if isinstance(child, Html) else escape(child) for child in children))


def listing(items: list[str], **attributes: str) -> Html:
    return tag("ul", *(tag("li", item) for item in items), **attributes)


def facts(pairs: dict[str, object]) -> Html:
    """Names and values, side by side where there is room."""
    return tag(
        "dl", *(tag("div", tag("dt", key), tag("dd", str(value))) for key, value in pairs.items()), class_="facts"
    )


def _cell(text: str) -> Html:
    """A cell; the spread after a mean is set smaller, since the mean is what is compared."""
    value, sign, spread = text.partition(" ± ")
    return join(value, tag("small", f" ±\u2009{spread}")) if sign else join(text)


def table(sheet: Sheet, marks: list[Html] | None = None) -> Html:
    """A table that scrolls by itself on a narrow screen; marks stand before the names in its first column."""
    words = ["word" if column in sheet.texts else "" for column in range(len(sheet.header))]
    head = tag(
        "tr", *(tag("th", name, scope="col", class_=kind) for name, kind in zip(sheet.header, words, strict=True))
    )
    rows = []
    for number, row in enumerate(sheet.rows):
        mark = marks[number] if marks else Html("")
        first = tag("th", mark, row[0], scope="row", class_=words[0])
        rows.append(
            tag(
                "tr",
                first,
                *(tag("td", _cell(cell), class_=kind) for cell, kind in zip(row[1:], words[1:], strict=True)),
            )
        )
    body = tag("table", tag("thead", head), tag("tbody", *rows))
    return tag("div", body, class_="scroll", tabindex="0", role="region", aria_label=sheet.title)
