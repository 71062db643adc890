"""Plans an existing run again: its data from where it was and, in a folder that has grown, only classes it knew."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from bdr.configuration.config import Config, changed, short
from bdr.configuration.overrides import with_setting
from bdr.data.exemplars import Kept, checksums_of_classes
from bdr.data.images import DataSet
from bdr.data.pictures import EmptyFolder, name_of, test_folders
from bdr.data.store import Store
from bdr.errors import UsageError, as_word, shortened
from bdr.planning.assemble import plan_again
from bdr.planning.loading import load_named, store_of
from bdr.planning.plan import Plan
from bdr.planning.settings import as_recorded
from bdr.records import Extends, Run

BY_PLACE = (
    "leave the images of known classes as they were, or put test images into ROOT/test/CLASS, a folder of their own"
)


def found_again(run: Run) -> Config:
    """The configuration of a run, with its root as it was typed if that exists from here, else where it was then."""
    config, kept = as_recorded(run.info), run.info.get("root")  # older records lack it
    if is_there(config.root) or kept is None or not is_there(kept):
        return config
    return changed(config, {"root": kept})


def with_weights(run: Run, config: Config, weights: str | Path | None) -> Config:
    """The configuration with its file of weights where it lies now; it is checked to be the same file."""
    if weights is None:
        return config
    if "weights" not in run.info:
        raise UsageError(f"{run.path} has no file of weights that could have moved: leave --weights {weights} out")
    return with_setting(config, short(config.net), "weights", str(weights))


def is_there(root: str | None) -> bool:
    return root is None or Path(root).exists()


def read_again(run: Run, config: Config, only: Collection[str] = (), test: bool = False) -> DataSet:
    """Read the data set of a run again; of a folder of images, `only` these classes, if it has them all.

    With `test`, the test images are enough, where they have a folder of their own.
    """
    try:
        return load_named(config, only, test)
    except EmptyFolder as error:
        if name_of(error.folder) not in (only or classes_known(run)):
            raise
        raise UsageError(f"{error.lacks}, and {run.path} was trained on that class: put its pictures back") from None
    except UsageError as error:
        if is_there(config.root):
            raise
        kept = run.info.get("root", f"'{config.root}', seen from the folder that it was started in")
        raise UsageError(f"{error}; {run.path} was trained on {kept}: name it with --root") from None


def test_images(run: Run, phase: int, data: DataSet | None, root: str | Path | None, device: torch.device) -> Store:
    """The test images of the classes that a run knew after a phase, in its order and with its normalisation."""
    config = found_again(run) if root is None else changed(found_again(run), {"root": str(root)})
    data = data if data is not None else read_again(run, config, only=list(map(str, run.info["classes"])), test=True)
    refuse_other_classes(run, data, config)
    mean, std = run.normalisation
    order = [data.classes.index(name) for name in run.info["classes"]]
    store = store_of(data.test, replace(data, mean=mean, std=std), order, device)
    names = run.info["classes"][: run.phases[phase]["seen"]]
    if others := other_tests(run, store, names, data.by_place):
        warnings.warn(f"{others}: the numbers are of other images than those of its records", stacklevel=2)
    return store


def other_tests(run: Run, test: Store, names: Sequence[str], by_place: bool) -> str:
    """Say of which classes the test images have changed; refuse them where the run may have trained on them."""
    others = tested_on_others(run, test, names)
    told = f"the test images of {shortened(others)} are not those that {run.path} was tested on" if others else ""
    if others and by_place:
        raise UsageError(f"{told}: they are held out by their place, and some may have been trained on; {BY_PLACE}")
    return told


def tested_on_others(run: Run, test: Store, names: Sequence[str]) -> list[str]:
    """Classes whose test images are not those that a run was tested on; none if it did not record them."""
    told = (run.exemplars(len(run.phases) - 1) or {"tests": {}})["tests"]
    sums = dict(zip(names, checksums_of_classes(test, len(names)), strict=True))
    return [name for name in names if told.get(name, sums[name]) != sums[name]]


def classes_known(run: Run) -> list[str]:
    """The classes that a run has learnt, in order of arrival."""
    return list(run.info["classes"][: run.phases[-1]["seen"]])


def exemplars_told(run: Run, told: dict[str, Any]) -> list[list[Kept]]:
    """The exemplars of each class that a run knows, from what it recorded of them."""
    return [[Kept(**each) for each in told["exemplars"][name]] for name in classes_known(run)]


def plan_of(path: Path, data: DataSet | None = None, weights: str | Path | None = None, **fields: Any) -> Plan:
    """The plan of an existing run, checked to be the same; `weights` is where its file of weights was moved to."""
    there = Run.open(path)
    told = Config.model_validate(there.info["config"]).settings
    as_it_was = {"precision": there.protocol["precision"]}  # "auto" may be another precision on another device
    config = with_weights(there, changed(found_again(there), as_it_was | fields), weights)
    data = data if data is not None else read_again(there, config, only=list(map(str, there.info["classes"])))
    refuse_other_classes(there, data, config)
    plan = plan_again(config, path, runs_folder(path), data, Extends.of(there.info), told)
    if plan.info["fingerprint"] != there.fingerprint:
        raise UsageError(f"{path} does not fit what is here now: {why_not(there, plan)}")
    return plan


def refuse_other_classes(there: Run, data: DataSet, config: Config) -> None:
    """Refuse data with other classes, before anything else: errors on phases or checksums would not say why."""
    trained, here = list(map(str, there.info["classes"])), list(data.classes)
    if sorted(trained) == sorted(here):
        return
    changes = {"new": sorted(set(here) - set(trained)), "missing": sorted(set(trained) - set(here))}
    told = "; ".join(f"{which}: {shortened(names)}" for which, names in changes.items() if names)
    where = config.root or data.name
    advice = "let it hold those and no others"
    if missing := changes["missing"]:
        advice = f"put {shortened([lost_folders(config, name) for name in missing])} back"
    further = f"; bdr extend {as_word(there.path)} teaches it the new ones" if there.done and not missing else ""
    raise UsageError(
        f"{where} now has {len(here)} classes, and {there.path} was trained on {len(trained)} ({told}): {advice}, or "
        f"name another folder with --root{further}; the model itself loads with bdr.load"
    )


def lost_folders(config: Config, name: str) -> str:
    """The folders of a class that are missing, if that can be told; else its name."""
    if config.data != "imagefolder" or config.root is None:
        return name
    root = Path(config.root)
    apart = [folder for folder in (*test_folders(root)[:1], root / "train") if folder.is_dir()]
    return " and ".join(str(folder / name) for folder in apart or [root] if not (folder / name).is_dir())


def why_not(there: Run, plan: Plan) -> str:
    differing = [k for k, v in plan.info["protocol"].items() if there.protocol.get(k) != v]
    if differing == ["source"]:
        name = plan.info["protocol"]["data"]
        return (
            f"the images of {name} are not those it was trained on (another checksum): name the folder of those with "
            f"--root; bdr evaluate {as_word(there.path)} needs its test images alone, bdr predict none of them"
        )
    return f"{', '.join(differing) or 'its configuration'} would differ"


def runs_folder(path: Path) -> Path:
    """The folder to look for a run's shared first phase in: the nearest parent with shared ones, else its own."""
    shared = [folder for folder in path.resolve().parents if (folder / ".shared").is_dir()]
    return shared[0] if shared else path.resolve()
