"""Trackers beside a run: each reads the records in a thread of its own, and none can hold up the training."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bdr.engine.listen import EpochLog, Listener
from bdr.records import Run, is_done
from bdr.trackers import open_tracker
from bdr.trackers.points import Unread
from bdr.types import Phase, Stage

PATIENCE = 60.0  # seconds that a tracker has at the end of a run for what is left


def write_log(path: Path, name: str) -> None:
    """Pass all that a run has recorded to a tracker, at once."""
    run = Run.open(path)
    tracker = open_tracker(name, run)
    tracker.add(list(Unread(path).points()))
    tracker.close(run.done)


class Follower(threading.Thread):
    """Passes what a run records to a tracker while the run goes on. A failure there ends this thread alone."""

    def __init__(self, path: Path, name: str) -> None:
        super().__init__(name=f"bdr {name}", daemon=True)  # one that hangs is left behind
        self.path, self.tracker = path, name
        self.woken, self.ending = threading.Event(), False
        self.trouble = ""

    def run(self) -> None:
        try:
            self.follow()
        except Exception as error:  # whatever a library, a network or a disk comes up with
            self.trouble = " ".join(f"{type(error).__name__}: {error}".split()) or "for no reason given"

    def follow(self) -> None:
        unread, tracker = Unread(self.path), open_tracker(self.tracker, Run.open(self.path))
        ending = False
        while not ending:
            self.woken.wait()
            self.woken.clear()
            ending = self.ending  # taken before reading: all that is recorded until then is read
            tracker.add(list(unread.points()))
        tracker.close(is_done(self.path))

    def end(self, patience: float) -> None:
        self.ending = True
        self.woken.set()
        self.join(patience)
        if self.is_alive():
            self.trouble = f"it has not taken everything within {PATIENCE:g} seconds"


class Following(Listener):
    """Wakes the followers of a run. They start with its first stage, when its record exists and has been cut back."""

    def __init__(self, names: Sequence[str], path: Path) -> None:
        self.path = path
        self.followers = [Follower(path, name) for name in names]

    def stage_begins(self, phase: Phase, number: int, stage: Stage, first_epoch: int) -> None:
        for follower in self.followers:
            if follower.ident is None:
                follower.start()
        self.wake()

    def epoch_ends(self, phase: Phase, stage: Stage, log: EpochLog) -> None:
        self.wake()

    def phase_ends(self, line: dict[str, Any]) -> None:
        self.wake()

    def wake(self) -> None:
        for follower in self.followers:
            follower.woken.set()
        self.drop_failed()

    def close(self) -> None:
        end = time.monotonic() + PATIENCE
        for follower in self.followers:
            if follower.ident is not None:
                follower.end(max(0.0, end - time.monotonic()))
        self.drop_failed()

    def drop_failed(self) -> None:
        """Drop followers that failed. The thread that trains warns of each, so that the run's log has the warning."""
        failed = [follower for follower in self.followers if follower.trouble]
        self.followers = [follower for follower in self.followers if not follower.trouble]
        for follower in failed:
            name = follower.tracker
            warnings.warn(
                f"{name} failed and is left out ({follower.trouble}); afterwards: bdr log {self.path} --to {name}"
            )
