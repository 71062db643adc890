"""What a run is doing, judged by its files alone: the process is not asked, since it may be on another machine."""

from __future__ import annotations

from bdr.errors import as_word
from bdr.records.log import failure_in
from bdr.watch.folders import Look

LEAST_QUIET = 60.0  # seconds without a sign of life after which a run is taken to have stopped
BEFORE_FIRST = 600.0  # the same before its first epoch, while data are read and kernels compiled
PATIENCE = 3.0  # how many times its last epoch, or the time between two checkpoints, a run may be silent
STOPPED = "stopped on request"


def quiet_after(begun: bool, last_epoch: float, checkpoint_every: float) -> float:
    """How many seconds a run may be silent before it is taken to have stopped."""
    return max(LEAST_QUIET, PATIENCE * last_epoch, PATIENCE * checkpoint_every, 0.0 if begun else BEFORE_FIRST)


def state_of(look: Look, now: float, done: bool, begun: bool, log: str, patience: float) -> tuple[str, str]:
    """The state of a run, and what a user should know about it."""
    go_on = f"go on with: bdr resume {as_word(look.path)}"
    if done:
        return "finished", ""
    is_last_word = look.logged >= look.touched - 1.0  # nothing was written after this line
    if is_last_word and (failure := failure_in(log)):
        return "failed", failure
    if is_last_word and STOPPED in log:
        return "stopped", f"stopped on request; {go_on}"
    if now - look.touched > patience:
        return "stopped", f"nothing was written for {in_words(now - look.touched)}; {go_on}"
    return ("running", "") if begun else ("waiting", "no epoch is over yet")


def in_words(seconds: float) -> str:
    """A rough time such as `3 minutes`, which changes rarely, so that a silent run is not news every second."""
    for size, name in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {name}{'s' if count > 1 else ''}"
    return "a minute"
