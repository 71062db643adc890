"""Old classes on a plane: snapshots of their features, embedded together so that moments can be compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bdr.errors import BdrError, UsageError
from bdr.records import Run
from bdr.report.paper_figures import style
from bdr.report.paper_figures.drawing import Row
from bdr.report.paper_figures.retyping import analysed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PERPLEXITY, SEED = 30, 0
FEW_EXEMPLARS = 40  # in all: up to this number, large dots leave the small ones visible


def explained(background: int) -> str:
    return (
        f"t-SNE with a perplexity of {PERPLEXITY}, started from the principal components, seed {SEED}, of the features "
        "after their reduction to at most 50 dimensions by their principal components at the start of the phase; of "
        f"each class all exemplars and at most {background} further training images, chosen by chance. The peak is "
        "where the mean over a quarter of an epoch is highest, looked for after every quarter of the first epochs (in "
        "older records, the mean over an epoch)."
    )


@dataclass(frozen=True)
class Cloud:
    """One phase of one run on a plane: points (N, 2) for each moment, of the same images."""

    points: dict[str, np.ndarray]
    labels: np.ndarray
    exemplar: np.ndarray
    steps: dict[str, int]


def phases_with(run: Run, moments: Sequence[str]) -> list[int]:
    """The phases for which a run has snapshots at all these moments."""
    wanted = {f"{moment}_features" for moment in moments} | {"labels", "exemplar"}
    return [line["phase"] for line in run.phases if line["phase"] and wanted <= run.snapshots(line["phase"]).keys()]


def no_snapshots(figure: str, run: Run, phase: int | None = None) -> UsageError:
    where = "" if phase is None else f"phase {phase} of "
    return UsageError(
        f"figure {figure} needs snapshots at the start, the peak and the end of a phase, and {where}{run.path} has "
        f"none: make them with: {analysed(run)}"
    )


def embedded(run: Run, phase: int, moments: Sequence[str], background: int) -> Cloud:
    """One t-SNE for all moments of a phase, of the exemplars and at most `background` other images per class."""
    snapshot = run.snapshots(phase)
    rows = shown_rows(snapshot["labels"], snapshot["exemplar"], background)
    features = [np.asarray(snapshot[f"{moment}_features"][rows], np.float32) for moment in moments]
    if not all(np.isfinite(each).all() for each in features):
        raise BdrError(f"{run.path}: the snapshots of phase {phase} hold values that are no numbers")
    points = np.split(on_a_plane(np.concatenate(features)), len(moments))
    steps = {moment: int(snapshot.get(f"{moment}_step", 0)) for moment in moments}
    return Cloud(dict(zip(moments, points, strict=True)), snapshot["labels"][rows], snapshot["exemplar"][rows], steps)


def shown_rows(labels: np.ndarray, exemplar: np.ndarray, background: int) -> np.ndarray:
    """The rows of all exemplars, and of at most `background` other images of each class."""
    rng = np.random.default_rng(SEED)
    kept = [np.flatnonzero(exemplar)]
    for label in np.unique(labels):
        others = np.flatnonzero((labels == label) & ~exemplar)
        kept.append(rng.permutation(others)[:background])
    return np.sort(np.concatenate(kept))


def on_a_plane(features: np.ndarray) -> np.ndarray:
    """The features as points (N, 2), by t-SNE."""
    try:
        from sklearn.manifold import TSNE
    except ImportError as error:
        raise UsageError("t-SNE needs scikit-learn, which is not installed: pip install 'bdr[figures]'") from error
    perplexity = min(PERPLEXITY, (len(features) - 1) / 3)  # a larger one is not defined for so few images
    return TSNE(perplexity=perplexity, init="pca", random_state=SEED).fit_transform(features)


def class_colours(labels: Sequence[int]) -> dict[int, str]:
    ordered = sorted(set(map(int, labels)))
    return {label: style.CLASS_COLOURS[place % len(style.CLASS_COLOURS)] for place, label in enumerate(ordered)}


def scatter(axes: Axes, cloud: Cloud, moment: str, colours: dict[int, str], size: float = 1.0) -> None:
    """Draw all images as faint dots and the exemplars in front, smaller if they are many, so as to hide little."""
    points, shades = cloud.points[moment], np.array([colours[int(label)] for label in cloud.labels])
    back, front = ~cloud.exemplar, cloud.exemplar
    x, y = points.T
    axes.scatter(x[back], y[back], s=2.2 * size, c=shades[back], alpha=0.28, linewidths=0)
    large = size * min(1.0, FEW_EXEMPLARS / max(1, front.sum())) ** 0.5
    axes.scatter(x[front], y[front], s=8 * large, c=shades[front], edgecolors="white", linewidths=0.3 * large)
    axes.set_rasterization_zorder(2)  # draws the dots as one small picture
    style.bare(axes)


def fix_limits(cells: Sequence[Axes], cloud: Cloud) -> None:
    """Give the panels of all moments the same square of limits."""
    points = np.concatenate(list(cloud.points.values()))
    middle, reach = (points.max(axis=0) + points.min(axis=0)) / 2, 0.53 * np.ptp(points, axis=0).max()
    for axes in cells:
        axes.set_xlim(middle[0] - reach, middle[0] + reach)
        axes.set_ylim(middle[1] - reach, middle[1] + reach)
        axes.set_box_aspect(1)


def class_legend(figure: Figure, run: Run, colours: dict[int, str], columns: int) -> None:
    """Add a legend with the names of the classes below the figure."""
    from matplotlib.lines import Line2D

    dot: dict[str, Any] = {"linestyle": "", "marker": "o", "markeredgewidth": 0}
    handles = [Line2D([], [], color=shade, markersize=4, **dot) for shade in colours.values()]
    names = [str(run.info["classes"][label]).replace("_", " ") for label in colours]
    figure.legend(
        handles,
        names,
        loc="outside lower center",
        ncols=columns,
        fontsize=6.5,
        handletextpad=0.1,
        columnspacing=0.9,
    )


def rows_of(cloud: Cloud, run: Run) -> list[Row]:
    """One row per point."""
    names = run.info["classes"]
    return [
        {"moment": moment, "step": cloud.steps[moment], "class": names[int(label)], "exemplar": int(is_exemplar)}
        | {"x": float(x), "y": float(y)}
        for moment, points in cloud.points.items()
        for (x, y), label, is_exemplar in zip(points, cloud.labels, cloud.exemplar, strict=True)
    ]
