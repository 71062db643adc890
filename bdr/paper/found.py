"""Finding the finished runs that are exactly what a cell asks for."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import cache
from pathlib import Path

from pydantic import ValidationError

from bdr.configuration.config import Config, checked
from bdr.data.augment import Augment
from bdr.errors import UsageError
from bdr.methods import METHODS
from bdr.nets import NETS
from bdr.paper.mapping import CLASSES, Wanted
from bdr.planning.settings import as_recorded, in_full
from bdr.plugins import PLUGINS
from bdr.records import Run, find_runs
from bdr.scenario import Protocol, class_order


def essence(config: Config) -> str:
    """All settings that decide a result, as a string with defaults written out; not seed, precision, engine, device.

    Base and step are replaced by the phases they make, and orders by the classes they name.
    """
    order = class_order(config.order, CLASSES[config.data])
    phases = list(Protocol(order, config.base, config.step, config.uneven))[: config.phases]
    deciding = {
        "parts": [config.method, config.net, sorted(config.plugins), in_full(config)],
        "scenario": [config.data, order, [(phase.old, phase.seen) for phase in phases], config.memory, config.herding],
        "images": [config.statistics, asdict(Augment()) | checked(Augment, config.augment, "augment"), config.val],
        "training": [asdict(config.stage), config.stages],
    }
    return json.dumps(deciding, sort_keys=True, default=str)


@cache
def essence_of_wanted(wanted: Wanted) -> str:
    return essence(wanted.config(seed=0))


def essence_of_run(run: Run) -> str | None:
    """The essence of a run: its recorded settings, and today's defaults for settings that did not exist then.

    None for a run that no cell asks for: it has other data, the user's own parts, or a configuration that is not valid.
    """
    try:
        config = Config.model_validate(run.info.get("config") or {})
        known = config.method in METHODS and all(name in PLUGINS for name in config.plugins) and config.net in NETS
        return essence(as_recorded(run.info)) if known and config.data in CLASSES else None
    except (ValidationError, UsageError):
        return None


def age(run: Run) -> float:
    """The time at which a run was made, to find the newest of several; 0 if it is not recorded."""
    try:
        return datetime.fromisoformat(str(run.info.get("created"))).timestamp()
    except ValueError:
        return 0.0


@dataclass(frozen=True)
class Results:
    """The finished runs of some folders, by their essence and by seed."""

    runs: dict[str, dict[int, Run]]
    warnings: list[str]

    def of(self, wanted: Wanted) -> dict[int, Run]:
        """The newest run of a configuration for each seed, by seed."""
        return self.runs.get(essence_of_wanted(wanted), {})

    def __iter__(self) -> Iterator[Run]:
        return (run for by_seed in self.runs.values() for run in by_seed.values())


def gather(folders: Iterable[Path]) -> Results:
    """Collect the finished runs below the folders: of runs with equal essence and seed, the newest."""
    every: dict[Path, Run] = {}
    warnings: list[str] = []
    for folder in folders:
        runs, said = find_runs(folder)
        every |= {run.path.resolve(): run for run in runs if run.done and run.path.resolve() not in every}
        warnings += said
    found: dict[str, dict[int, Run]] = {}
    for run in sorted(every.values(), key=age):
        if (kind := essence_of_run(run)) is not None:
            found.setdefault(kind, {})[run.seed] = run
    return Results({kind: dict(sorted(by_seed.items())) for kind, by_seed in found.items()}, warnings)
