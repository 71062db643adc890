"""How a figure looks: sized for print, without ornament, and with one colour for each thing in all figures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from bdr.errors import UsageError
from bdr.report.colours import LIGHT_PAGE, PALETTE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

Thing = TypeVar("Thing")
COLUMN, PAGE = 3.5, 7.16  # inches: the width of a column, and of a page with two columns
INK, SOFT = LIGHT_PAGE["text"], LIGHT_PAGE["soft"]
RULE, FAINT = "#c9ced6", "#eef0f3"  # in print, thin lines need more contrast than on the page, and grids less
WITHOUT, BALANCED = PALETTE[0], PALETTE[1]  # a method, and the same method with BDR, as on the page of `bdr report`
# Paul Tol's muted colours, for classes: distinct under the common forms of colour blindness, and not to be mistaken for
# one of the two above
CLASS_COLOURS = (
    *("#332288", "#88ccee", "#44aa99", "#117733", "#999933"),
    *("#ddcc77", "#cc6677", "#882255", "#aa4499", "#7f7f7f"),
)
LABELS = 0.5  # inches beside a panel for its numbers and the name of its axis
FEW_DECADES = 2.5  # on a logarithmic axis: with more, only powers of ten have room
LINE = 0.15  # inches that each further line of a title takes
POINTS = 72  # per inch
DPI = 220  # of PNG files, and of the dense parts of the others
STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same lines break in the same places everywhere
    "font.size": 7.5,
    "axes.titlesize": 8,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 7.5,
    "axes.titlepad": 4,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7.5,
    "legend.frameon": False,
    "legend.handlelength": 1.6,
    "legend.borderaxespad": 0.2,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.7,
    "lines.linewidth": 1.4,
    "lines.markersize": 4.5,
    "hatch.linewidth": 0.5,
    "xtick.major.size": 2,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "xtick.major.width": 0.6,
    "text.parse_math": False,
    "figure.dpi": DPI,
    "savefig.dpi": DPI,
    "pdf.fonttype": 42,  # TrueType, cut to the letters that occur: journals refuse Type 3
    "svg.fonttype": "path",  # letters as shapes, so that no font is missing where it is opened
    "svg.hashsalt": "bdr",  # the same runs give the same file
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.titlecolor"), INK),
    **dict.fromkeys(("xtick.color", "ytick.color", "axes.edgecolor"), SOFT),
    **dict.fromkeys(("xtick.labelcolor", "ytick.labelcolor"), INK),
}


@contextmanager
def styled() -> Iterator[None]:
    """Apply the style while a figure is drawn; without matplotlib, raise an error that says what to install."""
    try:
        import matplotlib
    except ImportError as error:
        raise UsageError("figures need matplotlib, which is not installed: pip install 'bdr[figures]'") from error
    style: Any = STYLE  # the type that matplotlib wants lists every setting that there is
    with matplotlib.rc_context(style):
        yield


def blank(width: float, height: float) -> Figure:
    """An empty figure of this size in inches, which finds its own margins."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def in_lines(panels: Sequence[Thing], columns: int) -> list[list[Thing | None]]:
    """The panels in lines of `columns`; None for the places that are left in the last line."""
    padded: list[Thing | None] = [*panels, *[None] * (-len(panels) % columns)]
    return [padded[place : place + columns] for place in range(0, len(padded), columns)]


def filled(cells: Any, lines: Sequence[Sequence[Thing | None]]) -> Iterator[tuple[Axes, Thing]]:
    """The axes and the thing to draw in them, one pair at a time; axes without anything to draw are hidden."""
    for axes, thing in zip(cells.flat, (thing for line in lines for thing in line), strict=True):
        axes.set_visible(thing is not None)
        if thing is not None:
            yield axes, thing


def wrapped(title: str, width: float) -> str:
    """A panel's title in lines that end before the next panel; `width` is in inches and includes the panel's labels."""
    lines: list[str] = []
    for part in title.split(", "):
        longer = f"{lines[-1]}, {part}" if lines else part
        lines = [*lines[:-1], longer] if not lines or inches(longer) <= width - LABELS else [*lines, part]
    return ",\n".join(lines)


def height_of(titles: Sequence[str], panel: float) -> float:
    """The height in inches of a panel with the tallest of these titles; `panel` is that with a title of one line."""
    return panel + LINE * max(title.count("\n") for title in titles)


def inches(title: str) -> float:
    """The length of a line of a panel's title, in inches."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    font = FontProperties(family=STYLE["font.family"], weight=STYLE["axes.titleweight"])
    return TextPath((0, 0), title, size=STYLE["axes.titlesize"], prop=font).get_extents().width / POINTS


def epochs_axis(axes: Axes, label: str = "epoch") -> None:
    """Make the axis of epochs logarithmic, with plain numbers: destruction is over after a few of many epochs."""
    axes.set_xscale("log")
    axes.set_xlabel(label)
    log_ticks(axes.xaxis, axes.get_xlim())


def log_ticks(axis: Axis, limits: tuple[float, float]) -> None:
    """Put plain numbers at powers of ten, and at 2 and 5 times these if the axis spans few of them."""
    from matplotlib.ticker import LogLocator

    decades = math.log10(limits[1] / limits[0])
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < FEW_DECADES else (1,)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter("")


def shared_legend(figure: Figure, axes: Axes, columns: int = 4) -> None:
    """Add one legend for all panels above them."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=columns, columnspacing=1.4)


def bare(axes: Axes) -> None:
    """Leave a panel its frame and nothing else: distances in a t-SNE have no unit."""
    axes.set(xticks=[], yticks=[])
    axes.grid(False)
    axes.spines[:].set(visible=True, color=RULE)
