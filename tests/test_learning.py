"""Every method learns: on handwritten digits, whoever keeps exemplars forgets less than who keeps nothing."""

from __future__ import annotations

import functools
import math
import statistics
import tempfile

import pytest

from bdr import api
from bdr.methods import METHODS

SEEDS = range(1993, 1998)
# Joint training keeps all. Prompts teach nothing to the random network that digits have: tests/test_prompts.py gives
# them one that was trained before.
ELSEWHERE = ("dualprompt", "joint", "l2p")
# A few epochs of tuning, and larger batches, are enough to see that it learns.
SHORTER = {name: {"stage.balanced.epochs": 10} for name in ("der", "podnet", "simple-der")}
SHORTER |= {"bic": {"stage.correction.epochs": 40}, "dytox": {"stage.balanced.epochs": 10, "stage.batch": 32}}
REHEARSING = [name for name, method in METHODS.items() if method.keeps != ("none",) and name not in ELSEWHERE]


@functools.cache
def averages(name: str) -> list[float]:
    """Average accuracies over the seeds: five digits, then five more, five exemplars of each, a few epochs."""
    memory = {"memory": "5/class"} if name in REHEARSING else {}
    training = {"stage.epochs": 6} | SHORTER.get(name, {})
    short = {"base": 5, "step": 5, "share": False, "keep": "none", "val": 0.5, **memory}
    found = []
    for seed in SEEDS:
        with tempfile.TemporaryDirectory() as runs:
            result = api.run(name, data="digits", runs=runs, set=training, seed=seed, **short)
        found.append(result.average)
    return found


@pytest.mark.parametrize("name", REHEARSING)
def test_a_method_with_exemplars_beats_fine_tuning_by_more_than_chance(name):
    gains = [ours - theirs for ours, theirs in zip(averages(name), averages("finetune"), strict=True)]
    error = statistics.stdev(gains) / math.sqrt(len(gains))
    assert statistics.mean(gains) > 2 * error, gains


def test_nobody_beats_who_keeps_everything():
    assert statistics.mean(averages("joint")) > max(statistics.mean(averages(name)) for name in ("finetune", "replay"))
