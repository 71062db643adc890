"""Augmentation of whole batches on the device, with a draw of its own for every sample.

The draws are made apart from the work (`draw`, then `apply`), so that eager, compiled and captured steps see the same
images. Cropping, mirroring and padding are one gather from the store of images: no padded copy is ever made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class Draws(NamedTuple):
    """One row a sample: where the crop starts, whether it is mirrored, how bright it is."""

    top: Tensor  # (B,) int64 in [0, 2 pad]
    left: Tensor  # (B,) int64 in [0, 2 pad]
    mirror: Tensor  # (B,) bool
    bright: Tensor  # (B,) float32 in [1 - brightness, 1 + brightness]

    def at(self, rows: int | slice) -> Draws:
        return Draws(*(column[rows] for column in self))


@dataclass(frozen=True, slots=True)
class Augment:
    """Pad by `pad` and crop back, mirror with probability one half, multiply the brightness."""

    pad: int = 4
    flip: bool = True
    brightness: float = 0.0

    def draw(self, count: int, generator: torch.Generator) -> Draws:
        device = generator.device
        top, left = torch.randint(2 * self.pad + 1, (2, count), generator=generator, device=device)
        mirror, bright = torch.rand((2, count), generator=generator, device=device)
        mirrored = (mirror < 0.5) & self.flip
        return Draws(top, left, mirrored, 1 + self.brightness * (2 * bright - 1))

    def none(self, count: int, device: torch.device | str) -> Draws:
        """The draws that leave an image as it is."""
        centre = torch.full((count,), self.pad, device=device)
        still = torch.zeros(count, dtype=torch.bool, device=device)
        return Draws(centre, centre, still, torch.ones(count, device=device))

    def apply(self, pixels: Tensor, rows: Tensor, draws: Draws, mean: Tensor, std: Tensor) -> Tensor:
        """Rows of the (N, H, W, C) uint8 store, as a normalised (B, C, H, W) float batch in channels-last memory."""
        height, width = pixels.shape[1:3]
        y = torch.arange(height, device=pixels.device) + (draws.top - self.pad)[:, None]  # (B, H)
        x = torch.arange(width, device=pixels.device).expand(len(rows), width)
        x = torch.where(draws.mirror[:, None], width - 1 - x, x) + (draws.left - self.pad)[:, None]  # (B, W)
        inside = ((y >= 0) & (y < height))[:, :, None] & ((x >= 0) & (x < width))[:, None, :]
        y, x = y.clamp(0, height - 1), x.clamp(0, width - 1)
        crop = pixels[rows[:, None, None], y[:, :, None], x[:, None, :]].float() / 255  # (B, H, W, C)
        crop = (crop * inside[..., None] * draws.bright[:, None, None, None]).clamp(max=1)
        return ((crop - mean) / std).permute(0, 3, 1, 2)
