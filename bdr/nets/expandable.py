"""A backbone with one extractor for each phase: earlier ones are frozen, and the features of all stand side by side."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bdr.nets.base import Backbone, Features, Frozen
from bdr.nets.gates import Gates
from bdr.nets.prunable import Prunable


class Expandable(Backbone):
    """Extractors, oldest first. The newest may have gates on its channels, and lose those whose gates are shut."""

    def __init__(self, first: Backbone) -> None:
        super().__init__()
        self.old = nn.ModuleList()
        self.newest, self.gates = first, Gates()

    @property
    def dim(self) -> int:  # type: ignore[override]
        return sum(part.dim for part in self.extractors())

    def extractors(self) -> list[Backbone]:
        """All extractors, oldest first."""
        return [*(part.net for part in self.old), self.newest]  # type: ignore[list-item]

    def prunable(self) -> Prunable:
        """The newest extractor; an error if no channels can be removed from it."""
        if not isinstance(self.newest, Prunable):
            raise ValueError(
                f"a {type(self.newest).__name__} cannot be pruned: set keep = 1, or use a net whose channels can be "
                "removed, such as resnet18-der, resnet32 or small"
            )
        return self.newest

    def grow(self) -> bool:
        """Freeze the newest extractor and add a copy that learns; true if the copy regained what pruning removed."""
        self.old.append(Frozen(self.newest))
        pruned = isinstance(self.newest, Prunable) and not self.newest.whole
        if isinstance(self.newest, Prunable) and pruned:
            widened = copy.deepcopy(self.newest)
            widened.widen()
            self.newest = widened
        self.newest.requires_grad_(True)
        return pruned

    def prune(self, kept: Sequence[Tensor]) -> Tensor:
        """Reduce the newest extractor to the kept channels, without gates; return which features (D,) are left.

        It is replaced, not changed, because compiled code belongs to its former shape.
        """
        before = self.prunable()
        rest = torch.ones(self.dim - before.dim, dtype=torch.bool, device=kept[0].device)
        pruned = copy.deepcopy(before)
        pruned.remove(kept)
        self.newest = pruned
        self.gates.clear()
        return torch.cat([rest, kept[before.pooled]])

    def forward(self, x: Tensor) -> Features:
        gates = self.gates()
        # What learns runs first, so that the frozen extractors may run in parallel with it.
        newest: Features = self.newest(x) if gates is None else self.newest(x, gates)
        before = [part(x).pooled for part in self.old]
        return Features(torch.cat([*before, newest.pooled], 1), newest.maps)

    def to_compile(self) -> Sequence[nn.Module]:
        """Extractors of the usual shape, which share compiled code; each one that lost channels would need its own."""
        usual = [part for part in self.extractors() if not isinstance(part, Prunable) or part.whole]
        return [inner for part in usual for inner in part.to_compile()]

    def layout(self) -> dict[str, Any]:
        return {"extractors": 1 + len(self.old)}

    def lay_out(self, layout: dict[str, Any]) -> None:
        """Create the extractors; each is laid out by itself afterwards."""
        self.old = nn.ModuleList(Frozen(self.newest) for _ in range(layout["extractors"] - 1))
