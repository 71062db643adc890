"""Which readout of a run its predictions use, and what to say if another one is far better."""

from __future__ import annotations

import inspect

from bdr.configuration.config import short
from bdr.errors import unknown
from bdr.methods import METHODS, Method
from bdr.planning.parts import resolve, scale_setting
from bdr.records import FULL_SCALE, Run, far_better


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
    setting = scale_to_grow(run) if told == "cnn" else None
    if setting is None:
        return f"{said}: {command} with --readout {best}"
    return (
        f"{said}: in few epochs the cosine scale may not have grown; {command} with --readout {best}, or train "
        f"longer, or with --set {setting}={FULL_SCALE:g}"
    )


def scale_to_grow(run: Run) -> str | None:
    """The setting of the cosine scale, such as `ucir.eta`, if the method of a run has one and it started small.

    None for a run that extends another, because it began with the scale that was there.
    """
    name: str = run.info["config"]["method"]
    setting = scale_setting(name)
    if setting is None or "extends" in run.info:
        return None
    default = inspect.signature(resolve("method", name, METHODS, Method)).parameters[setting].default
    told, kept = run.info["config"]["settings"], run.info.get("settings") or {}  # older records lack these
    start = (kept.get(short(name), {}) | told.get(short(name), {})).get(setting, default)
    return f"{short(name)}.{setting}" if start < FULL_SCALE else None
