"""Per-step series: float32 rows that grow while a run is under way, named arrays once it is done."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bdr.records.files import damaged, load_npz


@dataclass(frozen=True)
class Series:
    """Several values for each step, the phase first: NAME.bin while rows are added, NAME.npz once the run is done."""

    name: str
    columns: tuple[str, ...]

    @property
    def growing(self) -> str:
        return f"{self.name}.bin"

    @property
    def packed(self) -> str:
        return f"{self.name}.npz"

    def pack(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Rows (n, columns) as named arrays, one for each phase and column; float32 holds phase and stage exactly."""
        packed: dict[str, np.ndarray] = {}
        for phase in np.unique(rows[:, 0]).astype(int):
            packed |= {f"phase-{phase:02d}/{name}": values for name, values in self.of_phase(rows, phase).items()}
        return packed

    def of_phase(self, rows: np.ndarray, phase: int) -> dict[str, np.ndarray]:
        part = rows[rows[:, 0] == phase]
        return {name: part[:, column] for column, name in enumerate(self.columns) if column}

    def unpack(self, packed: dict[str, np.ndarray]) -> np.ndarray:
        phases = sorted({int(key.split("/")[0].removeprefix("phase-")) for key in packed})
        parts = [np.empty((0, len(self.columns)), np.float32)]
        for phase in phases:
            series = [packed[f"phase-{phase:02d}/{name}"] for name in self.columns[1:]]
            parts.append(np.stack([np.full(len(series[0]), phase), *series], axis=1).astype(np.float32))
        return np.concatenate(parts)

    def read(self, path: Path) -> np.ndarray:
        """All rows (n, columns) of a run, packed or not; a half-written last row is left out."""
        width, packed = len(self.columns), path / self.packed
        if (path / self.growing).exists():
            content = (path / self.growing).read_bytes()
            return np.frombuffer(content, "<f4", count=len(content) // (4 * width) * width).reshape(-1, width)
        try:
            return self.unpack(load_npz(packed) if packed.exists() else {})
        except (KeyError, ValueError) as error:
            raise damaged(packed, error) from error


CE_OLD = "ce_old"  # the plain cross-entropy of old-class samples: how much old knowledge is left, whatever the method
CE_NEW = "ce_new"  # the same of new samples, in runs that are analysed
GRADIENTS = ("gradient_old", "gradient_new")  # how hard old and new samples pull at the last layer, in analysed runs
ANALYSED = (*GRADIENTS, CE_NEW)

STEPS = Series("steps", ("phase", "stage", CE_OLD, "distillation"))
ANALYSIS = Series("analysis", ("phase", *ANALYSED))  # of the first stage, with --analyse
EVERY_SERIES = (STEPS, ANALYSIS)
