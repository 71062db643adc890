"""The commands `bdr bench steps`, `bdr bench herding`, `bdr bench augment` and `bdr bench scaling`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from bdr.assemble import choose_device
from bdr.bench.baseline import time_baseline
from bdr.bench.cases import (
    SMALL,
    Shape,
    Timing,
    begun,
    configuration,
    experiment_of,
    random_images,
    seconds_of,
    time_case,
)
from bdr.bench.tables import ratio_table, ratios, speed_table
from bdr.data.memory import HERDINGS
from bdr.describe import describe_device, versions
from bdr.engine.step import choose_engine
from bdr.errors import UsageError
from bdr.records import write_atomically


def bench_steps(
    what: Sequence[str],
    engines: Sequence[str],
    device: str,
    net: str | None,
    batch: int | None,
    steps: int | None,
    baseline: bool,
    out: Path | None,
) -> None:
    """Times every case in every engine, first and later phase, and prints speeds and ratios."""
    where = choose_device(device)
    gpu = where.type == "cuda"
    shape, steps = (Shape(), steps or 300) if gpu else (SMALL, steps or 3)
    fields: dict[str, Any] = {"device": str(where), "net": net or ("resnet18" if gpu else "small")}
    size = batch or (128 if gpu else 32)
    data = random_images(shape)
    chosen = list(engines) or (["graph", "eager"] if gpu else ["eager"])
    console, timings = Console(highlight=False), []
    for engine in chosen:
        choose_engine(engine, where)
        for later in (False, True):
            for case in what:
                config = fields | {"engine": engine, "stage": {"batch": size}}
                timings.append(time_case(case, later, shape, data, steps, config))
                console.print(line_of(timings[-1]), markup=False)
    if baseline:
        timings.append(time_baseline(fields["net"], data, shape.base, size, min(steps, 20), where))
        console.print(line_of(timings[-1]), markup=False)
    report(console, timings, what[0], where, out)


def line_of(timing: Timing) -> str:
    where = f"{timing.case}, {timing.engine}, {timing.phase} phase"
    return f"{where}: {timing.images_per_second:,.0f} images/s, {timing.ms_per_step:.3f} ms"


def report(console: Console, timings: list[Timing], reference: str, device: torch.device, out: Path | None) -> None:
    peak, about = bf16_peak(device), describe_device(device)
    found = ratios(timings, reference)
    console.print(speed_table(timings, peak, f"{about['name']}, batch {timings[0].batch}"))
    console.print(ratio_table(found))
    if out is not None:
        kept = {"timings": [each.as_dict() for each in timings], "ratios": found, "bf16_peak_teraflops": peak}
        write_atomically(out, json.dumps(kept | {"device": about, "versions": versions()}, indent=2) + "\n")
        console.print(f"written: {out}", markup=False)


def bf16_peak(device: torch.device, size: int = 8192) -> float | None:
    """Teraflops of a large bf16 matrix product on random data: what the chip can do, not what its label says."""
    if device.type != "cuda":
        return None
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    for _ in range(3):
        a @ b
    each = seconds_of(lambda: [a @ b for _ in range(10)], device) / 10
    return 2 * size**3 / each / 1e12


def bench_herding(device: str, classes: int, images: int, quota: int) -> Table:
    """All herdings on random features of ResNet-18's width, next to one class after the other."""
    where = choose_device(device)
    features = torch.nn.functional.normalize(torch.randn(classes, images, 512, device=where).double(), dim=2)
    present = torch.ones(classes, images, dtype=torch.bool, device=where)
    table = Table(title=f"Herding {quota} of {images} images, {classes} classes, {describe_device(where)['name']}")
    for name in ("herding", "all at once ms", "one by one ms", "factor"):
        table.add_column(name, justify="left" if name == "herding" else "right")
    for name, herd in HERDINGS.items():
        if herd is None:
            continue
        herd(features[:1], present[:1], quota)
        together = seconds_of(lambda herd=herd: herd(features, present, quota), where)  # type: ignore[misc]
        singly = seconds_of(
            lambda herd=herd: [herd(features[k : k + 1], present[k : k + 1], quota) for k in range(classes)],  # type: ignore[misc]
            where,
        )
        table.add_row(name, f"{1000 * together:.1f}", f"{1000 * singly:.1f}", f"{singly / together:.1f}")
    return table


def bench_augment(device: str, batch: int, steps: int) -> Table:
    """Batched augmentation on the device, next to Pillow in one process."""
    from bdr.bench.baseline import Pictures

    where = choose_device(device)
    shape = Shape(classes=10, base=5, step=5, images=100)
    data = random_images(shape)
    experiment = experiment_of(configuration("ucir", shape, {"device": str(where), "net": "small"}), data)
    _, pool = begun(experiment, later=False)
    epoch = pool.epoch("all", 0, batch, 0)
    pool.store.augmented(epoch.rows[0], epoch.draws.at(0))
    ours = seconds_of(lambda: [pool.store.augmented(epoch.rows[0], epoch.draws.at(0)) for _ in range(steps)], where)
    pictures = Pictures(data, shape.classes)
    theirs = seconds_of(lambda: [pictures[row % len(pictures)] for row in range(200)], torch.device("cpu"))
    speeds = steps * epoch.rows.shape[1] / ours, 200 / theirs
    table = Table(title=f"Crop, mirror and normalise, {describe_device(where)['name']}, batch {epoch.rows.shape[1]}")
    for name in ("batched images/s", "Pillow, one process, images/s", "factor"):
        table.add_column(name, justify="right")
    table.add_row(f"{speeds[0]:,.0f}", f"{speeds[1]:,.0f}", f"{speeds[0] / speeds[1]:.1f}")
    return table


def bench_scaling(device: str, classes: Sequence[int], memories: Sequence[int], steps: int | None) -> Table:
    """How a later step's time grows with the number of classes and with the memory."""
    where = choose_device(device)
    gpu = where.type == "cuda"
    if min(classes) < 4:
        raise UsageError(f"--classes {min(classes)}: a later phase needs 4 classes or more")
    table = Table(title=f"A later step of ucir+bdr, {describe_device(where)['name']}")
    for name in ("classes", "memory", "ms/step", "images/s"):
        table.add_column(name, justify="right")
    for count in classes:
        for memory in memories:
            shape = Shape(count, count // 2, count // 2, max(4, memory), 32 if gpu else 8, f"{memory}/class")
            fields: dict[str, Any] = {"device": str(where), "net": "resnet18" if gpu else "small"}
            fields["stage"] = {"batch": 128 if gpu else 32}
            timing = time_case("ucir+bdr", True, shape, random_images(shape), steps or (200 if gpu else 3), fields)
            table.add_row(
                str(count), f"{memory}/class", f"{timing.ms_per_step:.3f}", f"{timing.images_per_second:,.0f}"
            )
    return table
