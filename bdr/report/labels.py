"""The names of rows: the title, with the settings that distinguish a row from others of its method."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bdr.records import Run
from bdr.report.defaults import has_part_of, settings_in_full, written_out
from bdr.report.protocols import one_text
from bdr.report.training import STAGE, training_told

USUAL = "cnn"  # the readout of most methods


def labelled(parts: list[list[Run]], with_readout: bool, of_method: Sequence[Run]) -> list[tuple[str, list[Run]]]:
    """The name and the runs of each row; `of_method` are the runs of all rows of the method, with any plug-ins."""
    told = settings_told(of_method)
    named = [[f"{name}={value}" for name, value in told[part[0].path].items()] for part in parts]
    labels = [" ".join([titled(part[0], with_readout), *settings]) for part, settings in zip(parts, named, strict=True)]
    return [
        (f"{label} [{part[0].fingerprint}]" if labels.count(label) > 1 else label, part)
        for part, label in zip(parts, labels, strict=True)
    ]


def titled(run: Run, with_readout: bool) -> str:
    """The title of a run, `icarl`, or with its readout, `icarl (nme)`"""
    return f"{run.title} ({run.told_readout()})" if with_readout else run.title


def readouts_named(comparable: Sequence[Run], asked: str | None) -> bool:
    """Whether rows of a table name their readouts: if no readout was asked for and one is not the usual one."""
    return asked is None and any(run.told_readout() != USUAL for run in comparable)


def settings_told(runs: Sequence[Run]) -> dict[Path, dict[str, Any]]:
    """For each run, by its path, the settings that not all runs with the same part share.

    A default is named only if it has changed, or if no value of the setting is common to the rows of all titles.
    """
    given, full = written_out(runs), settings_in_full(runs)
    of_parts = {name for mine in given for name in mine if not name.startswith(STAGE)}
    different = {name for name in of_parts if len(values_of(name, runs, full)) > 1}
    names = sorted(different | training_told(runs))
    nowhere_shared = {name for name in names if not values_in_common(name, runs, full)}
    told = [
        {name: whole[name] for name in nowhere_shared if name in whole} | mine
        for mine, whole in zip(given, full, strict=True)
    ]
    return {
        run.path: {name: mine[name] for name in names if name in mine} for run, mine in zip(runs, told, strict=True)
    }


def values_in_common(name: str, runs: Sequence[Run], settings: Sequence[dict[str, Any]]) -> set[str]:
    """The values of a setting that occur under every title that has its part."""
    every: dict[str, list[int]] = {}
    for place, run in enumerate(runs):
        every.setdefault(run.title, []).append(place)
    found = [values_of(name, [runs[i] for i in places], [settings[i] for i in places]) for places in every.values()]
    return set.intersection(*filter(None, found))


def values_of(name: str, runs: Sequence[Run], settings: Sequence[dict[str, Any]]) -> set[str]:
    """The values of a setting in the runs that have its part; a missing value counts as one, too."""
    pairs = zip(runs, settings, strict=True)
    return {one_text({name: mine.get(name)}) for run, mine in pairs if has_part_of(run, name)}
