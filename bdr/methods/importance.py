"""What EWC, SI and RWalk share: parameters that are held where they were, each as firmly as it matters.

All quantities are one number a parameter, in one row over all parameters of a module: a step then takes a few kernels,
not a few for every layer. The affine parameters of batch norm are parameters like others; its running statistics are
not held.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from bdr.data.pool import Pool, evaluating
from bdr.errors import check_more_than_zero, check_not_negative
from bdr.fusing import fused
from bdr.methods.base import Method, Present
from bdr.nets import LinearHead, MakeNetwork, Network
from bdr.types import Batch, Classify, Clock, Outputs, Phase, Stage


def in_a_row(tensors: Iterable[Tensor]) -> Tensor:
    """(P,) all values of the tensors in one row. The channels of filters come last, as they lie in memory on a GPU."""
    return torch.cat([(t.permute(0, 2, 3, 1) if t.dim() == 4 else t).reshape(-1) for t in tensors])


def parameters_of(module: nn.Module) -> Tensor:
    return in_a_row(module.parameters())


def gradients_of(module: nn.Module) -> Tensor:
    return in_a_row(torch.zeros_like(p) if p.grad is None else p.grad for p in module.parameters())


@fused()
def weighted_distance(here: Tensor, place: Tensor, grip: Tensor) -> Tensor:
    return (grip * (here - place).square()).sum()


class Anchor(nn.Module):
    """The parameters of a module when the last phase ended (at first, as they start), and how much each matters.

    No shape changes, so the buffers alone are enough to restore it after a stop.
    """

    place: Tensor  # (P,)
    importance: Tensor  # (P,)
    grip: Tensor  # (P,) the importance, limited to what steps can follow

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.register_buffer("place", parameters_of(module).detach().clone())
        self.register_buffer("importance", torch.zeros_like(self.place))
        self.register_buffer("grip", torch.zeros_like(self.place))

    def hold(self, weight: float, rate: float) -> None:
        """Set the grip for a stage with this weight of the penalty and this learning rate.

        A step against a penalty w g (theta - place)^2 covers 2 w g rate times the distance back to the place. Where
        that factor exceeds 1, steps overshoot and training soon breaks down, so the grip is limited to a factor of 1.
        """
        torch.clamp(self.importance, max=1 / (2 * weight * rate) if weight else None, min=0, out=self.grip)

    def penalty(self, module: nn.Module) -> Tensor:
        """The sum over the parameters of grip (theta - place)^2."""
        return weighted_distance(parameters_of(module), self.place, self.grip)

    @torch.no_grad()
    def slope(self, module: nn.Module) -> Tensor:
        """(P,) the gradient of the penalty."""
        return 2 * self.grip * (parameters_of(module) - self.place)

    @torch.no_grad()
    def moved(self, module: nn.Module) -> Tensor:
        """(P,) the squared distance of each parameter from where the anchor was cast."""
        return (parameters_of(module) - self.place).square()

    @torch.no_grad()
    def cast(self, module: nn.Module, importance: Tensor) -> None:
        """Anchor the module where it is now, with this importance."""
        self.place.copy_(parameters_of(module))
        self.importance.copy_(importance)


class Path(nn.Module):
    """How much each parameter has lowered the loss: minus the gradient times the move, summed over the steps."""

    gained: Tensor  # (P,) since the phase began
    gradient: Tensor  # (P,) of the current step; needed no longer than that, like `before`
    before: Tensor  # (P,)

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        here = parameters_of(module).detach()
        self.register_buffer("gained", torch.zeros_like(here))
        self.register_buffer("gradient", torch.zeros_like(here), persistent=False)
        self.register_buffer("before", torch.zeros_like(here), persistent=False)

    @torch.no_grad()
    def graded(self, module: nn.Module, known: Tensor) -> None:
        """Remember gradient and position before a step, without `known`, the penalty's part of the gradient."""
        torch.sub(gradients_of(module), known, out=self.gradient)
        self.before.copy_(parameters_of(module))

    @torch.no_grad()
    def stepped(self, module: nn.Module) -> None:
        self.gained.addcmul_(self.gradient, parameters_of(module) - self.before, value=-1)


def fisher(net: nn.Module, module: nn.Module, present: Present, pool: Pool, batch: int) -> Tensor:
    """(P,) the diagonal of the Fisher information of a module's parameters, over the images of a phase.

    The labels are the present classes that the network itself finds most likely. Gradients are taken per batch: their
    square, times the size of the batch, stands for the sum over its images. Batch norm uses its running statistics and
    does not change them.
    """
    parameters, total = list(module.parameters()), torch.zeros_like(parameters_of(module).detach())
    with evaluating(net), torch.enable_grad():
        for rows in pool.rows.split(batch):
            out = net(pool.store.plain(rows))
            likeliest = out.logits.masked_fill(~present.mask, -torch.inf).argmax(1)
            slopes = torch.autograd.grad(present.cross_entropy(out, likeliest).mean(), parameters)
            total += len(rows) * in_a_row(slopes).square()
    return total / len(pool.rows)


def merged(old: Tensor, new: Tensor, first: bool) -> Tensor:
    """The average of old and new; after the first phase the new one alone, as there is nothing to merge with."""
    return new if first else (old + new) / 2


class Held(Method, ABC):
    """Abstract: cross-entropy over the present classes, and a penalty that holds the backbone at an anchor."""

    net: Network[LinearHead]
    distillation = "penalty"
    later = ("weight",)
    counts_parameters = True  # each has a fixed place in a row
    training_only: tuple[str, ...] = ("anchor",)

    def __init__(self, make: MakeNetwork, weight: float, share: float = 1.0) -> None:
        super().__init__()
        check_not_negative(weight=weight)
        self.net = make(LinearHead)
        self.anchor, self.present = Anchor(self.net.backbone), Present()
        self.factor = share * weight  # the weight of the penalty

    def begin(self, phase: Phase, pool: Pool) -> None:
        self.net.head.grow(phase.new)
        self.present.begin(pool)

    def begin_stage(self, stage: Stage, phase: Phase, pool: Pool) -> None:
        self.anchor.hold(self.factor, stage.lr)

    def criterion(self, out: Outputs, y: Tensor) -> Tensor:
        return self.present.cross_entropy(out, y)

    def decays(self, name: str, parameter: nn.Parameter) -> bool:
        """Exempt a classifier with classes that have no image: no gradient would hold their weights against decay."""
        return not name.startswith("net.head.") or bool(self.present.mask.all())

    def loss(self, batch: Batch, phase: Phase, classify: Classify) -> dict[str, Tensor]:
        terms = {"ce": classify(self.net(batch.x), batch.y).mean()}
        if not phase.first:
            terms["penalty"] = self.anchor.penalty(self.net.backbone)
        return terms

    def weights(self, phase: Phase, stage: Stage) -> dict[str, float]:
        return {"penalty": self.factor}


class Walked(Held, ABC):
    """Abstract: the same, and it also records how much each parameter lowers the loss."""

    training_only: tuple[str, ...] = ("anchor", "path")

    def __init__(self, make: MakeNetwork, weight: float, damping: float) -> None:
        super().__init__(make, weight)
        check_more_than_zero(damping=damping)
        self.path, self.damping = Path(self.net.backbone), damping

    def graded(self, clock: Clock) -> None:
        self.path.graded(self.net.backbone, self.factor * self.anchor.slope(self.net.backbone))

    def stepped(self, clock: Clock) -> None:
        self.path.stepped(self.net.backbone)
