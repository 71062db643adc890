"""A grid of runs: methods or recipes, common fields, settings, values to try and seeds; a combination is a run."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from bdr import api
from bdr.config import Config
from bdr.describe import short
from bdr.errors import UsageError, unknown

KEYS = ("runs", "common", "set", "grid", "seeds")
PLACES = {
    "method": "name methods under runs",
    "plugins": "name plug-ins under runs, as ucir+cwd+bdr",
    "seed": "list seeds under seeds",
    "settings": "write single ones under set, as bdr.m: 0.5",
    "stage": "write single settings under set, as stage.epochs: 2",
    "stages": "write single settings under set, as stage.NAME.lr: 0.01",
    "augment": "write single settings under set, as augment.pad: 2",
}
FIELDS = [name for name in Config.model_fields if name not in PLACES]

Settings = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Grid:
    """What a grid file says, or what stands on the command line."""

    runs: list[str]
    common: dict[str, Any] = field(default_factory=dict)
    set: dict[str, Any] = field(default_factory=dict)
    grid: dict[str, list[Any]] = field(default_factory=dict)
    seeds: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Wish:
    """One run of a grid, as `bdr run` would be told of it."""

    what: str
    data: str | None
    settings: Settings
    seed: int | None
    label: str


def grids_of(words: Sequence[str]) -> list[Grid]:
    """A grid for every file, and one for all methods and recipes that are named directly."""
    files = [word for word in words if is_file_name(word)]
    direct = [word for word in words if word not in files]
    return [read_grid(Path(file)) for file in files] + ([Grid(direct)] if direct else [])


def is_file_name(word: str) -> bool:
    return word.endswith((".yaml", ".yml")) or Path(word).is_file()


def read_grid(file: Path) -> Grid:
    try:
        found = yaml.safe_load(file.read_text())
    except OSError as error:
        raise UsageError(f"the grid {file} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"the grid {file} is not YAML: {error}") from None
    return checked_grid(found, str(file))


def checked_grid(found: Any, source: str) -> Grid:
    if not isinstance(found, dict):
        raise UsageError(f"{source} holds {type(found).__name__}, and must hold `runs:` and what to do with them")
    for name in found:
        if name not in KEYS:
            raise unknown(f"key in {source}", str(name), KEYS)
    grid = Grid(
        runs=list_in(found, "runs", str, source),
        common=mapping_in(found, "common", source),
        set=mapping_in(found, "set", source),
        grid=mapping_in(found, "grid", source),
        seeds=list_in(found, "seeds", int, source),
    )
    check_grid(grid, source)
    return grid


def list_in(found: Mapping[str, Any], key: str, kind: type, source: str) -> list[Any]:
    values = found.get(key) or []
    if not isinstance(values, list) or not all(type(value) is kind for value in values):
        example = {"runs": "[ucir+cwd, ucir+cwd+bdr]", "seeds": "[1993, 1994]"}[key]
        raise UsageError(f"{key} in {source} is {values!r}, and must be a list such as {key}: {example}")
    return values


def mapping_in(found: Mapping[str, Any], key: str, source: str) -> dict[str, Any]:
    values = found.get(key) or {}
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise UsageError(f"{key} in {source} is {values!r}, and must hold names and values, such as `base: 4`")
    return values


def check_grid(grid: Grid, source: str) -> None:
    if not grid.runs:
        raise UsageError(f"{source} names no runs; write for example runs: [ucir+cwd, ucir+cwd+bdr]")
    for name in grid.common:
        check_field(name, f"common of {source}")
    for key, names in {"set": grid.set, "grid": grid.grid}.items():
        for name in names:
            if "." not in name:
                check_field(name, f"{key} of {source}")
    for name, values in grid.grid.items():
        if not isinstance(values, list) or not values:
            raise UsageError(f"grid.{name} in {source} is {values!r}, and must be a list of values to try")


def check_field(name: str, place: str) -> None:
    if name in PLACES:
        raise UsageError(f"'{name}' does not go into {place}: {PLACES[name]}")
    if name not in FIELDS:
        raise unknown(f"field for {place}", name, FIELDS)


def wishes_of(
    grids: Sequence[Grid], fields: Mapping[str, Any], settings: Settings, seeds: Sequence[int] | None
) -> list[Wish]:
    """Every run of the grids; what is typed on the command line comes last, and so overrides the files."""
    typed = (*fields.items(), *settings)
    parts = {what: parts_of(what) for grid in grids for what in grid.runs}
    for grid in grids:
        check_owners((*grid.set, *grid.grid, *(name for name, _ in typed)), parts)
    return [wish for grid in grids for wish in combinations(grid, typed, seeds, parts)]


def parts_of(what: str) -> list[str]:
    """The names that settings of a run may begin with: its method and its plug-ins."""
    config, _ = api.configure(what)
    return [short(name) for name in (config.method, *config.plugins)]


def fits(name: str, parts: Iterable[str]) -> bool:
    owner = name.rpartition(".")[0]
    return owner in ("", "stage", "augment", *parts) or owner.startswith("stage.")


def check_owners(names: Iterable[str], parts: Mapping[str, list[str]]) -> None:
    """A setting of a plug-in that only some runs have is theirs alone; one that no run has is a slip."""
    every = {part for each in parts.values() for part in each}
    for name in names:
        if not fits(name, every):
            raise unknown("part of any run with settings", name.rpartition(".")[0], [*every, "stage", "augment"])


def combinations(
    grid: Grid, typed: Settings, seeds: Sequence[int] | None, parts: Mapping[str, list[str]]
) -> Iterator[Wish]:
    """Seeds vary slowest, so that a sweep that is stopped half-way has compared everything on the first ones."""
    tried = [tuple(zip(grid.grid, values, strict=True)) for values in itertools.product(*grid.grid.values())]
    overridden = {name for name, _ in typed}
    chosen: Sequence[int | None] = seeds or grid.seeds or [None]
    for seed, what, choice in itertools.product(chosen, grid.runs, tried):
        every = (*grid.common.items(), *grid.set.items(), *choice, *typed)
        mine = {name: value for name, value in every if fits(name, parts[what])}
        shown = [f"{name}={value}" for name, value in choice if fits(name, parts[what]) and name not in overridden]
        data = mine.pop("data", None)
        yield Wish(what, data, tuple(mine.items()), seed, " ".join([what, *shown]))
