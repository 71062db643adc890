"""Which models a run keeps, and where."""

from __future__ import annotations

from pathlib import Path

from bdr.errors import UsageError
from bdr.records.files import json_object, read_bytes
from bdr.records.reader import phase_folder, train_anew


def model_folder(path: Path, phase: int) -> Path:
    return phase_folder(path, phase) / "model"


def kept_phases(path: Path) -> list[int]:
    return sorted(int(folder.parent.name[6:]) for folder in path.glob("phase-*/model"))


def kept_phase(path: Path, phase: int | None) -> int:
    """The phase that is asked for, or the last one that a model is kept of; a refusal where there is none."""
    kept = kept_phases(path)
    if not kept:
        raise UsageError(f"{path} keeps no model: it is not finished, or ran with --keep none")
    if phase is not None and phase not in kept:
        names = ", ".join(map(str, kept))
        raise UsageError(
            f"{path} keeps no model of phase {phase}, only of {names}; run with --keep all for every phase"
        )
    return kept[-1] if phase is None else phase


def instead_of_model(folder: Path) -> str:
    """What to do about a kept model that cannot be read: to find it, to use another, or to make it anew."""
    path = folder.parent.parent
    others = ", ".join(str(phase) for phase in kept_phases(path) if model_folder(path, phase) != folder)
    other = f", use that of another phase with --phase ({others})" if others else ""
    return f"put back a copy of {folder}{other}, or {train_anew(path)}"


def model_checksum(path: Path, phase: int) -> str:
    """The sha256 of the tensors of a kept model, as it was written."""
    file = model_folder(path, phase) / "sums.json"
    return str(json_object(read_bytes(file), str(file))["tensors"])
