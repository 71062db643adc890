"""The command `bdr bench steps`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from bdr.bench.baseline import time_baseline
from bdr.bench.cases import (
    SMALL,
    Shape,
    Timing,
    Told,
    plain_net,
    random_images,
    seconds_of,
    time_case,
    usual_batch,
)
from bdr.bench.tables import in_phase, ratio_table, ratios, show_tables, speed_table
from bdr.errors import UsageError
from bdr.planning.describe import describe_device
from bdr.terminal import say

SIDE = 8192  # of the square matrices whose product measures the peak


def bench_steps(
    what: Sequence[str],
    engines: Sequence[str],
    told: Told,
    out: Path | None = None,
    *,
    baseline: bool = True,
    analyse: bool = False,
    phase: int = 1,
) -> None:
    """Time every case in every engine, in its first phase and in a later one, and print speeds and ratios."""
    where = told.where
    gpu = where.type == "cuda"
    shape, steps = (Shape(), told.steps or 300) if gpu else (SMALL, told.steps or 3)
    if phase < 1:
        raise UsageError(f"--phase {phase}: the later phase that is timed is 1 or more; the first is timed anyway")
    shape = shape.seen(told.as_trained).up_to(phase)
    data = random_images(shape)
    chosen = list(engines) or (["graph", "eager"] if gpu else ["eager"])
    timings = list[Timing]()
    for engine in chosen:
        for number, case in itertools.product((0, phase), what):
            config = replace(told, engine=engine).fields(case)
            timings.append(time_case(case, number, shape, data, steps, config))
            say(line_of(timings[-1]))
            if analyse and number:  # nothing is analysed in a first phase
                looked = time_case(case, number, shape, data, steps, config | {"analyse": True})
                timings.append(replace(looked, case=f"{case} --analyse"))
                say(line_of(timings[-1]))
    if baseline:
        net, batch = told.net or plain_net(where), told.batch or usual_batch(where)
        timings.append(time_baseline(net, data, shape.base, batch, min(steps, 20), where))
        say(line_of(timings[-1]))
    report(timings, what[0], shape, where, out)


def line_of(timing: Timing) -> str:
    where = f"{timing.case}, {timing.engine}, {in_phase(timing)}"
    return f"{where}: {timing.images_per_second:,.0f} images/s, {timing.ms_per_step:.3f} ms"


def report(timings: list[Timing], reference: str, shape: Shape, device: torch.device, file: Path | None) -> None:
    peak, found = bf16_peak(device), ratios(timings, reference)
    later = max(each.number for each in timings)
    about = f"{describe_device(device)['name']}, {shape.images_told}, phases 0 and {later}"
    tables = [speed_table(timings, peak, about), *([ratio_table(found)] if found else [])]
    measured = {"timings": [each.as_dict() for each in timings], "ratios": found, "bf16_peak_teraflops": peak}
    show_tables(tables, file, measured | {"pixels": shape.pixels}, device)


def bf16_peak(device: torch.device) -> float | None:
    """Teraflops of a large bf16 matrix product on random data: the measured peak of the GPU, not the advertised one."""
    if device.type != "cuda":
        return None
    a, b = (torch.randn(SIDE, SIDE, device=device, dtype=torch.bfloat16) for _ in range(2))
    for _ in range(3):
        a @ b
    each = seconds_of(lambda: [a @ b for _ in range(10)], device) / 10
    return 2 * SIDE**3 / each / 1e12
