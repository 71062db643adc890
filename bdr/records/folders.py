"""Which folders are runs, whether these are begun or done, and which files a run consists of."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from bdr.records.lock import LOCK
from bdr.records.steps import EVERY_SERIES

MARKS = frozenset(("run.json", "phases.jsonl"))  # a folder with one of them is a run, perhaps a damaged one
NAMED_LIKE_A_RUN = re.compile(r"seed\d+-[0-9a-f]{6}")
LINES = ("phases.jsonl", "epochs.jsonl")
GROWING = (*LINES, *(series.growing for series in EVERY_SERIES))
PACKED = tuple(series.packed for series in EVERY_SERIES)
RECORDS = ("run.json", *GROWING, *PACKED, "log.txt", "DONE")  # all files outside the folders of phases and checkpoints


def is_begun(path: Path) -> bool:
    return (path / "run.json").is_file()


def is_done(path: Path) -> bool:
    return is_begun(path) and (path / "DONE").is_file()


def run_folders(root: Path) -> Iterator[tuple[Path, list[str]]]:
    """Yield the folders that look like runs, each with the names in it.

    Links are not followed. Hidden folders, and folders inside runs, are not searched. Folders that a run under way
    removes meanwhile are passed over.
    """
    for folder, names, is_run in folders(root):
        if is_run:
            yield folder, names


def is_left_empty(folder: Path, names: list[str]) -> bool:
    """Whether a folder is named like a run but empty, as after a run that was killed before its first record."""
    return NAMED_LIKE_A_RUN.fullmatch(folder.name) is not None and not any(map(is_content, names))


def is_content(name: str) -> bool:
    """Whether a file in a run's folder is content, and not a lock or a half-written file that a process left."""
    return name != LOCK and not name.endswith(".partial")


def folders(root: Path) -> Iterator[tuple[Path, list[str], bool]]:
    """Yield every folder that is searched, the names in it, and whether it looks like a run."""
    for folder, inner, files in os.walk(root):
        names = inner + files
        is_run = not MARKS.isdisjoint(files)
        inner[:] = [] if is_run else sorted(name for name in inner if not name.startswith("."))
        yield Path(folder), names, is_run
