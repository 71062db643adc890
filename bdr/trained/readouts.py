"""Which readout of a run its predictions use, and what to say if another one is far better."""

from __future__ import annotations

from bdr.errors import unknown
from bdr.records import Run, far_better, small_scale


def readout_of(run: Run, phase: int, asked: str | None = None) -> str:
    """The readout that is asked for, else the one by which the results of the phase are reported."""
    there = run.phases[phase]["accuracy"]
    if asked is None:
        return run.told_readout(phase)
    if asked not in there:
        raise unknown(f"readout of {run.path}", asked, there)
    return asked


def advice(run: Run, phase: int = -1, command: str = "predict") -> str | None:
    """A line of advice if the readout by which a run is reported is right far less often than another; else None."""
    accuracy, told = run.phases[phase]["accuracy"], readout_of(run, phase)
    best = far_better(accuracy, told)
    if best is None:
        return None
    said = f"{best} is right for {accuracy[best]:.0f} % and {told} for {accuracy[told]:.0f} %"
    scale = small_scale(run) if told == "cnn" else None
    if scale is None:
        return f"{said}: {command} with --readout {best}"
    return (
        f"{said}: in few epochs the cosine scale may not have grown; {command} with --readout {best}, or train "
        f"longer, or with {scale.remedy}"
    )
