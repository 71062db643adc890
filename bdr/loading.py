"""The images of a run: read, some held out, on the device; labels become ids in order of arrival."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from bdr.config import Config, checked_augment
from bdr.data.arrays import check_data_set
from bdr.data.images import DataSet, Images
from bdr.data.sets import CIFAR100_DER
from bdr.data.store import Store
from bdr.errors import UsageError
from bdr.parts import load_named
from bdr.types import ImageShape


def load_data(config: Config, given: DataSet | None = None) -> DataSet:
    given = load_named(config) if given is None else given
    check_data_set(given)
    if config.statistics == "der":
        given = replace(given, mean=CIFAR100_DER[0], std=CIFAR100_DER[1])
    if config.statistics == "half":  # from -1 to 1, as vision transformers of timm want images
        given = replace(given, mean=(0.5,) * len(given.mean), std=(0.5,) * len(given.std))
    return replace(given, augment=checked_augment(given.augment, config.augment))


def image_shape(data: DataSet) -> ImageShape:
    height, width, channels = data.train.pixels.shape[1:]
    return ImageShape(channels, height, width)


def hold_out(images: Images, share: float) -> tuple[Images, Images | None]:
    """Every class gives the same share of its training images for validation, evenly spread; none if share is 0."""
    if share == 0:
        return images, None
    held = np.zeros(len(images), dtype=bool)
    for label in np.unique(images.labels):
        mine = np.flatnonzero(images.labels == label)
        count = max(1, round(share * len(mine)))
        if count >= len(mine):
            raise UsageError(f"--val {share} leaves no training image of a class that has {len(mine)}")
        held[mine[np.linspace(0, len(mine) - 1, count).round().astype(int)]] = True
    return images.where(~held), images.where(held)


def store_of(images: Images, data: DataSet, order: Sequence[int], device: torch.device) -> Store:
    """Images on the device, labels remapped to the order of arrival: the one place where that happens."""
    arrival = np.empty(len(order), dtype=np.int64)
    arrival[list(order)] = np.arange(len(order))
    labels = torch.from_numpy(arrival[images.labels])
    pixels, names = torch.from_numpy(images.pixels), None if images.names is None else images.names.tolist()
    return Store(pixels, labels, data.mean, data.std, data.augment, device, names)
