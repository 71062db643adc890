"""Which runs share a protocol, its short title, and the order in which its methods are listed."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bdr.records import OF_A_FILE, OF_A_METHOD, Run, differences
from bdr.records.reader import by_name

PROPER_NAMES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
NAMED_FIRST = {"data": "{}", "base": "B{}", "step": "S{}"}
ALWAYS_NAMED = (*NAMED_FIRST, "memory")
# The facts that usually determine another one: where they do, a title that names them need not name it, too
DECIDED_BY = {
    "phases": ("data", "base", "step"),
    "herding": ("data", "memory"),
    "augment": ("data", "size"),
    "source": ("data", "size"),
    "classes": ("data", "source"),
    "normalise": ("data", "source"),
}
# Facts whose values are checksums or tuples: titles and notes name their subject instead
IN_A_WORD = {"source": "images", "normalise": "normalisation", "weights": "weights", "extends": "extended run"}
PYTHONS_WORDS = {"flip True": "flip", "flip False": "no flip", "brightness 0": ""}
# Facts of a method's training, in the words of the note that names the differences
TRAINING = {"epochs": "epochs", "batch": "batch", "optimizer": "learning rate or schedule"}
# The fields of a stage that even the first records have. A field that was added later counts only where it differs from
# that of a plain stage; a record names those itself (`told_stage`). Add nothing here when stages get another field.
FIRST_FIELDS = {
    *("name", "epochs", "batch", "optimizer", "lr", "momentum", "weight_decay", "schedule", "drops", "drop", "warmup"),
    *("clip", "draw", "train", "loss"),
}
# fields that were added after those, but before records had `told_stage`, with their values in a plain stage
BEFORE_TOLD = {"alternate": None, "floor": 0.0, "repeat": 1}


def protocol_key(run: Run) -> str:
    """A key that is equal for runs that can be compared."""
    facts = {fact: value for fact, value in run.protocol.items() if fact not in OF_A_METHOD and value is not None}
    return one_text(facts)


def one_text(facts: dict[str, Any]) -> str:
    """A text that is equal for equal facts: 0 and 0.0 are one value, whichever of them a version writes."""
    plain = {fact: float(value) if isinstance(value, int | float) else value for fact, value in facts.items()}
    return json.dumps(plain, sort_keys=True, default=str)


def protocol_titles(runs: Sequence[Run]) -> list[str]:
    """Titles such as `CIFAR-100 B50 S10, 20/class`, for one run per protocol, with all facts that tell them apart.

    Only runs on the same data need such facts: runs on other data are already told apart by their data.
    """
    same_data = [[other for other in runs if other.protocol.get("data") == run.protocol.get("data")] for run in runs]
    titles = [title_of(run.protocol, further_facts(others)) for run, others in zip(runs, same_data, strict=True)]
    pairs = zip(titles, runs, strict=True)
    placed = [with_place(title, run) if titles.count(title) > 1 else title for title, run in pairs]
    return numbered(placed)


def further_facts(runs: Sequence[Run]) -> list[str]:
    unnamed = (*ALWAYS_NAMED, *IN_A_WORD)
    return [fact for fact in telling_facts(runs) if fact not in unnamed]


def telling_facts(runs: Sequence[Run]) -> list[str]:
    """The facts in which protocols differ, except those that follow from other facts (see `is_decided`)."""
    different = [fact for fact in differences(list(runs)) if fact not in OF_A_METHOD]
    return [fact for fact in different if fact == "data" or not is_decided(fact, runs)]


def title_of(facts: dict[str, Any], further: Sequence[str]) -> str:
    named = facts | {"data": PROPER_NAMES.get(str(facts.get("data")), facts.get("data"))}
    first = " ".join(form.format(named[fact]) for fact, form in NAMED_FIRST.items() if facts.get(fact) is not None)
    memory = [str(facts["memory"])] if "memory" in facts else []
    cut = cut_short(facts)
    telling = [fact for fact in further if facts.get(fact) is not None and not (cut and fact == "phases")]
    told = [f"{fact.replace('_', ' ')} {in_words(facts[fact])}" for fact in telling]
    return ", ".join([*([first] if first else []), *memory, *cut, *told])


def cut_short(facts: dict[str, Any]) -> list[str]:
    """`first 2 of 6 phases` if a run is to end before all classes arrive, so that its average is not a whole run's."""
    classes, base, step, phases = (facts.get(name) for name in ("classes", "base", "step", "phases"))
    if facts.get("extends") or not (classes and step and phases) or base is None:
        return []
    planned = math.ceil((classes - base) / step) + bool(base)
    return [f"first {phases} of {planned} phases"] if phases < planned else []


def in_words(value: Any) -> str:
    """A value in plain words: `pad 1, no flip` for pad 1, flip False, brightness 0; `mean (0.5)` for mean (0.5,)"""
    parts = [PYTHONS_WORDS.get(part, part) for part in str(value).replace(",)", ")").split(", ")]
    return ", ".join(part for part in parts if part)


def with_place(title: str, run: Run) -> str:
    """The title with the folder of the images, and with the statistics that normalise them if not the default ones."""
    config = run.info.get("config") or {}
    root, statistics = config.get("root"), config.get("statistics") or "default"
    place = [f"from {Path(root).name}"] if root else []
    return ", ".join([title, *place, *([] if statistics == "default" else [f"statistics {statistics}"])])


def numbered(titles: Sequence[str]) -> list[str]:
    """The titles made unique: those that no words tell apart are numbered."""
    found: dict[str, int] = {}
    told = []
    for title in titles:
        found[title] = found.get(title, 0) + 1
        told.append(f"{title} ({found[title]})" if titles.count(title) > 1 else title)
    return told


def file_name(protocol: str) -> str:
    """A protocol's title as part of a file name: `cifar-100-b50-s10-20-class`"""
    return re.sub(r"[^a-z0-9.]+", "-", protocol.lower()).strip("-.")


def is_decided(fact: str, runs: Sequence[Run]) -> bool:
    """Whether runs that agree in what usually determines a fact (`DECIDED_BY`, else the data) agree in the fact."""
    found: dict[str, set[str]] = {}
    for run in runs:
        deciding = [run.protocol.get(name) for name in DECIDED_BY.get(fact, ("data",))]
        found.setdefault(str(deciding), set()).add(str(run.protocol.get(fact)))
    return all(len(values) == 1 for values in found.values())


def settings_of(run: Run) -> dict[str, Any]:
    """The settings of method, plug-ins and stages that a run was given, by their dotted names."""
    config = run.info.get("config") or {}
    stages = {f"stage.{name}": mine for name, mine in (config.get("stages") or {}).items()}
    return dotted(run, {**(config.get("settings") or {}), "stage": stage_settings(run), **stages})


def dotted(run: Run, settings: dict[str, Any]) -> dict[str, Any]:
    found = by_name(settings)
    if run.protocol.get("weights"):  # a checksum: it identifies them wherever the file was and whatever was asked for
        for name in OF_A_FILE:
            found.pop(f"{run.protocol.get('net')}.{name}", None)
    return found


def stage_settings(run: Run) -> dict[str, Any]:
    """The stage settings without fields that were added later and are not used: older and newer runs have the same."""
    stage = (run.info.get("config") or {}).get("stage") or {}
    told = run.info.get("told_stage")
    if told is None:
        told = {name for name, value in stage.items() if name not in BEFORE_TOLD or value != BEFORE_TOLD[name]}
    return {name: value for name, value in stage.items() if name in FIRST_FIELDS or name in told}


def natural_order(run: Run) -> tuple[Any, ...]:
    """A key to sort by: easier protocols first, a method before itself with plug-ins, defaults before settings."""
    facts = run.protocol
    # larger steps are fewer phases, and come first in papers
    scenario = rank(facts.get("data")), rank(facts.get("base")), rank(facts.get("step"), -1), rank(facts.get("memory"))
    method, *plugins = run.title.split("+")
    settings = [(name, rank(value)) for name, value in sorted(settings_of(run).items())]
    return *scenario, method, len(plugins), plugins, len(settings), settings


def rank(value: Any, sign: int = 1) -> tuple[int, float, list[str | int]]:
    """A key that sorts numbers by size, then words, with the numbers in words by size, too: 5/class before 20/class."""
    if isinstance(value, int | float):
        return 0, sign * float(value), []
    return 1, 0.0, [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", str(value))]
