"""Measures of a run, from its stored predictions and series: numpy in, numbers out; accuracies are in percent.

a_ij is the accuracy on the classes of phase j after phase i, T the last phase; a row of the matrix is one i.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from bdr.errors import unknown

LEAST_STEPS = 5  # in a window: the loss of a single batch says little beyond that batch
Boundaries = Sequence[Sequence[int]]  # (old, seen) of each phase: classes [old, seen) arrive in it

SCALARS = (
    "average",
    "last",
    "old",
    "new",
    "forgetting_max",
    "forgetting_max_all",
    "forgetting_first",
    "destruction_peak",
    "destruction_peak_distillation",
    "reconstruction_gap",
    "reconstruction_gap_distillation",
    "parameters_final",
    "parameters_average",
)


class Recorded(Protocol):
    """The part of a run that this module reads."""

    @property
    def phases(self) -> list[dict[str, Any]]: ...

    @property
    def computed(self) -> dict[str, Any]: ...

    def steps(self, phase: int) -> dict[str, np.ndarray]: ...


class Summarised(ABC):
    """A run whose numbers were computed before: whoever holds many runs keeps these and not their series."""

    @abstractmethod
    def summary(self, readout: str) -> dict[str, Any]: ...


class Destruction(NamedTuple):
    """How far a series rises above its first value (peak), where (step), and how much of it stays at the end (gap)."""

    peak: float
    gap: float
    step: int


class OverSeeds(NamedTuple):
    """Mean and sample standard deviation (None for a single seed) of n runs."""

    mean: float | None
    spread: float | None
    n: int


def _percent(hits: np.ndarray) -> float:
    return float(100.0 * hits.mean()) if hits.size else float("nan")


def _hits(labels: np.ndarray, ids: np.ndarray, k: int = 1) -> np.ndarray:
    """(N,) whether the label is among the k best ids; ids are (N, any) best first, or (N,)."""
    ids = np.asarray(ids).reshape(len(labels), -1)
    return (ids[:, :k] == np.asarray(labels)[:, None]).any(axis=1)


def accuracy(labels: np.ndarray, ids: np.ndarray) -> float:
    """Share of images whose best id is the label; NaN without images."""
    return _percent(_hits(labels, ids))


def top_k(labels: np.ndarray, ids: np.ndarray, k: int = 5) -> float:
    """Share of images whose label is among the k best ids; with fewer than k classes, among all of them."""
    return _percent(_hits(labels, ids, k))


def per_class(labels: np.ndarray, ids: np.ndarray, classes: int) -> np.ndarray:
    """(classes,) accuracy on each class; NaN for a class without images."""
    hits = np.bincount(labels, weights=_hits(labels, ids), minlength=classes)
    counts = np.bincount(labels, minlength=classes)
    return np.divide(100.0 * hits, counts, out=np.full(len(counts), np.nan), where=counts > 0)


def between(labels: np.ndarray, ids: np.ndarray, first: int, end: int) -> float:
    """Accuracy on the images of the classes [first, end)."""
    inside = (np.asarray(labels) >= first) & (np.asarray(labels) < end)
    return accuracy(np.asarray(labels)[inside], np.asarray(ids)[inside])


def old_and_new(labels: np.ndarray, ids: np.ndarray, old: int) -> tuple[float | None, float]:
    """Accuracy on classes of earlier phases (None where there are none) and on those of this phase."""
    end = int(np.max(labels, initial=0)) + 1
    return (between(labels, ids, 0, old) if old else None), between(labels, ids, old, end)


def by_phase(labels: np.ndarray, ids: np.ndarray, boundaries: Boundaries) -> list[float]:
    """A row of the matrix: accuracy on the classes of each phase so far."""
    return [between(labels, ids, old, seen) for old, seen in boundaries]


def matrix(rows: Sequence[Sequence[float | None]]) -> np.ndarray:
    """(T + 1, T + 1) a_ij from its rows of growing length; NaN where classes had not arrived."""
    table = np.full((len(rows), len(rows)), np.nan)
    for i, row in enumerate(rows):
        table[i, : len(row)] = np.array(row, float)
    return table


def average(accuracies: Sequence[float]) -> float:
    """Average incremental accuracy: the mean over phases, phase 0 included."""
    return float(np.mean(accuracies))


def last(accuracies: Sequence[float]) -> float:
    """Accuracy over all classes after the last phase."""
    return float(accuracies[-1])


def forgetting_max(a: np.ndarray) -> float | None:
    """Mean over j < T of max_{i<T} a_ij - a_Tj: below zero where the last phase is the best; None for one phase."""
    return _forgetting(a, _best(a[:-1, :-1])) if len(a) > 1 else None


def forgetting_max_all(a: np.ndarray) -> float | None:
    """The same with the last phase included in the maximum: never below zero."""
    return _forgetting(a, _best(a[:, :-1])) if len(a) > 1 else None


def forgetting_first(a: np.ndarray) -> float | None:
    """Mean over j < T of a_jj - a_Tj, which is minus the backward transfer."""
    return _forgetting(a, np.diagonal(a)[:-1]) if len(a) > 1 else None


def _best(a: np.ndarray) -> np.ndarray:
    """The maximum of each column; NaN, without a warning, for a column that holds nothing else."""
    return np.fmax.reduce(a, axis=0)


def _forgetting(a: np.ndarray, best: np.ndarray) -> float | None:
    """The mean drop from `best` to the last row; None where an accuracy is missing, as in records that lack it."""
    found = float(np.mean(best - a[-1, :-1]))
    return found if np.isfinite(found) else None


def moving_mean(series: np.ndarray, window: int) -> np.ndarray:
    """Trailing mean over full windows, NaN left out; a series shorter than the window is one window."""
    series = np.asarray(series, float)
    window = max(1, min(int(window), len(series)))
    finite = np.isfinite(series)
    sums = _window_sums(np.where(finite, series, 0.0), window)
    counts = _window_sums(finite.astype(float), window)
    return np.divide(sums, counts, out=np.full(len(sums), np.nan), where=counts > 0)


def _window_sums(values: np.ndarray, window: int) -> np.ndarray:
    if not len(values):
        return values
    return np.lib.stride_tricks.sliding_window_view(values, window).sum(axis=1)


def smoothed(series: np.ndarray, window: int) -> np.ndarray:
    """The moving mean, as long as the series: before a window is full, the mean of all steps so far."""
    series = np.asarray(series, float)
    early = series[: max(0, min(int(window), len(series)) - 1)]
    finite = np.isfinite(early)
    sums, counts = np.where(finite, early, 0.0).cumsum(), finite.cumsum()
    growing = np.divide(sums, counts, out=np.full(len(early), np.nan), where=counts > 0)
    return np.concatenate([growing, moving_mean(series, window)])


def destruction(series: np.ndarray, window: int) -> Destruction | None:
    """Peak and end of the one-epoch moving mean, each minus the first finite value; None for an empty series."""
    finite = np.asarray(series, float)[np.isfinite(series)]
    if not len(finite):
        return None
    means = moving_mean(series, window)
    top = int(np.nanargmax(means))
    end = means[np.isfinite(means)][-1]
    step = top + len(series) - len(means)  # a window is named by its last step
    return Destruction(float(means[top] - finite[0]), float(end - finite[0]), step)


def parameters_final(counts: Sequence[int]) -> int | None:
    """Parameters kept for inference after the last phase."""
    return int(counts[-1]) if counts else None


def parameters_average(counts: Sequence[int]) -> float | None:
    """Parameters kept for inference, mean over phases."""
    return float(np.mean(counts)) if counts else None


def first_stage(run: Recorded, phase: int, name: str) -> np.ndarray:
    """A series of a phase's first stage: later ones (balanced fine-tuning, say) have epochs of another length."""
    steps = run.steps(phase)
    return steps[name][steps["stage"] == steps["stage"][:1]]


def steps_per_epoch(run: Recorded, phase: int, otherwise: int = 1) -> int:
    """The steps per epoch of a phase's first stage, as recorded when the phase ended; if not recorded, `otherwise`."""
    line = next((line for line in run.phases if line["phase"] == phase), {})
    return int(line.get("steps_per_epoch") or otherwise)


def short_window(steps_per_epoch: int) -> int:
    """A quarter of an epoch, at least five steps: destruction takes less than an epoch, whose mean comes too late."""
    return min(steps_per_epoch, max(LEAST_STEPS, -(-steps_per_epoch // 4)))


def by_step(run: Recorded, phase: int, name: str) -> np.ndarray:
    """The moving mean of a series over an epoch, one value per step; at the end of an epoch, that epoch's mean."""
    return smoothed(first_stage(run, phase, name), steps_per_epoch(run, phase))


def destructions(run: Recorded, name: str) -> list[Destruction]:
    """One for each phase after the first, of the series "ce_old" or "distillation"; phases without it are left out."""
    phases = [line["phase"] for line in run.phases if line["phase"] > 0]
    found = [destruction(first_stage(run, phase, name), steps_per_epoch(run, phase)) for phase in phases]
    return [each for each in found if each is not None]


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _of(line: dict[str, Any], key: str, readout: str) -> Any:
    return (line.get(key) or {}).get(readout)


def summary(run: Recorded, readout: str = "cnn") -> dict[str, Any]:
    """All numbers of a run for one readout; None where there is none (forgetting in a run of one phase, say)."""
    if isinstance(run, Summarised):
        return run.summary(readout)
    known = sorted({name for line in run.phases for name in line["accuracy"]})
    if readout not in known:
        raise unknown("readout", readout, known)
    accuracies = [line["accuracy"][readout] for line in run.phases]
    a = matrix([_of(line, "by_phase", readout) or [] for line in run.phases])
    return {
        "average": average(accuracies),
        "last": last(accuracies),
        "old": _of(run.phases[-1], "accuracy_old", readout),
        "new": _of(run.phases[-1], "accuracy_new", readout),
        "forgetting_max": forgetting_max(a),
        "forgetting_max_all": forgetting_max_all(a),
        "forgetting_first": forgetting_first(a),
        **_destructions_once(run),
        **_parameter_summary(run),
        "accuracies": accuracies,
        "matrix": [[float(value) for value in row[: i + 1]] for i, row in enumerate(a)],
    }


def _destructions_once(run: Recorded) -> dict[str, float | None]:
    """Computed once and kept: it takes nearly all the time of a summary, and is the same for every readout."""
    if "destructions" not in run.computed:
        run.computed["destructions"] = _destruction_summary(run)
    return run.computed["destructions"]


def _destruction_summary(run: Recorded) -> dict[str, float | None]:
    """Means over phases, of the loss on old classes (any method) and of the distillation term (the paper's measure)."""
    of_classes, of_distillation = destructions(run, "ce_old"), destructions(run, "distillation")
    return {
        "destruction_peak": _mean([each.peak for each in of_classes]),
        "destruction_peak_distillation": _mean([each.peak for each in of_distillation]),
        "reconstruction_gap": _mean([each.gap for each in of_classes]),
        "reconstruction_gap_distillation": _mean([each.gap for each in of_distillation]),
    }


def _parameter_summary(run: Recorded) -> dict[str, float | None]:
    counts = [line["parameters"] for line in run.phases]
    return {"parameters_final": parameters_final(counts), "parameters_average": parameters_average(counts)}


def over_seeds(summaries: Sequence[dict[str, Any]]) -> dict[str, OverSeeds]:
    """Mean, spread and n of every scalar of `summary`; runs that lack one do not count in its n."""
    return {key: spread([each[key] for each in summaries if each.get(key) is not None]) for key in SCALARS}


def spread(values: Sequence[float]) -> OverSeeds:
    """Mean, sample standard deviation and number of some values."""
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return OverSeeds(_mean(values), deviation, len(values))


def paired(pairs: Sequence[tuple[float | None, float | None]]) -> OverSeeds:
    """Mean difference over the pairs that have both values, with its standard error in place of the spread."""
    mean, deviation, n = spread([a - b for a, b in pairs if a is not None and b is not None])
    return OverSeeds(mean, None if deviation is None else deviation / n**0.5, n)
