"""RandAugment (Cubuk et al., NeurIPS 2020) of whole batches, in the form "rand-m9-mstd0.5-inc1" that DyTox uses.

Each image gets two operations, each of the fifteen equally likely, each left out half of the time, with a magnitude
~ N(9, 0.5) out of 10; for those that go either way, a coin decides which. Every operation gives what Pillow makes of
bytes, to within a level, but on the device and for all images at once: the geometric ones are one affine map, sampled
bicubically; the others are computed for all images, and each image keeps the one that it has drawn.

Images are (B, H, W, C), floats that hold whole numbers from 0 to 255.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

NONE = 0  # an operation that is left out
OPERATIONS = (
    *("none", "autocontrast", "equalize", "invert", "rotate", "posterize", "solarize", "solarize_add"),
    *("color", "contrast", "brightness", "sharpness", "shear_x", "shear_y", "translate_x", "translate_y"),
)
NUMBER = {name: place for place, name in enumerate(OPERATIONS)}
SLOTS, LIKELY, STRONGEST = 2, 0.5, 10.0
GREY = (19595, 38470, 7471)  # of red, green and blue in 65536


class Chosen(NamedTuple):
    operation: Tensor  # (N, 2) int64, places in OPERATIONS
    level: Tensor  # (N, 2) float32 in [-10, 10]; the sign says which way


def choose(count: int, magnitude: float, spread: float, generator: torch.Generator) -> Chosen:
    shape, device = (count, SLOTS), generator.device
    operation = torch.randint(1, len(OPERATIONS), shape, generator=generator, device=device)
    applied, sign = torch.rand((2, *shape), generator=generator, device=device)
    level = (magnitude + spread * torch.randn(shape, generator=generator, device=device)).clamp(0, STRONGEST)
    return Chosen(operation.where(applied < LIKELY, NONE), level.where(sign < 0.5, -level))


def randaugmented(images: Tensor, chosen: Chosen, fill: Tensor) -> Tensor:
    """Images (B, H, W, C) after what is chosen for each (B, 2); `fill` (C,) is the colour of what comes in."""
    for slot in range(SLOTS):
        images = operated(images, chosen.operation[:, slot], chosen.level[:, slot], fill)
    return images


def operated(images: Tensor, operation: Tensor, level: Tensor, fill: Tensor) -> Tensor:
    """Images after one operation each, given by its number (B,) and its level (B,)."""
    images = warped(images, affine(operation, level / STRONGEST, *images.shape[1:3]), fill)
    operation, share = operation[:, None, None, None], (level.abs() / STRONGEST)[:, None, None, None]
    factor = (1 + 0.9 * (level / STRONGEST)[:, None, None, None]).clamp(min=0.1)
    for name, changed in pointwise(images, share).items():
        images = changed.where(operation == NUMBER[name], images)
    for name, degenerate in degenerates(images).items():
        images = blended(degenerate, images, factor).where(operation == NUMBER[name], images)
    return images


# Geometry


def affine(operation: Tensor, share: Tensor, height: int, width: int) -> Tensor:
    """(B, 2, 3): maps from a place in the new image to where its pixel is from: a turn, slant, shift, or nothing."""

    def only(name: str, most: float) -> Tensor:
        return most * share * (operation == NUMBER[name])

    angle = -only("rotate", math.radians(30))
    cos, sin = angle.cos(), angle.sin()
    x, y = width / 2, height / 2
    a, b, d, e = cos, sin + only("shear_x", 0.3), -sin + only("shear_y", 0.3), cos
    c = x - cos * x - sin * y + only("translate_x", 0.45 * width)
    f = y + sin * x - cos * y + only("translate_y", 0.45 * height)
    return torch.stack([a, b, c, d, e, f], 1).view(-1, 2, 3)


def cubic(t: Tensor) -> Tensor:
    """(..., 4): weights of the pixels at -1, 0, 1 and 2 for a place t in [0, 1), by Pillow's kernel, a = -1."""
    t2, t3 = t * t, t * t * t
    return torch.stack([-t + 2 * t2 - t3, 1 - 2 * t2 + t3, t + t2 - t3, t3 - t2], -1)


def warped(images: Tensor, matrix: Tensor, fill: Tensor) -> Tensor:
    """Images with every pixel taken from the place (x, y) that the matrix gives, as a bicubic mean of 16 neighbours."""
    size, height, width, _ = images.shape
    y, x = (torch.arange(n, device=images.device) + 0.5 for n in (height, width))
    x_in, y_in = (
        row[:, 0, None, None] * x[None, None, :] + row[:, 1, None, None] * y[None, :, None] + row[:, 2, None, None]
        for row in matrix.unbind(1)
    )  # (B, H, W)
    inside = (x_in >= 0) & (x_in < width) & (y_in >= 0) & (y_in < height)
    # A place that only rounding moved off a pixel counts as that pixel, so images that are not warped stay as they are.
    left, top = ((place - 0.5 + 1e-4).floor() for place in (x_in, y_in))
    across, down = cubic((x_in - 0.5 - left).clamp(0, 1)), cubic((y_in - 0.5 - top).clamp(0, 1))
    which, total = torch.arange(size, device=images.device)[:, None, None], torch.zeros_like(images)
    for i in range(4):
        row = (top.long() + i - 1).clamp(0, height - 1)
        along = [images[which, row, (left.long() + j - 1).clamp(0, width - 1)] * across[..., j, None] for j in range(4)]
        total = total + down[..., i, None] * sum(along)
    return (total + 1e-3).floor().clamp(0, 255).where(inside[..., None], fill)


# Tone


def pointwise(images: Tensor, share: Tensor) -> dict[str, Tensor]:
    """The results of operations that look at a pixel's own level, and at how its channel's levels are spread."""
    bits = 4 - (4 * share).floor()
    step = torch.exp2(8 - bits)
    threshold, added = 256 - (256 * share).floor(), (110 * share).floor()
    return {
        "autocontrast": stretched(images),
        "equalize": equalized(images),
        "invert": 255 - images,
        "posterize": (images / step).floor() * step,
        "solarize": images.where(images < threshold, 255 - images),
        "solarize_add": (images + added).clamp(max=255).where(images < 128, images),
    }


def stretched(images: Tensor) -> Tensor:
    """Each channel stretched to 0..255; one of a single level stays as it is."""
    low, high = images.amin((1, 2), keepdim=True), images.amax((1, 2), keepdim=True)
    span = high - low
    return ((images - low) * 255 / span.clamp(min=1) + 1e-3).floor().where(span > 0, images)


def equalized(images: Tensor) -> Tensor:
    """Each channel with its levels made equally frequent; one with too few levels for that stays as it is."""
    levels = images.permute(0, 3, 1, 2).flatten(2).long()  # (B, C, N)
    ones = torch.ones_like(levels, dtype=images.dtype)
    histogram = images.new_zeros(*levels.shape[:2], 256).scatter_add_(2, levels, ones)
    of_highest = histogram.gather(2, levels.amax(2, keepdim=True))
    step = ((levels.shape[2] - of_highest) / 255).floor()
    below = histogram.cumsum(2) - histogram
    table = ((below + (step / 2).floor()) / step.clamp(min=1)).floor().clamp(max=255)
    changed = table.gather(2, levels).where(step > 0, levels.to(images.dtype))
    return changed.unflatten(2, images.shape[1:3]).permute(0, 2, 3, 1)


# Blends with an image that lacks something


def degenerates(images: Tensor) -> dict[str, Tensor]:
    """What images are blended with or pushed away from: versions without colour, contrast, brightness, sharpness."""
    grey = greyed(images)
    mean = (grey.mean((1, 2, 3), keepdim=True) + 0.5).floor()
    return {"color": grey, "contrast": mean, "brightness": torch.zeros_like(mean), "sharpness": smoothed(images)}


def blended(degenerate: Tensor, images: Tensor, factor: Tensor) -> Tensor:
    return (degenerate + factor * (images - degenerate) + 1e-3).floor().clamp(0, 255)


def greyed(images: Tensor) -> Tensor:
    """(B, H, W, 1): the brightness that an eye sees; images without colour stay as they are."""
    if images.shape[3] != len(GREY):
        return images
    weighed = sum(weight * channel for weight, channel in zip(GREY, images.unbind(3), strict=True))
    return (torch.as_tensor(weighed) / 65536 + 0.5).floor()[..., None]


def smoothed(images: Tensor) -> Tensor:
    """Each pixel as a mean of 3 x 3 pixels in which the middle one counts five times; the border stays."""
    x = images.permute(0, 3, 1, 2)
    if min(x.shape[2:]) < 3:
        return images
    inner = (9 * F.avg_pool2d(x, 3, stride=1) + 4 * x[:, :, 1:-1, 1:-1]) / 13
    bordered = torch.cat([x[:, :, :1, 1:-1], (inner + 0.5 + 1e-3).floor(), x[:, :, -1:, 1:-1]], 2)
    return torch.cat([x[:, :, :, :1], bordered, x[:, :, :, -1:]], 3).permute(0, 2, 3, 1)
