"""Which models a run keeps, and where."""

from __future__ import annotations

from pathlib import Path

from bdr.errors import UsageError, as_word
from bdr.records.files import json_object, read_bytes
from bdr.records.reader import Run, phase_folder, train_anew


def model_folder(path: Path, phase: int) -> Path:
    return phase_folder(path, phase) / "model"


def kept_phases(path: Path) -> list[int]:
    return sorted(int(folder.parent.name[6:]) for folder in path.glob("phase-*/model"))


def kept_phase(path: Path, phase: int | None) -> int:
    """The phase asked for, or with None the last one whose model is kept; raises if there is no such model."""
    kept = kept_phases(path)
    if not kept:
        raise UsageError(f"{path} keeps no model: {why_none(path)}")
    if phase is not None and phase not in kept:
        names = ", ".join(map(str, kept))
        raise UsageError(
            f"{path} keeps no model of phase {phase}, only of {names}; run with --keep all for every phase"
        )
    return kept[-1] if phase is None else phase


def why_none(path: Path) -> str:
    """Why a run keeps no model at all, and what to do about it."""
    run = Run.open(path)
    if run.info.get("config", {}).get("keep") == "none":  # checked first: finishing the run would bring no model
        return "it ran with --keep none; train it again with --keep last, into another folder"
    if not run.whole:
        done, planned = len(run.phases), len(run.info["phases"])
        return f"it is not finished ({done} of {planned} phases): finish it first with bdr resume {as_word(path)}"
    folder = model_folder(path, len(run.phases) - 1)
    return f"{folder} is gone; put back a copy of it, or {train_anew(path)}"


def instead_of_model(folder: Path) -> str:
    """What to do about a kept model that cannot be read: restore it, use that of another phase, or train anew."""
    path = folder.parent.parent
    others = ", ".join(str(phase) for phase in kept_phases(path) if model_folder(path, phase) != folder)
    other = f", use that of another phase with --phase ({others})" if others else ""
    return f"put back a copy of {folder}{other}, or {train_anew(path)}"


def model_checksum(path: Path, phase: int) -> str:
    """The sha256 of a kept model's tensors, as recorded when the model was written."""
    file = model_folder(path, phase) / "sums.json"
    return str(json_object(read_bytes(file), str(file))["tensors"])
