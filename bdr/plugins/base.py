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
    """The base of all plug-ins. None is handed the engine, the method or the optimiser."""

    name: str = "plugin"  # set from the table, or from the class, when a run is put together
    role: str | None = None  # "prior" | "draw" | "net": at most one plug-in of each, checked before training
    needs_exemplars = False  # refused with a memory of 0
    adds_parameters = False  # to the network, after the first phase; refused if the method `counts_parameters`
    splits = False  # changes the network only by `Network.split`, after the first phase; it is plain before
    mixes = False  # its `batch` makes targets mixtures (B, K); refused beside parts that take only ids
    soft_targets = True  # takes mixtures of classes as well as ids
    needs_softmax = False  # adds to the softmax in which classes compete; refused with criteria that have none
    views = 0  # how many further views of every image it wants, made by `look`
    weighs = False  # its `classify` multiplies or adds up losses: plug-ins around it get no likelihoods
    by_likelihood = False  # its `classify` needs losses that are minus the logarithm of a probability
    corrects = False  # its `correction` is added to the network's scores when they are read

    @property
    def roles(self) -> set[str]:
        """Its own role, and also `net` if it wraps the function that builds the network."""
        wraps = type(self).net is not Plugin.net
        return ({self.role} if self.role else set()) | ({"net"} if wraps else set())

    def net(self, make: MakeNetwork) -> MakeNetwork:
        """Wrap the function that builds the network."""
        return make

    def attach(self, net: nn.Module) -> None:
        """Called once with the network as it was built, before training or resuming, to let the plug-in copy it."""

    def acts(self, phase: Phase, stage: Stage) -> bool:
        """Whether the plug-in takes part in a stage; if not, none of its seams is called during that stage."""
        return True

    def begin(self, phase: Phase, census: Census, net: nn.Module) -> None:
        """Called before every stage in which it acts, with the census of the images that the stage draws."""

    def draws(self, steps: int, size: int, chance: torch.Generator) -> tuple[Tensor, ...]:
        """The random draws that `batch` and `look` need in an epoch: tensors (steps, ...), drawn all at once.

        Draw from `chance` alone: this is called while the epoch before is still running, and again after a stop.
        """
        return ()

    def batch(self, batch: Batch, drawn: tuple[Tensor, ...]) -> Batch:
        """Change the batch that the method sees; `drawn` is the part of the draws that belongs to this step."""
        return batch

    def look(self, store: Store, rows: Tensor, drawn: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Make `views` further views (B, C, H, W) of these images; later seams get them as `batch.views`."""
        return ()

    def observe(self, batch: Batch, out: Outputs) -> None:
        """Called once per training batch, before the loss. State may change only here, in `terms` or in `stepped`."""

    def classify(self, inner: Classify, out: Outputs, y: Tensor) -> Tensor:
        """Wrap the classification loss: (B,) losses. Called any number of times per batch: change no state here."""
        return inner(out, y)

    def terms(self, batch: Batch, out: Outputs, forward: Callable[[Tensor], Outputs]) -> dict[str, Tensor]:
        """Loss terms of its own, unweighted; their names are those in the records.

        `forward` is the network in training mode, but images passed to it do not change running statistics.
        """
        return {}

    def weights(self, phase: Phase, stage: Stage) -> dict[str, float]:
        """The weight of each of these terms."""
        return {}

    def watch(self, batch: Batch, out: Outputs) -> dict[str, Tensor]:
        """Values of the batch for the records alone, by name; computed after each step, without gradients."""
        return {}

    def report(self, phase: Phase, net: nn.Module) -> dict[str, Tensor]:
        """Values of the plug-in for the records, read once an epoch."""
        return {}

    def stepped(self, net: nn.Module, clock: Clock) -> None:
        """Called after the optimiser's step."""

    def stages(self, phase: Phase, stages: list[Stage]) -> list[Stage]:
        """Change how stages draw, or what alternates with them."""
        return stages

    def renumber(self, before: Tensor, after: Tensor, images: int) -> None:
        """Called when a run is extended: rows of exemplars change from `before` to `after`, in a store of `images`."""

    def correction(self, phase: Phase) -> Tensor:
        """(K,) the offsets added to the network's scores whenever they are read after this phase, if it `corrects`."""
        return torch.zeros(phase.seen)


class Prior(Plugin):
    """A plug-in that balances frequent classes against rare ones.

    It rests in the first phase and in stages that do not draw all images: there is nothing to balance there.
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
    """The criterion, wrapped by every plug-in in turn; the first one named is innermost."""
    classify = criterion
    for plugin in plugins:
        classify = around(plugin, classify)
    return classify


def around(plugin: Plugin, inner: Classify) -> Classify:
    def classify(out: Outputs, y: Tensor) -> Tensor:
        losses = plugin.classify(inner, out, y)
        if not isinstance(losses, Tensor) or losses.shape != y.shape[:1]:  # shapes alone: nothing is read from a GPU
            raise BdrError(f"plug-in {plugin.name}: {one_a_sample(losses, len(y))}")
        return losses

    return classify


def one_a_sample(losses: object, samples: int) -> str:
    """The error text. A mean instead of losses would pass through the method's own mean unnoticed."""
    found = f"a tensor of shape {tuple(losses.shape)}" if isinstance(losses, Tensor) else f"a {type(losses).__name__}"
    return f"classify must return one loss a sample, (B,), and returned {found} of a batch of {samples}: do not average"
