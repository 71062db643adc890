"""What to type instead of options and arguments that a command does not have."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from typer.core import TyperCommand

from bdr.errors import UsageError


class Hinting(TyperCommand):
    """A command that says what to type instead of what it does not have; where nothing fits, typer says what it can."""

    allow_extra_args = True  # the error about them is raised here, in words more helpful than click's

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # Any: typer may bring its own click
        words = list(args)  # a copy, because click empties the list
        refuse_empty([str(self.name), *words])
        try:
            left = super().parse_args(ctx, args)
        except Exception as error:  # its class is unknown, as typer may bring its own click; an attribute tells it
            if hint := self.setting_meant(getattr(error, "option_name", ""), words):
                raise UsageError(hint) from None
            in_plain_words(error)
            raise
        if left and not ctx.resilient_parsing:
            raise UsageError(split_setting(words) or self.too_much(words, left))
        return left

    def setting_meant(self, option: str, words: Sequence[str]) -> str | None:
        """`--epochs` is a field of the configuration that has no option; all of them can be given by --set."""
        options = [word for param in self.params for word in (*param.opts, *param.secondary_opts)]
        if not option.startswith("--") or option in options or "--set" not in options:
            return None
        from bdr.commands.meant import NAMED, setting_like

        setting = setting_like(as_field(option), [as_field(each) for each in options], words)
        if setting is None:
            return None
        instead = f"it takes {self.taken()}" if setting in NAMED else f"type --set {setting}=VALUE"
        return f"{self.name} has no option {option}: {instead}"

    def too_much(self, words: Sequence[str], left: Sequence[str]) -> str:
        takes = f"{self.name} takes {f'{self.taken()}, and nothing else' if self.taken() else 'no argument'}"
        if Path(left[0]).is_dir() and (option := self.option_for(left[0], words)):
            place = len(words) - words[::-1].index(left[0])  # the last one equal: arguments are taken from the front
            instead = ["bdr", str(self.name), *words[: place - 1], *words[place:], *option, left[0]]
            return f"{takes}: {shlex.join(instead)}"
        return f"{takes}: {' '.join(left)} is too much"

    def option_for(self, folder: str, words: Sequence[str]) -> list[str]:
        """What stands before a folder of pictures, or of runs; nothing where that has been given."""
        from bdr.commands.meant import holds_classes

        options = {option for param in self.params for option in param.opts}
        free = options - {word.partition("=")[0] for word in words}
        if "--root" in free and ("--data" in options - free or holds_classes(Path(folder))):
            return ["--data", "imagefolder", "--root"] if "--data" in free else ["--root"]
        return ["--runs"] if "--runs" in free else []

    def taken(self) -> str:
        """`WHAT (METHOD+PLUGIN+..., a recipe, ...)`: the arguments of the command, as its help has them."""
        arguments: list[Any] = [param for param in self.params if param.param_type_name == "argument"]
        return ", ".join(f"{each.metavar or each.name.upper()} ({each.help.rstrip('.')})" for each in arguments)


def refuse_empty(words: Sequence[str]) -> None:
    """Refuse `--out ""`, as from a variable that is not set: it would be the folder that one stands in."""
    for before, word in pairwise(words):
        if not word:
            raise UsageError(f"{before} is followed by an empty word, as from a variable that is not set: type a value")


def in_plain_words(error: Any) -> None:
    """A value that is not allowed, without the word by which one release of typer begins to say it."""
    if isinstance(said := getattr(error, "message", None), str):
        error.message = said.removeprefix("Value error, ")


def as_field(option: str) -> str:
    """`--weight-decay` as fields are spelt."""
    return option.lstrip("-").replace("-", "_")


def split_setting(words: Sequence[str]) -> str | None:
    """`--set stage.epochs 3`, and `--set stage.epochs = 3`."""
    for option, name, value in zip(words, words[1:], words[2:], strict=False):
        if option == "--set" and "=" not in name.rstrip("="):
            setting = f"{name.rstrip('=')}={value.lstrip('=') or 'VALUE'}"
            return f"--set takes NAME=VALUE without spaces: type --set {setting}"
    return None
