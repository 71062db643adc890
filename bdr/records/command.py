"""The command line that made a run, taken apart to be typed again in another way."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PLACES = ("--out", "--runs", "--seed", "--seeds")


def options_of(words: Sequence[str]) -> list[list[str]]:
    """The words of a command, with each option and its value in one list."""
    found: list[list[str]] = []
    for word in words:
        takes = bool(found) and found[-1][-1].startswith("--") and "=" not in found[-1][-1]
        found = [*found[:-1], [*found[-1], word]] if takes and not word.startswith("--") else [*found, [word]]
    return found


def is_of(option: Sequence[str], names: Sequence[str], settings: Sequence[str] = ()) -> bool:
    """Whether an option has one of these names, as `--out here` or `--out=here`, or sets one of these settings."""
    name, _, value = (option[0] if len(option) == 1 else "=".join(option)).partition("=")
    return name in names or (name == "--set" and value.startswith(tuple(settings)))


def typed_into(path: Path, info: dict[str, Any]) -> str:
    """What to type for the same run in this folder, wherever it was made: its command may have had relative places."""
    command = str(info.get("command") or "bdr run ...")
    words = command.split()[:2] == ["bdr", "run"] and shlex.split(command)
    if not words:  # `bdr extend`, which begins where another run is, or a call from Python
        return command
    root = {"--root": str(info["root"])} if "root" in info else {}
    left_out = (*PLACES, *root)
    kept = [word for option in options_of(words) if not is_of(option, left_out) for word in option]
    given = [word for option in root.items() for word in option]
    return shlex.join([*kept, *given, "--seed", str(info["seed"]), "--out", str(path)])
