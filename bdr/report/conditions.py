"""How rows of one method differ apart from the plug-in itself: size, draws, further views, corrected scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from bdr.records import Run
from bdr.report.groups import Group
from bdr.report.training import method_of

DRAWS = {"all": "all images", "uniform": "classes equally often", "rarest": "as many of each class as of the rarest"}


class Conditions(NamedTuple):
    """The conditions that the records of a row state; None or empty where they do not state them."""

    parameters: int | None  # at the end of a run
    draws: dict[str, str]  # the draw of each stage after the first phase, by the stage's name
    views: int | None  # further views of every image, after the first phase
    corrected_by: list[str]  # plug-ins that correct the scores when they are read


def conditions_of(group: Group) -> Conditions:
    """The conditions of a row, collected from all its runs, since older records may lack some of them."""
    stages = [stage for run in group.runs for stages in (run.info.get("work") or [])[1:] for stage in stages]
    views = [stage["views"] for stage in stages if "views" in stage]
    return Conditions(
        parameters=_parameters(group.runs),
        draws={stage["stage"]: stage["draw"] for stage in stages if "draw" in stage},
        views=max(views) if views else None,
        corrected_by=sorted({name for run in group.runs for name in run.info.get("corrected_by") or []}),
    )


def _parameters(runs: Sequence[Run]) -> int | None:
    """The median over the runs, since pruned networks differ in size; None while a run is unfinished."""
    if not all(run.done for run in runs):
        return None
    return int(np.median([run.phases[-1]["parameters"] for run in runs]))


def as_facts(group: Group) -> dict[str, Any]:
    return conditions_of(group)._asdict()


def condition_notes(groups: Sequence[Group], references: Sequence[Group | None]) -> list[str]:
    """One sentence for each row that differs in more than its loss from the row of its method it is compared with."""
    return [
        f"{group.label} differs from {base.label} in more than its loss: {'; '.join(told)}."
        for group, base in zip(groups, references, strict=True)
        if base is not None and base is not group and method_of(base.runs[0]) == method_of(group.runs[0])
        if (told := list(_differences(conditions_of(group), conditions_of(base))))
    ]


def _differences(mine: Conditions, other: Conditions) -> Iterator[str]:
    if mine.parameters and other.parameters and mine.parameters != other.parameters:
        yield f"{mine.parameters:,} parameters at the end, not {other.parameters:,}"
    for stage, draw in mine.draws.items():
        if (theirs := other.draws.get(stage, draw)) != draw:
            yield f"stage {stage} draws {DRAWS.get(draw, draw)}, not {DRAWS.get(theirs, theirs)}"
    if mine.views is not None and other.views is not None and mine.views != other.views:
        yield f"training sees {_counted(mine.views)} of every image, not {other.views or 'none'}"
    if by := [name for name in mine.corrected_by if name not in other.corrected_by]:
        yield f"scores are corrected by {', '.join(by)} when they are read"


def _counted(views: int) -> str:
    return f"{views or 'no'} further view{'' if views == 1 else 's'}"
