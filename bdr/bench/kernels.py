"""The command `bdr bench kernels`: where the time of a step goes, kernel by kernel."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from bdr.bench.cases import (
    SMALL,
    Shape,
    Told,
    configuration,
    fits_of,
    learner_of,
    random_images,
    seconds_of_step,
    steps_of,
)
from bdr.bench.tables import Measured, measured_table, show_measured
from bdr.engine.fit import Fit
from bdr.planning.describe import describe_device

# Kinds of kernels and operations, by words in their names; the first kind that fits counts.
KINDS = {
    "compiled (Triton)": ("triton",),
    "convolution": ("conv", "xmma", "cudnn", "wgrad", "dgrad", "fprop", "implicit_gemm", "mkldnn"),
    "matrix product": ("gemm", "cutlass", "cublas", "aten::mm", "addmm", "bmm", "linear"),
    "batch norm": ("batch_norm", "bn_fw", "bn_bw"),
    "optimiser and lists of tensors": ("multi_tensor", "foreach", "sgd", "adam"),
    "copying and filling": ("memcpy", "memset", "copy", "fill", "zero_"),
}
OTHER = "other"
LONGEST_NAME = 90


@dataclass(frozen=True)
class Kernel:
    """One kernel: its calls in a step and the time of all of them together, on average."""

    name: str
    calls: float
    microseconds: float

    @property
    def kind(self) -> str:
        name = self.name.lower()
        return next((kind for kind, words in KINDS.items() if any(word in name for word in words)), OTHER)


def bench_kernels(what: str, phase: int, told: Told) -> tuple[Measured, list[Kernel]]:
    """Profile some steps; return a table with one row for each kind of kernel, and every kernel."""
    where, fields = told.where, told.fields(what)
    usual, steps = (Shape(), told.steps or 20) if where.type == "cuda" else (SMALL, told.steps or 2)
    shape = usual.seen(told.as_trained).up_to(phase)
    learner = learner_of(configuration(what, shape, fields), random_images(shape))
    with learner.at_work():
        fit = fits_of(learner, phase)[0]
        fit.wake()
        whole = 1e6 * seconds_of_step(fit, 10 * steps)
        kernels = profiled(fit, steps)
    about = f"{fields['net']}, batch {fields['stage']['batch']}, {shape.images_told}"
    place = f"{describe_device(where)['name']}, {fields['engine']}"
    measured = Measured(f"A step of {what} in phase {phase}, {about}, {place}: {whole:,.0f} us", where)
    for row in rows_by_kind(kernels, whole):
        measured.add(row)
    return measured, kernels


def profiled(fit: Fit, steps: int) -> list[Kernel]:
    """The kernels (on a CPU, the operations) of so many steps, longest first."""
    gpu = fit.pool.store.device.type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if gpu else ProfilerActivity.CPU]) as seen:
        steps_of(fit, steps)
        if gpu:
            torch.cuda.synchronize()
    return summed(((each.name, taken(each, gpu)) for each in seen.events() or () if on_device(each, gpu)), steps)


def on_device(event: Any, gpu: bool) -> bool:
    return not gpu or event.device_type == torch.autograd.DeviceType.CUDA


def taken(event: Any, gpu: bool) -> float:
    """The microseconds of an event; for an operation that calls others, only its own."""
    return float(event.device_time_total if gpu else event.self_cpu_time_total)


def summed(calls: Iterable[tuple[str, float]], steps: int) -> list[Kernel]:
    times: dict[str, list[float]] = defaultdict(list)
    for name, microseconds in calls:
        times[name].append(microseconds)
    kernels = [Kernel(name, len(each) / steps, sum(each) / steps) for name, each in times.items()]
    return sorted(kernels, key=lambda kernel: -kernel.microseconds)


def rows_by_kind(kernels: Sequence[Kernel], whole: float) -> list[dict[str, Any]]:
    """One row for each kind, and one for all, which may exceed 100 % of a step because kernels overlap."""
    kinds = sorted({kernel.kind for kernel in kernels}, key=lambda kind: (kind == OTHER, kind))
    rows = [row_of(kind, [kernel for kernel in kernels if kernel.kind == kind], whole) for kind in kinds]
    return [*sorted(rows, key=lambda row: -row["us/step"]), row_of("all", kernels, whole)]


def row_of(kind: str, kernels: Sequence[Kernel], whole: float) -> dict[str, Any]:
    microseconds = sum(kernel.microseconds for kernel in kernels)
    calls = sum(kernel.calls for kernel in kernels)
    return {"kind": kind, "calls/step": calls, "us/step": microseconds, "% of a step": 100 * microseconds / whole}


def row_of_kernel(kernel: Kernel) -> dict[str, Any]:
    return {"us/step": kernel.microseconds, "calls/step": kernel.calls, "kernel": kernel.name}


def show_kernels(measured: Measured, kernels: Sequence[Kernel], top: int, file: Path | None) -> None:
    """Show the kinds and the `top` longest kernels; `file`, if given, gets all kernels."""
    longest = Measured(f"The {min(top, len(kernels))} longest", measured.device)
    for each in kernels[:top]:
        longest.add(row_of_kernel(each) | {"kernel": each.name[:LONGEST_NAME]})
    further = [measured_table(longest)] if longest.rows else []
    show_measured(measured, file, further, {"kernels": [row_of_kernel(each) for each in kernels]})
