"""The answers to imbalance as table 8 runs them: coloured images, bf16, captured steps, one phase after the other."""

import math

import numpy as np
import pytest
import torch
from runs import lines

import bdr

ANSWERS = ("la", "reweight", "resample", "paco", "bcl", "tade", "bdr")
CLASSES, PHASES, EPOCHS = 6, 3, 3
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def coloured():
    """Photographs of nothing: each class in a colour of its own, under noise."""
    chance = np.random.default_rng(7)
    y = np.repeat(np.arange(CLASSES), 40)
    x = chance.integers(0, 256, (CLASSES, 1, 1, 3))[y] * 0.7 + chance.integers(0, 77, (len(y), 32, 32, 3))
    x = x.astype(np.uint8)
    return bdr.from_arrays(x, y, x[::4], y[::4], mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))


def terms_of(folder, answer, **fields):
    """What each epoch of each phase says its terms came to."""
    torch._dynamo.reset()
    result = bdr.run(
        f"ucir+cwd+{answer}",
        data=coloured(),
        base=2,
        step=2,
        memory="4/class",
        set={"stage.epochs": EPOCHS, "stage.batch": 32},
        out=folder / "run",
        **fields,
    )
    return [(line["phase"], line["terms"]) for line in lines(result.path / "epochs.jsonl")]


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("answer", ANSWERS)
def test_every_answer_trains_coloured_images_in_captured_steps_over_the_phases(answer, tmp_path):
    told = terms_of(tmp_path, answer, device="cuda", engine="graph", precision="bf16", net="resnet18")
    later = [terms for phase, terms in told if phase]
    assert len(told) == EPOCHS * PHASES
    assert len(later) == EPOCHS * (PHASES - 1)
    assert all(math.isfinite(value) for terms in later for value in terms.values())
