"""The images of a split where training reads them: on the device, labels in order of arrival."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bdr.data.augment import Augment, Draws

EVALUATION_BATCH = 512


class Store:
    """All images of a split as uint8 on the device, with labels in order of arrival."""

    def __init__(
        self,
        pixels: Tensor,
        labels: Tensor,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        augment: Augment,
        device: torch.device | str,
        names: Sequence[str] | None = None,
    ) -> None:
        self.names = names  # of files, if images have them
        self.pixels, self.labels = pixels.to(device), labels.to(device)
        self.mean, self.std = torch.tensor(mean, device=device), torch.tensor(std, device=device)
        self.augment, self.device = augment, torch.device(device)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def evaluation_batch(self) -> int:
        """How many images to evaluate at once, without gradients; with small batches a GPU would wait for launches."""
        return EVALUATION_BATCH * (4 if self.device.type == "cuda" else 1)

    def augmented(self, rows: Tensor, draws: Draws) -> Tensor:
        return self.augment.apply(self.pixels, rows, draws, self.mean, self.std)

    def plain(self, rows: Tensor, mirrored: bool = False) -> Tensor:
        draws = self.augment.none(len(rows), self.device)
        return self.augmented(rows, draws._replace(mirror=draws.mirror | mirrored))

    def of_classes(self, first: int, last: int) -> Tensor:
        """Rows of the classes [first, last), in the order of the data set."""
        return ((self.labels >= first) & (self.labels < last)).nonzero().flatten()
