"""The paper against ours: the number of a cell in a run, its verdict, and the gain of BDR."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bdr import metrics
from bdr.metrics import OverSeeds
from bdr.paper.cells import LOSSES, Cell, load_cells
from bdr.paper.found import Results
from bdr.paper.mapping import SETTING, Reason, Wanted, mapped
from bdr.records import Run

PHASE = 2  # tables 1 and 9 do not say which phase; CwD's accuracies of old and new classes fit this one best
PHASE_NOTE = (
    f"T1 and T9 do not say which phase and setting: ours is phase {PHASE} (the second after the first) of B50 S10 R20, "
    "chosen because CwD's accuracies fit best there: what CwD reaches here says little."
)
ANSWERS = "T8"  # the table of other answers to class imbalance; the paper compares each of them with the first row
ENOUGH = 3  # seeds
MILLION = 1e6
PARAMETERS = 0.1  # tolerance, millions
LOSS_SHARE = 0.2  # tolerance, as a share of the paper's loss
NO_RESULT = "no result yet"
UNPRINTED = "not in the paper"


@dataclass(frozen=True)
class Gain:
    """The gain of BDR, or of what else was added, over the base row: the paper's, and ours over common seeds."""

    base: Cell
    paper: float | None  # None: the paper does not have it
    pairs: dict[int, tuple[float, float]]  # by seed: (with what was added, without)
    runs: dict[int, Run]  # by seed: the runs without
    tolerance: float

    @property
    def ours(self) -> OverSeeds:
        """The mean gain over common seeds, with its standard error as in every other comparison."""
        return metrics.paired(list(self.pairs.values()))

    @property
    def verdict(self) -> str:
        if self.ours.mean is None:
            return NO_RESULT
        return UNPRINTED if self.paper is None else at_least(self.paper, self.ours.mean, self.tolerance)


@dataclass(frozen=True)
class Judged:
    """A cell with the runs found for it, its values and its gain."""

    cell: Cell
    wanted: Wanted | None
    reason: Reason | None
    values: dict[int, float]  # ours, by seed
    runs: dict[int, Run]
    tolerance: float
    gain: Gain | None

    @property
    def ours(self) -> OverSeeds:
        return metrics.spread(list(self.values.values()))

    @property
    def difference(self) -> float | None:
        mean = self.ours.mean
        return None if mean is None or self.cell.value is None else mean - self.cell.value

    @property
    def few_seeds(self) -> bool:
        return 0 < len(self.values) < ENOUGH

    @property
    def verdict(self) -> str:
        if self.reason is not None:
            return "not run"
        if self.ours.mean is None or self.cell.value is None:
            return NO_RESULT if self.ours.mean is None else UNPRINTED
        judge = at_least if self.cell.is_accuracy else times if self.cell.metric in LOSSES else within
        return judge(self.cell.value, self.ours.mean, self.tolerance)


def at_least(paper: float, ours: float, tolerance: float) -> str:
    """The verdict for numbers of which higher is better."""
    difference = round(ours - paper, 6)  # 66.55 - 67.05 is a little less than -0.5 in floating point
    if difference < -tolerance:
        return f"missed by {-difference:.2f}"
    return "above" if difference > tolerance else "reached"


def within(paper: float, ours: float, tolerance: float) -> str:
    """The verdict for sizes, of which more is not better."""
    difference = abs(round(ours - paper, 6))
    return "reached" if difference <= tolerance else f"off by {difference:.2f}"


def times(paper: float, ours: float, tolerance: float) -> str:
    """The verdict for losses, which can differ by orders of magnitude."""
    return "reached" if abs(ours - paper) <= tolerance else f"off: {ours / paper:.3g} times"


def tolerance_of(cell: Cell, points: float) -> float:
    if cell.is_accuracy:
        return points
    return LOSS_SHARE * (cell.value or 0.0) if cell.metric in LOSSES else PARAMETERS


def reading(cell: Cell, run: Run) -> float | None:
    """The number of a cell as measured in a run; None if the run does not have it."""
    if cell.metric == "params_avg_M":
        return parameters(cell, run)
    if cell.get("split"):
        return of_phase(cell, run)
    key = "top5" if cell.metric.endswith("top5") else "accuracy"
    series = [(line.get(key) or {}).get(run.readout) for line in run.phases]
    if not series or None in series:
        return None
    combine: Callable[[list[Any]], float] = metrics.average if cell.metric.startswith("avg") else metrics.last
    return combine(series)


def parameters(cell: Cell, run: Run) -> float | None:
    """Million parameters of a run: the average over phases for DER, as the paper prints it, else the final size."""
    combine = metrics.parameters_average if cell.base.startswith("DER") else metrics.parameters_final
    count = combine([line["parameters"] for line in run.phases])
    return None if count is None else count / MILLION


def of_phase(cell: Cell, run: Run) -> float | None:
    line: dict[str, Any] = next((line for line in run.phases if line["phase"] == PHASE), {})
    split = cell.get("split")
    if cell.metric in LOSSES:
        when = "initial" if cell.metric == "initial_loss" else "final"
        return (line.get("losses") or {}).get(f"{when}_{split}")
    return (line.get(f"accuracy_{split}") or {}).get(run.readout)


def readings(cell: Cell, runs: dict[int, Run]) -> dict[int, float]:
    found = {seed: reading(cell, run) for seed, run in runs.items()}
    return {seed: value for seed, value in found.items() if value is not None}


def base_of(cell: Cell) -> Cell | None:
    """The cell over which a cell's gain is taken, of its own table, else (T7) of T4; None if it has no gain."""
    added = cell.balanced or (cell.table == ANSWERS and len(cell.parts) > 1)
    compared = (added and cell.value is not None) or not cell.printed
    if not compared or not cell.is_accuracy or cell.get("split"):
        return None
    for table in (cell.table, "T4"):
        for other in load_cells():
            if other.table == table and is_base(other, cell) and other.value is not None:
                return other
    return None


def is_base(other: Cell, cell: Cell) -> bool:
    bare = other.parts == ([cell.base] if cell.printed else cell.parts[:-1]) and not other.get("CR")
    return bare and all(getattr(other, name) == getattr(cell, name) for name in SETTING)


def gain_of(cell: Cell, values: dict[int, float], results: Results, formula: str, tolerance: float) -> Gain | None:
    base = base_of(cell)
    if base is None or base.value is None:
        return None
    found = mapped(base, formula)
    wanted = found if isinstance(found, Wanted) else found.wanted
    runs = results.of(wanted) if wanted else {}
    theirs = readings(base, runs)
    pairs = {seed: (value, theirs[seed]) for seed, value in values.items() if seed in theirs}
    paper = None if cell.value is None else round(cell.value - base.value, 6)
    return Gain(base, paper, pairs, {seed: runs[seed] for seed in pairs}, tolerance)


def judge(cells: Sequence[Cell], results: Results, formula: str, tolerance: float) -> list[Judged]:
    return [judged(cell, results, formula, tolerance) for cell in cells]


def judged(cell: Cell, results: Results, formula: str, tolerance: float) -> Judged:
    found = mapped(cell, formula)
    wanted, reason = (found, None) if isinstance(found, Wanted) else (None, found)
    asked = wanted or (reason.wanted if reason else None)
    runs = results.of(asked) if asked else {}
    values = readings(cell, runs)
    runs = {seed: runs[seed] for seed in values}
    gain = gain_of(cell, values, results, formula, tolerance)
    return Judged(cell, wanted, reason, values, runs, tolerance_of(cell, tolerance), gain)
