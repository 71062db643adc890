"""The loss on old knowledge over the steps of a phase: which series the runs have, and by epoch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bdr.errors import UsageError
from bdr.metrics import first_stage, steps_per_epoch
from bdr.records import Run
from bdr.report.paper_figures.pairs import command_for

NAMES = {"distillation": "distillation loss", "ce_old": "cross-entropy of old classes"}
MOST_POINTS = 400  # of a curve: print shows no more


def incremental_phases(run: Run) -> list[int]:
    return [line["phase"] for line in run.phases if line["phase"] > 0]


def has_series(run: Run, name: str) -> bool:
    return any(np.isfinite(first_stage(run, phase, name)).any() for phase in incremental_phases(run))


def chosen_series(runs: Sequence[Run], figure: str) -> str:
    """The distillation term, as in the paper, if all runs have one; else the loss on old classes."""
    for name in NAMES:
        if all(has_series(run, name) for run in runs):
            return name
    lacking = next(run for run in runs if not has_series(run, "ce_old"))
    raise UsageError(
        f"figure {figure} needs the loss on old classes step by step, and {lacking.path} has none: it is recorded from "
        f"phase 1 on, for methods with exemplars; for example: {command_for(lacking, 'ucir+cwd+bdr')}"
    )


def series_note(runs: Sequence[Run], name: str) -> str:
    if name == "ce_old":
        return "The loss is the cross-entropy of the old-class images of a batch, without any offset of BDR."
    terms = ", ".join(dict.fromkeys(str(run.info.get("distillation")) for run in runs))
    return f"The loss is the distillation term ({terms}) without its weight, one value an iteration of the main stage."


def series_differs(name: str) -> list[str]:
    told = "The paper shows the distillation loss; not all of these methods have such a term."
    return [told] if name == "ce_old" else []


def by_epoch(run: Run, phase: int, name: str) -> np.ndarray:
    """(epochs, 3): mean, least and largest value of each epoch; a last one that was cut short is left out."""
    series, window = first_stage(run, phase, name), steps_per_epoch(run, phase)
    epochs = np.asarray(series[: len(series) // window * window], float).reshape(-1, window)
    epochs = epochs[np.isfinite(epochs).any(axis=1)]
    return np.stack([np.nanmean(epochs, axis=1), np.nanmin(epochs, axis=1), np.nanmax(epochs, axis=1)], axis=1)


def few_points(length: int) -> np.ndarray:
    """Places in a long series, ever further apart, as a logarithmic axis shows them."""
    return np.unique(np.geomspace(1, length, min(length, MOST_POINTS)).round().astype(int)) - 1
