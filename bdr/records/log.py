"""What the last line of a run's log says of it."""

from __future__ import annotations

from pathlib import Path

TAIL = 8000  # bytes of a log that its last line is looked for in
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


def failure_of(path: Path) -> str:
    """What a run failed with, unless it has gone on since: that is noted in its log."""
    return failure_in(last_line(path / "log.txt"))
