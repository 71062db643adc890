"""Reading run directories, finished or not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from bdr.errors import ALIKE, BdrError, UsageError, as_word, nearest, shortened
from bdr.records.command import typed_into
from bdr.records.files import damaged, ends_half_written, json_lines, json_object, load_npz, read_bytes
from bdr.records.folders import folders, is_begun, is_done, is_left_empty
from bdr.records.steps import ANALYSIS, STEPS

LEFT_EMPTY = "it is empty, left by a run that ended before its first record; begin that run anew, or remove the folder"
REQUIRED = {"title": str, "seed": int, "fingerprint": str, "protocol": dict, "classes": list, "phases": list}
OF_A_PHASE = {"phase": int, "old": int, "seen": int, "accuracy": dict, "parameters": int}
REPLACE = "put back a copy of it, or train the run again into another folder"  # what to do with a damaged record
EXEMPLARS = "exemplars.json"
LARGEST = 255  # how a probability of 1 is stored
LOOKED_INTO = 1000  # folders searched for runs inside one that is not a run, which may be full of other things
# Protocol facts that do not make results incomparable: a class order is a kind of seed, labels name the readout, and
# how a method trains is part of the method.
OF_A_METHOD = ("order", "readout", "epochs", "batch", "optimizer")
OF_A_FILE = ("weights", "sha256")  # settings of a network that name its file of weights and the checksum of that file


def phase_folder(path: Path, phase: int) -> Path:
    return path / f"phase-{phase:02d}"


def predictions_file(path: Path, phase: int, split: str) -> Path:
    return phase_folder(path, phase) / ("predictions.npz" if split == "test" else f"predictions-{split}.npz")


def exemplars_file(path: Path, phase: int) -> Path:
    return phase_folder(path, phase) / EXEMPLARS


def snapshots_file(path: Path, phase: int) -> Path:
    return phase_folder(path, phase) / "snapshots.npz"


def meant_instead(path: Path) -> str:
    """What to name instead of a folder that is not a run: a run inside it, or a run beside it with a similar name."""
    inside = [folder for folder, _, _ in islice(folders(path), LOOKED_INTO) if is_begun(folder)]
    if inside:
        return f"name one in it: {shortened(inside)}"
    beside = [place.name for place in path.parent.glob("*/") if is_begun(place)]
    near = nearest(path.name, beside, ALIKE)
    return f"did you mean {path.parent / near}?" if near else "name a folder that `bdr run` has written"


def train_anew(path: Path) -> str:
    """The advice to train again from the start; the folder must go first, because a new run is refused in it."""
    return f"train anew: remove or rename {path}, and type {typed_into(path, read_info(path))}"


def read_info(path: Path) -> dict[str, Any]:
    try:
        info = json_object(read_bytes(path / "run.json"), str(path / "run.json"))
    except BdrError as error:
        raise BdrError(f"{error}; {REPLACE}") from error
    wrong = [key for key, kind in REQUIRED.items() if not isinstance(info.get(key), kind)]
    if not info.keys() & REQUIRED.keys():
        raise BdrError(f"{path / 'run.json'} is damaged, or of another program: no usable {', '.join(wrong)}")
    if wrong:
        raise damaged(path / "run.json", f"no usable {', '.join(wrong)}")
    return info


def read_phases(path: Path) -> list[dict[str, Any]]:
    file = path / "phases.jsonl"
    try:
        lines = json_lines(file)
    except BdrError as error:
        raise BdrError(f"{error}; {REPLACE}") from error
    if not all(isinstance(line.get(key), kind) for line in lines for key, kind in OF_A_PHASE.items()):
        raise damaged(file, f"a line without a usable {', '.join(OF_A_PHASE)}")
    return lines


@dataclass(frozen=True, eq=False)
class Run:
    """What a run directory says, finished or not."""

    path: Path
    info: dict[str, Any]
    phases: list[dict[str, Any]]
    done: bool
    steps_lost: bool = field(default=False, kw_only=True)  # the steps are damaged and ignored
    computed: dict[str, Any] = field(default_factory=dict, init=False, repr=False)  # a cache, by name

    @classmethod
    def open(cls, path: Path) -> Run:
        """Read a run directory; large files are read only when they are needed."""
        path = Path(path)
        if not is_begun(path):
            raise UsageError(f"{path} is not a run: it has no run.json; {meant_instead(path)}")
        return cls(path, read_info(path), read_phases(path), is_done(path))

    @property
    def cut_short(self) -> bool:
        """Whether the run is marked as done although lines of phases.jsonl are missing."""
        return self.done and len(self.phases) < len(self.info["phases"])

    @property
    def torn(self) -> bool:
        """Whether phases.jsonl ends in half a line, which is skipped."""
        return ends_half_written(self.path / "phases.jsonl")

    @property
    def whole(self) -> bool:
        return self.done and not self.cut_short

    @cached_property
    def epochs(self) -> list[dict[str, Any]]:
        return json_lines(self.path / "epochs.jsonl")

    @property
    def title(self) -> str:
        return self.info["title"]

    @property
    def seed(self) -> int:
        return self.info["seed"]

    @property
    def fingerprint(self) -> str:
        return self.info["fingerprint"]

    @property
    def readout(self) -> str:
        """The readout by which the method's results are reported."""
        return str(self.protocol.get("readout") or "cnn")

    def told_readout(self, phase: int = 0) -> str:
        """The readout reported for a phase: the method's own if it was recorded, else "cnn", else the first."""
        there = [str(name) for name in self.phases[phase]["accuracy"]]
        return next((name for name in (self.readout, "cnn") if name in there), there[0])

    @property
    def last_accuracy(self) -> float | None:
        """Percent after the last phase so far, by `readout`; None before any phase, or if that was not recorded."""
        return self.phases[-1]["accuracy"].get(self.readout) if self.phases else None

    @property
    def protocol(self) -> dict[str, Any]:
        return self.info["protocol"]

    @property
    def normalisation(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """The mean and std by which the run's images are normalised."""
        if not self.info.get("mean") or not self.info.get("std"):
            raise damaged(self.path / "run.json", "it does not say what images are normalised with")
        return tuple(self.info["mean"]), tuple(self.info["std"])

    @cached_property
    def _step_rows(self) -> np.ndarray:
        return STEPS.unpack({}) if self.steps_lost else STEPS.read(self.path)

    @cached_property
    def _analysis_rows(self) -> np.ndarray:
        return ANALYSIS.read(self.path)

    def steps(self, phase: int) -> dict[str, np.ndarray]:
        """The series of a phase: stage, ce_old and distillation, one value for each step."""
        return STEPS.of_phase(self._step_rows, phase)

    def analysis(self, phase: int) -> dict[str, np.ndarray]:
        """gradient_old, gradient_new and ce_new for each step of a phase's first stage; {} if it was not analysed."""
        found = ANALYSIS.of_phase(self._analysis_rows, phase)
        return found if any(len(values) for values in found.values()) else {}

    def snapshots(self, phase: int) -> dict[str, np.ndarray]:
        """Features of some old classes at the start, the peak and the end of a phase; {} if none were stored."""
        path = snapshots_file(self.path, phase)
        return load_npz(path) if path.exists() else {}

    def exemplars(self, phase: int) -> dict[str, Any] | None:
        """What identifies the last phase's exemplars in a data set that has grown; None if it was not recorded."""
        path = exemplars_file(self.path, phase)
        return json_object(read_bytes(path), str(path)) if path.exists() else None

    def predictions(self, phase: int, split: str = "test") -> dict[str, np.ndarray]:
        """The predictions after a phase: labels, and per readout NAME_ids and NAME_probabilities (as float32 again)."""
        path = predictions_file(self.path, phase, split)
        if not path.exists():
            raise BdrError(f"{path} is missing: phase {phase} of {self.path} has no predictions for '{split}'")
        arrays = load_npz(path)
        stored = [key for key in arrays if key.endswith("_probabilities")]
        return arrays | {key: arrays[key].astype(np.float32) / LARGEST for key in stored}


def open_uncut(path: Path) -> Run:
    """Open a run; raise if it is done but has lost phases, because the facts about a model are in its phase's line."""
    run = Run.open(path)
    if run.cut_short:
        there = f"{len(run.phases)} of {len(run.info['phases'])} phases are there, and the run was done"
        raise damaged(run.path / "phases.jsonl", f"{there}; see what can be saved with: bdr resume {as_word(path)}")
    return run


def open_whole(path: Path, begun: bool = False) -> Run:
    """Open a run and read all that a report needs, so that damage is found now and not half-way through."""
    run = open_but_for_steps(path, begun)
    _ = run._step_rows
    return run


def open_but_for_steps(path: Path, begun: bool = False) -> Run:
    run = open_uncut(path)
    if not run.phases and not begun:
        raise BdrError(f"no finished phase yet; go on with: bdr resume {as_word(path)}")
    numbers = [line["phase"] for line in run.phases]
    if numbers != list(range(len(numbers))):
        found = f"the phases are {', '.join(map(str, numbers))} instead of 0 to {len(numbers) - 1}"
        raise damaged(path / "phases.jsonl", f"{found}; train it again into another folder")
    if any(line["seen"] > len(run.info["classes"]) for line in run.phases):
        raise damaged(path / "run.json", "a phase has seen more classes than there are")
    if not isinstance(run.info.get("distillation"), str | None):
        raise damaged(path / "run.json", "distillation is the name of a term, or null")
    if not _are_settings(run.info.get("settings", {})):
        raise damaged(path / "run.json", "settings are those of each part, by name")
    _ = run.epochs
    return run


def open_for_report(path: Path, begun: bool = False) -> tuple[Run, list[str]]:
    """Open a run and read all that a report needs, with warnings.

    If only its steps are damaged, the run is returned without them, and so without its destruction.
    """
    run = open_but_for_steps(path, begun)
    try:
        _ = run._step_rows
    except BdrError as error:
        warning = f"{error}; {path} is told without its destruction: put back a copy of the file"
        return replace(run, steps_lost=True), [warning]
    return run, []


def _are_settings(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(mine, dict) for mine in value.values())


def by_name(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of all parts in one mapping, by names such as `bdr.m`."""
    return {f"{owner}.{name}": value for owner, mine in settings.items() for name, value in (mine or {}).items()}


def find_runs(root: Path, begun: bool = False) -> tuple[list[Run], list[str]]:
    """All runs at or below a folder, and a warning for each that is skipped: damaged, empty or without a phase so far.

    A run of which only the steps are damaged is warned of but not skipped. With `begun`, runs without a phase so far
    are not skipped either.
    """
    if not Path(root).is_dir():
        raise UsageError(f"{root} is not a folder: name the folder that the runs are in")
    runs, warnings, empty = [], [], []
    for folder, names, is_run in folders(Path(root)):
        if not is_run:
            empty += [folder] * is_left_empty(folder, names)
            continue
        try:
            run, said = open_for_report(folder, begun)
            runs.append(run)
            warnings += said
        except (BdrError, OSError) as error:
            warnings.append(f"skipped {folder}: {error}")
    return runs, [*warnings, *(f"skipped {folder}: {LEFT_EMPTY}" for folder in empty)]


def differing(protocols: list[dict[str, Any]]) -> dict[str, list[Any]]:
    facts = list(dict.fromkeys(fact for protocol in protocols for fact in protocol))
    values = {fact: [protocol.get(fact) for protocol in protocols] for fact in facts}
    return {fact: each for fact, each in values.items() if any(value != each[0] for value in each)}


def differences(runs: list[Run]) -> dict[str, list[Any]]:
    """The protocol facts in which runs differ: fact -> its value for each run."""
    return differing([run.protocol for run in runs])
