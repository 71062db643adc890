"""Which folders are runs, how far they are by the files that are there, and which files those are."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from bdr.records.lock import LOCK
from bdr.records.steps import EVERY_SERIES

MARKS = frozenset(("run.json", "phases.jsonl"))  # a folder with one of them is a run, or was meant to be one
NAMED_LIKE_A_RUN = re.compile(r"seed\d+-[0-9a-f]{6}")
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
    for folder, names, is_run in folders(root):
        if is_run:
            yield folder, names


def is_left_empty(folder: Path, names: list[str]) -> bool:
    """Whether it has the name of a run and nothing in it, as one leaves that was killed before its first record."""
    return NAMED_LIKE_A_RUN.fullmatch(folder.name) is not None and not any(map(is_content, names))


def is_content(name: str) -> bool:
    """Whether a file of a run's folder is more than a trace of the process that was to fill it."""
    return name != LOCK and not name.endswith(".partial")


def folders(root: Path) -> Iterator[tuple[Path, list[str], bool]]:
    """Every folder that is looked into, what is in it, and whether it looks like a run."""
    for folder, inner, files in os.walk(root):
        names = inner + files
        is_run = not MARKS.isdisjoint(files)
        inner[:] = [] if is_run else sorted(name for name in inner if not name.startswith("."))
        yield Path(folder), names, is_run
