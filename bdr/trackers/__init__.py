"""Pass what a run records to the trackers of others, each of which needs an extra of its own.

points       the numbers of a run directory, with their place on one axis for all phases
follow       a thread for each tracker, which reads the records while the run writes them
tensorboard  wandb  mlflow
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from bdr.errors import UsageError, unknown

if TYPE_CHECKING:
    from bdr.records import Run
    from bdr.trackers.base import Tracker

TRACKERS = {  # each has the name of the package that it needs
    "tensorboard": "bdr.trackers.tensorboard:TensorBoard",
    "wandb": "bdr.trackers.wandb:WeightsAndBiases",
    "mlflow": "bdr.trackers.mlflow:MLflow",
}


def check_tracker(name: str) -> None:
    """Refuse a tracker that does not exist or is not installed."""
    if name not in TRACKERS:
        raise unknown("tracker", name, TRACKERS)
    found = find_spec(name)
    if found is None or found.origin is None:  # a mere folder of that name, as some of them leave behind
        raise UsageError(f"{name} is not installed; type: pip install 'bdr[{name}]', or leave it out of --log and --to")


def open_tracker(name: str, run: Run) -> Tracker:
    module, _, kind = TRACKERS[name].partition(":")
    return getattr(import_module(module), kind)(run)
