"""Which readouts the rows of a comparison show, and what a reader must know if these differ."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bdr.records import far_better, small_scale
from bdr.report.groups import MOST_NAMED, Group, by_protocol
from bdr.report.training import method_of


def readout_notes(groups: list[Group]) -> list[str]:
    return [*_differing_note(groups), *_far_notes(groups), *_scale_notes(groups)]


def _differing_note(groups: list[Group]) -> list[str]:
    """A note if one table shows numbers of different readouts, with the option that sets one readout for all."""
    mixed = [group for each in by_protocol(groups) if len(_methods_by_readout(each)) > 1 for group in each]
    if not mixed:
        return []
    by_number = sorted(_methods_by_readout(mixed).items(), key=lambda pair: len(pair[1]))
    told = [f"{_counted(methods)}: {readout}" for readout, methods in by_number]
    if len(by_number[-1][1]) > 1:
        told[-1] = f"others: {by_number[-1][0]}"
    instead = " or ".join(common_readouts(groups))
    advice = f"; --readout {instead} of bdr show and bdr report sets one for all" if instead else ""
    return [f"Readouts differ ({', '.join(told)}){advice}."]


def _methods_by_readout(groups: Sequence[Group]) -> dict[str, list[str]]:
    found: dict[str, dict[str, None]] = {}
    for group in groups:
        found.setdefault(group.told_readout, {})[method_of(group.runs[0])] = None
    return {readout: list(methods) for readout, methods in found.items()}


def _counted(methods: Sequence[str]) -> str:
    return ", ".join(methods) if len(methods) < MOST_NAMED else f"{len(methods)} methods"


def common_readouts(groups: Sequence[Group]) -> list[str]:
    """The readouts by which every phase of every run was read."""
    lines = [line["accuracy"] for group in groups for run in group.runs for line in run.phases]
    return [name for name in lines[0] if all(name in line for line in lines)]


def _far_notes(groups: Sequence[Group]) -> list[str]:
    """For each readout, a note on the rows for which it is far more accurate at the end than the one shown."""
    found: dict[str, list[str]] = {}
    for group in groups:
        accuracy, told = last_accuracies(group), group.told_readout
        if best := _far_readout(group):
            found.setdefault(best, []).append(f"{group.name} {accuracy[best]:.0f} % ({told} {accuracy[told]:.0f} %)")
    return [
        f"After the last phase {best} is far more accurate than the readout shown here"
        + (f": {', '.join(rows)}." if len(rows) < MOST_NAMED else f" in {len(rows)} of {len(groups)} rows.")
        for best, rows in found.items()
    ]


def _far_readout(group: Group) -> str | None:
    """The readout that is far more accurate at the end than the one shown, unless that one was asked for."""
    accuracy, told = last_accuracies(group), group.told_readout
    return far_better(accuracy, told) if group.readout is None and told in accuracy else None


def _scale_notes(groups: Sequence[Group]) -> list[str]:
    """For each method, a note on cosine scales that are still small where class means are far more accurate."""
    found: dict[tuple[str, str], list[float | None]] = {}
    for group in groups:
        if group.told_readout == "cnn" and _far_readout(group):
            for run in group.runs:
                if small := small_scale(run):
                    found.setdefault((method_of(run), small.remedy), []).append(small.grown)
    return [
        f"There the cosine scale of {method} {_grown(scales)}: train longer, or let it start higher, with {remedy}."
        for (method, remedy), scales in found.items()
    ]


def _grown(scales: Sequence[float | None]) -> str:
    known = [scale for scale in scales if scale is not None]
    return f"has grown to {between(known)} by the end" if known else "may not have grown"


def between(values: Sequence[float]) -> str:
    low, high = f"{min(values):.1f}", f"{max(values):.1f}"
    return low if low == high else f"{low} to {high}"


def last_accuracies(group: Group) -> dict[str, float]:
    """Accuracy after the last phase in percent, mean over the runs, for each readout that all runs have."""
    lines = [run.phases[-1]["accuracy"] for run in group.runs]
    shared = [name for name in lines[0] if all(line.get(name) is not None for line in lines)]
    return {name: float(np.mean([line[name] for line in lines])) for name in shared}
