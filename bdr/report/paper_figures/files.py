"""A figure on disk: the picture in every format asked for, its numbers, its caption."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bdr.errors import UsageError, unknown
from bdr.records import write_atomically
from bdr.records.files import writing
from bdr.report.paper_figures.captions import caption
from bdr.report.paper_figures.drawing import Drawing, Row

FORMATS = ("pdf", "png", "svg")
OTHER_PICTURES = ("eps", "gif", "jpeg", "jpg", "ps", "tif", "tiff", "webp")
NO_DATE = {"pdf": {"CreationDate": None, "ModDate": None}, "svg": {"Date": None}, "png": {}}


def formats_of(text: str | None) -> tuple[str, ...]:
    """The formats named in a text such as `pdf,svg`; all of them if nothing was given."""
    if text is None:
        return FORMATS
    names = [part.strip().lower().removeprefix(".") for part in text.split(",") if part.strip()]
    if not names:
        raise UsageError(f"--format '{text}' names no format; there are {', '.join(FORMATS)}: for example pdf,png")
    for name in names:
        if name not in FORMATS:
            raise unknown("format", name, FORMATS)
    return tuple(dict.fromkeys(names))


def place_of(out: Path, name: str, formats: str | None) -> tuple[Path, tuple[str, ...]]:
    """Where the files go, without their ending, and in which formats: by default, the ending of `out` if it has one."""
    ending = out.suffix.lower().removeprefix(".")
    if out.is_dir() or ending not in (*FORMATS, *OTHER_PICTURES):
        if out.exists() and not out.is_dir():
            raise UsageError(f"{out} is a file and no picture: name a folder, or a file such as {out.stem}.pdf")
        return out / (f"figure-{name}" if name.isdigit() else name), formats_of(formats)
    chosen = formats_of(ending if formats is None else formats)
    if ending not in chosen:
        raise UsageError(
            f"--format {','.join(chosen)} and '{out}' do not agree: leave out one of them, or type --out "
            f"{out.with_suffix('.' + chosen[0])}"
        )
    return out.with_suffix(""), chosen


def write_drawing(name: str, drawing: Drawing, place: Path, formats: Sequence[str]) -> list[Path]:
    """Write every file of a figure and return their paths, pictures first."""
    with writing(place.parent):
        place.parent.mkdir(parents=True, exist_ok=True)
    contents: dict[str, bytes | str] = {f".{ending}": picture(drawing, ending) for ending in formats}
    contents[".csv"] = as_csv(drawing.rows)
    contents |= {f"-{what}.csv": as_csv(rows) for what, rows in drawing.further.items()}
    contents[".txt"] = caption(name, drawing)
    paths = {place.with_name(place.name + ending): content for ending, content in contents.items()}
    for path, content in paths.items():
        write_atomically(path, content)
    return list(paths)


def picture(drawing: Drawing, ending: str) -> bytes:
    buffer = io.BytesIO()
    metadata: dict[str, Any] = {"Title": drawing.about, **NO_DATE[ending]}
    drawing.figure.savefig(buffer, format=ending, metadata=metadata)
    return rounded(buffer.getvalue()) if ending == "svg" else buffer.getvalue()


def rounded(svg: bytes) -> bytes:
    """The SVG with shapes rounded to a hundredth of a point: nobody sees more, and the file is half as large."""

    def shorten(shape: re.Match[bytes]) -> bytes:
        return re.sub(rb"\d+\.\d+", lambda number: b"%g" % round(float(number[0]), 2), shape[0])

    return re.sub(rb' d="[^"]*"', shorten, svg)


def as_csv(rows: Sequence[Row]) -> str:
    """The rows as CSV, with numbers to six digits and empty cells for missing ones."""
    text = io.StringIO()
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _plain(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def _plain(value: Any) -> Any:
    if value is None or value != value:
        return ""
    return f"{value:.6g}" if isinstance(value, float) or type(value).__module__ == "numpy" else value
