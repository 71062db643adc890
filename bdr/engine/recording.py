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

LONGEST = 1000  # letters of a failure in the log


def read(told: Mapping[str, Mapping[str, Tensor]], device: torch.device) -> dict[str, dict[str, float]]:
    """What plug-ins report of themselves, those with nothing left out; the device is asked once for all of it."""
    told = {name: reported(name, each) for name, each in told.items() if each}
    values = [value for each in told.values() for value in each.values()]
    on_device = [torch.as_tensor(value, dtype=torch.float64, device=device).reshape(1) for value in values]
    numbers = iter(torch.cat(on_device).tolist() if values else ())
    return {name: {key: next(numbers) for key in each} for name, each in told.items()}


def reported(name: str, told: object) -> Mapping[str, Tensor]:
    """What a method or a plug-in says of itself; one's own may slip."""
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
        """Warnings of plug-ins and libraries go into the run's log and to the listener."""
        with warnings.catch_warnings():
            warnings.simplefilter("default", UserWarning)
            # The compiler advises less exact products for float32; how exact they are is what --precision says.
            warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores")
            warnings.showwarning = lambda message, *_, **__: self.note(f"warning: {message}")
            yield

    @contextmanager
    def logged_failure(self) -> Iterator[None]:
        """What ends a run, other than a wish, goes into its log: those who read its folder alone should know."""
        try:
            yield
        except Interrupted:
            raise
        except Exception as error:
            with suppress(Exception):  # a disk that fails is the error rather than a reason to hide it
                self.writer.log(shorten(f"failed: {type(error).__name__}: {error}", LONGEST, placeholder=" ..."))
            raise
        finally:
            self.writer.close()

    # Epochs

    def epoch(self, fit: Fit, number: int, log: EpochLog) -> None:
        """Of the stage of that number in its phase."""
        objective, phase = fit.objective, fit.objective.phase
        self.means(fit, log, objective.plugins)
        if not phase.first:
            distillation = log.term(objective.method.distillation or "")
            self.writer.steps(phase.index, number, log.term(CE_OLD), distillation)
            if set(ANALYSED) <= set(log.names):
                self.writer.analysis(phase.index, *map(log.term, ANALYSED))
        self.listener.epoch_ends(phase, fit.stage, log)

    def told(self, phase: Phase, plugins: Sequence[Plugin]) -> dict[str, dict[str, float]]:
        """What plug-ins have to report of themselves as they stand."""
        method, device = self.learner.method, self.learner.train.device
        return read({plugin.name: plugin.report(phase, method.net) for plugin in plugins}, device)

    def said(self, phase: Phase) -> dict[str, float]:
        """What the method has to report of itself once a phase is over."""
        return read({"method": self.learner.method.report(phase)}, self.learner.train.device).get("method", {})

    def turn(self, fit: Fit, log: EpochLog, plugins: Sequence[Plugin]) -> None:
        """Of what alternates with a stage: no plug-in takes part; what those of the stage are may have changed."""
        self.means(fit, log, plugins)
        self.listener.turn_ends(fit.objective.phase, fit.stage, log)

    def means(self, fit: Fit, log: EpochLog, plugins: Sequence[Plugin]) -> None:
        """A line of every term's mean, and of what these plug-ins have to report."""
        phase = fit.objective.phase
        terms = {name: log.mean(name) for name in log.names if name not in ANALYSED}
        line = {"phase": phase.index, "stage": fit.stage.name, "epoch": log.epoch, "lr": log.rate, "loss": log.loss}
        speed = {"images_per_second": log.images / log.seconds, "seconds": log.seconds}
        state = self.told(phase, plugins)
        self.writer.epoch(line | {"terms": terms} | ({"plugins": state} if state else {}) | speed)

    # Phases

    def measured(self, phase: Phase) -> dict[str, Any]:
        """Predicts, stores the predictions, and measures what is said of a phase at once."""
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
        """All that a phase leaves; its line comes last, for a phase that has one is whole."""
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
        """For whoever extends this run on a data set whose rows are others."""
        names, kept = self.experiment.classes, tell(self.learner.train, self.learner.memory.exemplars)
        told = {name: [each._asdict() for each in mine] for name, mine in zip(names, kept, strict=False)}
        tests = dict(zip(names, checksums_of_classes(self.experiment.test, phase.seen), strict=False))
        return {"exemplars": told, "tests": tests}
