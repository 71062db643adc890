"""What a run is doing, told from its files alone: nobody asks the process, which may be on another machine."""

from __future__ import annotations

from pathlib import Path

from bdr.watch.folders import Look

LEAST_QUIET = 60.0  # seconds without a sign of life after which a run is taken to have stopped
BEFORE_FIRST = 600.0  # the same before its first epoch: data are read, kernels compiled
PATIENCE = 3.0  # times its last epoch, or the time between two checkpoints
TAIL = 8000  # bytes of a log that its last line is looked for in
STOPPED = "stopped on request"
FAILED = "failed: "


def last_line(file: Path) -> str:
    """The last line of a log; nothing where there is none."""
    try:
        with file.open("rb") as log:
            log.seek(max(0, file.stat().st_size - TAIL))
            lines = log.read().decode(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1].strip() if lines else ""


def failure_in(line: str) -> str:
    """What a run failed with, where this line of its log, after the time, says that it did."""
    words = line.partition(" ")[2]
    return words.removeprefix(FAILED) if words.startswith(FAILED) else ""


def quiet_after(begun: bool, last_epoch: float, checkpoint_every: float) -> float:
    """How long a run may be silent."""
    return max(LEAST_QUIET, PATIENCE * last_epoch, PATIENCE * checkpoint_every, 0.0 if begun else BEFORE_FIRST)


def state_of(look: Look, now: float, done: bool, begun: bool, log: str, patience: float) -> tuple[str, str]:
    """The state, and what a user should know about it."""
    go_on = f"go on with: bdr resume {look.path}"
    if done:
        return "finished", ""
    is_last_word = look.logged >= look.touched - 1.0  # nothing was written after it
    if is_last_word and (failure := failure_in(log)):
        return "failed", failure
    if is_last_word and STOPPED in log:
        return "stopped", f"stopped on request; {go_on}"
    if now - look.touched > patience:
        return "stopped", f"nothing was written for {in_words(now - look.touched)}; {go_on}"
    return ("running", "") if begun else ("waiting", "no epoch is over yet")


def in_words(seconds: float) -> str:
    """`3 minutes`, roughly: it changes rarely, so that a silent run is not news every second."""
    for size, name in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {name}{'s' if count > 1 else ''}"
    return "a minute"
