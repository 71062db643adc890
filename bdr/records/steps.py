"""The per-step series: float32 rows that grow while a run is under way, named series when it is done."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bdr.records.files import damaged, load_npz

COLUMNS = ("phase", "stage", "ce_old", "distillation")
ROW_BYTES = 4 * len(COLUMNS)


def pack_steps(rows: np.ndarray) -> dict[str, np.ndarray]:
    """Rows (n, 4) as named series a phase; float32 holds phase and stage numbers exactly."""
    packed: dict[str, np.ndarray] = {}
    for phase in np.unique(rows[:, 0]).astype(int):
        part = rows[rows[:, 0] == phase]
        packed |= {f"phase-{phase:02d}/{name}": part[:, column] for column, name in enumerate(COLUMNS) if column}
    return packed


def _unpack_steps(packed: dict[str, np.ndarray]) -> np.ndarray:
    phases = sorted({int(key.split("/")[0].removeprefix("phase-")) for key in packed})
    parts = [np.empty((0, len(COLUMNS)), np.float32)]
    for phase in phases:
        series = [packed[f"phase-{phase:02d}/{name}"] for name in COLUMNS[1:]]
        parts.append(np.stack([np.full(len(series[0]), phase), *series], axis=1).astype(np.float32))
    return np.concatenate(parts)


def read_steps(path: Path) -> np.ndarray:
    """All rows (n, 4), packed or not; a half-written last row is left out."""
    if (path / "steps.bin").exists():
        content = (path / "steps.bin").read_bytes()
        return np.frombuffer(content, "<f4", count=len(content) // ROW_BYTES * len(COLUMNS)).reshape(-1, len(COLUMNS))
    packed = path / "steps.npz"
    try:
        return _unpack_steps(load_npz(packed) if packed.exists() else {})
    except (KeyError, ValueError) as error:
        raise damaged(packed, error) from error
