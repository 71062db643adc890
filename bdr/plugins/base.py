"""Plugin: seams around a method's classification loss. Each seam is the identity until a plug-in overrides it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from bdr.data.pool import Census
from bdr.data.store import Store
from bdr.errors import BdrError
from bdr.nets import MakeNetwork, Resumable
from bdr.types import Batch, Classify, Clock, Outputs, Phase, Stage


class Plugin(Resumable):
    """None is handed the engine, the method or the optimiser."""

    name: str = "plugin"  # set from the table, or from the class, when a run is put together
    role: str | None = None  # "prior" | "draw" | "net": at most one plug-in of each, checked before training
    needs_exemplars = False  # refused with a memory that holds none
    adds_parameters = False  # to the network, after the first phase; refused with a method that counts them
    splits = False  # what it does to the network is `Network.split`, after the first phase: it is the plain one before
    mixes = False  # its `batch` makes mixtures (B, K) of targets: refused beside what takes ids alone
    soft_targets = True  # it takes mixtures of classes as well as ids
    needs_softmax = False  # it adds to the logits that classes compete by; refused where they do not
    views = 0  # further views of every image that it wants, made by `look`
    weighs = False  # its `classify` multiplies losses or adds some up: what stands around it gets no likelihood
    by_likelihood = False  # its `classify` takes a loss for minus the logarithm of a probability
    corrects = False  # it has a say in the network's scores when they are read, see `correction`

    @property
    def roles(self) -> set[str]:
        """Its role, and whatever else it is, that of the network where it wraps what builds it."""
        wraps = type(self).net is not Plugin.net
        return ({self.role} if self.role else set()) | ({"net"} if wraps else set())

    def net(self, make: MakeNetwork) -> MakeNetwork:
        """Wraps what builds the network."""
        return make

    def attach(self, net: nn.Module) -> None:
        """Once, before training and before going on: the network as it was built, for a copy of one's own."""

    def acts(self, phase: Phase, stage: Stage) -> bool:
        """Whether it takes part in a stage at all; where it does not, none of the seams below is called."""
        return True

    def begin(self, phase: Phase, census: Census, net: nn.Module) -> None:
        """Before every stage that it acts in, on the census of what that stage draws."""

    def draws(self, steps: int, size: int, chance: torch.Generator) -> tuple[Tensor, ...]:
        """What `batch` and `look` need of chance in an epoch: tensors (steps, ...), drawn all at once.

        Of `chance` alone: it is asked while the epoch before is still under way, and after a stop once more.
        """
        return ()

    def batch(self, batch: Batch, drawn: tuple[Tensor, ...]) -> Batch:
        """Changes what the method sees; `drawn` is the part of the draws that belongs to this step."""
        return batch

    def look(self, store: Store, rows: Tensor, drawn: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """As many further views (B, C, H, W) of these images as it wants: its own `batch.views` in what follows."""
        return ()

    def observe(self, batch: Batch, out: Outputs) -> None:
        """Once a training batch, before the loss. State moves here, in `terms` or in `stepped`."""

    def classify(self, inner: Classify, out: Outputs, y: Tensor) -> Tensor:
        """Stands around the classification loss: (B,) losses. Called any number of times a batch, so no state moves."""
        return inner(out, y)

    def terms(self, batch: Batch, out: Outputs, forward: Callable[[Tensor], Outputs]) -> dict[str, Tensor]:
        """Terms of its own, unweighted, named in the records.

        `forward` is the network in training; what images that it is shown would do to running statistics is dropped.
        """
        return {}

    def weights(self, phase: Phase, stage: Stage) -> dict[str, float]:
        """How much each of those terms counts."""
        return {}

    def watch(self, batch: Batch, out: Outputs) -> dict[str, Tensor]:
        """Numbers of the batch for the records alone, named beside the terms: after a step, without gradients."""
        return {}

    def report(self, phase: Phase, net: nn.Module) -> dict[str, Tensor]:
        """Numbers about itself for the records, read once an epoch."""
        return {}

    def stepped(self, net: nn.Module, clock: Clock) -> None:
        """After the optimiser's step."""

    def stages(self, phase: Phase, stages: list[Stage]) -> list[Stage]:
        """Changes how stages draw, or what alternates with them."""
        return stages

    def renumber(self, before: Tensor, after: Tensor, images: int) -> None:
        """The exemplars of these rows have those now, among so many images: a run is extended on a larger data set."""

    def correction(self, phase: Phase) -> Tensor:
        """(K,) what is added to the network's scores whenever they are read after this phase, if it `corrects`."""
        return torch.zeros(phase.seen)


class Prior(Plugin):
    """A plug-in that balances frequent classes against rare ones.

    It rests in the first phase and wherever a stage does not draw all images: there is nothing to balance there.
    """

    role = "prior"
    needs_exemplars = True

    def acts(self, phase: Phase, stage: Stage) -> bool:
        return not phase.first and stage.draw == "all"


def old_and_new(phase: Phase, **series: Tensor) -> dict[str, Tensor]:
    """The means of values (K,) over old and over new classes, to report."""
    old = {f"{name}_old": values[: phase.old].mean() for name, values in series.items()}
    return old | {f"{name}_new": values[phase.old :].mean() for name, values in series.items()}


def compose(criterion: Classify, plugins: Sequence[Plugin]) -> Classify:
    """The criterion with every plug-in around it; the first one named stands nearest to it."""
    classify = criterion
    for plugin in plugins:
        classify = around(plugin, classify)
    return classify


def around(plugin: Plugin, inner: Classify) -> Classify:
    def classify(out: Outputs, y: Tensor) -> Tensor:
        losses = plugin.classify(inner, out, y)
        if not isinstance(losses, Tensor) or losses.shape != y.shape[:1]:  # shapes alone: nothing is read of a device
            raise BdrError(f"plug-in {plugin.name}: {one_a_sample(losses, len(y))}")
        return losses

    return classify


def one_a_sample(losses: object, samples: int) -> str:
    """A mean in place of losses would pass through the method's own mean, and be missed in a later phase."""
    found = f"a tensor of shape {tuple(losses.shape)}" if isinstance(losses, Tensor) else f"a {type(losses).__name__}"
    return f"classify must return one loss a sample, (B,), and returned {found} of a batch of {samples}: do not average"
