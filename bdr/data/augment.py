"""Augmentation of whole batches on the device, with a separate draw for each sample.

Draws are made apart from their application (`draw`, then `apply`), so that eager, compiled and captured steps see the
same images. Cropping, mirroring and padding are one gather from the store of images: no padded copy is ever made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bdr.data.randaugment import Chosen, choose, randaugmented


class Draws(NamedTuple):
    """One row per sample: where the crop starts, whether it is mirrored, how bright it is; tone and angle, if drawn."""

    top: Tensor  # (B,) int64 in [0, 2 pad]
    left: Tensor  # (B,) int64 in [0, 2 pad]
    mirror: Tensor  # (B,) bool
    bright: Tensor  # (B,) float32 in [1 - brightness, 1 + brightness]
    added: Tensor | None = None  # (B,) float32 in [-additive, additive]
    contrast: Tensor | None = None  # (B,) float32 in [1 - contrast, 1 + contrast]
    angle: Tensor | None = None  # (B,) float32 in [-rotation, rotation], degrees
    operation: Tensor | None = None  # (B, 2) int64, numbers of RandAugment's operations
    level: Tensor | None = None  # (B, 2) float32 in [-10, 10]

    def columns(self) -> tuple[Tensor, ...]:
        """The fields that are drawn."""
        return tuple(column for column in self if column is not None)

    def each(self, change: Callable[[Tensor], Tensor]) -> Draws:
        changed: list[Any] = [None if column is None else change(column) for column in self]
        return Draws(*changed)

    def at(self, rows: int | slice) -> Draws:
        return self.each(lambda column: column[rows])


@dataclass(frozen=True, slots=True)
class Augment:
    """Pad by `pad` and crop back, mirror with probability one half, multiply the brightness.

    With `additive` or `contrast`, an image keeps its tone, or its brightness is moved, or its contrast is stretched
    around the mean of each channel: one of these, all equally likely. A share `uncropped` of the images is not shifted
    by a crop. `randaugment` is the mean magnitude, out of 10, of RandAugment's operations, and `randaugment_std` its
    std. Last of all, an image is turned by up to `rotation` degrees either way, and its corners are left black.
    """

    pad: int = 4
    flip: bool = True
    brightness: float = 0.0
    additive: float = 0.0
    contrast: float = 0.0
    uncropped: float = 0.0
    rotation: float = 0.0
    randaugment: float = 0.0
    randaugment_std: float = 0.5

    @property
    def tones(self) -> bool:
        return self.additive > 0 or self.contrast > 0

    def draw(self, count: int, generator: torch.Generator) -> Draws:
        device = generator.device
        top, left = torch.randint(2 * self.pad + 1, (2, count), generator=generator, device=device)
        mirror, bright = torch.rand((2, count), generator=generator, device=device)
        mirrored = (mirror < 0.5) & self.flip
        draws = Draws(top, left, mirrored, 1 + self.brightness * (2 * bright - 1))
        draws = self.with_tones(draws, generator) if self.tones else draws
        draws = self.partly_cropped(draws, generator) if self.uncropped else draws
        draws = self.with_operations(draws, generator) if self.randaugment else draws
        return self.with_angles(draws, generator) if self.rotation else draws

    def with_tones(self, draws: Draws, generator: torch.Generator) -> Draws:
        kinds = 1 + (self.additive > 0) + (self.contrast > 0)
        kind, amount = torch.rand((2, len(draws.top)), generator=generator, device=generator.device)
        kind, amount = (kind * kinds).long(), 2 * amount - 1  # 0 keeps the tone, 1 moves it, the last one stretches it
        added = amount * self.additive * (kind == 1) if self.additive else None
        stretched = 1 + amount * self.contrast * (kind == kinds - 1) if self.contrast else None
        return draws._replace(added=added, contrast=stretched)

    def partly_cropped(self, draws: Draws, generator: torch.Generator) -> Draws:
        whole = torch.rand(len(draws.top), generator=generator, device=generator.device) < self.uncropped
        return draws._replace(top=draws.top.where(~whole, self.pad), left=draws.left.where(~whole, self.pad))

    def with_operations(self, draws: Draws, generator: torch.Generator) -> Draws:
        chosen = choose(len(draws.top), self.randaugment, self.randaugment_std, generator)
        return draws._replace(**chosen._asdict())

    def with_angles(self, draws: Draws, generator: torch.Generator) -> Draws:
        share = torch.rand(len(draws.top), generator=generator, device=generator.device)
        return draws._replace(angle=self.rotation * (2 * share - 1))

    def none(self, count: int, device: torch.device | str) -> Draws:
        """The draws that leave an image as it is."""
        centre = torch.full((count,), self.pad, device=device)
        still = torch.zeros(count, dtype=torch.bool, device=device)
        return Draws(centre, centre, still, torch.ones(count, device=device))

    def apply(self, pixels: Tensor, rows: Tensor, draws: Draws, mean: Tensor, std: Tensor) -> Tensor:
        """Rows of the (N, H, W, C) uint8 store, augmented, as a normalised (B, C, H, W) float batch, channels last."""
        height, width = pixels.shape[1:3]
        y = torch.arange(height, device=pixels.device) + (draws.top - self.pad)[:, None]  # (B, H)
        x = torch.arange(width, device=pixels.device).expand(len(rows), width)
        x = torch.where(draws.mirror[:, None], width - 1 - x, x) + (draws.left - self.pad)[:, None]  # (B, W)
        inside = ((y >= 0) & (y < height))[:, :, None] & ((x >= 0) & (x < width))[:, None, :]
        y, x = y.clamp(0, height - 1), x.clamp(0, width - 1)
        crop = pixels[rows[:, None, None], y[:, :, None], x[:, None, :]].float() / 255  # (B, H, W, C)
        if draws.contrast is not None or draws.added is not None:
            crop = toned(crop, draws, pixels[rows].float().mean((1, 2), keepdim=True) / 255)
        crop = (crop * inside[..., None] * draws.bright[:, None, None, None]).clamp(max=1)
        if draws.operation is not None and draws.level is not None:
            chosen, bytes_of = Chosen(draws.operation, draws.level), (255 * crop).round()
            crop = randaugmented(bytes_of, chosen, (255 * mean).round()) / 255
        crop = crop if draws.angle is None else turned(crop, draws.angle)
        return ((crop - mean) / std).permute(0, 3, 1, 2)


def toned(crop: Tensor, draws: Draws, mean: Tensor) -> Tensor:
    """Crops (B, H, W, C) in [0, 1], of images with this mean (B, 1, 1, C), with the contrast and brightness drawn."""
    if draws.contrast is not None:
        crop = (crop - mean) * draws.contrast[:, None, None, None] + mean
    if draws.added is not None:
        crop = crop + draws.added[:, None, None, None]
    return crop.clamp(0, 1)


def turned(crop: Tensor, angle: Tensor) -> Tensor:
    """Crops (B, H, W, C) turned around their middle by degrees (B,): nearest pixels, black where there are none."""
    (height, width), radians = crop.shape[1:3], torch.deg2rad(angle)[:, None, None]
    down = torch.arange(height, device=crop.device)[:, None] - (height - 1) / 2
    right = torch.arange(width, device=crop.device) - (width - 1) / 2
    y = (radians.cos() * down + radians.sin() * right + height / 2).floor().long()  # (B, H, W)
    x = (radians.cos() * right - radians.sin() * down + width / 2).floor().long()
    inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
    row = torch.arange(len(crop), device=crop.device)[:, None, None]
    return crop[row, y.clamp(0, height - 1), x.clamp(0, width - 1)] * inside[..., None]
