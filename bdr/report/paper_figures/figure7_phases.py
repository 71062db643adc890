"""Figure 7: old classes on a plane in phase after phase, without and with BDR."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bdr.report.paper_figures import style
from bdr.report.paper_figures.captions import unlike
from bdr.report.paper_figures.drawing import Asked, Drawing, Row
from bdr.report.paper_figures.embedding import (
    Cloud,
    class_colours,
    class_legend,
    embedded,
    explained,
    fix_limits,
    no_snapshots,
    phases_with,
    rows_of,
    scatter,
)
from bdr.report.paper_figures.pairs import Pair, Side, name_of, pairs_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ABOUT = "t-SNE of old classes over the phases, at the peak and at the end, without and with BDR"
NEEDS = "runs without and with BDR, both with --analyse"
MOMENTS = ("peak", "end")
MOST_PHASES = 5
CELL = (style.PAGE - 0.3) / MOST_PHASES  # the side of a panel
BACKGROUND = 60  # images per class besides the exemplars: there are ten embeddings to make, and the panels are small


@dataclass(frozen=True)
class Scene:
    """All clouds of a pair, by side and phase."""

    pair: Pair
    phases: list[int]
    clouds: dict[tuple[int, int], Cloud]


def draw(asked: Asked) -> Drawing:
    pair, notes = chosen(asked)
    scene = embed_all(pair, shown_phases(pair), asked)
    figure = style.blank(0.3 + CELL * len(scene.phases), 0.5 + 4 * CELL)
    paint_all(figure.subplots(4, len(scene.phases), squeeze=False), scene)
    notes += name_classes(figure, scene)
    runs = [side.group.runs[0] for side in pair.sides()]
    return Drawing(
        figure,
        f"Embeddings of old classes in the incremental phases of {name_of(pair.run, asked.printed)}, "
        "without and with BDR: where destruction peaks, and at the end of the phase. Large dots are the exemplars, "
        "small ones other training images of these classes.",
        runs,
        all_rows(scene, asked),
        [f"A {explained(BACKGROUND)} There is one for each method and phase, shared by its two moments.", *notes],
        [
            *unlike(
                runs,
                "CwD on CIFAR-100, B = 50, S = 10",
                title=["ucir+cwd", "ucir+cwd+bdr"],
                data=["CIFAR-100"],
                base=[50],
                step=[10],
            ),
            "The paper does not say which classes it shows, nor what its rows are.",
        ],
    )


def chosen(asked: Asked) -> tuple[Pair, list[str]]:
    """The first pair of which both sides have snapshots in their first runs, and notes on what is not shown."""
    pairs, notes = pairs_of(asked.runs, "7")
    for pair in pairs:
        if all(phases_with(side.group.runs[0], MOMENTS) for side in pair.sides()):
            notes += (
                []
                if len(pairs) == 1
                else [f"Shown: {pair.method} ({pair.without.protocol}), the first of {len(pairs)}."]
            )
            seeds = len(pair.without.runs)
            return pair, [*notes, *([f"Shown is seed {pair.run.seed} of {seeds}."] if seeds > 1 else [])]
    runs = [side.group.runs[0] for side in pairs[0].sides()]
    raise no_snapshots("7", next(run for run in runs if not phases_with(run, MOMENTS)))


def shown_phases(pair: Pair) -> list[int]:
    """The phases for which both sides have snapshots; of many, five that are evenly spaced."""
    both = [phases_with(side.group.runs[0], MOMENTS) for side in pair.sides()]
    common = [phase for phase in both[0] if phase in both[1]]
    if not common:
        raise no_snapshots("7", pair.balanced.runs[0], both[0][0])
    places = np.unique(np.linspace(0, len(common) - 1, min(MOST_PHASES, len(common))).round().astype(int))
    return [common[place] for place in places]


def embed_all(pair: Pair, phases: list[int], asked: Asked) -> Scene:
    wanted = [(index, side, phase) for index, side in enumerate(pair.sides()) for phase in phases]
    clouds = {}
    for number, (index, side, phase) in enumerate(wanted, 1):
        asked.tell(f"t-SNE {number} of {len(wanted)}: phase {phase}, {side.label}")
        clouds[index, phase] = embedded(side.group.runs[0], phase, MOMENTS, BACKGROUND)
    return Scene(pair, phases, clouds)


def paint_all(cells: np.ndarray, scene: Scene) -> None:
    """Draw all clouds, without and with BDR below each other at the same moment, since these are compared."""
    for (side, phase), cloud in scene.clouds.items():
        column = scene.phases.index(phase)
        places = [cells[2 * row + side][column] for row in range(2)]
        for axes, moment in zip(places, MOMENTS, strict=True):
            scatter(axes, cloud, moment, class_colours(list(cloud.labels)), size=0.8)
        fix_limits(places, cloud)
    name_rows(cells, scene, scene.pair)


def name_rows(cells: np.ndarray, scene: Scene, pair: Pair) -> None:
    for axes, phase in zip(cells[0], scene.phases, strict=True):
        axes.set_title(f"phase {phase}", loc="center")
    sides: tuple[Side, ...] = pair.sides()
    for row, line in enumerate(cells):
        first: Axes = line[0]
        side, moment = sides[row % 2], MOMENTS[row // 2]
        first.set_ylabel(f"{moment}, {side.label}", color=side.colour, fontweight="bold", fontsize=7)


def name_classes(figure: Figure, scene: Scene) -> list[str]:
    """Add a legend if all phases show the same classes; else return a note, since colours differ between columns."""
    shown = {tuple(np.unique(cloud.labels)) for cloud in scene.clouds.values()}
    if len(shown) > 1:
        return ["A colour is one class within a phase, and another in the next; the table of numbers names them."]
    columns = 10 if len(scene.phases) > 2 else 5
    class_legend(figure, scene.pair.run, class_colours(list(shown.pop())), columns)
    return []


def all_rows(scene: Scene, asked: Asked) -> list[Row]:
    found = []
    for (index, phase), cloud in scene.clouds.items():
        run = scene.pair.sides()[index].group.runs[0]
        found += [{"method": name_of(run, asked.printed), "phase": phase, **row} for row in rows_of(cloud, run)]
    return found
