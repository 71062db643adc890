"""Plugin: seams around a method's classification loss. Each seam is the identity until a plug-in overrides it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from bdr.data.pool import Census
from bdr.nets import MakeBackbone, Resumable
from bdr.types import Batch, Classify, Outputs, Phase, Stage


class Plugin(Resumable):
    """None is handed the engine, the method or the optimiser."""

    name: str = "plugin"  # set from the table, or from the class, when a run is put together
    role: str | None = None  # "prior" | "draw" | "net": at most one plug-in of each, checked before training
    needs_exemplars = False  # refused with a memory that holds none

    def net(self, make: MakeBackbone) -> MakeBackbone:
        """Wraps what builds the backbone."""
        return make

    def acts(self, phase: Phase, stage: Stage) -> bool:
        """Whether it takes part in a stage at all; where it does not, none of the seams below is called."""
        return True

    def begin(self, phase: Phase, census: Census, net: nn.Module) -> None:
        """Before every stage that it acts in, on the census of what that stage draws."""

    def observe(self, out: Outputs, y: Tensor) -> None:
        """Once a training batch, before the loss; the only place where state moves in a step."""

    def classify(self, inner: Classify, out: Outputs, y: Tensor) -> Tensor:
        """Stands around the classification loss: (B,) losses."""
        return inner(out, y)

    def terms(self, batch: Batch, out: Outputs, forward: Callable[[Tensor], Outputs]) -> dict[str, Tensor]:
        """Terms of its own, unweighted, named in the records."""
        return {}

    def weights(self, phase: Phase, stage: Stage) -> dict[str, float]:
        """How much each of those terms counts."""
        return {}

    def report(self, phase: Phase) -> dict[str, Tensor]:
        """Numbers about itself for the records, read once an epoch."""
        return {}

    def stepped(self, net: nn.Module) -> None:
        """After the optimiser's step."""

    def stages(self, phase: Phase, stages: list[Stage]) -> list[Stage]:
        """Changes how stages draw."""
        return stages


class Prior(Plugin):
    """A plug-in that balances frequent classes against rare ones.

    It rests in the first phase and wherever a stage does not draw all images: there is nothing to balance there.
    """

    role = "prior"
    needs_exemplars = True

    def acts(self, phase: Phase, stage: Stage) -> bool:
        return not phase.first and stage.draw == "all"


def compose(criterion: Classify, plugins: Sequence[Plugin]) -> Classify:
    """The criterion with every plug-in around it; the first one named stands nearest to it."""
    classify = criterion
    for plugin in plugins:
        classify = around(plugin, classify)
    return classify


def around(plugin: Plugin, inner: Classify) -> Classify:
    return lambda out, y: plugin.classify(inner, out, y)
