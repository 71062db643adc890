"""Warn of pictures that stand twice in a data set where they should stand once."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator, Sequence

from bdr.data.images import Images
from bdr.errors import shortened


def say_if_repeated(train: Images, test: Images, classes: Sequence[str]) -> None:
    """Warn of training pictures that stand in two classes, and of test pictures among the training pictures.

    No network can be right about one picture in two classes; accuracy on copies only says what was learned by heart.
    """
    labels, names = train.labels.tolist(), named(train, classes)
    first: dict[bytes, int] = {}
    doubled = []
    for row, each in enumerate(sums(train)):
        at = first.setdefault(each, row)
        if labels[at] != labels[row]:
            doubled.append(f"{names[at]} = {names[row]}")
    if doubled:
        warnings.warn(
            f"{count(len(doubled), 'training picture stands', 'training pictures stand')} in two classes, pixel by "
            f"pixel: {shortened(doubled)}; remove one of each",
            stacklevel=3,
        )
    tested = [(name, each) for name, each in zip(named(test, classes), sums(test), strict=True) if each in first]
    if tested:
        warnings.warn(
            f"{len(tested)} of {count(len(test), 'test picture is', 'test pictures are')} among the training pictures, "
            f"pixel by pixel: {shortened([f'{name} = {names[first[each]]}' for name, each in tested])}; the accuracy "
            "on them says nothing of new pictures",
            stacklevel=3,
        )


def count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def sums(images: Images) -> Iterator[bytes]:
    """A checksum of each picture's pixels, one at a time, so that large pictures are not in memory twice."""
    return (hashlib.blake2b(pixels.tobytes(), digest_size=16).digest() for pixels in images.pixels)


def named(images: Images, classes: Sequence[str]) -> list[str]:
    """CLASS/FILE of every picture."""
    files = range(len(images)) if images.names is None else images.names
    return [f"{classes[label]}/{file}" for label, file in zip(images.labels.tolist(), files, strict=True)]
