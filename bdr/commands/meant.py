"""Which setting was meant by an option that there is not, and what a folder is that stands without one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from bdr.configuration.config import Config, settable
from bdr.data.augment import Augment
from bdr.data.pictures import holds_pictures
from bdr.errors import nearest
from bdr.methods import METHODS
from bdr.nets import NETS
from bdr.plugins import PLUGINS
from bdr.types import Stage

ALIKE_AN_OPTION = 0.8  # 'epoch' is so much like 'epochs', and 'dropout' less like 'drop'
NAMED = ("method", "plugins")  # fields of a configuration that are given as METHOD+PLUGIN+...
ELSEWHERE = {"batch_size": "batch", "learning_rate": "lr"}  # what much other code calls them


def setting_like(typed: str, options: Sequence[str], words: Iterable[str]) -> str | None:
    """`stage.epochs` for `epochs`, or the like; None if an option is as much like it, or nothing is.

    Of methods, plug-ins and nets those count that are among the words of the command.
    """
    if any(option.startswith(typed) for option in options):
        return None
    settings = settings_by_field(words)
    near = nearest(ELSEWHERE.get(typed, typed), [*settings, *options], ALIKE_AN_OPTION)
    return None if near is None or near in options else settings[near]


def settings_by_field(words: Iterable[str]) -> dict[str, str]:
    """Every setting by its last word; one that several parts have is that of the first."""
    fields = [name for name, field in Config.model_fields.items() if field.default_factory is None and name != "stage"]
    found = {name: name for name in fields}
    parts: dict[str, Callable[..., Any]] = {"stage": Stage, "augment": Augment}
    for owner, target in (parts | parts_among(words)).items():
        own = [name for name, (_, default) in settable(target).items() if default is not ...]
        found = {name: f"{owner}.{name}" for name in own} | found
    return found


def holds_classes(folder: Path) -> bool:
    """Whether it looks like a folder of pictures: CLASS/*.png or train/CLASS/*.png in it."""
    return any(holds_pictures(place) for depth in ("*/", "*/*/") for place in folder.glob(depth))


def parts_among(words: Iterable[str]) -> dict[str, Callable[..., Any]]:
    names = [name for word in words for name in word.split("+")]
    known: dict[str, Callable[..., Any]] = {**NETS, **PLUGINS, **METHODS}
    return {name: known[name] for name in names if name in known}
