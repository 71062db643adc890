"""HTML in which escaping cannot be forgotten: text becomes HTML only through `tag` and `join`."""

from __future__ import annotations

from html import escape

from bdr.report.sheets import Sheet


class Html(str):
    """Text that is already HTML."""

    __slots__ = ()


VOID = {"meta", "link", "br", "hr", "wbr"}
SHAPES = {"path", "rect"}  # SVG elements that close themselves if they are empty: a plot has hundreds


def tag(name: str, /, *children: str, **attributes: str) -> Html:
    """An element. Children that are not Html are escaped; in names of attributes, `class_` is class and `_` is `-`."""
    named = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items()}
    opened = name + "".join(f' {key}="{escape(value)}"' for key, value in named.items())
    if name in SHAPES and not children:
        return Html(f"<{opened}/>")
    return Html(f"<{opened}>" if name in VOID else f"<{opened}>{join(*children)}</{name}>")


def join(*children: str) -> Html:
    """The children joined together, escaped unless they are Html."""
    return Html("".join(child if isinstance(child, Html) else escape(child) for child in children))


def listing(items: list[str], **attributes: str) -> Html:
    return tag("ul", *(tag("li", item) for item in items), **attributes)


def facts(pairs: dict[str, object]) -> Html:
    """Names and values, side by side where there is room."""
    return tag(
        "dl", *(tag("div", tag("dt", key), tag("dd", str(value))) for key, value in pairs.items()), class_="facts"
    )


def _cell(text: str) -> Html:
    """The content of a cell; the spread after a mean is set smaller, since it is the means that are compared."""
    value, sign, spread = text.partition(" ± ")
    return join(value, tag("small", f" ±\u2009{spread}")) if sign else join(text)


def breakable(name: str) -> Html:
    """A name that may break after a plus, but nowhere inside a word."""
    first, *others = name.split("+")
    return join(first, *(join("+", tag("wbr"), part) for part in others))


def table(sheet: Sheet, marks: list[Html] | None = None, sortable: bool = True) -> Html:
    """A table that scrolls by itself on a narrow screen; `marks` are put before the names in its first column."""
    head = tag("tr", *(_heading(name, column in sheet.texts, sortable) for column, name in enumerate(sheet.header)))
    keys = marks or [Html("")] * len(sheet.rows)
    rows = [_row(row, mark, sheet.texts) for row, mark in zip(sheet.rows, keys, strict=True)]
    body = tag("table", tag("thead", head), tag("tbody", *rows))
    return tag("div", body, class_="scroll", tabindex="0", role="region", aria_label=sheet.title)


def _kind(is_word: bool) -> dict[str, str]:
    return {"class_": "word"} if is_word else {}


def _heading(name: str, is_word: bool, sortable: bool) -> Html:
    if not sortable:
        return tag("th", name, scope="col", **_kind(is_word))
    return tag("th", tag("button", name, type="button"), scope="col", aria_sort="none", **_kind(is_word))


def _row(cells: list[str], mark: Html, texts: tuple[int, ...]) -> Html:
    first = tag("th", mark, breakable(cells[0]), scope="row", **_kind(0 in texts))
    others = (tag("td", _cell(cell), **_kind(column in texts)) for column, cell in enumerate(cells[1:], 1))
    return tag("tr", first, *others)
