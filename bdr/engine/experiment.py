"""What a run is made of: a learner, its test images, the run directory, and the phases that other runs have trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch

from bdr.data.store import Store
from bdr.engine.inherit import Earlier
from bdr.engine.learner import Learner
from bdr.engine.listen import Listener
from bdr.methods.base import Method
from bdr.types import Phase


class Company(NamedTuple):
    """What accompanies a run: a listener, a function that says whether to stop, and a trial before the first epoch."""

    listener: Listener
    stopping: Callable[[], bool]
    rehearse: Callable[[], None]


@dataclass(frozen=True)
class Experiment:
    """A learner that can be led through its phases, writing a run directory."""

    learner: Learner
    test: Store
    classes: Sequence[str]  # names, in order of arrival
    path: Path
    validation: Store | None = None
    keep: str = "last"
    analyse: bool = False
    checkpoint_every: float = 20.0  # seconds
    shared: Path | None = None  # where a first phase equal to this one's is, or will be, kept
    taken_over: int = 0  # the number of phases that were trained by the run that this one extends
    earlier: Earlier | None = None  # that run, if this one has yet to begin
    code: str = ""  # the version of the library's own source
    own_code: Mapping[str, str] = field(default_factory=dict)  # the user's own modules, with their versions

    @property
    def phases(self) -> Sequence[Phase]:
        return self.learner.phases

    @property
    def method(self) -> Method:
        return self.learner.method

    @property
    def device(self) -> torch.device:
        return self.learner.device
