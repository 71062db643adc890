"""timm, to hold networks against, without torchvision: its wheel loads beside the torch of its own build alone."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from unittest.mock import MagicMock

import pytest

ABSENT = "torchvision"


class StandIn(MetaPathFinder, Loader):
    """Any module of torchvision, with any name in it: timm asks for some on import, and its networks use none."""

    def find_spec(self, fullname, path=None, target=None):
        return ModuleSpec(fullname, self, is_package=True) if fullname.partition(".")[0] == ABSENT else None

    def create_module(self, spec):
        return MagicMock(name=spec.name)

    def exec_module(self, module):
        pass


@contextmanager
def stood_in() -> Iterator[None]:
    """For the time of an import: others ask whether torchvision is there, and must not find this."""
    kept = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == ABSENT}
    finder = StandIn()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.partition(".")[0] == ABSENT]:
            del sys.modules[name]
        sys.modules.update(kept)


def timm(module: str) -> ModuleType:
    """One of its modules; a test that needs it is skipped where timm is not installed."""
    with stood_in():
        try:
            return importlib.import_module(f"timm.{module}")
        except ImportError as error:
            pytest.skip(f"needs timm: {error}")
