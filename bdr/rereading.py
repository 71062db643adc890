"""The data of a run that exists already, read again: from where it was, and of a folder that has grown what it knew."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from bdr.config import Config, changed, with_setting
from bdr.data.images import DataSet
from bdr.errors import UsageError
from bdr.parts import load_named, short
from bdr.records import Run
from bdr.settings import as_recorded


def found_again(run: Run) -> Config:
    """What a run was made of, its root as it was typed, if it is there from here, else where it was at the start."""
    config, kept = as_recorded(run.info), run.info.get("root")  # records of before lack it
    if is_there(config.root) or kept is None or not is_there(kept):
        return config
    return changed(config, {"root": kept})


def with_weights(run: Run, config: Config, weights: str | Path | None) -> Config:
    """The same with the file of its network's weights where it lies now; it is checked to be that of then."""
    if weights is None:
        return config
    if "weights" not in run.info:
        raise UsageError(f"{run.path} has no file of weights that could have moved: leave --weights {weights} out")
    return with_setting(config, short(config.net), "weights", str(weights))


def is_there(root: str | None) -> bool:
    return root is None or Path(root).exists()


def read_again(run: Run, config: Config, only: Collection[str] = ()) -> DataSet:
    """The data set that a run names; of a folder of pictures `only` some classes, if it has all of these."""
    try:
        return load_named(config, only)
    except UsageError as error:
        if is_there(config.root):
            raise
        kept = run.info.get("root", f"'{config.root}', seen from the folder that it was started in")
        raise UsageError(f"{error}; {run.path} was trained on {kept}: name it with --root") from None
