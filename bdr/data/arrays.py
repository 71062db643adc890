"""The user's own arrays, checked before anything is trained on them and brought to one form."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from bdr.data.images import DataSet, Images
from bdr.errors import UsageError


def checked_images(part: str, x: ArrayLike, y: ArrayLike) -> Images:
    """The images of one part, "train" or "test", checked and brought to one form."""
    pixels, labels = as_bytes(part, channels_last(part, as_array(f"{part}_x", x))), as_array(f"{part}_y", y)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise UsageError(f"{part}_y has shape {labels.shape} and type {labels.dtype}; labels are integers, one each")
    if len(pixels) != len(labels):
        raise UsageError(f"{part} has {len(pixels)} images and {len(labels)} labels; there must be as many of each")
    if not pixels.size:
        raise UsageError(f"{part}_x has shape {pixels.shape}: it holds no pixels; give at least one image")
    return Images(pixels, labels.astype(np.int64))


def check_data_set(data: DataSet) -> None:
    """Check that a data set that was put together by hand has the form that the engine takes."""
    for part, images in (("train", data.train), ("test", data.test)):
        pixels, labels = images.pixels, images.labels
        if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[1:] != data.train.pixels.shape[1:]:
            raise UsageError(
                f"the {part} images of '{data.name}' are {pixels.dtype} of shape {pixels.shape}; they must be uint8 of "
                "shape (N, H, W, C), train and test alike: bdr.from_arrays makes them so"
            )
        fits = labels.shape == (len(pixels),) and labels.dtype.kind in "iu" and labels.size
        if not fits or labels.min() < 0 or labels.max() >= len(data.classes):
            raise UsageError(
                f"the {part} labels of '{data.name}' must be integers from 0 to {len(data.classes) - 1}, one for each "
                f"of its {len(pixels)} images, since it names {len(data.classes)} classes"
            )
        if images.names is not None and len(images.names) != len(pixels):
            raise UsageError(
                f"the {part} images of '{data.name}' have {len(images.names)} names and are {len(pixels)}: give each "
                "one, or none at all"
            )
    for name, values in (("mean", data.mean), ("std", data.std)):
        checked_statistics(name, values, data.train)


def as_array(name: str, values: ArrayLike) -> np.ndarray:
    try:
        return np.asarray(values)
    except (ValueError, TypeError, RuntimeError) as problem:
        raise UsageError(f"{name} is no array ({problem}); give images of one size, as numpy arrays") from problem


def channels_last(part: str, x: np.ndarray) -> np.ndarray:
    """Images as (N, H, W, C), given in that form, as (N, H, W) or as (N, C, H, W)."""
    if x.ndim == 3:
        return x[..., None]
    last, first = (x.ndim == 4 and x.shape[axis] in (1, 3) for axis in (3, 1))
    if last == first:
        why = "could have its channels first or last" if last else "is none of (N, H, W), (N, H, W, C), (N, C, H, W)"
        raise UsageError(f"{part}_x of shape {x.shape} {why}; there are 1 or 3 channels, on one of those axes")
    return x if last else x.transpose(0, 2, 3, 1)


def as_bytes(part: str, x: np.ndarray) -> np.ndarray:
    """Pixels as uint8: such arrays are kept as they are, and floats in [0, 1] are scaled."""
    if x.dtype == np.uint8:
        return np.ascontiguousarray(x)
    if x.dtype.kind != "f":
        raise UsageError(f"{part}_x has type {x.dtype}; use uint8 in 0..255 or floats in 0..1")
    wrong = ~((x >= 0) & (x <= 1))  # not-a-number compares false, so it is found too
    if wrong.any():
        first = tuple(int(axis) for axis in np.argwhere(wrong)[0])
        raise UsageError(
            f"{part}_x has {wrong.sum():,} of {x.size:,} values that are not in 0..1, the first {x[first]} at image "
            f"{first[0]}, row {first[1]}, column {first[2]}, channel {first[3]}; use floats in 0..1 or uint8 in 0..255"
        )
    return np.rint(x * x.dtype.type(255)).astype(np.uint8)


def checked_names(train: Images, test: Images, classes: Sequence[str] | None) -> tuple[str, ...]:
    """Class names, by label. Training labels must be 0..K-1 without a gap, and test labels must be among them."""
    present = np.unique(train.labels)
    gaps = np.flatnonzero(present != np.arange(len(present)))
    if gaps.size:
        raise UsageError(f"train_y has {present[gaps[0]]} where {gaps[0]} is due: labels are 0..K-1 without a gap")
    count = len(present)
    strange = np.setdiff1d(test.labels, present)
    if strange.size:
        raise UsageError(f"test_y has the label {strange[0]}, which no training image has: those have 0..{count - 1}")
    names = tuple(map(str, range(count) if classes is None else classes))
    if len(names) != count or len(set(names)) != count:
        raise UsageError(f"{len(names)} class names ({len(set(names))} different) for {count} labels; give one each")
    return names


def checked_statistics(name: str, values: float | Sequence[float], train: Images) -> tuple[float, ...]:
    """A mean or std, checked: one finite number for each channel, a std above zero; one will do for grey images."""
    channels = train.pixels.shape[3]
    numbers = tuple(float(value) for value in np.atleast_1d(np.asarray(values)))
    if len(numbers) != channels or not np.isfinite(numbers).all() or (name == "std" and min(numbers) <= 0):
        kind = "a number above 0" if name == "std" else "a finite number"
        raise UsageError(f"{name} is {numbers}; give {kind} for each of the {channels} channels, of pixels in 0..1")
    return numbers


def measure(pixels: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std of each channel; a channel that never changes gets the std 1, since pixels are divided by it."""
    count = pixels[..., 0].size
    total, squares = sums(pixels)
    mean = total / count / 255
    spread = np.sqrt(np.maximum(squares / count / 255**2 - mean**2, 0))
    spread[spread < 1e-6] = 1.0
    return tuple(mean.tolist()), tuple(spread.tolist())


def sums(pixels: np.ndarray, rows: int = 1024) -> np.ndarray:
    """(2, channels): exact sums of all bytes and of their squares; over the images first, which is quickest."""
    total = np.zeros((2, *pixels.shape[1:]), np.int64)
    for start in range(0, len(pixels), rows):  # all at once would take four times their memory
        block = pixels[start : start + rows].astype(np.int32)
        total += block.sum(0), (block * block).sum(0)
    return total.sum((1, 2))


def shape_of(image: np.ndarray) -> str:
    return " x ".join(map(str, image.shape))
