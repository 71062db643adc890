"""The learning rate of each epoch of a stage."""

from __future__ import annotations

import math

from bdr.types import Stage

SCHEDULES = ("steps", "cosine", "constant")


def learning_rate(stage: Stage, epoch: int) -> float:
    """Linear warm-up, then drops at the given epochs, a half cosine, or a constant rate."""
    if epoch < stage.warmup and stage.warmup_lr is not None:
        return stage.warmup_lr + (stage.lr - stage.warmup_lr) * epoch / stage.warmup
    if epoch < stage.warmup:
        return stage.lr * (epoch + 1) / stage.warmup
    if stage.schedule == "cosine":
        done = (epoch - stage.warmup) / max(1, stage.epochs - stage.warmup)
        return stage.floor + (stage.lr - stage.floor) * 0.5 * (1 + math.cos(math.pi * done))
    passed = sum(epoch >= drop for drop in stage.drops) if stage.schedule == "steps" else 0
    return float(stage.lr * stage.drop**passed)
