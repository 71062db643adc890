"""Weights & Biases: online, or into the run's own folder if WANDB_MODE is offline."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence

import wandb

from bdr.errors import BdrError
from bdr.records import Run
from bdr.trackers.base import Tracker
from bdr.trackers.points import Point, hyperparameters, identity, name_of, tags

PROJECT = "WANDB_PROJECT"  # the environment variable of Weights & Biases
LONGEST = 64  # characters of a tag


def forget(run: Run) -> None:
    """Remove what was written offline before."""
    old = list((run.path / "wandb").glob(f"offline-run-*-{identity(run)}"))
    for folder in old:
        shutil.rmtree(folder)
    if old:
        time.sleep(1.0)  # folders are named by the second, and one that had this name would swallow the new one


class WeightsAndBiases(Tracker):
    """Online, the log goes on after the last step there; offline, it is written whole, in place of the old one."""

    def __init__(self, run: Run) -> None:
        online = wandb.setup().settings.mode in ("online", "shared")
        if online and not wandb.login(prompt=False):
            raise BdrError("nobody is logged in; type: wandb login, or set WANDB_MODE=offline")
        if not online:
            forget(run)
        self.run = wandb.init(
            project=os.environ.get(PROJECT) or "bdr",
            id=identity(run),
            name=name_of(run),
            group=run.title,
            tags=[text[:LONGEST] for text in (run.title, f"seed {run.seed}", run.fingerprint)],
            config=tags(run) | hyperparameters(run),
            dir=str(run.path),
            resume="allow" if online else None,
            settings=wandb.Settings(silent=True, console="off", save_code=False, disable_git=True),
        )
        self.first = self.run.step

    def add(self, points: Sequence[Point]) -> None:
        for step, values in points:
            if step >= self.first:
                self.run.log(values, step=step)

    def close(self, done: bool) -> None:
        self.run.finish(exit_code=0 if done else 1)
