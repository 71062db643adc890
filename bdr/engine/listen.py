"""Who wants to know how a run goes: a terminal, a log, nobody."""

from __future__ import annotations

from typing import Any

from bdr.engine.fit import EpochLog
from bdr.types import Phase, Stage


class Listener:
    """Hears of everything and does nothing; displays override what they show."""

    def run_begins(self, title: str, phases: list[Phase], place: str) -> None: ...

    def stage_begins(self, phase: Phase, number: int, stage: Stage, first_epoch: int) -> None: ...

    def epoch_ends(self, phase: Phase, stage: Stage, log: EpochLog) -> None: ...

    def phase_ends(self, line: dict[str, Any]) -> None: ...

    def note(self, text: str) -> None: ...

    def run_ends(self) -> None: ...
