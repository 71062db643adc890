"""Randomness by name: every draw has a seed of its own, made from the run's seed and from where it happens.

Nothing has to be remembered to go on after a stop, and two runs with the same first phase draw the same in it.
"""

from __future__ import annotations

import hashlib

import torch


def seed_of(seed: int, *place: int | str) -> int:
    """A 63-bit seed for one place, for example `seed_of(1993, "phase", 2, "stage", 0, "epoch", 7)`."""
    text = "/".join(map(str, (seed, *place)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def generator(device: torch.device | str, seed: int, *place: int | str) -> torch.Generator:
    return torch.Generator(device).manual_seed(seed_of(seed, *place))
