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
    """Leaves a trained first phase where equal runs will find it; the first to come is kept."""
    try:
        write_state(folder, state)
    except BdrError:
        if not folder.is_dir():  # another run was quicker: its copy is as good
            raise


def published(folder: Path, note: Callable[[str], None]) -> State | None:
    """The first phase that lies there, if any; a damaged one is thrown away."""
    if not folder.is_dir():
        return None
    try:
        return read_state(folder)
    except BdrError as error:
        note(f"warning: {error}; training the first phase anew")
        shutil.rmtree(folder, ignore_errors=True)
        return None


class Earlier(NamedTuple):
    """A finished run that is extended, with its exemplars as rows of the images that are here now."""

    run: Run
    state: State  # after its last phase
    exemplars: list[list[int]]  # of each class

    def handed_over(self) -> State:
        """Its state as one of these images; weights are not held twice while a run goes on."""
        tensors = dict(self.state.tensors)
        self.state.tensors.clear()
        return State(tensors, self.state.info | {"exemplars": self.exemplars})

    def renumber(self, learner: Learner) -> None:
        """Tells plug-ins that remember single images which rows these are now."""
        both = self.state.info["exemplars"], self.exemplars
        rows = [torch.tensor([row for mine in each for row in mine], dtype=torch.long) for each in both]
        before, after = (each.to(learner.device) for each in rows)
        for plugin in learner.plugins:
            plugin.renumber(before, after, len(learner.train))
