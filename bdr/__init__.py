"""bdr: class-incremental learning with balanced destruction-reconstruction.

    from bdr import BDR                      the module alone, for a training loop of one's own
    bdr.run("ucir+cwd+bdr", data="digits")   a whole run; the same as on the command line
    bdr.extend(RUN, data=data)               further classes for a finished run
    bdr.keep(RUN, "folder")                  the old pictures that later extensions need, and no others
    bdr.predict(RUN, "folder")               what its model says of pictures
    bdr.export(RUN, "model.onnx")            its model as a file that needs no bdr
    bdr.load(RUN, phase=3)                   the trained module of a run
    bdr.evaluate(RUN)                        its accuracies, from test images seen anew

Names are imported when they are first used, so that the command line starts without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from bdr.version import __version__

if TYPE_CHECKING:
    from bdr.api import Result, evaluate, export, extend, load, predict, resume, run
    from bdr.balance import BDR
    from bdr.data.images import DataSet
    from bdr.data.sets import from_arrays
    from bdr.methods import Method
    from bdr.plugins import Plugin
    from bdr.trained.keeping import keep

HOMES = {
    "BDR": "bdr.balance",
    "DataSet": "bdr.data.images",
    "Method": "bdr.methods",
    "Plugin": "bdr.plugins",
    "Result": "bdr.api",
    "evaluate": "bdr.api",
    "export": "bdr.api",
    "extend": "bdr.api",
    "from_arrays": "bdr.data.sets",
    "keep": "bdr.trained.keeping",
    "load": "bdr.api",
    "predict": "bdr.api",
    "resume": "bdr.api",
    "run": "bdr.api",
}

__all__ = [
    "BDR",
    "DataSet",
    "Method",
    "Plugin",
    "Result",
    "__version__",
    "evaluate",
    "export",
    "extend",
    "from_arrays",
    "keep",
    "load",
    "predict",
    "resume",
    "run",
]


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module 'bdr' has no attribute '{name}'")
    return getattr(importlib.import_module(HOMES[name]), name)


def __dir__() -> list[str]:
    """The public names too, which are none of the module's until they are first used."""
    return sorted({*globals(), *__all__})
