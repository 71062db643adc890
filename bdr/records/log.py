"""What a run's log says: its last line, whether the run failed, and its warnings."""

from __future__ import annotations

from pathlib import Path

TAIL = 8000  # bytes at the end of a log in which its last line is searched
FAILED = "failed: "
WARNING = "warning: "


def last_line(file: Path) -> str:
    """The last line of a log; empty if there is no log or no line."""
    try:
        with file.open("rb") as log:
            log.seek(max(0, file.stat().st_size - TAIL))
            lines = log.read().decode(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1].strip() if lines else ""


def failure_in(line: str) -> str:
    """The failure that a line of a log reports after its time; empty if it reports none."""
    words = line.partition(" ")[2]
    return words.removeprefix(FAILED) if words.startswith(FAILED) else ""


def failure_of(path: Path) -> str:
    """The failure that a run ended with; empty if there was none or the run has gone on since, which its log notes."""
    return failure_in(last_line(path / "log.txt"))


def warnings_of(path: Path) -> list[str]:
    """The warnings that a run was given while it trained, the first one first; none if its log cannot be read."""
    try:
        lines = (path / "log.txt").read_text(errors="replace").splitlines()
    except OSError:
        return []
    said = [line.partition(" ")[2] for line in lines]
    return list(dict.fromkeys(words for words in said if words.startswith(WARNING)))
