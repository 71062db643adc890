"""How much sparsity is to count so that a network ends up at a wanted size: found on the way, in one run.

The published weights of this term were tried out, setting by setting. Here a controller sets the weight before every
epoch. It looks at the number e that each gate is told by, and finds the threshold tau that would leave the size wanted
by now. Gates are open above zero, so tau is how far all of them are from where they should be, and it does not jump as
the number of open gates does. In one epoch a slope of 1 moves a gate by

    reach = steps rate / (1 - momentum),

so a part of tau is made up for in the next epoch, and all that the other terms of the loss keep pushing, by the weight

    lambda = (P tau / reach + I sum (tau / reach)) / mean dL_S / de

The size wanted falls by a constant factor an epoch, from the whole network after the warm-up to what is to be kept at
half-time. Then the gates are settled: the other half is for the weights to get used to it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bdr.methods.expanding import half_time
from bdr.nets.gates import Gates
from bdr.nets.prunable import Prunable, threshold_for
from bdr.schedules import learning_rate
from bdr.types import Stage

P, I = 0.4, 0.03  # noqa: E741
FARTHEST = 2.0  # tau is limited to this at each epoch: gates begin at about two


def wanted_share(keep: float, stage: Stage, epoch: int) -> float:
    """The share of the parameters that is to be left at the end of an epoch."""
    done = (epoch + 1 - stage.warmup) / max(1, half_time(stage) - stage.warmup)
    return float(keep ** min(1.0, max(0.0, done)))


class Pressure(nn.Module):
    """The weight of the sparsity term, set before each epoch; a negative one opens gates."""

    weight: Tensor
    total: Tensor  # the part of the weight that balances what the other terms push
    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("weight", "total", "steps"):
            self.register_buffer(name, torch.zeros(()))

    def begin(self, steps: int) -> None:
        """Start from zero, for a stage with this many steps per epoch."""
        self.weight.zero_()
        self.total.zero_()
        self.steps.fill_(steps)

    def reach(self, stage: Stage, epoch: int) -> Tensor:
        return self.steps * learning_rate(stage, epoch) / (1 - stage.momentum)

    def forward(self, left: Tensor) -> Tensor:
        """The share that is left: its value is unweighted, for records; its gradient is multiplied by the weight."""
        weighted = self.weight * left
        return weighted + (left - weighted).detach()

    def press(self, gates: Gates, net: Prunable, share: float, reach: Tensor) -> None:
        """Set the weight for an epoch at whose end the network is to have this share of its parameters."""
        if share == 1:
            return
        tau = threshold_for(net, gates.groups(), share * net.size(net.full))
        far = max(-FARTHEST, min(FARTHEST, tau)) / reach
        self.total.add_(I * far)
        with torch.enable_grad():
            (slope,) = torch.autograd.grad(gates.sparsity(), gates.e)
        self.weight.copy_((P * far + self.total) / slope.mean())
