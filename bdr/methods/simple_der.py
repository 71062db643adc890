"""simple-DER: Preserving Earlier Knowledge ... All Previous Feature Extractors (Li et al., arXiv 2104.13614, 2021).

Every phase adds a feature extractor, those before it rest, and the classifier looks at the features of all. The newest
one learns with what the network said before, and with a price on the factors gamma of its batch norms:

    L = CE  +  K_old / K  KL( softmax(z* / T) || softmax(z / T) ) over the old classes  +  lambda sum |gamma|

At half-time gates (bdr/nets/gates.py) shut out its channels of small |gamma|, down to the wanted size. Once it is
trained they are removed, and the classifier alone learns anew on equally many images of every class. z* needs no
network of its own: all earlier extractors are still there, as they were, so the previous classifier is asked about
their features.

The paper was not at hand but for its abstract; the objective is derived from it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bdr.data.pool import Pool
from bdr.errors import check_more_than_zero, check_not_negative
from bdr.losses import distillation
from bdr.methods.base import Method
from bdr.methods.expanding import (
    backbone_of,
    begin_expanded,
    check_keep,
    expandable,
    half_time,
    prune,
    settle_gates,
    tuned,
    tuning,
)
from bdr.nets import LinearHead, MakeNetwork, Network, Teacher
from bdr.nets.base import BatchNorm
from bdr.nets.prunable import Prunable
from bdr.types import Batch, Classify, Phase, Stage


def importance(net: Prunable) -> list[Tensor]:
    """|gamma| of the channels of each group, averaged over its batch norms and divided by the mean of the group.

    |gamma| begins at different sizes in different groups, zero among them; undivided, some groups would be emptied
    before others lose a channel.
    """
    found: list[list[Tensor]] = [[] for _ in net.full]
    for layer in net.layers():
        found[layer.outputs].append(layer.norm.weight.detach().abs())
    means = [torch.stack(norms).mean(0) for norms in found]
    return [mean / mean.mean().clamp(min=1e-12) for mean in means]


class SimpleDER(Method):
    net: Network[LinearHead]
    distillation = "distillation"
    keeps = ("some", "all")
    later = ("temperature",)
    counts_parameters = True  # extractors are copied in the form in which they were built

    def __init__(
        self, make: MakeNetwork, temperature: float = 2.0, lambda_gamma: float = 1e-4, keep: float = 0.45
    ) -> None:
        super().__init__()
        check_more_than_zero(temperature=temperature)
        check_not_negative(lambda_gamma=lambda_gamma)
        self.net = expandable(make)
        check_keep(self.net, keep)
        self.teacher = Teacher(self.net.head)
        self.temperature, self.lambda_gamma, self.keep = temperature, lambda_gamma, keep

    def begin(self, phase: Phase, pool: Pool) -> None:
        begin_expanded(self.net, phase, pool)
        if self.keep < 1:
            extractors = backbone_of(self.net)
            extractors.gates.begin(extractors.prunable())
            extractors.gates.settle([torch.ones_like(mask) for mask in extractors.gates.kept()])
            extractors.gates.e.requires_grad_(False)  # masks that only `shut_out_the_least_important` changes

    def stages(self, phase: Phase, base: Stage) -> list[Stage]:
        """Two stages in every phase: the first extractor is pruned too, and the classifier is tuned after it."""
        return [base, tuning(base)]

    def begin_stage(self, stage: Stage, phase: Phase, pool: Pool) -> None:
        if stage.loss != "tune":
            return
        if self.keep < 1:
            self.shut_out_the_least_important()  # changes nothing, unless a stage of one epoch never reached half-time
            prune(self.net)
        self.net.head.redraw()

    def at_epoch(self, stage: Stage, epoch: int) -> None:
        if backbone_of(self.net).gates.there and epoch == half_time(stage):
            self.shut_out_the_least_important()

    def shut_out_the_least_important(self) -> None:
        """Shut the gates of the least important open channels, down to the share `keep` of the parameters."""
        extractors = backbone_of(self.net)
        left = zip(importance(extractors.prunable()), extractors.gates.kept(), strict=True)
        settle_gates(extractors, [score * is_open for score, is_open in left], self.keep)

    def loss(self, batch: Batch, phase: Phase, classify: Classify) -> dict[str, Tensor]:
        out, newest = self.net(batch.x), backbone_of(self.net).newest
        terms = {"ce": classify(out, batch.y).mean()}
        norms: list[Tensor] = [part.weight for part in newest.modules() if isinstance(part, BatchNorm)]
        terms["gamma"] = torch.cat(norms).abs().sum()
        if not phase.first:
            before, _ = self.teacher(out.features[:, : -newest.dim])
            terms["distillation"] = distillation(out.logits[:, : phase.old], before, self.temperature).mean()
        return terms

    def tune(self, batch: Batch, phase: Phase, classify: Classify) -> dict[str, Tensor]:
        """The objective of the second stage: the classifier alone."""
        return tuned(self.net, batch, classify)

    def weights(self, phase: Phase, stage: Stage) -> dict[str, float]:
        return {"gamma": self.lambda_gamma, "distillation": phase.old / phase.seen}

    def end(self, phase: Phase, pool: Pool, exemplars: Tensor) -> None:
        self.teacher.refill(self.net.head)
