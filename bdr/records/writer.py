"""Writing a run directory."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from bdr.errors import BdrError
from bdr.records.code import begun_with, other_code, other_library, with_code
from bdr.records.files import json_lines, now, plain, read_bytes, to_json, to_npz, write_atomically, writing
from bdr.records.folders import GROWING, LINES, is_done
from bdr.records.lock import Lock
from bdr.records.place import refuse_others
from bdr.records.reader import (
    EXEMPLARS,
    LARGEST,
    Run,
    exemplars_file,
    phase_folder,
    predictions_file,
    read_info,
    snapshots_file,
    train_anew,
)
from bdr.records.steps import ANALYSIS, EVERY_SERIES, STEPS, Series

DIGITS = 7  # significant digits in epochs.jsonl: as many as float32 has; seventeen would be megabytes of noise


def _smallest(ids: np.ndarray) -> np.ndarray:
    """Class ids as uint8 while they fit, else as uint16 (or wider)."""
    return ids.astype(np.min_scalar_type(int(ids.max(initial=0))))


def _rounded(value: Any) -> Any:
    """The value with its floats rounded to the digits that mean something."""
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


class RunWriter:
    """Writes a run directory; every failure of the disk is a BdrError that names the file."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.lock: Lock | None = None
        self.made: list[Path] = []  # folders that were not there before this run

    @classmethod
    def alone(cls, path: Path) -> RunWriter:
        """A writer that is the only one until it is closed; raises if another process trains in the folder."""
        writer = cls(path)
        writer.lock = Lock(writer.path)
        return writer

    @classmethod
    def create(cls, path: Path, info: dict[str, Any]) -> RunWriter:
        """Begin a run in a new folder, or the same run anew in its own; raises for any other folder."""
        path = Path(path)
        refuse_others(path, info)
        made = [folder for folder in (path, *path.parents) if not folder.exists()]
        with writing(path):
            path.mkdir(parents=True, exist_ok=True)
        writer = cls.alone(path)
        writer.made = made
        with writer.closed_on_failure():
            write_atomically(path / "run.json", to_json(info, indent=2))
            writer.cut_back({})
        return writer

    @contextmanager
    def withdrawn_on_failure(self) -> Iterator[None]:
        """Remove what was written if the block raises: nothing has been trained by then, so nothing is lost."""
        try:
            yield
        except BaseException:
            with suppress(OSError):
                for name in ("run.json", "log.txt"):
                    (self.path / name).unlink(missing_ok=True)
            self.close()  # not before, or they might be those of a run that has begun here since
            with suppress(OSError):  # a folder in which others have put something stays
                for folder in self.made:
                    folder.rmdir()
            raise

    @contextmanager
    def closed_on_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the lock, so that others may train in the folder."""
        if self.lock is not None:
            self.lock.release()

    def lost(self, offsets: dict[str, int]) -> str:
        """Say which records from before a checkpoint are missing; empty if all are there.

        Without a checkpoint (no offsets), a run that is done counts as damaged.
        """
        for name in LINES:
            if missing := _shortage(self.path / name, _size(self.path / name), offsets.get(name, 0)):
                return missing
        for series in EVERY_SERIES:
            if missing := self._lost_rows(series, offsets.get(series.growing, 0)):
                return missing
        if not offsets and is_done(self.path):
            return f"{self.path / 'phases.jsonl'} is damaged, and there is no checkpoint to go on from"
        return ""

    def _lost_rows(self, series: Series, size: int) -> str:
        packed, rows = self.path / series.packed, self.path / series.growing
        if rows.exists() or not packed.exists() or not size:
            return _shortage(rows, _size(rows), size)
        try:
            return _shortage(f"{packed}, unpacked,", series.read(self.path).nbytes, size)
        except BdrError as error:
            return str(error)

    def refuse_lost(self, offsets: dict[str, int]) -> None:
        """Raise if records are missing; called before anything is cut off, as the other records are worth keeping."""
        if missing := self.lost(offsets):
            raise BdrError(f"{missing}; put back a copy of the file, or {train_anew(self.path)}")

    def cut_back(self, offsets: dict[str, int]) -> None:
        """Cut the records back to a checkpoint: whatever is later, or half-written, is removed."""
        with writing(self.path):
            for left in (self.path / "DONE", *self.path.glob("*.partial")):
                left.unlink(missing_ok=True)
            for series in EVERY_SERIES:
                self._unpack(series, offsets.get(series.growing, 0))
            for name in GROWING:
                _cut(self.path / name, offsets.get(name, 0))
            self._remove_phases_after(len(json_lines(self.path / "phases.jsonl")))

    def begins_anew_with(self, own_code: dict[str, str], library: str) -> None:
        """Record the code that trains the whole run, in place of what an earlier attempt recorded."""
        info = begun_with(read_info(self.path), own_code, library)
        write_atomically(self.path / "run.json", to_json(info, indent=2))

    def goes_on_with(self, own_code: dict[str, str], library: str, phase: int) -> list[str]:
        """Record the code that trains from this phase on; returns a line for each part of it that has changed."""
        before = read_info(self.path)
        if (info := with_code(before, own_code, library, phase)) != before:
            write_atomically(self.path / "run.json", to_json(info, indent=2))
        goes_on = f"phase {phase} goes on with other code"
        own = ", ".join(other_code(before, own_code))
        said = [f"warning: {own} changed since the run was trained: {goes_on}"] if own else []
        changed = other_library(before, library)
        return [*said, f"note: {changed}: {goes_on}"] if changed else said

    def moved(self, typed: str, place: str) -> None:
        """Record where the data is now: `typed` is the path as given, `place` the absolute one."""
        info = read_info(self.path)
        info |= {"config": info["config"] | {"root": typed}, "root": place}
        write_atomically(self.path / "run.json", to_json(info, indent=2))

    def _unpack(self, series: Series, size: int) -> None:
        """Unpack the series of a finished run, so that it can be cut back and grow again."""
        packed, rows = self.path / series.packed, self.path / series.growing
        if packed.exists() and not rows.exists() and size:
            write_atomically(rows, series.read(self.path).tobytes())
        packed.unlink(missing_ok=True)

    def _remove_phases_after(self, count: int) -> None:
        for folder in self.path.glob("phase-*"):
            if folder.name[6:].isdigit() and int(folder.name[6:]) >= count:
                shutil.rmtree(folder)

    def _append(self, name: str, content: bytes) -> None:
        with writing(self.path / name), (self.path / name).open("ab") as file:
            file.write(content)

    def epoch(self, line: dict[str, Any]) -> None:
        """Append a line to epochs.jsonl."""
        self._append("epochs.jsonl", to_json(_rounded(plain(line))).encode())

    def phase(self, line: dict[str, Any]) -> None:
        """Append a line to phases.jsonl."""
        self._append("phases.jsonl", to_json(line).encode())

    def steps(self, phase: int, stage: int, ce_old: np.ndarray, distillation: np.ndarray) -> None:
        """Append a row for each training step; NaN where a step has no such value."""
        self._grow(STEPS, (phase, stage), ce_old, distillation)

    def analysis(self, phase: int, gradient_old: np.ndarray, gradient_new: np.ndarray, ce_new: np.ndarray) -> None:
        """Append a row for each step of a first stage; NaN where a batch has no such samples."""
        self._grow(ANALYSIS, (phase,), gradient_old, gradient_new, ce_new)

    def _grow(self, series: Series, place: tuple[int, ...], *values: np.ndarray) -> None:
        columns = [np.broadcast_to(np.asarray(each, "<f4"), len(values[0])) for each in (*place, *values)]
        self._append(series.growing, np.stack(columns, axis=1).tobytes())

    def predictions(
        self, phase: int, labels: np.ndarray, readouts: dict[str, tuple[np.ndarray, np.ndarray]], split: str = "test"
    ) -> None:
        """Store labels, and per readout the ids (N, 5), best first, with their probabilities (N, 5)."""
        arrays = {"labels": _smallest(np.asarray(labels))}
        for name, (ids, probabilities) in readouts.items():
            arrays[f"{name}_ids"] = _smallest(np.asarray(ids))
            clean = np.clip(np.nan_to_num(np.asarray(probabilities, np.float32)), 0, 1)
            arrays[f"{name}_probabilities"] = np.rint(clean * LARGEST).astype(np.uint8)
        self._place(predictions_file(self.path, phase, split), to_npz(arrays))

    def memory(self, phase: int, exemplars: dict[str, list[int]]) -> None:
        """Store the exemplars kept after a phase, by class."""
        self._place(phase_folder(self.path, phase) / "memory.json", to_json(exemplars))

    def exemplars(self, phase: int, told: dict[str, Any]) -> None:
        """Store what identifies the exemplars and the test images in a data set that has grown."""
        self._place(exemplars_file(self.path, phase), to_json(told))

    def take_over(self, run: Run) -> None:
        """Copy the records of a finished run, but not its models, as this run's first phases, marked as taken over."""
        for line in run.phases:
            self._copy_phase(run.path, line["phase"])
            self.phase(line | {"taken_over": line.get("taken_over", run.fingerprint)})
        for line in run.epochs:
            self.epoch(line)
        for series in EVERY_SERIES:
            if len(rows := series.read(run.path)):
                self._append(series.growing, rows.astype("<f4").tobytes())

    def _copy_phase(self, path: Path, phase: int) -> None:
        """Copy the files of another run's phase, except EXEMPLARS, which describes only that run's own images."""
        for file in sorted(phase_folder(path, phase).glob("*")):
            if file.is_file() and file.name != EXEMPLARS:
                self._place(phase_folder(self.path, phase) / file.name, read_bytes(file))

    def snapshots(self, phase: int, arrays: dict[str, np.ndarray]) -> None:
        """Store features of old classes in the course of a phase, with their steps, labels, exemplars and classes."""
        self._place(snapshots_file(self.path, phase), to_npz(arrays))

    def _place(self, path: Path, content: bytes | str) -> None:
        with writing(path):
            path.parent.mkdir(exist_ok=True)
        write_atomically(path, content)

    def log(self, text: str) -> None:
        """Append to log.txt, with the time."""
        self._append("log.txt", f"{now()} {text}\n".encode())

    def offsets(self) -> dict[str, int]:
        """The length of each growing file, synced to the disk; a checkpoint stores these for `cut_back`."""
        return {name: _synced_size(self.path / name) for name in GROWING}

    def finish(self) -> None:
        """Pack the series, mark the run as done and release the lock."""
        self._pack(STEPS)
        if (self.path / ANALYSIS.growing).exists():
            self._pack(ANALYSIS)
        write_atomically(self.path / "DONE", "")
        self.close()

    def _pack(self, series: Series) -> None:
        write_atomically(self.path / series.packed, to_npz(series.pack(series.read(self.path))))
        with writing(self.path / series.growing):
            (self.path / series.growing).unlink(missing_ok=True)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _shortage(file: Path | str, found: int, size: int) -> str:
    return f"{file} has {found} bytes, the checkpoint was made at {size}: records were lost" if found < size else ""


def _cut(path: Path, size: int) -> None:
    if _size(path) > size:
        os.truncate(path, size)


def _synced_size(path: Path) -> int:
    if not path.exists():
        return 0
    with writing(path), path.open("rb") as file:
        os.fsync(file.fileno())
        return os.fstat(file.fileno()).st_size
