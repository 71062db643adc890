"""The runs of a sweep at work: which may start, wait for a first phase, are done, failed or stopped."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from bdr.display import clock
from bdr.errors import BdrError
from bdr.records import Run
from bdr.records.files import now, writing
from bdr.records.lock import is_being_trained, is_free
from bdr.records.log import warnings_of
from bdr.sweep.plan import Planned

ENDED_BY_US = (130, -signal.SIGTERM, -signal.SIGKILL)
WAITING = ("waiting", "held", "elsewhere")


class Crew:
    """Starts runs, `jobs` at a time, and follows them to their end; it learns about a run from its folder alone."""

    def __init__(
        self,
        runs: Sequence[Planned],
        jobs: int,
        logs: Path,
        environment: dict[str, str],
        tell: Callable[[str], None] = print,
        sort_out: Callable[[Crew], None] = lambda crew: None,
    ) -> None:
        # Runs that have begun come first: they go on where they stand, and others may wait for their first phases.
        self.runs = sorted(runs, key=lambda run: not run.begun)
        self.numbers = {run: number for number, run in enumerate(runs, 1)}  # numbered as in the list of a dry run
        self.jobs, self.logs, self.environment, self.tell, self.sort_out = jobs, logs, environment, tell, sort_out
        self.states = {run: "already done" if run.done else "waiting" for run in self.runs}
        self.children: dict[Planned, subprocess.Popen[bytes]] = {}
        self.started: dict[Planned, float] = {}
        self.begins_at: dict[Planned, int] = {}  # the phase in which each run began, for those begun here
        self.took: dict[Planned, float] = {}  # seconds, for runs that began here and are done
        self.late: set[Planned] = set()  # runs that cannot end before the time is up
        self.asked = False

    def of_state(self, *states: str) -> list[Planned]:
        return [run for run in self.runs if self.states[run] in states]

    @property
    def busy(self) -> bool:
        return bool(self.children or self.of_state(*WAITING))

    @property
    def has_room(self) -> bool:
        return len(self.children) < self.jobs

    @property
    def may_start(self) -> bool:
        return self.has_room and bool(self.of_state(*WAITING))

    def step(self) -> None:
        self.reap()
        self.sort_out(self)
        self.fill()

    def fill(self) -> None:
        """Start what may start; with several jobs, first those others may wait for; late ones last."""
        waiting = self.of_state(*WAITING)
        if self.jobs > 1:
            waiting = sorted(waiting, key=lambda run: not run.begun and has_first_phase(run))
        for run in sorted(waiting, key=lambda run: run in self.late):
            if self.holder_of(run):
                self.states[run] = "held"
            elif self.has_room:
                self.start(run)
            elif self.states[run] == "held":
                self.states[run] = "waiting"

    def holder_of(self, run: Planned) -> Planned | None:
        """The run that is now training the first phase which this run can take from it; None if there is none."""
        if run.shared is None or run.begun or has_first_phase(run):
            return None
        alike = (other for other in self.children if other.shared == run.shared and other is not run)
        return next((other for other in alike if not first_phase_over(other)), None)

    def log_of(self, run: Planned) -> Path:
        return self.logs / ("-".join(run.path.parts[-3:]) + ".log")

    def start(self, run: Planned) -> None:
        log = None if is_being_trained(run.path) else claimed(self.log_of(run))
        if log is None:
            self.leave_to_others(run)
        elif run.done:  # finished meanwhile by the process that had claimed it
            self.states[run] = "already done"
            log.close()
        else:
            if not run.begun:
                self.begins_at[run] = int(has_first_phase(run))
            with log:
                self.launch(run, log)

    def leave_to_others(self, run: Planned) -> None:
        if self.states[run] != "elsewhere":
            self.tell(f"{run.name} is under way in another process; waiting for it")
        self.states[run] = "elsewhere"

    def leave_out(self, run: Planned, why: str) -> None:
        self.states[run] = "left out"
        self.tell(f"{run.name} is not started: {why}")

    def launch(self, run: Planned, log: IO[bytes]) -> None:
        with writing(self.log_of(run)):
            log.write(f"\n{now()} {shlex.join(['bdr', *run.words])}\n".encode())
            log.flush()
        goes_on = "going on with" if run.begun else "started"
        self.children[run] = subprocess.Popen(
            [sys.executable, "-m", "bdr.cli.child", str(os.getpid()), *run.words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=self.environment,
            start_new_session=True,  # Ctrl-C reaches the sweep alone, which asks once: asked twice, runs do not save
        )
        self.states[run], self.started[run] = "running", time.monotonic()
        self.tell(f"{goes_on} {run.name} -> {run.path}")

    def reap(self) -> None:
        for run, child in list(self.children.items()):
            if child.poll() is not None:
                del self.children[run]
                self.record(run, child.returncode)

    def record(self, run: Planned, code: int) -> None:
        seconds = time.monotonic() - self.started[run]
        took = clock(seconds)
        if run.done:
            self.states[run] = "done"
            self.took |= {run: seconds} if run in self.begins_at else {}
            self.tell(f"done {run.name} in {took}{accuracy_of(run)}")
            self.warn(run)
        elif self.asked and code in ENDED_BY_US:
            self.states[run] = "stopped"
            self.tell(f"stopped {run.name} after {took}")
        else:
            self.states[run] = "failed"
            self.tell(f"failed {run.name} after {took} ({in_words(code)}): {self.last_words(run)}")

    def warn(self, run: Planned) -> None:
        """Tell the first warning of a run, which would stand in its log alone, and how many more are there."""
        if found := warnings_of(run.path):
            more = f" ({len(found) - 1} more in {run.path / 'log.txt'})" if len(found) > 1 else ""
            self.tell(f"{run.name}: {found[0]}{more}")

    def last_words(self, run: Planned) -> str:
        with contextlib.suppress(OSError):
            return self.log_of(run).read_text(errors="replace").strip().splitlines()[-1].strip()
        return "its log is gone"

    def ask(self) -> None:
        """Ask all runs to save themselves and leave."""
        self.asked = True
        for child in self.children.values():
            child.send_signal(signal.SIGTERM)

    def end(self) -> None:
        """Kill all runs that are still there; next time they go on from their last checkpoints."""
        self.asked = True
        for child in self.children.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # the whole group: the run and the processes that compile for it
            child.wait()
        self.reap()


def claimed(file: Path) -> IO[bytes] | None:
    """A run's log, locked while anyone writes to it; None if it is taken, so that no two sweeps train the same run."""
    with writing(file):
        log = file.open("ab")
    if is_free(log):
        return log
    log.close()
    return None


def has_first_phase(run: Planned) -> bool:
    """Whether the run can take its first phase from the place where another run has left it."""
    return run.shared is not None and run.shared.is_dir()


def first_phase_over(run: Planned) -> bool:
    """Whether a run has finished its first phase, even if it leaves nothing to share as it trained on its exemplars."""
    with contextlib.suppress(BdrError, OSError):
        return run.begun and bool(Run.open(run.path).phases)
    return False


def accuracy_of(run: Planned) -> str:
    with contextlib.suppress(BdrError, OSError):
        last = Run.open(run.path).phases[-1]["accuracy"]
        return ": " + ", ".join(f"{name} {value:.2f} %" for name, value in last.items())
    return ""


def in_words(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"killed by signal {-code}"
