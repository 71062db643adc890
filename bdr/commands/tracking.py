"""`bdr log`: passing what runs have recorded to trackers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bdr.commands.looking import gathered
from bdr.errors import BdrError, UsageError
from bdr.terminal import say, tell
from bdr.trackers import check_tracker
from bdr.trackers.follow import write_log


def log_runs(paths: Sequence[Path], names: Sequence[str]) -> None:
    """Write every run into every tracker; if one fails, the others are still written, and an error follows."""
    if not names:
        raise UsageError("--to names no tracker; for example: --to tensorboard")
    for name in names:
        check_tracker(name)
    runs = gathered(paths, begun=True)  # epochs are recorded before a phase is finished
    failed = [run.path for name in names for run in runs if not logged(run.path, name)]
    if failed:
        raise BdrError(f"{len(failed)} of the logs could not be written; see above")


def logged(path: Path, name: str) -> bool:
    try:
        write_log(path, name)
    except Exception as error:  # trackers, networks and disks fail in many ways
        tell(f"{name} failed: {path} ({type(error).__name__}: {error})")
        return False
    say(f"{name}: {path}")
    return True
