"""NVIDIA's MPS, by which kernels of several processes run on a GPU at the same time instead of in turns."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

CONTROL = "nvidia-cuda-mps-control"
PATIENCE = 30.0  # seconds
BY_TURNS = "the runs use the GPU by turns, which gains little over --jobs 1"


def installed() -> bool:
    return shutil.which(CONTROL) is not None


def told(command: str) -> bool:
    """Send a command to the daemon; return whether it was accepted, which it is not without a daemon."""
    try:
        said = subprocess.run([CONTROL], input=f"{command}\n", capture_output=True, text=True, timeout=PATIENCE)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return said.returncode == 0


def started() -> str:
    """Start the daemon; return why it could not be started, or an empty string."""
    try:
        said = subprocess.run([CONTROL, "-d"], capture_output=True, text=True, timeout=PATIENCE)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    reason = (said.stdout + said.stderr).strip() or f"exit code {said.returncode}"
    return "" if said.returncode == 0 and told("get_server_list") else reason


@contextmanager
def side_by_side(wanted: bool, tell: Callable[[str], None]) -> Iterator[None]:
    """Let runs inside share the GPU through MPS, if available; a daemon that was started here is stopped again."""
    ours = wanted and prepare(tell)
    try:
        yield
    finally:
        if ours and not told("quit"):
            tell(f"MPS could not be stopped; stop it with: echo quit | {CONTROL}")


def prepare(tell: Callable[[str], None]) -> bool:
    """Start MPS if possible, and tell how the GPU will be shared; return whether a daemon was started."""
    if not installed():
        tell(f"there is no MPS ({CONTROL} is not installed): {BY_TURNS}")
        return False
    if told("get_server_list"):
        tell("the runs share the GPU through MPS, which is running already and is left running")
        return False
    if reason := started():
        tell(f"there is no MPS (it could not be started: {reason}): {BY_TURNS}")
        return False
    tell("the runs share the GPU through MPS, started for this sweep")
    return True
