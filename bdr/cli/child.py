"""A run of a sweep: `bdr run` in a process of its own, which saves itself and leaves when its sweep is gone."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux


def leave_with(parent: int) -> None:
    """Asks the kernel for a SIGTERM when the parent dies; from inside, since code between fork and exec may hang."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:  # the parent died before the kernel was asked to watch it
        sys.exit(130)


def main() -> None:
    leave_with(int(sys.argv.pop(1)))
    from bdr.cli import main as bdr

    bdr()


if __name__ == "__main__":
    main()
