"""AANet: Adaptive Aggregation Networks for class-incremental learning (Liu et al., CVPR 2021).

After the first phase the network has two branches, both copies of what it was: a stable one, whose filters rest and
have learnable scales, and a plastic one, all of which learns. Level by level (eq. 2 and 3)

    h_l = a_l stable_l(h_{l-1})  +  (1 - a_l) plastic_l(h_{l-1})

The branches learn by the method's own objective with the a_l at rest. The a_l, 0.5 at first and not bounded, learn
after every epoch, with the branches at rest, by cross-entropy over all seen classes on a balanced draw: all exemplars,
and as many images of each new class, chosen anew each time. The published code does this at a rate of 1e-8 on gradients
that it never clears, so that they add up over a run; cleared before every step, as here, they hardly move at that rate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from bdr.data.pool import WHOLE, Census
from bdr.errors import UsageError, check_more_than_zero
from bdr.nets import Levelled, MakeNetwork, Network, TwoBranches
from bdr.nets.base import H
from bdr.plugins.base import Plugin
from bdr.types import Phase, Stage


def into_branches(net: Network[Any]) -> None:
    assert isinstance(net.backbone, Levelled)
    net.backbone = TwoBranches(net.backbone)


class AANet(Plugin):
    role = "net"
    needs_exemplars = True  # the balanced draw has as many images of a new class as of an old one
    adds_parameters = True
    splits = True

    def __init__(self, aggregation_lr: float = 1e-8) -> None:
        super().__init__()
        check_more_than_zero(aggregation_lr=aggregation_lr)
        self.aggregation_lr = aggregation_lr

    def net(self, make: MakeNetwork) -> MakeNetwork:
        def make_branched(head: Callable[[int], H], **options: Any) -> Network[H]:
            net = make(head, **options)
            if not isinstance(net.backbone, Levelled):
                kind = type(net.backbone).__name__
                raise UsageError(
                    f"'{self.name}' mixes two branches level by level, and {kind} has no levels: use --net resnet18, "
                    "resnet32 or small if the method takes them, derive your own from bdr.nets.Levelled, or leave "
                    f"'{self.name}' out"
                )
            net.splitting = into_branches
            return net

        return make_branched

    def acts(self, phase: Phase, stage: Stage) -> bool:
        return not phase.first

    def begin(self, phase: Phase, census: Census, net: nn.Module) -> None:
        assert isinstance(net, Network)
        net.split()

    def stages(self, phase: Phase, stages: list[Stage]) -> list[Stage]:
        if phase.first:
            return stages
        return [replace(s, alternate=self.aggregating(s)) if s.draw in WHOLE else s for s in stages]

    def aggregating(self, stage: Stage) -> Stage:
        """The stage that alternates with `stage`: the same schedule at a rate of its own, on a balanced draw."""
        balanced = replace(stage, name="aggregation", draw="fresh", repeat=1, batch=100)
        slow = replace(balanced, lr=self.aggregation_lr, floor=stage.floor * self.aggregation_lr / stage.lr)
        return replace(slow, loss="classification", train=("net.backbone.aggregation",))

    def report(self, phase: Phase, net: nn.Module) -> dict[str, Tensor]:
        """The share of the stable branch in each level."""
        branches = net.get_submodule("backbone")
        assert isinstance(branches, TwoBranches)
        return {f"level_{place}": share for place, share in enumerate(branches.aggregation.detach(), 1)}
