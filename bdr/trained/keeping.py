"""Copy the pictures of a run that later extensions read into a folder that stands by itself."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from bdr.configuration.config import Config, changed
from bdr.data.exemplars import Kept, find
from bdr.data.images import DataSet
from bdr.data.pictures import class_folders, folders_of, name_of
from bdr.data.store import Store
from bdr.errors import UsageError, shortened
from bdr.planning.extension import finished, refuse_lost_classes
from bdr.planning.loading import store_of
from bdr.planning.rereading import classes_known, exemplars_told, found_again, other_tests, read_again
from bdr.records import Run
from bdr.records.files import writing

Files = Mapping[str, Sequence[str]]  # names of pictures, by class


class Copied(NamedTuple):
    """How many classes, exemplars and test images were copied."""

    classes: int
    exemplars: int
    tests: int


def keep(run: str | Path, to: str | Path, root: str | Path | None = None) -> Copied:
    """Copies the exemplars of a finished run to TO/train and its test images to TO/test, by class.

    They are all that `bdr.extend` reads of the pictures of known classes, and are checked to be those that the run saw.
    `root` is where its pictures are now, if they have moved.
    """
    return copied(finished(Path(run)), Path(to), root)


def copied(run: Run, to: Path, root: str | Path | None) -> Copied:
    config = found_again(run) if root is None else changed(found_again(run), {"root": str(root)})
    refuse_others(run, config)
    refuse_place(to, Path(config.root or "."))
    told, names = recorded_exemplars(run), classes_known(run)
    data = read_again(run, config, only=names)
    train_at, test_at = folders_of(config.root)
    refuse_lost_classes(run, data)
    exemplars, tests = exemplar_files(run, data, told), test_files(run, data)
    beside = to.with_name(f"{to.name}.partial")
    with writing(to):
        shutil.rmtree(beside, ignore_errors=True)
        copy(exemplars, train_at, beside / "train")
        copy(tests, test_at or train_at, beside / "test")
        if to.is_dir():
            to.rmdir()
        beside.rename(to)
    return Copied(len(names), sum(map(len, exemplars.values())), sum(map(len, tests.values())))


def refuse_others(run: Run, config: Config) -> None:
    if config.data != "imagefolder":
        raise UsageError(
            f"{run.path} was trained on '{config.data}', and only folders of pictures (--data imagefolder) can be "
            "copied picture by picture; its exemplars, by class and place, are in phase-*/exemplars.json"
        )
    if config.val:
        raise UsageError(
            f"{run.path} holds out {config.val:g} of its training images by their place in a class (--val), so they "
            "must all stay where they are"
        )


def refuse_place(to: Path, root: Path) -> None:
    if to.exists() and not (to.is_dir() and not any(to.iterdir())):
        raise UsageError(f"{to} is there already, and pictures are copied into a new folder: name another")
    if to.resolve().is_relative_to(root.resolve()):
        raise UsageError(
            f"{to} is inside of {root}, where it would be taken for pictures too: name a folder outside of it"
        )


def recorded_exemplars(run: Run) -> list[list[Kept]]:
    """The exemplars of each known class, as the run recorded them."""
    told = run.exemplars(len(run.phases) - 1)
    if told is None or not any(told["exemplars"].values()):
        raise UsageError(
            f"{run.path} recorded no exemplars (phase-NN/exemplars.json): '{run.title}' keeps none, or the file is gone"
        )
    return exemplars_told(run, told)


def exemplar_files(run: Run, data: DataSet, told: Sequence[Sequence[Kept]]) -> Files:
    names, store = classes_known(run), pixels_of(run, data, "train")
    found, files = find(store, told), store.names or []
    refuse_wrong(run, found.missing, ("is not", "are not"), "among the training images")
    refuse_wrong(run, found.altered, ("has", "have"), "other pixels now")
    return {name: [files[row] for row in rows] for name, rows in zip(names, found.rows, strict=True)}


def refuse_wrong(run: Run, wrong: Sequence[tuple[int, Kept]], verbs: tuple[str, str], what: str) -> None:
    if wrong:
        names, verb = classes_known(run), verbs[len(wrong) > 1]
        some = shortened([f"{names[label]}/{kept}" for label, kept in wrong])
        raise UsageError(
            f"of the exemplars of {run.path}, {len(wrong)} {verb} {what} ({some}): put back what was there"
        )


def test_files(run: Run, data: DataSet) -> Files:
    names, store = classes_known(run), pixels_of(run, data, "test")
    if others := other_tests(run, store, names, data.by_place):
        warnings.warn(f"{others}: they are copied as they are now", stacklevel=2)
    files = store.names or []
    return {name: [files[row] for row in store.of_classes(k, k + 1).tolist()] for k, name in enumerate(names)}


def pixels_of(run: Run, data: DataSet, split: str) -> Store:
    known = classes_known(run)
    order = [data.classes.index(name) for name in [*known, *(name for name in data.classes if name not in known)]]
    return store_of(getattr(data, split), data, order, torch.device("cpu"))


def copy(files: Files, root: Path, to: Path) -> None:
    folders = class_folders(root)
    for name, wanted in files.items():
        there = {name_of(path): path for path in folders[name].iterdir()}
        (to / name).mkdir(parents=True)
        for file in wanted:
            shutil.copy2(there[file], to / name / file)
