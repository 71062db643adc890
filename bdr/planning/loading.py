"""The images of a run: read, some of them held out, put on the device with labels in order of arrival."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bdr.configuration.config import Config, checked_augment
from bdr.data import DATASETS
from bdr.data.arrays import check_data_set
from bdr.data.images import DataSet, Images
from bdr.data.sets import CIFAR100_DER
from bdr.data.store import Store
from bdr.errors import UsageError
from bdr.planning.parts import resolve
from bdr.types import ImageShape

OWN_DATA = "it is a function from a folder to a bdr.DataSet: def flowers(root) -> DataSet, or def flowers(root, size)"


def checked_data(data: object) -> DataSet | None:
    if data is None or isinstance(data, DataSet):
        return data
    raise UsageError(
        f"data is a {type(data).__name__}, and must be a bdr.DataSet: make one with bdr.from_arrays(...); bdr.run "
        'takes a name too, such as data="imagefolder", root="my_images"'
    )


def load_data(config: Config, given: DataSet | None = None) -> DataSet:
    given = load_named(config) if given is None else given
    check_data_set(given)
    mean, std = statistics_of(config.statistics, given)
    return replace(given, mean=mean, std=std, augment=checked_augment(given.augment, config.augment))


def statistics_of(chosen: str, data: DataSet) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The mean and std that images are normalised with, one number per channel."""
    channels = data.train.pixels.shape[3]
    if chosen == "half":  # from -1 to 1, as vision transformers of timm want images
        return (0.5,) * channels, (0.5,) * channels
    if chosen == "default":
        return data.mean, data.std
    if channels != len(CIFAR100_DER[0]):
        raise UsageError(
            f"statistics = {chosen!r} is not allowed: it is for {len(CIFAR100_DER[0])} channels, and the images of "
            f"'{data.name}' have {channels}; type --set statistics=default or --set statistics=half"
        )
    return CIFAR100_DER


def load_named(config: Config, only: Collection[str] = (), test: bool = False) -> DataSet:
    """The data set that a configuration names, read from its `root`.

    For a run that exists already, a folder of images may have got further classes since: with `only`, just these are
    read, if it has them all. It may have lost its training images: with `test`, they are not needed.
    """
    name = config.data
    if name not in DATASETS and Path(name).is_dir():
        raise UsageError(f"'{name}' is a folder: type --data imagefolder --root {name}")
    load = resolve("data set", name, DATASETS, DataSet)
    takes = inspect.signature(load).parameters
    some = {"only": only, "test_alone": test} if name in DATASETS else {}  # options of the library's own sets
    options: dict[str, Any] = {option: value for option, value in some.items() if option in takes}
    if "size" in takes:  # then the size is a fact of the run
        return replace(loaded(load, config, size=config.size, **options), size=config.size)
    return loaded(load, config, **options)


def loaded(load: Callable[..., Any], config: Config, **options: Any) -> DataSet:
    name, root = config.data, config.root
    try:
        inspect.signature(load).bind(root, **options)
    except TypeError as error:
        raise UsageError(f"'{name}' cannot be called with the folder of --root: {error}; {OWN_DATA}") from None
    try:
        found = load(root, **options)
    except (OSError, ValueError) as error:
        raise UsageError(f"data set '{name}' with --root {root or 'not given'}: {error}") from None
    if not isinstance(found, DataSet):
        raise UsageError(f"'{name}' is not a data set: it returned a {type(found).__name__}; {OWN_DATA}")
    return found


def image_shape(data: DataSet) -> ImageShape:
    height, width, channels = data.train.pixels.shape[1:]
    return ImageShape(channels, height, width)


def hold_out(images: Images, share: float) -> tuple[Images, Images | None]:
    """Hold out the same share of every class's training images for validation, evenly spread; none if share is 0."""
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
    """Images on the device, with labels remapped to the order of arrival; nothing else remaps them."""
    arrival = np.empty(len(order), dtype=np.int64)
    arrival[list(order)] = np.arange(len(order))
    labels = torch.from_numpy(arrival[images.labels])
    pixels, names = torch.from_numpy(images.pixels), None if images.names is None else images.names.tolist()
    return Store(pixels, labels, data.mean, data.std, data.augment, device, names)
