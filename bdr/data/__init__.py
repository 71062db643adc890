"""The data sets, by name.

The table is made on first use, because it imports torch and numpy, which listing and downloading data do without.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bdr.data.images import DataSet

DATASETS: dict[str, Callable[..., DataSet]]

ABOUT = {
    "digits": "1,797 handwritten digits, 8 x 8 grey, 10 classes; comes with scikit-learn, trains in seconds",
    "cifar10": "60,000 photographs, 32 x 32 colour, 10 classes; to download: bdr data fetch cifar10 --root DIR",
    "cifar100": "60,000 photographs, 32 x 32 colour, 100 classes; to download: bdr data fetch cifar100 --root DIR",
    "imagefolder": "pictures of your own: ROOT/train/CLASS/*.png and ROOT/test/CLASS/*.png, or ROOT/CLASS/*.png",
}


def __getattr__(name: str) -> object:
    if name != "DATASETS":
        raise AttributeError(f"module 'bdr.data' has no attribute '{name}'")
    from bdr.data.sets import cifar10, cifar100, digits, imagefolder

    global DATASETS
    DATASETS = {"digits": digits, "cifar10": cifar10, "cifar100": cifar100, "imagefolder": imagefolder}
    return DATASETS
