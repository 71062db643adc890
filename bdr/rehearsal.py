"""A dry run of all that comes after training, on one batch, before the first epoch: hours must not end in a typo."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bdr import metrics
from bdr.engine.evaluate import Predictions, measure
from bdr.records import Run, RunWriter
from bdr.report import as_text, run_sheet
from bdr.types import Phase


def rehearse(info: dict[str, Any], phases: Sequence[Phase], found: Predictions) -> None:
    """Writes, measures and tabulates a run of all phases, made of one batch, in a folder that vanishes."""
    with tempfile.TemporaryDirectory() as folder:
        writer = RunWriter.create(Path(folder) / "run", info | {"command": "rehearsal", "created": ""})
        boundaries = [(p.old, p.seen) for p in phases]
        for phase in phases:
            guess = spread_over(found, phase.seen)
            writer.predictions(phase.index, guess.labels, guess.readouts)
            writer.steps(phase.index, 0, np.ones(4), np.ones(4))
            line = {"phase": phase.index, "old": phase.old, "seen": phase.seen, "parameters": 1, "steps_per_epoch": 2}
            writer.phase(line | measure(guess, phase, boundaries[: phase.index + 1]))
        writer.finish()
        run = Run.open(writer.path)
        metrics.summary(run)
        as_text(run_sheet(run))


def spread_over(found: Predictions, seen: int) -> Predictions:
    """The same predictions with labels of all seen classes, each at least once."""
    labels = np.arange(max(seen, len(found.labels))) % seen
    take = np.arange(len(labels)) % len(found.labels)
    return Predictions(labels, {name: (ids[take], chances[take]) for name, (ids, chances) in found.readouts.items()})
