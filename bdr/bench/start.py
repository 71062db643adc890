"""How long a run takes to start and to change phases, measured on real runs, each in a process of its own."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bdr.bench.tables import Measured
from bdr.errors import BdrError
from bdr.planning.describe import describe_device
from bdr.planning.parts import choose_device

EPOCHS = 2  # the first of a phase compiles and captures, the second shows how long training itself takes
PHASES = 4
COLUMNS = {
    "start": "start to first step s",
    "imports": "of it imports s",
    "plan": "data and plan s",
    "opening": "up to the stage s",
    "first_change": "into phase 1 s",
    "change": "later phase changes s",
}


def bench_start(what: str, device: str) -> Measured:
    """Measure the same short run twice: with an empty compile cache, and with the cache that the first run filled."""
    where = choose_device(device)
    measured = Measured(f"Getting going: {what}, {describe_device(where)['name']}", where)
    read_once(where.type)
    with tempfile.TemporaryDirectory() as folder:
        for cache in ("empty", "filled"):
            found = measure(what, device, Path(folder), cache)
            measured.add({"compile cache": cache} | {name: found[key] for key, name in COLUMNS.items()})
    return measured


def read_once(kind: str) -> None:
    """Import the modules that the runs use, so that Python has compiled them before the first run.

    Otherwise the first run would pay for that too, and the two runs should differ in the compile cache alone.
    """
    if sys.dont_write_bytecode:
        return  # Python keeps no compiled modules, so importing them now would not help
    used = "bdr.api" if kind == "cpu" else "bdr.api, torch._inductor.compile_fx"  # nothing is compiled for a CPU
    subprocess.run([sys.executable, "-c", f"import {used}"], check=True)


def measure(what: str, device: str, folder: Path, name: str) -> dict[str, float]:
    arguments = [what, device, str(folder / name), str(time.time())]
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "TRITON_CACHE_DIR": str(folder / "triton")}
    command = [sys.executable, "-m", "bdr.bench.start", *arguments]
    done = subprocess.run(command, env=os.environ | caches, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BdrError(f"the timed run failed: {done.stderr.strip().splitlines()[-1]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def summary(started: float, epochs: list[tuple[int, float, float]]) -> dict[str, float]:
    """Seconds to start, to change into phase 1 and (median) into later phases, from (phase, end, seconds) of epochs.

    A phase is ready when its first epoch ends, less the time of its fastest epoch, which is training alone.
    """
    by_phase = {phase: [each for each in epochs if each[0] == phase] for phase, _, _ in epochs}
    training = {phase: min(seconds for _, _, seconds in mine) for phase, mine in by_phase.items()}
    ready = {phase: mine[0][1] - training[phase] for phase, mine in by_phase.items()}
    left = {phase: mine[-1][1] for phase, mine in by_phase.items()}
    changes = [ready[phase] - left[phase - 1] for phase in ready if phase]
    return {"start": ready[0] - started, "first_change": changes[0], "change": statistics.median(changes[1:])}


def main(what: str, device: str, path: str, started: str) -> None:
    from bdr.api import execute
    from bdr.bench.cases import SMALL, Shape, configuration, random_images
    from bdr.engine.listen import EpochLog, Listener
    from bdr.planning.assemble import plan_run
    from bdr.types import Phase, Stage

    class Watch(Listener):
        def __init__(self) -> None:
            self.epochs: list[tuple[int, float, float]] = []
            self.stage = 0.0

        def stage_begins(self, phase: Phase, number: int, stage: Stage, epoch: int) -> None:
            self.stage = self.stage or time.time()

        def epoch_ends(self, phase: Phase, stage: Stage, log: EpochLog) -> None:
            self.epochs.append((phase.index, time.time(), log.seconds))

    imported, where = time.time(), choose_device(device)
    gpu = where.type == "cuda"
    shape = Shape(images=500) if gpu else SMALL
    fields: dict[str, Any] = {"device": str(where), "keep": "none"}
    fields["stage"] = {"epochs": EPOCHS, "batch": 128 if gpu else 32}
    config, watch = configuration(what, shape, fields | {"phases": PHASES}), Watch()
    plan = plan_run(config, Path(path), Path(path), random_images(shape))
    planned = time.time()
    execute(plan, watch)
    parts = {"imports": imported - float(started), "plan": planned - imported, "opening": watch.stage - planned}
    print(json.dumps(summary(float(started), watch.epochs) | parts))


if __name__ == "__main__":
    main(*sys.argv[1:])
