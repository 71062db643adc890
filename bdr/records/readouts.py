"""How far apart the readouts of a run are, and whether a cosine scale that has not grown may be why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from bdr.records.reader import Run

FAR = 20.0  # points of accuracy between two readouts of one model
FULL_SCALE = 20.0  # a cosine scale that starts at this needs no growing


class Scale(NamedTuple):
    """The scale of a cosine classifier: the setting that it starts from, such as `ucir.eta`, and what it grew to."""

    setting: str
    grown: float | None  # None: not recorded

    @property
    def remedy(self) -> str:
        return f"--set {self.setting}={FULL_SCALE:g}"


def far_better(accuracy: Mapping[str, float], told: str) -> str | None:
    """The readout with the highest accuracy if the one reported, `told`, is far behind it; else None."""
    best = max(accuracy, key=accuracy.__getitem__)
    return best if accuracy[best] - accuracy[told] > FAR else None


def small_scale(run: Run) -> Scale | None:
    """The scale of a run, if its method has one and it started and remained small.

    None for a run that extends another, because it began with the scale that was there.
    """
    setting: str | None = run.info.get("scale_setting")
    if setting is None or "extends" in run.info:
        return None
    owner, _, name = setting.rpartition(".")
    start = run.info.get("settings", {}).get(owner, {}).get(name)
    grown = (run.phases[-1].get("method_at_end") or {}).get(name)
    small = isinstance(start, int | float) and max(start, grown or start) < FULL_SCALE
    return Scale(setting, grown) if small else None
