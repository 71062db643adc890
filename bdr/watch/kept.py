"""What is remembered of a run: its row, its curves and its numbers, but not the lines of its epochs or its steps."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from bdr.errors import BdrError
from bdr.metrics import Summarised, summary
from bdr.records import Run, open_for_report
from bdr.records.log import last_line
from bdr.records.reader import by_name
from bdr.report.protocols import protocol_titles
from bdr.watch.curves import destruction_curves, loss_curve, rounded
from bdr.watch.epochs import Progress, columns, progress_of
from bdr.watch.folders import Look, leads_outside
from bdr.watch.state import quiet_after, state_of

# What reading a file that bdr did not write may raise, besides the errors that the reader itself reports
STRANGE = (BdrError, OSError, KeyError, IndexError, TypeError, ValueError, AttributeError, ArithmeticError)


@dataclass(frozen=True, eq=False)
class LightRun(Run, Summarised):
    """A run without its series: its numbers were computed before these were dropped."""

    numbers: dict[str, Any] = field(default_factory=dict)

    def summary(self, readout: str) -> dict[str, Any]:
        return self.numbers


@dataclass(frozen=True)
class Facts:
    """What changes only when the files do."""

    title: str
    seed: int
    protocol: str
    settings: dict[str, str]  # those that it was given, by their dotted names
    created: str
    phases: int
    progress: Progress
    accuracies: list[list[float]]  # (classes seen, percent) after each phase
    average: float | None
    loss: float | None
    speed: float | None
    patience: float
    log: str


@dataclass
class Kept:
    """A run as it was last read; `trouble` says why `run` is None, or what of it cannot be read."""

    look: Look
    run: LightRun | None = None
    facts: Facts | None = None
    curves: dict[str, Any] = field(default_factory=dict)
    trouble: str = ""
    state: tuple[str, str] = ("", "")
    version: int = 0

    @property
    def id(self) -> str:
        return id_of(self.look.path)

    def refresh(self, now: float) -> bool:
        """Update the state, which may change as time passes even if no file does; return whether it has changed."""
        before, facts, run = self.state, self.facts, self.run
        if facts is None or run is None:
            self.state = "damaged", self.trouble
        else:
            begun = bool(self.curves["loss"]["epochs"])
            state, note = state_of(self.look, now, run.done, begun, facts.log, facts.patience)
            self.state = state, "; ".join(filter(None, (note, self.trouble)))
        return self.state != before

    def row(self) -> dict[str, Any]:
        """Everything that the table and the cards of the page show."""
        state, note = self.state
        place = str(self.look.path.relative_to(self.look.root))
        head = {"id": self.id, "version": self.version, "state": state, "note": note, "touched": self.look.touched}
        head["folder"] = self.look.path.name if place == "." else place
        if self.facts is None:
            return head
        facts = {key: value for key, value in vars(self.facts).items() if key not in ("progress", "patience", "log")}
        return head | facts | self.facts.progress._asdict()


@cache
def id_of(path: Path) -> str:
    """An id for addresses, so that none contains a path."""
    return hashlib.sha256(str(path).encode()).hexdigest()[:12]


def read(look: Look) -> Kept:
    """Read a run; what is wrong with it is not raised, but described in `trouble`."""
    outside = leads_outside(look)
    if outside is not None:
        return Kept(look, trouble=f"not read: {outside} leads out of {look.root}")
    try:
        return read_whole(look)
    except BdrError as error:
        return Kept(look, trouble=str(error))
    except STRANGE as error:
        return Kept(look, trouble=f"{look.path} does not read like a run ({type(error).__name__}: {error})")


def read_whole(look: Look) -> Kept:
    run, warnings = open_for_report(look.path, begun=True)
    epochs = columns(run.epochs)
    curves = {"loss": loss_curve(epochs), "destruction": destruction_curves(run, epochs)}
    numbers = summary(run, run.told_readout()) if run.phases else {}
    last = float(epochs.seconds[-1]) if len(epochs) and np.isfinite(epochs.seconds[-1]) else 0.0
    config = run.info.get("config") or {}
    facts = Facts(
        title=str(run.title),
        seed=run.seed,
        protocol=protocol_titles([run])[0],
        settings=settings_given(run),
        created=str(run.info.get("created") or ""),
        phases=len(run.info["phases"]),
        progress=progress_of(run, epochs),
        accuracies=[
            [line["seen"], round(value, 2)]
            for line, value in zip(run.phases, numbers.get("accuracies", []), strict=True)
        ],
        average=round(numbers["average"], 2) if numbers else None,
        loss=rounded(epochs.loss[-1:])[0] if len(epochs) else None,
        speed=rounded(epochs.images[-1:] / epochs.seconds[-1:])[0] if last > 0 else None,
        patience=quiet_after(bool(len(epochs)), last, float(config.get("checkpoint_every") or 0.0)),
        log="" if run.done else last_line(look.path / "log.txt"),
    )
    light = LightRun(run.path, run.info, run.phases, run.done, numbers, steps_lost=run.steps_lost)
    return Kept(look, light, facts, curves, "; ".join(warnings))


def settings_given(run: Run) -> dict[str, str]:
    given = (run.info.get("config") or {}).get("settings") or {}
    return {name: str(value) for name, value in by_name({**given, "stage": run.info.get("told_stage")}).items()}
