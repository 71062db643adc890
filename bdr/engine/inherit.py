"""What a run takes over from others: a first phase that equal runs share, or all phases of the run that it extends."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from bdr.engine.checkpoint import State, read_state, write_state
from bdr.engine.learner import Learner
from bdr.errors import BdrError
from bdr.records import Run


def publish(folder: Path, state: State) -> None:
    """Write a trained first phase where equal runs will find it; if one is there already, that is kept."""
    try:
        write_state(folder, state)
    except BdrError:
        if not folder.is_dir():  # another run was quicker: its copy is as good
            raise


def published(folder: Path, note: Callable[[str], None]) -> State | None:
    """The first phase that an equal run has left in this folder, or None; a damaged one is deleted."""
    if not folder.is_dir():
        return None
    try:
        return read_state(folder)
    except BdrError as error:
        note(f"warning: {error}; training the first phase anew")
        shutil.rmtree(folder, ignore_errors=True)
        return None


class Earlier(NamedTuple):
    """A finished run that is to be extended, with its exemplars as rows of the images that the new run has."""

    run: Run
    state: State  # after its last phase
    exemplars: list[list[int]]  # rows, of each class

    def handed_over(self) -> State:
        """Its state, with the exemplars as these rows; it is given away, so that weights are not held twice."""
        tensors = dict(self.state.tensors)
        self.state.tensors.clear()
        return State(tensors, self.state.info | {"exemplars": self.exemplars})

    def renumber(self, learner: Learner) -> None:
        """Tell plug-ins that keep something per image which rows the exemplars have now."""
        both = self.state.info["exemplars"], self.exemplars
        rows = [torch.tensor([row for mine in each for row in mine], dtype=torch.long) for each in both]
        before, after = (each.to(learner.device) for each in rows)
        for plugin in learner.plugins:
            plugin.renumber(before, after, len(learner.train))
