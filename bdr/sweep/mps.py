"""NVIDIA's MPS, by which kernels of several processes run on a GPU at the same time instead of in turns."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

CONTROL = "nvidia-cuda-mps-control"
QUIT = f"echo quit | {CONTROL}"
PATIENCE = 30.0  # seconds
LOOKS, BETWEEN = 5, 0.4  # seconds
BY_TURNS = "the runs use the GPU by turns, which gains little over --jobs 1"


def installed() -> bool:
    return shutil.which(CONTROL) is not None


def answer(command: str) -> str | None:
    """What the daemon answers to a command; None if it was not accepted, which it is not without a daemon."""
    try:
        said = subprocess.run([CONTROL], input=f"{command}\n", capture_output=True, text=True, timeout=PATIENCE)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return said.stdout if said.returncode == 0 else None


def numbers(command: str) -> list[str]:
    """The process numbers that the daemon answers with."""
    return [word for word in (answer(command) or "").split() if word.isdigit()]


def is_running() -> bool:
    return answer("get_server_list") is not None


def is_in_use() -> bool:
    """Whether other processes share the GPU through MPS: own runs, once ended, may be listed for a moment longer."""
    for _ in range(LOOKS):
        if not any(numbers(f"get_client_list {server}") for server in numbers("get_server_list")):
            return False
        time.sleep(BETWEEN)
    return True


def started() -> str:
    """Start the daemon; return why it could not be started, or an empty string."""
    try:
        said = subprocess.run([CONTROL, "-d"], capture_output=True, text=True, timeout=PATIENCE)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    reason = (said.stdout + said.stderr).strip() or f"exit code {said.returncode}"
    return "" if said.returncode == 0 and is_running() else reason


@contextmanager
def side_by_side(wanted: bool, tell: Callable[[str], None]) -> Iterator[None]:
    """Let runs inside share the GPU through MPS, if available.

    A daemon that was started here is stopped again, unless others use it by then, such as another sweep.
    """
    ours = wanted and prepare(tell)
    try:
        yield
    finally:
        if ours:
            stop(tell)


def stop(tell: Callable[[str], None]) -> None:
    if is_in_use():
        tell(f"MPS is left running, since other runs use it; after them, stop it with: {QUIT}")
    elif answer("quit") is None:
        tell(f"MPS could not be stopped; stop it with: {QUIT}")


def prepare(tell: Callable[[str], None]) -> bool:
    """Start MPS if possible, and tell how the GPU will be shared; return whether a daemon was started."""
    if not installed():
        tell(f"there is no MPS ({CONTROL} is not installed): {BY_TURNS}")
        return False
    if is_running():
        tell("the runs share the GPU through MPS, which is running already and is left running")
        return False
    if reason := started():
        tell(f"there is no MPS (it could not be started: {reason}): {BY_TURNS}")
        return False
    tell("the runs share the GPU through MPS, started for this sweep")
    return True
