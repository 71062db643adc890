"""What a run leaves in its folder and tells its listener: epochs, phases, notes, and why it failed."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from textwrap import shorten
from typing import Any

import torch
from torch import Tensor

from bdr.data.exemplars import checksums_of_classes, tell
from bdr.engine.analyse import Snapshots
from bdr.engine.checkpoint import save_model
from bdr.engine.evaluate import measure, predict
from bdr.engine.experiment import Experiment
from bdr.engine.fit import Fit
from bdr.engine.learner import Learner
from bdr.engine.listen import EpochLog, Listener
from bdr.errors import BdrError, Interrupted
from bdr.plugins.base import Plugin
from bdr.records import RunWriter
from bdr.records.models import model_folder
from bdr.records.steps import ANALYSED, CE_OLD
from bdr.types import Phase

LONGEST = 1000  # characters of a failure in the log


def read(told: Mapping[str, Mapping[str, Tensor]], device: torch.device) -> dict[str, dict[str, float]]:
    """Reports as plain numbers, empty ones left out; all of them are read from the device at once."""
    told = {name: reported(name, each) for name, each in told.items() if each}
    values = [value for each in told.values() for value in each.values()]
    on_device = [torch.as_tensor(value, dtype=torch.float64, device=device).reshape(1) for value in values]
    numbers = iter(torch.cat(on_device).tolist() if values else ())
    return {name: {key: next(numbers) for key in each} for name, each in told.items()}


def reported(name: str, told: object) -> Mapping[str, Tensor]:
    """The report of a method or a plug-in; checked, since a user's own code may be wrong."""
    if not isinstance(told, Mapping):
        raise BdrError(f"`report` of {name} must return numbers by name, and returned a {type(told).__name__}")
    for key, value in told.items():
        if (shape := tuple(torch.as_tensor(value).shape)) not in ((), (1,)):
            raise BdrError(f"`report` of {name} must return numbers, and '{key}' is {shape}: average it")
    return told


@dataclass
class Recording:
    """The records of a run under way."""

    writer: RunWriter
    listener: Listener
    experiment: Experiment

    @property
    def learner(self) -> Learner:
        return self.experiment.learner

    def note(self, text: str) -> None:
        self.writer.log(text)
        self.listener.note(text)

    @contextmanager
    def heard_warnings(self) -> Iterator[None]:
        """Inside, warnings of plug-ins and libraries go into the run's log and to the listener."""
        with warnings.catch_warnings():
            warnings.simplefilter("default", UserWarning)
            # The compiler advises less exact products for float32; how exact they are is what --precision says.
            warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores")
            warnings.showwarning = lambda message, *_, **__: self.note(f"warning: {message}")
            yield

    @contextmanager
    def logged_failure(self) -> Iterator[None]:
        """Inside, an error that ends the run goes into its log, for those who read only its folder; a stop does not."""
        try:
            yield
        except Interrupted:
            raise
        except Exception as error:
            with suppress(Exception):  # if the disk fails, logging fails too, and must not hide the error
                self.writer.log(shorten(f"failed: {type(error).__name__}: {error}", LONGEST, placeholder=" ..."))
            raise
        finally:
            self.writer.close()

    # Epochs

    def epoch(self, fit: Fit, number: int, log: EpochLog) -> None:
        """Record an epoch of stage `number` of its phase, and tell the listener."""
        objective, phase = fit.objective, fit.objective.phase
        self.means(fit, log, objective.plugins)
        if not phase.first:
            distillation = log.term(objective.method.distillation or "")
            self.writer.steps(phase.index, number, log.term(CE_OLD), distillation)
            if set(ANALYSED) <= set(log.names):
                self.writer.analysis(phase.index, *map(log.term, ANALYSED))
        self.listener.epoch_ends(phase, fit.stage, log)

    def told(self, phase: Phase, plugins: Sequence[Plugin]) -> dict[str, dict[str, float]]:
        """What plug-ins report of themselves now."""
        method, device = self.learner.method, self.learner.train.device
        return read({plugin.name: plugin.report(phase, method.net) for plugin in plugins}, device)

    def said(self, phase: Phase) -> dict[str, float]:
        """What the method reports of itself once a phase is over."""
        return read({"method": self.learner.method.report(phase)}, self.learner.train.device).get("method", {})

    def turn(self, fit: Fit, log: EpochLog, plugins: Sequence[Plugin]) -> None:
        """Record an epoch that alternates with a stage: without plug-ins, but it may change what the stage's report."""
        self.means(fit, log, plugins)
        self.listener.turn_ends(fit.objective.phase, fit.stage, log)

    def means(self, fit: Fit, log: EpochLog, plugins: Sequence[Plugin]) -> None:
        """Write a line with the mean of every term and the reports of these plug-ins."""
        phase = fit.objective.phase
        terms = {name: log.mean(name) for name in log.names if name not in ANALYSED}
        line = {"phase": phase.index, "stage": fit.stage.name, "epoch": log.epoch, "lr": log.rate, "loss": log.loss}
        weights = {name: weight for name, weight in log.weights.items() if weight != 1}
        speed = {"images_per_second": log.images / log.seconds, "seconds": log.seconds}
        state = self.told(phase, plugins)
        told = {name: each for name, each in (("weights", weights), ("plugins", state)) if each}
        self.writer.epoch(line | {"terms": terms} | told | speed)

    # Phases

    def measured(self, phase: Phase) -> dict[str, Any]:
        """Predict, store the predictions, and return what is measured at the end of a phase."""
        line: dict[str, Any] = {"phase": phase.index, "old": phase.old, "seen": phase.seen}
        boundaries = [(p.old, p.seen) for p in self.learner.phases[: phase.index + 1]]
        for split, store in {"test": self.experiment.test, "val": self.experiment.validation}.items():
            if store is not None:
                found = predict(self.learner.method, store, phase.seen)
                self.writer.predictions(phase.index, found.labels, found.readouts, split)
                measured = measure(found, phase, boundaries)
                line |= measured if split == "test" else {"val": measured["accuracy"]}
        return line

    def phase(self, phase: Phase, line: dict[str, Any], snapshots: Snapshots | None) -> None:
        """Write all records of a phase; its line comes last, for a phase that has one is complete."""
        memory, last = self.learner.memory, phase is self.learner.phases[-1]
        self.writer.memory(phase.index, dict(zip(self.experiment.classes, memory.exemplars, strict=False)))
        if last and self.experiment.keep != "none" and self.learner.method.extensible:
            self.writer.exemplars(phase.index, self.told_exemplars(phase))
        if snapshots is not None:
            self.writer.snapshots(phase.index, snapshots.arrays())
        if self.experiment.keep == "all" or (self.experiment.keep == "last" and last):
            save_model(model_folder(self.writer.path, phase.index), self.learner.method)
        self.writer.phase(line)

    def told_exemplars(self, phase: Phase) -> dict[str, Any]:
        """The exemplars, and checksums of test images, for an extension on a data set that has them in other rows."""
        names, kept = self.experiment.classes, tell(self.learner.train, self.learner.memory.exemplars)
        told = {name: [each._asdict() for each in mine] for name, mine in zip(names, kept, strict=False)}
        tests = dict(zip(names, checksums_of_classes(self.experiment.test, phase.seen), strict=False))
        return {"exemplars": told, "tests": tests}
