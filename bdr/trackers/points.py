"""The numbers of a run directory as points on one axis: epochs trained so far, over all stages and phases."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bdr.metrics import average
from bdr.records import Run
from bdr.records.files import json_object
from bdr.records.work import MAIN

UNDRAWN = ("phase", "stage", "epoch", "weights")  # where an epoch is, and what does not change from one to the next


class Point(NamedTuple):
    step: int
    values: dict[str, float]


def flat(value: Any, name: str = "") -> dict[str, Any]:
    """Nested values by their paths: {"accuracy": {"cnn": 71.5}} becomes {"accuracy/cnn": 71.5}."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if items is None:
        return {name: value}
    below = [flat(inner, f"{name}/{key}" if name else str(key)) for key, inner in items]
    return {path: leaf for each in below for path, leaf in each.items()}


def numbers(line: dict[str, Any], prefix: str = "") -> dict[str, float]:
    found = flat(line, prefix)
    return {k: float(v) for k, v in found.items() if isinstance(v, int | float) and not isinstance(v, bool)}


def of_epoch(line: dict[str, Any]) -> dict[str, float]:
    """The numbers of an epoch, below the name of its stage, since stages differ in what their terms mean."""
    return numbers({k: v for k, v in line.items() if k not in UNDRAWN}, str(line.get("stage", MAIN)))


def of_phase(line: dict[str, Any]) -> dict[str, float]:
    """The numbers of a phase: accuracies and losses by their own names, single numbers below `phase`."""
    groups = {k: v for k, v in line.items() if isinstance(v, dict)}
    return numbers(groups) | numbers({k: v for k, v in line.items() if k not in (*groups, "phase")}, "phase")


class Unread:
    """Reads what a run has recorded since the last reading; whole lines only, as the run may be writing one."""

    def __init__(self, path: Path) -> None:
        self.path, self.read_to, self.step, self.phase = path, {"phases.jsonl": 0, "epochs.jsonl": 0}, 0, 0
        self.waiting: deque[dict[str, Any]] = deque()
        self.accuracies: dict[str, list[float]] = {}

    def points(self) -> Iterator[Point]:
        """New points in the order of their steps; the end of a phase has the step of its last epoch."""
        ended = self.lines("phases.jsonl")  # read first, since an ended phase has recorded all its epochs
        self.waiting.extend(self.lines("epochs.jsonl"))
        for line in ended:
            yield from self.epochs(line["phase"])
            self.phase = line["phase"] + 1
            yield Point(self.step, of_phase(line) | self.averages(line))
        yield from self.epochs(self.phase)

    def epochs(self, phase: int) -> Iterator[Point]:
        while self.waiting and self.waiting[0]["phase"] <= phase:
            self.step += 1
            yield Point(self.step, of_epoch(self.waiting.popleft()))

    def averages(self, line: dict[str, Any]) -> dict[str, float]:
        """The average incremental accuracy up to this phase, of every readout."""
        for name, value in line.get("accuracy", {}).items():
            self.accuracies.setdefault(name, []).append(value)
        return {f"average/{name}": float(average(values)) for name, values in self.accuracies.items()}

    def lines(self, name: str) -> list[dict[str, Any]]:
        file = self.path / name
        if not file.exists():
            return []
        with file.open("rb") as opened:
            opened.seek(self.read_to[name])
            content = opened.read()
        whole = content[: content.rfind(b"\n") + 1]
        self.read_to[name] += len(whole)
        return [json_object(line, str(file)) for line in whole.splitlines()]


def identity(run: Run) -> str:
    """An id that stays the same if a run goes on or is copied, and is another if it is begun anew."""
    made_of = [run.title, run.seed, run.fingerprint, run.info.get("created")]
    return hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:16]


def name_of(run: Run) -> str:
    return f"{run.title} seed {run.seed} {run.fingerprint}"


def tags(run: Run) -> dict[str, str]:
    return {"title": run.title, "seed": str(run.seed), "fingerprint": run.fingerprint}


def hyperparameters(run: Run) -> dict[str, Any]:
    """The configuration, nested names joined by dots, lists as text; settings without a value are left out."""
    return settings_in(run.info.get("config") or run.protocol)


def settings_in(fields: dict[str, Any], owner: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, dict):
            found |= settings_in(value, f"{owner}{name}.")
        elif value not in (None, []):
            found[f"{owner}{name}"] = json.dumps(value) if isinstance(value, list) else value
    return found
