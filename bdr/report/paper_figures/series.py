"""The loss on old knowledge over the steps of a phase: which series the runs have, and their values by epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bdr.errors import UsageError
from bdr.metrics import first_stage, steps_per_epoch
from bdr.records import Run
from bdr.report.paper_figures.drawing import Printed
from bdr.report.paper_figures.pairs import Pair, panel_titles, plain_name
from bdr.report.paper_figures.retyping import command_for

NAMES = {"distillation": "distillation loss", "ce_old": "cross-entropy of old classes"}
MOST_POINTS = 400  # points of a curve: print shows no more


def incremental_phases(run: Run) -> list[int]:
    return [line["phase"] for line in run.phases if line["phase"] > 0]


def has_series(run: Run, name: str) -> bool:
    return any(np.isfinite(first_stage(run, phase, name)).any() for phase in incremental_phases(run))


def chosen_series(runs: Sequence[Run], figure: str) -> str:
    """The distillation term, as in the paper, if all of a pair's runs have one; else the loss on old classes."""
    for name in NAMES:
        if all(has_series(run, name) for run in runs):
            return name
    lacking = next(run for run in runs if not has_series(run, "ce_old"))
    if lacking.steps_lost:
        raise UsageError(
            f"figure {figure} needs the loss on old classes step by step, and {lacking.path / 'steps.npz'} is damaged: "
            "put back a copy of the file, or leave the run out"
        )
    raise UsageError(
        f"figure {figure} needs the loss on old classes step by step, and {lacking.path} has none: it is recorded from "
        f"phase 1 on, for methods with exemplars; for example: {command_for(lacking, 'ucir+cwd+bdr')}"
    )


@dataclass(frozen=True)
class Panel:
    """A pair as it is drawn, with the title of its panel and the series of its loss."""

    pair: Pair
    title: str
    series: str

    @property
    def loss(self) -> str:
        return NAMES[self.series]

    @property
    def told(self) -> dict[str, str]:
        """The columns that every row of its numbers begins with."""
        return {"panel": self.title, "loss": self.series}


def panels_of(pairs: Sequence[Pair], figure: str, printed: Printed) -> list[Panel]:
    """One panel per pair, each with its own series: if one method lacks a term, the others still show it."""
    titles = panel_titles([pair.run for pair in pairs], printed)
    chosen = [chosen_series(pair.runs, figure) for pair in pairs]
    return [Panel(*each) for each in zip(pairs, titles, chosen, strict=True)]


def of_one_loss(panels: Sequence[Panel]) -> bool:
    return len({panel.series for panel in panels}) == 1


def loss_shown(panels: Sequence[Panel]) -> str:
    """What a caption calls the loss that the panels show."""
    if of_one_loss(panels):
        return panels[0].loss
    return f"{NAMES['distillation']} (the {NAMES['ce_old']} where a method has no such term)"


def series_notes(panels: Sequence[Panel], printed: Printed) -> list[str]:
    """Notes on what each loss is, and on which methods are not shown by the paper's loss."""
    runs = {name: [run for panel in panels if panel.series == name for run in panel.pair.runs] for name in NAMES}
    others = dict.fromkeys(plain_name(panel.pair.run, printed) for panel in panels if panel.series == "ce_old")
    shown = f"Shown by the {NAMES['ce_old']}, since there is no distillation term: {', '.join(others)}."
    return [*(series_note(mine, name) for name, mine in runs.items() if mine), *([shown] if others else [])]


def series_note(runs: Sequence[Run], name: str) -> str:
    if name == "ce_old":
        return f"The {NAMES[name]} is that of the old-class images of a batch, without any offset of BDR."
    terms = ", ".join(dict.fromkeys(str(run.info.get("distillation")) for run in runs))
    return f"The {NAMES[name]} is the method's own term ({terms}) without its weight, a value an iteration."


def series_differs(*names: str) -> list[str]:
    told = "The paper shows the distillation loss; not all of these methods have such a term."
    return [told] if "ce_old" in names else []


def by_epoch(run: Run, phase: int, name: str) -> np.ndarray:
    """(epochs, 3): mean, least and largest value of each epoch; an incomplete last epoch is left out."""
    series, window = first_stage(run, phase, name), steps_per_epoch(run, phase)
    epochs = np.asarray(series[: len(series) // window * window], float).reshape(-1, window)
    epochs = epochs[np.isfinite(epochs).any(axis=1)]
    return np.stack([np.nanmean(epochs, axis=1), np.nanmin(epochs, axis=1), np.nanmax(epochs, axis=1)], axis=1)


def few_points(length: int) -> np.ndarray:
    """Places in a long series, further and further apart, so that they are even on a logarithmic axis."""
    return np.unique(np.geomspace(1, length, min(length, MOST_POINTS)).round().astype(int)) - 1
