"""Views for contrastive learning, as in SimCLR (Chen et al., ICML 2020): of whole batches, on the device.

A view is a part of the image, enlarged to the size of the whole; it may be mirrored, have its brightness, contrast,
colour and hue jittered, and be grey. Draws are made apart from their application, as in `augment.py`, and are
fractions, so that they do not depend on an image's size.
Images are (B, H, W, C), floats that hold whole numbers from 0 to 255, as Pillow would leave them, to within a level.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from bdr.data.randaugment import blended, greyed
from bdr.data.store import Store

WIDEST = 4 / 3  # the largest factor by which a part may be wider or narrower in shape than the image


class Looks(NamedTuple):
    """What is drawn for each view; all fields have one shape, (steps, B) for an epoch and (B,) for a step."""

    top: Tensor  # where the part begins, as a share of the image
    left: Tensor
    height: Tensor  # of the part, as a share of the image
    width: Tensor
    mirror: Tensor  # bool
    brightness: Tensor  # factors around 1
    contrast: Tensor
    colour: Tensor
    hue: Tensor  # turns of the colour circle, around 0
    grey: Tensor  # bool


@dataclass(frozen=True, slots=True)
class View:
    """A part of at least the share `smallest` of the image, jittered with probability `jittered`, grey with `grey`."""

    smallest: float = 0.2
    jitter: float = 0.4
    hue: float = 0.1
    jittered: float = 0.8
    grey: float = 0.2

    def __post_init__(self) -> None:
        if not 0 < self.smallest <= 1:
            raise ValueError(f"crop = {self.smallest} is not allowed: the smallest part is more than 0, up to 1")

    def draw(self, steps: int, size: int, chance: torch.Generator) -> Looks:
        share, shape, down, right, mirror, jittered, grey, *tone = torch.rand(
            (11, steps, size), generator=chance, device=chance.device
        )
        area = self.smallest + (1 - self.smallest) * share
        ratio = torch.exp(math.log(WIDEST) * (2 * shape - 1))
        height, width = (area / ratio).sqrt().clamp(max=1), (area * ratio).sqrt().clamp(max=1)
        applied = (jittered < self.jittered).float()
        brightness, contrast, colour = (1 + self.jitter * applied * (2 * each - 1) for each in tone[:3])
        hue = self.hue * applied * (2 * tone[3] - 1)
        place = down * (1 - height), right * (1 - width), height, width
        return Looks(*place, mirror < 0.5, brightness, contrast, colour, hue, grey < self.grey)


def seen(store: Store, rows: Tensor, looks: Looks) -> Tensor:
    """(B, H, W, C): views of these rows, as drawn; mirrored only if the data set's own augmentation mirrors too."""
    images = cropped(store.pixels, rows, looks, looks.mirror & store.augment.flip)
    wide = [factor[:, None, None, None] for factor in (looks.brightness, looks.contrast, looks.colour)]
    images = blended(torch.zeros_like(images), images, wide[0])
    images = blended((greyed(images).mean((1, 2, 3), keepdim=True) + 0.5).floor(), images, wide[1])
    images = hued(blended(greyed(images), images, wide[2]), looks.hue)
    return greyed(images).expand_as(images).where(looks.grey[:, None, None, None], images)


def normalised(store: Store, images: Tensor) -> Tensor:
    """(B, C, H, W): views, normalised as the method's images are."""
    return ((images / 255 - store.mean) / store.std).permute(0, 3, 1, 2)


def cropped(pixels: Tensor, rows: Tensor, looks: Looks, mirror: Tensor) -> Tensor:
    """The parts enlarged to the size of the whole, each pixel interpolated between four neighbours."""
    y, x = places(pixels.shape[1], looks.top, looks.height), places(pixels.shape[2], looks.left, looks.width)
    x = torch.where(mirror[:, None], x.flip(1), x)
    up, down, below = taps(y, pixels.shape[1])
    near, far, aside = taps(x, pixels.shape[2])

    def row(y: Tensor) -> Tensor:
        one, other = (pixels[rows[:, None, None], y[:, :, None], at[:, None, :]].float() for at in (near, far))
        return torch.lerp(one, other, aside[:, None, :, None])

    return (torch.lerp(row(up), row(down), below[:, :, None, None]) + 0.5).floor()


def places(size: int, start: Tensor, share: Tensor) -> Tensor:
    """(B, size): the place in the image, in pixels and fractions of them, that each pixel of the view comes from."""
    middle = (torch.arange(size, device=start.device) + 0.5) / size
    return ((start[:, None] + share[:, None] * middle) * size - 0.5).clamp(0, size - 1)


def taps(place: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """The pixels before and after each place, and the weight of the second one."""
    before = place.floor()
    return before.long(), (before.long() + 1).clamp(max=size - 1), place - before


def hued(images: Tensor, turn: Tensor) -> Tensor:
    """Images with their hues turned by `turn` (B,) of the circle; images without colour stay as they are."""
    if images.shape[3] != 3:
        return images
    red, green, blue = images.unbind(3)
    value, lowest = images.amax(3), images.amin(3)
    chroma = value - lowest
    divisor = chroma.clamp(min=1)  # chroma is a whole number: 0, or at least this
    of_red = torch.remainder((green - blue) / divisor, 6)
    hue = torch.where(value == green, (blue - red) / divisor + 2, (red - green) / divisor + 4)
    hue = torch.where(value == red, of_red, hue) + 6 * turn[:, None, None]
    away = [torch.remainder(n + hue, 6) for n in (5, 3, 1)]
    turned = [value - chroma * torch.minimum(k, 4 - k).clamp(0, 1) for k in away]
    return (torch.stack(turned, 3) + 0.5).floor()
