"""Whether a run may begin in a folder: the folder must be empty, new or hold this very run."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bdr.errors import UsageError, as_word, shortened
from bdr.records.files import plain, writing
from bdr.records.folders import is_begun, is_content, is_done
from bdr.records.reader import by_name, differing, read_info

CHECKSUMS = {"source": "images", "weights": "weights of the network"}  # protocol facts that are checksums
GROWN = {"source", "classes", "phases", "normalise"}  # the facts that change when the data set gets further classes


def check_place(path: Path, info: dict[str, Any]) -> None:
    """Raise if a run cannot begin in a folder: it holds something else, or cannot be written. Leaves nothing there."""
    refuse_others(path, info)
    there = next(folder for folder in (path, *path.parents) if folder.exists())
    with writing(path), TemporaryDirectory(prefix=".bdr-", dir=there):
        pass


def refuse_file(path: Path) -> None:
    """Raise if a run could not have this folder since a file is in its way."""
    there = next(each for each in (path, *path.parents) if each.exists())
    if not there.is_dir():
        raise UsageError(f"{there} is a file; a run needs a folder: choose another name")


def refuse_others(path: Path, info: dict[str, Any]) -> None:
    """Raise if the folder holds anything but this very run."""
    refuse_file(path)
    found = [item.name for item in path.iterdir()] if path.exists() else []
    names = list(filter(is_content, found))
    if names and not is_begun(path):
        raise UsageError(f"{path} is not empty and not a run (it holds {min(names)}): choose an empty or a new folder")
    if names:
        _refuse_another_configuration(path, read_info(path), plain(info))


def _refuse_another_configuration(path: Path, there: dict[str, Any], here: dict[str, Any]) -> None:
    if (there["fingerprint"], there["seed"]) == (here["fingerprint"], here["seed"]):
        return
    own = {fact: [there[fact], here[fact]] for fact in ("title", "seed")}
    same = there["title"] == here["title"]  # with another title the settings differ anyway
    settings = differing([by_name(info.get("settings", {})) for info in (there, here)]) if same else {}
    pairs = own | differing([there["protocol"], here["protocol"]]) | settings
    apart = {fact: each for fact, each in pairs.items() if each[0] != each[1]}
    if is_done(path) and apart.keys() <= GROWN and (new := _new_classes(there, here)):
        raise UsageError(
            f"{path} is done, and the data has got {shortened(new)} since: teach it those with "
            f"bdr extend {as_word(path)} --out ANOTHER-FOLDER, or choose another folder to train all classes anew"
        )
    facts = [_unlike(fact, old, new) for fact, (old, new) in apart.items()]
    reasons = "; ".join(facts) or f"fingerprint {there['fingerprint']} there and {here['fingerprint']} here"
    raise UsageError(f"{path} belongs to another configuration: {reasons}. Choose another folder, or remove this one")


def _new_classes(there: dict[str, Any], here: dict[str, Any]) -> list[str]:
    """The classes that only `here` has; none if it lacks any class of `there`."""
    lost = set(there["classes"]) - set(here["classes"])
    return [] if lost else [name for name in here["classes"] if name not in there["classes"]]


def _unlike(fact: str, old: Any, new: Any) -> str:
    """How a fact differs, in words; checksums are not printed, since they would tell nobody anything."""
    if fact in CHECKSUMS:
        return f"the {CHECKSUMS[fact]} are others"
    return f"{fact} is {old} there and {new} here"
