"""Whether runs have changed, and whether anything in them lies outside of what is watched."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from bdr.records import run_folders
from bdr.records.folders import RECORDS

CHECKPOINT = "checkpoint"
LOOKED_AT = frozenset((*RECORDS, CHECKPOINT))


@dataclass(frozen=True)
class Look:
    """The state of a run's folder at one moment, found without opening any of its files."""

    path: Path
    root: Path
    signature: tuple[tuple[str, int, int], ...]  # name, time and size of each record
    touched: float  # when anything was last written, checkpoints included
    logged: float  # when log.txt was last written


def look_at(path: Path, root: Path, names: list[str]) -> Look:
    """Look at a folder that is known to have files and folders of these names."""
    found: list[tuple[str, int, int]] = []
    touched = [0.0]
    for name in LOOKED_AT.intersection(names):
        try:
            about = os.lstat(os.path.join(path, name))  # of a link itself: a link in place of a file is a change
        except OSError:
            continue
        touched.append(about.st_mtime)
        if name != CHECKPOINT:
            found.append((name, about.st_mtime_ns, about.st_size))
    times = {name: time / 1e9 for name, time, _ in found}
    return Look(path, root, tuple(sorted(found)), max(touched), times.get("log.txt", 0.0))


def looks(roots: list[Path]) -> dict[Path, Look]:
    """Every run below the roots, each once."""
    return {path: look_at(path, root, names) for root in reversed(roots) for path, names in run_folders(root)}


def leads_outside(look: Look) -> Path | None:
    """The first link in a run that leads out of what is watched; None if there is none."""
    for folder, inner, files in os.walk(look.path):
        for name in sorted((*inner, *files)):
            place = Path(folder, name)
            if place.is_symlink() and not place.resolve().is_relative_to(look.root):
                return place
    return None
