"""Exemplars, named by what stays the same when a data set grows: a file's name, or a place in its class, and pixels.

Rows are numbers within one store of images; in the store of a larger data set, the same images have other numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from bdr.data.store import Store


class Kept(NamedTuple):
    """One exemplar, described without its row."""

    name: str | None  # of its file
    place: int  # among the training images of its class
    pixels: str  # their checksum

    def __str__(self) -> str:
        return self.name or f"image {self.place} (pixels {self.pixels})"


class Found(NamedTuple):
    """What a search for exemplars in another store of images has found."""

    rows: list[list[int]]  # of each class, best first; those that were not found are left out
    missing: list[tuple[int, Kept]]  # each a class and an exemplar
    altered: list[tuple[int, Kept]]  # files of the same name with other pixels


def checksums(store: Store, rows: Tensor) -> list[str]:
    """Twelve hex digits of the sha256 of each image's pixels."""
    return [hashlib.sha256(image.tobytes()).hexdigest()[:12] for image in store.pixels[rows].cpu().numpy()]


def checksums_of_classes(store: Store, classes: int) -> list[str]:
    """For each of the first classes, one checksum of all its images, in their order."""
    return [
        hashlib.sha256(store.pixels[store.of_classes(k, k + 1)].cpu().numpy().tobytes()).hexdigest()[:12]
        for k in range(classes)
    ]


def tell(store: Store, exemplars: Sequence[Sequence[int]]) -> list[list[Kept]]:
    """Describe the exemplars of each class in such a way that `find` finds them again."""
    told = []
    for label, rows in enumerate(exemplars):
        mine = store.of_classes(label, label + 1)
        names = [None if store.names is None else store.names[row] for row in rows]
        chosen = mine.new_tensor(rows)
        places = np.searchsorted(mine.cpu().numpy(), chosen.cpu().numpy()).tolist()  # rows of a class ascend
        told.append([Kept(*each) for each in zip(names, places, checksums(store, chosen), strict=True)])
    return told


def find(store: Store, told: Sequence[Sequence[Kept]]) -> Found:
    """Look for exemplars in a store whose first classes are those of the exemplars."""
    found = Found([], [], [])
    for label, kept in enumerate(told):
        there = ClassImages(store, label)
        rows = [there.row(each) for each in kept]
        found.rows.append([row for row in rows if row is not None])
        found.missing.extend((label, each) for each, row in zip(kept, rows, strict=True) if row is None)
        found.altered.extend((label, each) for each in kept if there.altered(each))
    return found


def count_alike(store: Store, told: Sequence[Sequence[Kept]]) -> int:
    """How many exemplars are in a store, by their pixels alone: a file of the same name may be another image."""
    sums = [set(checksums(store, store.of_classes(label, label + 1))) for label in range(len(told))]
    return sum(each.pixels in there for there, kept in zip(sums, told, strict=True) for each in kept)


class ClassImages:
    """The images of one class, looked up by name first, then by place if the pixels agree, at last by pixels alone."""

    def __init__(self, store: Store, label: int) -> None:
        self.rows = store.of_classes(label, label + 1)
        self.sums = checksums(store, self.rows)
        names = [] if store.names is None else [store.names[row] for row in self.rows.tolist()]
        self.by_name = {name: place for place, name in enumerate(names)}
        self.by_pixels = {each: place for place, each in reversed(list(enumerate(self.sums)))}

    def place(self, kept: Kept) -> int | None:
        if kept.name is not None and kept.name in self.by_name:
            return self.by_name[kept.name]
        if kept.place < len(self.sums) and self.sums[kept.place] == kept.pixels:
            return kept.place
        return self.by_pixels.get(kept.pixels)

    def row(self, kept: Kept) -> int | None:
        place = self.place(kept)
        return None if place is None else int(self.rows[place])

    def altered(self, kept: Kept) -> bool:
        place = self.place(kept)
        return place is not None and self.sums[place] != kept.pixels
