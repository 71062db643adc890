"""Cells, runs and records as tables: for the terminal, in Markdown and in JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bdr.metrics import OverSeeds
from bdr.paper.cells import LOSSES, Cell
from bdr.paper.mapping import AANET_NOTE, ANSWERS_NOTE, DER_NOTE, SAMPLING, SAMPLING_NOTE, Wanted, is_aanet
from bdr.paper.schedule import Job, Schedule
from bdr.paper.verdicts import ANSWERS, ENOUGH, LOSS_SHARE, PARAMETERS, PHASE_NOTE, UNPRINTED, Judged
from bdr.records import Run
from bdr.report.sheets import Sheet
from bdr.report.tables import NOTHING, number

SAME_PHASE = 0.05  # points: a GPU may evaluate a shared first phase slightly differently
SHORT = {
    "avg_acc_top1": "avg",
    "last_acc_top1": "last",
    "avg_acc_top5": "avg top-5",
    "last_acc_top5": "last top-5",
    "params_avg_M": "#p",
    "initial_loss": "loss at start",
    "convergence_loss": "loss at end",
    "final_accuracy": "accuracy",
}


def cell_sheets(judged: Sequence[Judged], formula: str, tolerance: float) -> list[Sheet]:
    """One sheet for each table and data set."""
    parts: dict[str, list[Judged]] = {}
    for each in judged:
        parts.setdefault(f"{each.cell.table}, {each.cell.dataset}", []).append(each)
    return [cell_sheet(title, some, formula, tolerance) for title, some in parts.items()]


def cell_sheet(title: str, judged: list[Judged], formula: str, tolerance: float) -> Sheet:
    reasons = list(dict.fromkeys(each.reason.text for each in judged if each.reason))
    rows = [row_of(each, reasons) for each in judged]
    header = ["method", "setting", "number", "paper", "ours", "n", "diff", "gain paper", "ours", "verdict"]
    kept = [at for at in range(len(header)) if at not in unneeded(judged)]
    title = f"{title}{'' if 2 in kept else ': average incremental accuracy'}"
    notes = [*reading_notes(judged, formula, tolerance), *(f"({at}) {text}" for at, text in enumerate(reasons, 1))]
    texts = tuple(kept.index(at) for at in (0, 1, 2, 9) if at in kept)
    return Sheet(title, [header[at] for at in kept], [[row[at] for at in kept] for row in rows], notes, texts)


def unneeded(judged: Sequence[Judged]) -> set[int]:
    """The indices of columns that would be the same or empty in every row."""
    same_number = all(each.cell.metric == "avg_acc_top1" for each in judged)
    return ({2} if same_number else set()) | (set() if any(each.gain for each in judged) else {7, 8})


def row_of(judged: Judged, reasons: Sequence[str]) -> list[str]:
    cell, gain = judged.cell, judged.gain
    digits = digits_of(cell)
    paper = with_spread(OverSeeds(cell.value, cell.std, 0), digits)
    count = f"{len(judged.values)}{'*' if judged.few_seeds else ''}" if judged.wanted or judged.values else ""
    gains = [number(gain.paper, sign=True), number(gain.ours.mean, sign=True)] if gain else ["", ""]
    ours = with_spread(judged.ours, digits)
    difference = number(judged.difference, digits, sign=True)
    said = f"see ({reasons.index(judged.reason.text) + 1})" if judged.reason else verdict_of(judged)
    return [name_of(cell), setting_of(cell), number_of(cell), paper, ours, count, difference, *gains, said]


def digits_of(cell: Cell) -> int:
    return 5 if cell.metric in LOSSES else 2


def with_spread(value: OverSeeds, digits: int) -> str:
    text = number(value.mean, digits)
    return text if value.spread is None or text == NOTHING else f"{text} ± {number(value.spread, digits)}"


def verdict_of(judged: Judged) -> str:
    gain = judged.gain
    if gain is None or gain.ours.mean is None or gain.paper is None:
        return judged.verdict
    return f"{judged.verdict}, gain {gain.verdict}"


def name_of(cell: Cell) -> str:
    if cell.get("beta") is not None:
        return f"{cell.method}, beta {cell.get('beta'):g}"
    switches = "+".join(name for name in ("CR", "DC", "momentum") if cell.get(name))
    return f"{cell.method} w {switches}" if switches else cell.method


def setting_of(cell: Cell) -> str:
    if cell.B is None:
        return "not stated"
    return f"B{cell.B} S{cell.S} " + (f"R{cell.R}" if cell.R is not None else f"M{cell.memory}")


def number_of(cell: Cell) -> str:
    return " ".join(part for part in (cell.get("split"), SHORT[cell.metric]) if part)


def reading_notes(judged: Sequence[Judged], formula: str, tolerance: float) -> list[str]:
    """How to read a sheet; only notes on what occurs in it."""
    cells = [each.cell for each in judged if each.wanted]
    several = f"reached: at least the paper's minus {tolerance:g} points; above: more than {tolerance:g} over it."
    occurring = {
        several: any(cell.is_accuracy for cell in cells),
        f"Losses: reached within {LOSS_SHARE:.0%}.": any(cell.metric in LOSSES for cell in cells),
        f"#p: reached within {PARAMETERS:g} million.": any(cell.metric == "params_avg_M" for cell in cells),
        f"Gain of what was added over its base row, ours over common seeds; same tolerance, {tolerance:g} points.": any(
            each.gain and each.cell.printed for each in judged
        ),
        f"{UNPRINTED}: what --with adds; its gain is over the row without it, over common seeds.": any(
            not cell.printed for cell in cells
        ),
    }
    few = [f"* fewer than {ENOUGH} seeds: a first impression."] if any(each.few_seeds for each in judged) else []
    verdicts = [note for note, occurs in occurring.items() if occurs]
    return [*formula_notes(judged, formula), *verdicts, *circumstances(judged), *few]


def formula_notes(judged: Sequence[Judged], formula: str) -> list[str]:
    ours = any(each.wanted and "bdr" in each.wanted.spec for each in judged)
    return [f"Formula of BDR in all our cells: {formula}."] if ours else []


def is_other_answer(cell: Cell) -> bool:
    return cell.table == ANSWERS and len(cell.parts) > 1 and not cell.balanced


def circumstances(judged: Sequence[Judged]) -> list[str]:
    """What must be known about the numbers themselves; only notes on numbers that occur."""
    cells = [each.cell for each in judged if each.wanted]
    occurring = {
        AANET_NOTE: any(map(is_aanet, cells)),
        ANSWERS_NOTE: any(is_other_answer(cell) for cell in cells),
        SAMPLING_NOTE: any(SAMPLING in cell.parts for cell in cells),
        "T7 has no row without BDR: gains are over that of T4.": any(c.table == "T7" for c in cells),
        DER_NOTE: any(cell.table == "T2" for cell in cells),
        PHASE_NOTE: any(cell.get("split") for cell in cells),
    }
    return [note for note, occurs in occurring.items() if occurs]


def run_sheet(schedule: Schedule) -> Sheet:
    """What the cells ask for: one row for each configuration, with the seeds that exist and those that are missing."""
    rows = [row_of_job(job) for job in schedule.jobs]
    header = ["run", "B+S", "memory", "order", "net", "epochs", "have", "missing", "time each"]
    return Sheet("Runs behind these cells", header, rows, list(schedule.notes), texts=(0, 1, 2, 3, 4, 6, 7))


def row_of_job(job: Job) -> list[str]:
    fields, settings = dict(job.wanted.fields), dict(job.wanted.settings)
    changes = [f"{name}={value}" for name, value in settings.items() if name.startswith("bdr.")]
    scenario = [f"{fields['base']}+{fields['step']}", str(fields["memory"]), str(fields["order"]), str(fields["net"])]
    seeds = [seeds_text(job.have), seeds_text(job.missing)]
    run = " ".join([job.wanted.spec, *changes])
    return [run, *scenario, str(job.wanted.config(seed=0).stage.epochs), *seeds, job.time]


def seeds_text(seeds: Sequence[int]) -> str:
    return " ".join(map(str, seeds)) or NOTHING


def record_lines(judged: Sequence[Judged]) -> list[str]:
    """One line for each run behind a number, with its value, and one for each run that a gain is taken over."""
    lines = []
    for each in judged:
        cell = each.cell
        place = f"{cell.table} {name_of(cell)}, {cell.dataset}, {setting_of(cell)}, {number_of(cell)}"
        digits = digits_of(cell)
        lines += [f"{place}: {each.values[seed]:.{digits}f} from {run.path}" for seed, run in each.runs.items()]
        lines += [f"{place}, gain: {text}" for text in gain_lines(each)]
    return lines


def gain_lines(judged: Judged) -> list[str]:
    gain = judged.gain
    if gain is None:
        return []
    told = {seed: f"{value - other:+z.2f} over {other:.2f}" for seed, (value, other) in gain.pairs.items()}
    return [
        f"{text} from {gain.runs[seed].path}{other_first_phase(judged.runs[seed], gain.runs[seed])}"
        for seed, text in told.items()
    ]


def other_first_phase(run: Run, base: Run) -> str:
    """A remark if two runs had different first phases: the difference that these made is not part of the gain."""
    mine, theirs = (each.phases[0]["accuracy"].get(each.readout) for each in (run, base))
    if mine is None or theirs is None or abs(mine - theirs) < SAME_PHASE:
        return ""
    return f", which had another first phase: {theirs:.2f} after it, here {mine:.2f}"


def tally(judged: Sequence[Judged]) -> str:
    """The counts of verdicts: `18 cells: 3 reached, 9 no result yet, 6 not run; 2 gains: 1 reached, 1 missed`"""
    gains = [each.gain for each in judged if each.gain is not None and each.gain.ours.mean is not None]
    cells = counted("cell", [each.verdict for each in judged])
    return f"{cells}; {counted('gain', [gain.verdict for gain in gains])}" if gains else cells


def counted(what: str, verdicts: Sequence[str]) -> str:
    words = [verdict.partition(" by ")[0].partition(":")[0] for verdict in verdicts]
    counts = ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words))
    return f"{len(words)} {what}{'' if len(words) == 1 else 's'}: {counts}"


def as_plain(judged: Judged) -> dict[str, Any]:
    """A judged cell as values for JSON."""
    cell, ours = judged.cell, judged.ours
    names = ("table", "method", "dataset", "B", "S", "R", "memory", "metric", "value", "std")
    return {
        **{name: getattr(cell, name) for name in names},
        **dict(cell.extra),
        "ours": {"mean": ours.mean, "spread": ours.spread, "n": ours.n, "few_seeds": judged.few_seeds},
        "printed": cell.printed,
        "difference": judged.difference,
        "tolerance": judged.tolerance,
        "verdict": judged.verdict,
        "gain": plain_gain(judged),
        "reason": None if judged.reason is None else {"kind": judged.reason.kind, "text": judged.reason.text},
        "run": None if judged.wanted is None else plain_wanted(judged.wanted),
        "records": {str(seed): {"value": judged.values[seed], "path": str(r.path)} for seed, r in judged.runs.items()},
    }


def plain_gain(judged: Judged) -> dict[str, Any] | None:
    gain = judged.gain
    if gain is None:
        return None
    ours = {"mean": gain.ours.mean, "standard_error": gain.ours.spread, "n": gain.ours.n}
    base: dict[str, Any] = {"table": gain.base.table, "method": gain.base.method}
    base["records"] = {
        str(seed): {"value": gain.pairs[seed][1], "path": str(run.path)} for seed, run in gain.runs.items()
    }
    return {"base": base, "paper": gain.paper, "ours": ours, "tolerance": gain.tolerance, "verdict": gain.verdict}


def plain_wanted(wanted: Wanted) -> dict[str, Any]:
    return {"spec": wanted.spec, "data": wanted.data, **dict(wanted.fields), "settings": dict(wanted.settings)}
