"""What the model of a run recognises in the user's own pictures."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from bdr.data.augment import Augment
from bdr.data.pictures import ENDINGS, Unreadable, is_picture, read_or_told
from bdr.data.reading import side_by_side
from bdr.data.store import EVALUATION_BATCH, Store
from bdr.engine.evaluate import predict
from bdr.errors import UsageError
from bdr.methods import Method
from bdr.records import Run

MODES = {1: "L", 3: "RGB"}  # of Pillow, by number of channels
AS_IT_IS = Augment(pad=0, flip=False)
FORMS = (".csv", ".json")  # endings of files that predictions are written into


class Recognised(NamedTuple):
    """A picture, and the classes that it most likely shows."""

    image: Path
    classes: list[tuple[str, float]]  # names and probabilities, best first


def picture_paths(places: Sequence[Path]) -> list[Path]:
    """The pictures that are named, and all pictures in and below the folders that are named."""
    found: list[Path] = []
    for place in places:
        if not place.exists() and not is_picture(place):
            to_write = place.suffix.lower() in FORMS
            instead = f"to write it, type -o {place}" if to_write else "name pictures, or a folder of them"
            raise UsageError(f"there is no file or folder '{place}'; {instead}")
        inside = pictures_below(place) if place.is_dir() else [place]
        if not inside:
            raise UsageError(f"folder '{place}' holds no pictures ({', '.join(ENDINGS)}), and none below it")
        found += inside
    if not found:
        raise UsageError("name at least one picture, or a folder of them")
    return found


def pictures_below(folder: Path) -> list[Path]:
    """All pictures in and below a folder, sorted by path; hidden folders are passed over."""
    found: list[Path] = []
    for place, inner, files in os.walk(folder):
        inner[:] = [name for name in inner if not name.startswith(".")]
        found += [Path(place) / name for name in files if is_picture(Path(place) / name)]
    return sorted(found)


def recognise(
    run: Run, phase: int, method: Method, paths: Sequence[Path], top: int, device: torch.device, readout: str
) -> Iterator[Recognised | Unreadable]:
    """Recognise pictures in batches, as all of a folder may not fit into memory. A broken one stops no other."""
    if top < 1:
        raise UsageError(f"the {top} best classes are none: ask for 1 or more")
    size, mode = size_and_mode(run)
    names = run.info["classes"][: run.phases[phase]["seen"]]
    every = side_by_side(paths, partial(read_or_told, size=size, mode=mode))
    for start in range(0, len(paths), EVALUATION_BATCH):
        some = paths[start : start + EVALUATION_BATCH]
        read = list(islice(every, len(some)))
        pixels = [each for each in read if not isinstance(each, Unreadable)]
        told = iter(best_classes(run, method, pixels, names, top, device, readout))
        for path, each in zip(some, read, strict=True):
            yield each if isinstance(each, Unreadable) else Recognised(path, next(told))


def best_classes(
    run: Run,
    method: Method,
    pixels: Sequence[np.ndarray],
    names: Sequence[str],
    top: int,
    device: torch.device,
    readout: str,
) -> list[list[tuple[str, float]]]:
    """For each picture the `top` most likely classes with their probabilities, best first."""
    if not pixels:
        return []
    mean, std = run.normalisation
    labels = torch.zeros(len(pixels), dtype=torch.long)
    store = Store(torch.from_numpy(np.stack(pixels)), labels, mean, std, AS_IT_IS, device)
    ids, chances = predict(method, store, len(names), top=top).readouts[readout]
    rows = zip(ids.tolist(), chances.tolist(), strict=True)
    return [[(names[k], chance) for k, chance in zip(best, likely, strict=True)] for best, likely in rows]


def readable(
    found: Iterator[Recognised | Unreadable], unreadable: Callable[[Unreadable], None] | None
) -> Iterator[Recognised]:
    """Yield what was recognised; call `unreadable` with each of the rest or, if it is None, raise the first of them."""
    for each in found:
        if isinstance(each, Recognised):
            yield each
        elif unreadable is None:
            raise each
        else:
            unreadable(each)


def size_and_mode(run: Run) -> tuple[int, str]:
    channels, height, width = run.info["image"]
    if height != width or channels not in MODES:
        raise UsageError(
            f"{run.path} takes images of {channels} x {height} x {width} (channels x height x width), and pictures are "
            f"read as squares, grey or RGB: hand over arrays in Python, bdr.load({str(run.path)!r})(x)"
        )
    return height, MODES[channels]
