"""A run that exists already, planned again: its data from where it was, and of a folder that has grown what it knew."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from bdr.assemble import plan_run
from bdr.config import Config, changed, with_setting
from bdr.data.images import DataSet
from bdr.data.pictures import EmptyFolder
from bdr.describe import Extends
from bdr.errors import UsageError, shortened
from bdr.parts import load_named, short
from bdr.plan import Plan
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
    except EmptyFolder as error:
        if error.folder.name not in (only or classes_known(run)):
            raise
        raise UsageError(f"{error.lacks}, and {run.path} was trained on that class: put its pictures back") from None
    except UsageError as error:
        if is_there(config.root):
            raise
        kept = run.info.get("root", f"'{config.root}', seen from the folder that it was started in")
        raise UsageError(f"{error}; {run.path} was trained on {kept}: name it with --root") from None


def classes_known(run: Run) -> list[str]:
    """In order of arrival."""
    return list(run.info["classes"][: run.phases[-1]["seen"]])


def plan_of(path: Path, data: DataSet | None = None, weights: str | Path | None = None, **fields: Any) -> Plan:
    """The plan of a run that exists already, checked to be the same; `weights` is where a file of them was moved to."""
    there = Run.open(path)
    told = Config.model_validate(there.info["config"]).settings
    as_it_was = {"precision": there.protocol["precision"]}  # "auto" may mean another on another device
    config = with_weights(there, changed(found_again(there), as_it_was | fields), weights)
    data = data if data is not None else read_again(there, config, only=list(map(str, there.info["classes"])))
    refuse_other_classes(there, data, config)
    plan = plan_run(config, path, runs_folder(path), data, Extends.of(there.info), told)
    if plan.info["fingerprint"] != there.fingerprint:
        raise UsageError(f"{path} does not fit what is here now: {why_not(there, plan)}")
    return plan


def refuse_other_classes(there: Run, data: DataSet, config: Config) -> None:
    """Before anything else: with other classes, phases do not split and checksums differ, and neither says why."""
    trained, here = list(map(str, there.info["classes"])), list(data.classes)
    if sorted(trained) == sorted(here):
        return
    changes = {"new": sorted(set(here) - set(trained)), "missing": sorted(set(trained) - set(here))}
    told = "; ".join(f"{which}: {shortened(names)}" for which, names in changes.items() if names)
    where = config.root or data.name
    further = f"; bdr extend {there.path} teaches it the new ones" if there.done and not changes["missing"] else ""
    raise UsageError(
        f"{where} now has {len(here)} classes, and {there.path} was trained on {len(trained)} ({told}): let it hold "
        f"those and no others, or name another folder with --root{further}; the model itself loads with bdr.load"
    )


def why_not(there: Run, plan: Plan) -> str:
    differing = [k for k, v in plan.info["protocol"].items() if there.protocol.get(k) != v]
    if differing == ["source"]:
        return f"the images of {plan.info['protocol']['data']} are not those it was trained on (another checksum)"
    return f"{', '.join(differing) or 'its configuration'} would differ"


def runs_folder(path: Path) -> Path:
    """The folder that a run's shared first phase is looked for in: the nearest one that has such a place, if any."""
    shared = [folder for folder in path.resolve().parents if (folder / ".shared").is_dir()]
    return shared[0] if shared else path.resolve()
