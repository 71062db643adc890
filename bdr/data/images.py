"""Images as data sets give them: uint8, one array, labels beside them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bdr.data.augment import Augment


@dataclass(frozen=True, eq=False)
class Images:
    """(N, H, W, C) uint8 pixels and (N,) int64 labels as the data set numbers them; file names if images have them."""

    pixels: np.ndarray
    labels: np.ndarray
    names: np.ndarray | None = None  # (N,) of files, unique within a class: they find a row again in later data

    def __len__(self) -> int:
        return len(self.labels)

    def where(self, chosen: np.ndarray) -> Images:
        """The images chosen by a mask (N,), in their order."""
        names = None if self.names is None else self.names[chosen]
        return Images(self.pixels[chosen], self.labels[chosen], names)


@dataclass(frozen=True, eq=False)
class DataSet:
    """Training and test images with all that belongs to them: names, statistics, the augmentation that suits them."""

    name: str
    train: Images
    test: Images
    classes: tuple[str, ...]  # class names, by label
    mean: tuple[float, ...]  # per channel, of pixels in [0, 1]
    std: tuple[float, ...]
    augment: Augment
    source: str  # a short checksum of the content: part of a result's fingerprint
    size: int | None = None  # pixels per side that were asked for; None if images have a size of their own
    by_place: bool = False  # test images were held out of the training images by their place in a class
