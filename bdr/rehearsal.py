"""A dry run of all that comes after training, on one batch, before the first epoch: hours must not end in a typo."""

from __future__ import annotations

import copy
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bdr import metrics
from bdr.data.pool import Pool
from bdr.engine.evaluate import Predictions, measure
from bdr.engine.learner import Learner
from bdr.errors import BdrError
from bdr.losses import cross_entropy
from bdr.plugins import Plugin, compose
from bdr.records import Run, RunWriter
from bdr.report import as_text, run_sheet
from bdr.types import Outputs, Phase, Stage

FEW = 2  # images of each class


def rehearse(info: dict[str, Any], learner: Learner, found: Predictions) -> None:
    """Whatever training comes to later, or will be followed by."""
    rehearse_losses(learner)
    rehearse_records(info, learner.phases, found)


def rehearse_records(info: dict[str, Any], phases: Sequence[Phase], found: Predictions) -> None:
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


def rehearse_losses(learner: Learner) -> None:
    """The loss that plug-ins of one's own make later, where they rest in the first phase: a copy shows its shape."""
    every = [(phase, stage) for phase, stages in zip(learner.phases, learner.stages, strict=True) for stage in stages]
    for plugin in learner.plugins:
        where = next((place for place in every if plugin.acts(*place)), every[0])
        if where[0].first or type(plugin).__module__.startswith("bdr."):
            continue  # its first step says so, or our tests do
        try:
            with warnings.catch_warnings(action="ignore"), torch.no_grad():
                classify_once(plugin, learner, *where)
        except BdrError:
            raise
        except Exception:  # a few images, and a network that knows less classes: what it misses there proves nothing
            continue


def classify_once(plugin: Plugin, learner: Learner, phase: Phase, stage: Stage) -> None:
    pool = few_images(learner, phase)
    plugin, net = copy.deepcopy((plugin, learner.method.net))
    plugin.begin(phase, pool.census(stage.draw, 0), net)
    labels = learner.train.labels[pool.rows]
    logits = torch.zeros(len(labels), phase.seen, device=learner.device)
    compose(cross_entropy, [plugin])(Outputs(logits, logits), labels)


def few_images(learner: Learner, phase: Phase) -> Pool:
    each = [learner.train.of_classes(label, label + 1)[:FEW] for label in range(phase.seen)]
    exemplars = torch.cat([*each[: phase.old], each[0][:0]])
    return Pool(learner.train, phase, torch.cat(each[phase.old :]), exemplars, learner.seed)
