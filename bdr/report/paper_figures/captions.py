"""The text beside a figure: what it shows, of which runs, under which protocol, and where it differs from the paper."""

from __future__ import annotations

from collections.abc import Sequence

from bdr.records import Run, differences
from bdr.report.groups import group_runs
from bdr.report.paper_figures.drawing import Drawing
from bdr.report.protocols import PROPER_NAMES, in_words

SHARED = ("net", "epochs", "batch", "optimizer", "herding", "augment", "precision", "order")


def caption(name: str, drawing: Drawing) -> str:
    """The caption as plain text in short paragraphs, to be copied into a document."""
    heading = f"Figure {name}." if name.isdigit() else f"{name.capitalize()}."
    differs = drawing.differs or ["Nothing that the records tell."]
    return (
        "\n\n".join(
            [
                f"{heading} {drawing.about}",
                _seeds(drawing.runs),
                _listed("Protocol", _protocols(drawing.runs)),
                *([_listed("Notes", drawing.notes)] if drawing.notes else []),
                _listed("Differs from the paper", differs),
                _listed(
                    "Runs", [f"{run.path} ({run.title}, seed {run.seed}, {run.fingerprint})" for run in drawing.runs]
                ),
                "",
            ]
        ).rstrip()
        + "\n"
    )


def _listed(heading: str, lines: Sequence[str]) -> str:
    return "\n".join([f"{heading}:", *(f"- {line}" for line in lines)])


def _seeds(runs: Sequence[Run]) -> str:
    counts = sorted({len(group.runs) for group in group_runs(list(runs))})
    told = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    seeds = ", ".join(map(str, sorted({run.seed for run in runs})))
    return f"Seeds: n = {told} for each method and protocol ({seeds})."


def _protocols(runs: Sequence[Run]) -> list[str]:
    titles = list(dict.fromkeys(group.protocol for group in group_runs(list(runs))))
    apart = differences(list(runs))
    shared = [
        f"{fact} {in_words(runs[0].protocol[fact])}"
        for fact in SHARED
        if fact in runs[0].protocol and fact not in apart
    ]
    own = [fact for fact in SHARED if fact in apart]
    return [
        *titles,
        *([f"the same for all: {'; '.join(shared)}"] if shared else []),
        *([f"not the same for all: {', '.join(own)}"] if own else []),
    ]


def unlike(runs: Sequence[Run], shown: str, **facts: Sequence[object]) -> list[str]:
    """What the paper shows, if these runs differ from it in one of these facts: data, base, step, memory or title."""
    found = {fact: list(dict.fromkeys(_fact(run, fact) for run in runs)) for fact in facts}
    apart = [fact for fact, wanted in facts.items() if set(found[fact]) != set(map(str, wanted))]
    if not apart:
        return []
    here = "; ".join(f"{NAMES.get(fact, fact)} {', '.join(found[fact])}" for fact in apart)
    return [f"The paper shows {shown}; here: {here}."]


NAMES = {"base": "B =", "step": "S =", "memory": "memory", "title": "methods", "data": "data"}


def _fact(run: Run, fact: str) -> str:
    value = str(run.title if fact == "title" else run.protocol.get(fact))
    return PROPER_NAMES.get(value, value)
