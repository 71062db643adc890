"""Small worlds to test in: a few images, a pool of them, a backbone that is one matrix."""

import torch
from torch import nn

from bdr.data.augment import Augment
from bdr.data.pool import Pool
from bdr.data.store import Store
from bdr.nets import NETS, Backbone, Features, Network
from bdr.types import Batch, Clock, ImageShape, Phase

STILL = Augment(pad=0, flip=False)


class Flat(Backbone):
    """Pixels times a matrix."""

    def __init__(self, pixels=16, dim=5):
        super().__init__()
        self.dim, self.matrix = dim, nn.Linear(pixels, dim, bias=False)

    def forward(self, x):
        pooled = self.matrix(x.flatten(1))
        return Features(pooled.to(torch.promote_types(pooled.dtype, torch.float32)))


def make_flat(head, last_relu=True):
    return Network(Flat(), head(5))


def make_paths(head, **options):
    backbone = NETS["rps-small"](ImageShape(1, 8, 8), **options, modules=3, widths=(4, 6, 8))
    return Network(backbone, head(backbone.dim))


def make_vit(head, **options):
    return Network(NETS["vit-tiny"](ImageShape(1, 8, 8), embed=16, heads=2, **options), head(16))


def make_shallow_vit(head, **options):
    """With as many blocks as prompts before the first one need."""
    return make_vit(head, **options, depth=2)


def make_tokens(head, **options):
    """A small transformer with task tokens, and with something for stochastic depth to leave out."""
    return Network(NETS["convit-small"](ImageShape(1, 8, 8), embed=16, stochastic_depth=0.2, **options), head(16))


# Of methods that need a network of another kind: make(head, **options) for images of 8 x 8 pixels.
OWN_MAKERS = {"dualprompt": make_vit, "dytox": make_tokens, "l2p": make_shallow_vit, "rpsnet": make_paths}


def make_store(counts, seed=0, side=4, channels=1, augment=STILL):
    """So many random images of each class, in mixed order."""
    chance = torch.Generator().manual_seed(seed)
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    labels = labels[torch.randperm(len(labels), generator=chance)]
    pixels = torch.randint(256, (len(labels), side, side, channels), generator=chance, dtype=torch.uint8)
    return Store(pixels, labels, (0.4,) * channels, (0.3,) * channels, augment, "cpu")


def make_pool(counts, old=0, each=3, seed=0, run_seed=1993, held=0.0, **store):
    """The classes from `old` on in full, `each` exemplars of every class before."""
    images = make_store(counts, seed, **store)
    exemplars = [images.of_classes(k, k + 1)[:each] for k in range(old)]
    phase = Phase(int(old > 0), old, len(counts))
    new = images.of_classes(old, len(counts))
    return Pool(images, phase, new, torch.cat([torch.zeros(0, dtype=torch.long), *exemplars]), run_seed, held)


def make_batch(x, y):
    now = torch.zeros((), dtype=torch.long)
    return Batch(x, y, torch.arange(len(x)), Clock(now, now, now))
