"""A grid of runs: methods or recipes, common fields, settings, values to try and seeds; each combination is a run."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bdr.configuration.config import Config, kind_of, owners, read_yaml, text_of
from bdr.configuration.recipes import configure
from bdr.errors import UsageError, unknown
from bdr.planning.refusals import how_to_name

EXAMPLE = "write for example runs: [ucir+cwd, ucir+cwd+bdr]"
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
    """The content of a grid file, or the runs named on the command line."""

    runs: list[str]
    common: dict[str, Any] = field(default_factory=dict)
    set: dict[str, Any] = field(default_factory=dict)
    grid: dict[str, list[Any]] = field(default_factory=dict)
    seeds: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Wish:
    """One run of a grid: its fields and settings from the file, and those that were typed, which override them."""

    what: str
    file: Settings
    typed: Settings
    seed: int | None
    tried: tuple[str, ...] = ()  # the names that the grid varies

    @property
    def settings(self) -> dict[str, Any]:
        """All fields and settings of the run, those that were typed last."""
        return {**dict(self.file), **dict(self.typed)}

    @property
    def label(self) -> str:
        file, typed = dict(self.file), dict(self.typed)
        shown = [f"{name}={file[name]}" for name in self.tried if name in file and name not in typed]
        return " ".join([self.what, *shown])


def grids_of(words: Sequence[str]) -> list[Grid]:
    """One grid for every file, and one for all methods and recipes that are named directly."""
    files = [word for word in words if is_file_name(word)]
    direct = [word for word in words if word not in files]
    return [read_grid(Path(file)) for file in files] + ([Grid(direct)] if direct else [])


def is_file_name(word: str) -> bool:
    return word.endswith((".yaml", ".yml")) or Path(word).is_file()


def read_grid(file: Path) -> Grid:
    return checked_grid(read_yaml(text_of(file, f"the grid {file}"), str(file)), str(file))


def checked_grid(found: Any, source: str) -> Grid:
    if found is None:
        raise UsageError(f"{source} is empty; {EXAMPLE}")
    if not isinstance(found, dict):
        raise UsageError(f"{source} holds {kind_of(found)}, and must hold `runs:` and what to do with them")
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
        raise UsageError(f"{source} names no runs; {EXAMPLE}")
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


def wishes_of(grids: Sequence[Grid], typed: Mapping[str, Any], seeds: Sequence[int] | None) -> list[Wish]:
    """Every run of the grids; what is typed on the command line overrides the files."""
    wishes = [wish for grid in grids for wish in combinations(grid, typed, seeds)]
    configs = [config_of(wish) for wish in wishes]
    check_owners({name for wish in wishes for name in wish.settings}, configs)
    return [of_its_own(wish, owners(config)) for wish, config in zip(wishes, configs, strict=True)]


def combinations(grid: Grid, typed: Mapping[str, Any], seeds: Sequence[int] | None) -> Iterator[Wish]:
    """Yield all runs of a grid; seeds vary slowest, so that a stopped sweep has compared all on the first seeds."""
    tried = [dict(zip(grid.grid, values, strict=True)) for values in itertools.product(*grid.grid.values())]
    chosen: Sequence[int | None] = seeds or grid.seeds or [None]
    for seed, what, choice in itertools.product(chosen, grid.runs, tried):
        file = grid.common | grid.set | choice
        yield Wish(what, tuple(file.items()), tuple(typed.items()), seed, tuple(choice))


def config_of(wish: Wish) -> Config:
    """The configuration of a run from its data and net alone: it tells which parts settings may belong to."""
    given = {name: value for name, value in wish.settings.items() if name in ("data", "net")}
    try:
        return configure(wish.what, fields=given)[0]
    except UsageError as error:
        raise UsageError(f"{wish.label}: {error}") from None


def fits(name: str, parts: Iterable[str]) -> bool:
    owner = name.rpartition(".")[0]
    return owner in ("", "stage", "augment", *parts) or owner.startswith("stage.")


def check_owners(names: Iterable[str], configs: Sequence[Config]) -> None:
    """Raise if a setting belongs to a part that no run has; it may belong to a part that only some runs have."""
    every = {part for config in configs for part in owners(config)}
    for name in sorted(names):
        if not fits(name, every):
            owner = name.rpartition(".")[0]
            error = unknown("part of any run with settings", owner, [*every, "stage", "augment"])
            raise UsageError(f"{error}; {name_it}") if (name_it := how_to_name(owner, configs[0])) else error


def of_its_own(wish: Wish, parts: Sequence[str]) -> Wish:
    """The wish without settings of parts that only other runs have."""
    file, typed = (tuple(each for each in given if fits(each[0], parts)) for given in (wish.file, wish.typed))
    return replace(wish, file=file, typed=typed)
