"""One function for each data set: uint8 images with their labels, statistics and the augmentation that suits them."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Collection, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bdr.data.arrays import checked_images, checked_names, checked_statistics, measure, shape_of
from bdr.data.augment import Augment
from bdr.data.images import DataSet, Images
from bdr.data.pictures import (
    USUAL,
    check_counts,
    check_same_classes,
    class_names,
    folders_of,
    labelled_files,
    pictures,
    say_if_shrunk,
    subfolders,
    test_folders,
)
from bdr.data.published import folder_of, how_to_fetch, published, read
from bdr.data.repeats import say_if_repeated
from bdr.errors import BdrError, UsageError

Root = str | os.PathLike[str]
Statistics = tuple[tuple[float, ...], tuple[float, ...]]  # mean and std, per channel

DIGITS: Statistics = ((0.3054,), (0.3762,))  # of the training images
CIFAR10: Statistics = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
CIFAR100: Statistics = ((0.5071, 0.4866, 0.4409), (0.2009, 0.1984, 0.2023))  # UCIR, AANet, CwD, BDR
CIFAR100_DER: Statistics = ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761))  # DER, PODNet, DyTox
IMAGENET: Statistics = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def digits(root: Root | None = None) -> DataSet:
    """Scikit-learn's 1,797 handwritten digits of 8 x 8 pixels; there is nothing to read from a `root`."""
    if root is not None:
        raise UsageError(
            f"digits come with scikit-learn and read nothing from --root {root}; "
            "for pictures of your own add --data imagefolder"
        )
    values, labels = handwritten()
    pixels = np.rint(values.reshape(-1, 8, 8, 1) * (255 / 16)).astype(np.uint8)
    train, test = split(Images(pixels, labels.astype(np.int64)), share=4)
    names = tuple(str(digit) for digit in range(10))
    return replace(dataset("digits", train, test, names, DIGITS, Augment(pad=1, flip=False)), by_place=True)


def handwritten() -> tuple[np.ndarray, np.ndarray]:
    """Values (N, 64) from 0 to 16, and the digits that they show, from the file beside scikit-learn's own code.

    Importing scikit-learn for that file alone would be a third of the time that a command on digits takes to start.
    """
    found = find_spec("sklearn")
    if found is None or found.origin is None:
        raise UsageError("digits come with scikit-learn, which is missing; type: pip install 'bdr[digits]'")
    file = Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz"
    if not file.exists():  # a release that keeps it elsewhere
        from sklearn.datasets import load_digits

        values, labels = load_digits(return_X_y=True)
        return values, labels
    rows = np.loadtxt(file, delimiter=",")
    return rows[:, :-1], rows[:, -1]


def cifar10(root: Root | None) -> DataSet:
    """CIFAR-10 from its published python files: 50,000 + 10,000 images of 32 x 32 pixels."""
    return cifar("cifar10", root, CIFAR10)


def cifar100(root: Root | None) -> DataSet:
    """CIFAR-100 from its published python files, with its 100 fine labels."""
    return cifar("cifar100", root, CIFAR100)


def imagefolder(root: Root | None, size: int = USUAL, only: Collection[str] = (), test_alone: bool = False) -> DataSet:
    """A folder of pictures, a folder for each class, as RGB squares of `size` pixels; `only` reads just these classes.

    If some of those are missing, all classes are read, so that the caller can say what is there instead. With
    `test_alone`, no training images are read if the test images have a folder of their own.
    """
    if size < 1:
        raise UsageError(f"images of {size} pixels a side do not exist; use a size of 8 or more, such as 32")
    apart = [folder for folder in test_folders(root) if subfolders(folder)]  # a class may be called "test", too
    if test_alone and apart:
        return tests_of(apart[0], size, only)
    train_at, test_at = folders_of(root)
    only = only if set(only) <= set(class_names(train_at)) else ()
    classes = class_names(train_at, only)
    files = labelled_files(train_at, classes)
    say_if_shrunk([path for path, _ in files], size)
    if test_at is None:
        warnings.warn(f"no test/ folder: every fifth picture of a class in {train_at} is for testing", stacklevel=2)
        (whole,) = pictures([files], size)
        check_counts(train_at, whole, classes)
        train, test = split(whole, share=5)
    else:
        check_same_classes(train_at, classes, test_at, class_names(test_at, only))
        train, test = pictures([files, labelled_files(test_at, classes)], size)
    say_if_repeated(train, test, classes)
    found = dataset("imagefolder", train, test, classes, IMAGENET, Augment(pad=size // 8, flip=True))
    return replace(found, size=size, by_place=test_at is None)


def tests_of(folder: Path, size: int, only: Collection[str]) -> DataSet:
    """The test images of a folder of pictures, without any to train on."""
    only = only if set(only) <= set(class_names(folder)) else ()
    classes = class_names(folder, only)
    nothing, test = pictures([[], labelled_files(folder, classes)], size)
    return replace(dataset("imagefolder", nothing, test, classes, IMAGENET, Augment(pad=0, flip=False)), size=size)


def from_arrays(
    train_x: ArrayLike,
    train_y: ArrayLike,
    test_x: ArrayLike,
    test_y: ArrayLike,
    classes: Sequence[str] | None = None,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    augment: Augment | None = None,
    name: str = "arrays",
) -> DataSet:
    """A data set from your own arrays. By default images are shifted a little; mirroring could change a label."""
    train, test = checked_images("train", train_x, train_y), checked_images("test", test_x, test_y)
    if train.pixels.shape[1:] != test.pixels.shape[1:]:
        given = f"{shape_of(train.pixels[0])} and {shape_of(test.pixels[0])}"
        raise UsageError(f"train and test images differ in shape: {given} (height x width x channels)")
    names = checked_names(train, test, classes)
    measured = measure(train.pixels)
    statistics = (
        checked_statistics("mean", measured[0] if mean is None else mean, train),
        checked_statistics("std", measured[1] if std is None else std, train),
    )
    shifts = Augment(pad=min(train.pixels.shape[1:3]) // 8, flip=False)
    return dataset(name, train, test, names, statistics, augment or shifts)


def cifar(name: str, root: Root | None, statistics: Statistics) -> DataSet:
    data, folder = published(name), existing_folder(name, root)
    classes = tuple(str(label) for label in entry(read(name, folder, data.meta), data.names, folder / data.meta))
    train = cifar_images(name, folder, data.train, len(classes))
    test = cifar_images(name, folder, data.test, len(classes))
    source = hashlib.sha256("".join(data.files.values()).encode()).hexdigest()[:12]  # free: the files were just checked
    return dataset(name, train, test, classes, statistics, Augment(pad=4, flip=True), source)


def existing_folder(name: str, root: Root | None) -> Path:
    """The folder of the files, or an error that says what was looked for."""
    wanted = published(name).folder
    if root is None:
        raise UsageError(f"{name} needs the folder that holds {wanted}/; {how_to_fetch(name)}")
    folder = folder_of(name, root)
    if not os.path.isdir(folder):
        raise UsageError(f"{name} is not in '{root}': there is no folder {wanted}/ in it; {how_to_fetch(name)}")
    return folder


def cifar_images(name: str, folder: Path, files: Sequence[str], classes: int) -> Images:
    """The images of one or more files, in their order."""
    parts = [cifar_file(name, folder, file, classes) for file in files]
    pixels, labels = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Images(pixels, labels)


def cifar_file(name: str, folder: Path, file: str, classes: int) -> tuple[np.ndarray, np.ndarray]:
    content, path = read(name, folder, file), folder / file
    rows = np.asarray(entry(content, "data", path))
    labels = np.asarray(entry(content, published(name).labels, path))
    if rows.dtype != np.uint8 or not len(labels) or rows.shape != (len(labels), 3 * 32 * 32):
        raise BdrError(f"{path} holds {len(labels)} labels and {rows.dtype} data {rows.shape}, not uint8 (N, 3072)")
    if labels.dtype.kind not in "iu" or labels.min() < 0 or labels.max() >= classes:
        raise BdrError(f"{path} holds labels outside 0..{classes - 1}; {how_to_fetch(name)}")
    return np.ascontiguousarray(rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)), labels.astype(np.int64)


def entry(content: dict[str, Any], key: str, path: Path) -> Any:
    if key not in content:
        raise BdrError(f"{path} has no '{key}'; it has {', '.join(map(str, content)) or 'nothing'}")
    return content[key]


def dataset(
    name: str,
    train: Images,
    test: Images,
    classes: tuple[str, ...],
    statistics: Statistics,
    augment: Augment,
    source: str | None = None,
) -> DataSet:
    mean, std = statistics
    return DataSet(name, train, test, classes, mean, std, augment, source or checksum(train, test, classes))


def checksum(train: Images, test: Images, classes: Sequence[str]) -> str:
    """Twelve hex digits of the sha256 of shapes, pixels, labels and class names."""
    digest = hashlib.sha256(repr((train.pixels.shape, test.pixels.shape, list(classes))).encode())
    for part in (train, test):
        digest.update(np.ascontiguousarray(part.pixels).data)
        digest.update(np.ascontiguousarray(part.labels).data)
    return digest.hexdigest()[:12]


def split(whole: Images, share: int) -> tuple[Images, Images]:
    """Train and test: of every class, each `share`-th image is held out. No draw, so it is the same for every seed."""
    held = np.zeros(len(whole), dtype=bool)
    for label in np.unique(whole.labels):
        held[np.flatnonzero(whole.labels == label)[1::share]] = True
    return whole.where(~held), whole.where(held)
