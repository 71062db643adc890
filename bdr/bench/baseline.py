"""The baseline: a plain PyTorch loop as usually written, with Pillow transforms, a DataLoader and float32."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from bdr.bench.cases import Timing, synchronise
from bdr.data.images import DataSet
from bdr.errors import UsageError
from bdr.nets import NETS
from bdr.types import ImageShape


class Pictures(Dataset[tuple[Tensor, int]]):
    """A data set whose images are cropped and mirrored one by one with Pillow."""

    def __init__(self, data: DataSet, classes: int) -> None:
        try:
            from PIL import Image, ImageOps
        except ImportError:
            raise UsageError("the baseline needs Pillow: pip install 'bdr[images]', or add --no-baseline") from None
        chosen = np.flatnonzero(data.train.labels < classes)
        self.images = [Image.fromarray(data.train.pixels[row]) for row in chosen]
        self.labels = [int(label) for label in data.train.labels[chosen]]
        self.expand, self.mirror = ImageOps.expand, ImageOps.mirror
        self.mean, self.std = torch.tensor(data.mean)[:, None, None], torch.tensor(data.std)[:, None, None]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        image = self.expand(self.images[row], border=4)
        size = self.images[row].width
        left, top = (int(v) for v in torch.randint(9, (2,)))
        image = image.crop((left, top, left + size, top + size))
        image = self.mirror(image) if float(torch.rand(())) < 0.5 else image
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255
        return (pixels - self.mean) / self.std, self.labels[row]


def time_baseline(net: str, data: DataSet, classes: int, batch: int, steps: int, device: torch.device) -> Timing:
    """Time the first phase of a plain classifier: forward, cross-entropy, backward, SGD."""
    backbone = NETS[net](ImageShape(3)).to(device)
    head = nn.Linear(backbone.dim, classes).to(device)
    moving = [*backbone.parameters(), *head.parameters()]
    optimizer = torch.optim.SGD(moving, 0.1, 0.9, weight_decay=5e-4)
    workers = min(4, os.cpu_count() or 1) if device.type == "cuda" else 0
    options: dict[str, Any] = {"num_workers": workers, "persistent_workers": workers > 0}
    loader = DataLoader(Pictures(data, classes), batch, shuffle=True, drop_last=True, **options)
    done, started, first = 0, time.perf_counter(), 0.0
    while done < steps + 1:
        for x, y in loader:
            loss = F.cross_entropy(head(backbone(x.to(device)).pooled), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss.item()  # as such loops do in order to print it
            done += 1
            if done == 1:  # starting workers and the first step do not count
                synchronise(device)
                first, started = time.perf_counter() - started, time.perf_counter()
            if done == steps + 1:
                break
    synchronise(device)
    each = (time.perf_counter() - started) / steps
    return Timing("a plain loop", "plain", "first", batch, batch / each, 1000 * each, first, None, 0.0, net=net)
