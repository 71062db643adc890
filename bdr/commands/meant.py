"""Guessing which setting was meant by an unknown option, and whether a folder without an option holds pictures."""

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

ALIKE_AN_OPTION = 0.8  # 'epoch' is this similar to 'epochs'; 'dropout' is less similar to 'drop'
NAMED = ("method", "plugins")  # configuration fields that are typed as METHOD+PLUGIN+...
ELSEWHERE = {"batch_size": "batch", "learning_rate": "lr"}  # names that are common in other code


def setting_like(typed: str, options: Sequence[str], words: Iterable[str]) -> str | None:
    """The setting most like what was typed: `stage.epochs` for `epochs`; None if an option is closer, or nothing is.

    Settings of a method, plug-in or net count only if it is among the words of the command.
    """
    if any(option.startswith(typed) for option in options):
        return None
    settings = settings_by_field(words)
    near = nearest(ELSEWHERE.get(typed, typed), [*settings, *options], ALIKE_AN_OPTION)
    return None if near is None or near in options else settings[near]


def settings_by_field(words: Iterable[str]) -> dict[str, str]:
    """Every setting by its last word; if several parts have one of that name, that of the first."""
    fields = [name for name, field in Config.model_fields.items() if field.default_factory is None and name != "stage"]
    found = {name: name for name in fields}
    parts: dict[str, Callable[..., Any]] = {"stage": Stage, "augment": Augment}
    for owner, target in (parts | parts_among(words)).items():
        own = [name for name, (_, default) in settable(target).items() if default is not ...]
        found = {name: f"{owner}.{name}" for name in own} | found
    return found


def holds_classes(folder: Path) -> bool:
    """Whether a folder looks like one of pictures by class: it holds CLASS/*.png or train/CLASS/*.png."""
    return any(holds_pictures(place) for depth in ("*/", "*/*/") for place in folder.glob(depth))


def parts_among(words: Iterable[str]) -> dict[str, Callable[..., Any]]:
    names = [name for word in words for name in word.split("+")]
    known: dict[str, Callable[..., Any]] = {**NETS, **PLUGINS, **METHODS}
    return {name: known[name] for name in names if name in known}
