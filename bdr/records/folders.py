"""Which folders are runs, how far they are by the files that are there, and which files those are."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from bdr.records.steps import EVERY_SERIES

MARKS = frozenset(("run.json", "phases.jsonl"))  # a folder with one of them is a run, or was meant to be one
LINES = ("phases.jsonl", "epochs.jsonl")
GROWING = (*LINES, *(series.growing for series in EVERY_SERIES))
PACKED = tuple(series.packed for series in EVERY_SERIES)
RECORDS = ("run.json", *GROWING, *PACKED, "log.txt", "DONE")  # all but what phases and checkpoints leave in folders


def is_begun(path: Path) -> bool:
    return (path / "run.json").is_file()


def is_done(path: Path) -> bool:
    return is_begun(path) and (path / "DONE").is_file()


def run_folders(root: Path) -> Iterator[tuple[Path, list[str]]]:
    """Folders that look like runs, and what is in them.

    Links are not followed, hidden folders and runs are not searched for others; what a run under way removes meanwhile
    is passed over.
    """
    for folder, inner, files in os.walk(root):
        if not MARKS.isdisjoint(files):
            names = inner + files
            inner.clear()
            yield Path(folder), names
        else:
            inner[:] = sorted(name for name in inner if not name.startswith("."))
