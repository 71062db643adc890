"""Which plots a protocol gets, in which order, and how they are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from bdr.errors import BdrError
from bdr.report import plots
from bdr.report.groups import Group
from bdr.report.plots import Plot

READ_ACCURACY = (
    "After each phase the model is tested on every class it has seen so far. A line that stays high forgets little; "
    "the band is the standard deviation over seeds, and each thin line is one seed."
)
READ_CE_OLD = (
    "The cross-entropy of the old classes' samples while new classes are learned, as a one-epoch moving mean. "
    "It rises at first (destruction) and comes down again (reconstruction): a lower peak, less destroyed. "
    "The mark is the highest mean over a whole epoch, with its height above the first value; the pale beginning, "
    "within the first epoch, is the mean of the steps so far and is not searched."
)
READ_DISTILLATION = (
    "The method's own distillation term, unweighted, over the same steps and marked alike. "
    "Methods measure it in different ways: compare heights only where the term is the same."
)
READ_BOXES = (
    "In the boxes are all steps of a phase: the box is the middle half, the line in it the median, whiskers end within "
    "1.5 box heights, and dots are the lowest and the highest value."
)
READ_OFFSETS = (
    "The offsets are what the plug-in that sets the prior adds to the logits of old and of new classes in training, on "
    "average: BDR ln π, logit adjustment ln ψ, which post hoc is taken off the scores instead."
)
READ_RATIO = (
    "The ratio is the norm of the classification loss's gradient by new classes' samples over that by old ones', both "
    "averaged over an epoch: at 1 (dashed) both pull equally."
)
READ_MATRIX = (
    "A row is the state after a phase, a column the classes that came with a phase. "
    "Read a column downwards to see how one set of classes is forgotten."
)
READ_CLASSES = "In order of arrival; dotted lines part the phases."
MOST_PANELS = 4
MOST_RATIOS = 2


@dataclass(frozen=True)
class Part:
    """Plots that are read together."""

    heading: str
    reading: str
    plots: list[Plot]
    small: bool = False
    lost: list[str] = field(default_factory=list)  # what could not be drawn, and why


def parts_of(shown: Sequence[Group], points: int) -> Iterator[Part]:
    """All parts for groups of one protocol; a part may have no plots."""
    phases = plots.later_phases(shown)
    yield Part("Accuracy as classes arrive", READ_ACCURACY, _curves(shown, phases))
    yield from _losses(shown, phases, points)
    yield _balance(shown, phases, points)
    matrices = [plots.accuracy_matrix(group, index) for index, group in enumerate(shown)]
    yield Part("What is kept of each phase", READ_MATRIX, matrices, small=True)
    yield _classes(shown)


def plots_of(shown: Sequence[Group], points: int) -> list[Plot]:
    return [plot for part in parts_of(shown, points) for plot in part.plots]


def _curves(shown: Sequence[Group], phases: Sequence[int]) -> list[Plot]:
    later = [plots.forgetting_curve(shown), plots.part_curve(shown, "old"), plots.part_curve(shown, "new")]
    return [plots.accuracy_curve(shown), *(later if phases else [])]


def _losses(shown: Sequence[Group], phases: Sequence[int], points: int) -> Iterator[Part]:
    """The loss on old classes, then the distillation term; boxes show the distillation term if it was recorded."""
    told = {"ce_old": READ_CE_OLD, "distillation": f"{READ_DISTILLATION} {terms(shown)}"}
    headings = {"ce_old": "Destruction and reconstruction", "distillation": "The distillation term"}
    recorded = {name: [phase for phase in phases if plots.has_series(shown, phase, name)] for name in headings}
    boxed = "distillation" if recorded["distillation"] else "ce_old"
    for name, heading in headings.items():
        boxes = [plots.box_plot(shown, recorded[name], name)] if name == boxed and recorded[name] else []
        chosen = plots.evenly(recorded[name], MOST_PANELS - len(boxes))
        drawn = [plots.destruction_curve(shown, phase, name, points) for phase in chosen]
        yield Part(heading, f"{told[name]} {READ_BOXES}" if boxes else told[name], [*drawn, *boxes])


def _balance(shown: Sequence[Group], phases: Sequence[int], points: int) -> Part:
    """The offsets, if a plug-in recorded any, and the ratios of gradients, if a run was analysed."""
    offsets = plots.offset_plot(shown, points)
    ratios = [plot for phase in phases if (plot := plots.ratio_plot(shown, phase, points))]
    reading = [*([READ_OFFSETS] if offsets else []), *([READ_RATIO] if ratios else [])]
    drawn = [*([offsets] if offsets else []), *plots.evenly(ratios, MOST_RATIOS)]
    return Part("How classes are balanced" if offsets else "Who pulls harder", " ".join(reading), drawn)


def terms(groups: Sequence[Group]) -> str:
    """A sentence that says which term each method distils with."""
    named = {group.label: group.runs[0].info.get("distillation") or "none" for group in groups}
    if len(named) > 1 and len(set(named.values())) == 1:
        return f"Here: {named[groups[0].label]} in all of them."
    return "Here: " + "; ".join(f"{label}: {term}" for label, term in named.items()) + "."


def _classes(shown: Sequence[Group]) -> Part:
    drawn, lost = [], []
    for index, group in enumerate(shown):
        try:
            drawn.append(plots.class_bars(group, index))
        except BdrError as error:
            if error.exit_code != 1:
                raise
            lost.append(f"{group.label}: {error}")  # lost predictions should not cost the whole page
    return Part("Every class at the end", READ_CLASSES, drawn, lost=lost)
