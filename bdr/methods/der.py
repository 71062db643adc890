"""DER: Dynamically Expandable Representation for Class Incremental Learning (Yan et al., CVPR 2021).

Every phase adds a feature extractor, a copy of the newest one; those before it rest for good. The classifier, without a
bias, looks at the features of all of them and is made anew. First the newest extractor and the classifier learn,

    L = CE(z, y)  +  lambda_a CE(z_a, y_a)  +  lambda_s L_S

where z_a is an auxiliary classifier on the newest features alone, of the new classes and one that stands for all old
ones; it teaches them to tell new from old, and is thrown away. Both are drawn anew when the warm-up is over. Then the
classifier is drawn anew once more, and learns alone, on equally many images of every class, by CE(z / 5).

With keep < 1 the channels of the newest extractor have gates (bdr/nets/gates.py); L_S is the share of its weights that
they leave, lambda_s what it takes to get to the wanted size by half-time (bdr/methods/pressure.py), when the gates are
settled. Once the extractor is trained, channels whose gates are shut are removed.
"""

from __future__ import annotations

from torch import Tensor, nn

from bdr.data.pool import Pool
from bdr.errors import check_more_than_zero, check_not_negative
from bdr.losses import old_as_one, softmax_loss
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
from bdr.methods.pressure import Pressure, wanted_share
from bdr.nets import LinearHead, MakeNetwork, Network
from bdr.types import Batch, Classify, Phase, Stage


class DER(Method):
    net: Network[LinearHead]
    keeps = ("some", "all")  # without exemplars there is nothing to balance the classifier with
    optional_stages = ("balanced",)
    later = ("lambda_aux", "temperature", "balanced")
    counts_parameters = True  # extractors are copied in the form in which they were built

    def __init__(
        self,
        make: MakeNetwork,
        lambda_aux: float = 1.0,
        temperature: float = 5.0,
        balanced: bool = True,
        keep: float = 1.0,
        s_max: float = 100.0,
    ) -> None:
        super().__init__()
        check_more_than_zero(temperature=temperature)
        check_not_negative(lambda_aux=lambda_aux)
        if s_max <= 1:
            raise ValueError(f"s_max = {s_max} is not allowed: it is more than 1")
        self.net = expandable(make)
        check_keep(self.net, keep)
        self.auxiliary = LinearHead(0, bias=False)
        self.pressure = Pressure()
        self.lambda_aux, self.temperature, self.balanced = lambda_aux, temperature, balanced
        self.keep, self.s_max = keep, s_max

    def begin(self, phase: Phase, pool: Pool) -> None:
        begin_expanded(self.net, phase, pool)
        extractors = backbone_of(self.net)
        if not phase.first:
            self.auxiliary.renew(phase.new + 1, extractors.newest.dim)
        if self.keep < 1:
            extractors.gates.begin(extractors.prunable())

    def decays(self, name: str, parameter: nn.Parameter) -> bool:
        """Exempt the numbers of the gates: decay would pull them to zero, where a gate is neither open nor shut."""
        return parameter is not backbone_of(self.net).gates.e

    def stages(self, phase: Phase, base: Stage) -> list[Stage]:
        return [base, tuning(base)] if self.balanced and not phase.first else [base]

    def begin_stage(self, stage: Stage, phase: Phase, pool: Pool) -> None:
        if stage.loss == "tune":
            self.finish_extractor()
            self.net.head.redraw()
        else:
            self.pressure.begin(pool.steps(stage))

    def at_epoch(self, stage: Stage, epoch: int) -> None:
        if 0 < stage.warmup == epoch:
            for head in (self.net.head, self.auxiliary):
                if head.classes:
                    head.redraw()
        extractors = backbone_of(self.net)
        if extractors.gates.there and epoch < half_time(stage):
            share, reach = wanted_share(self.keep, stage, epoch), self.pressure.reach(stage, epoch)
            self.pressure.press(extractors.gates, extractors.prunable(), share, reach)
        elif extractors.gates.there and epoch == half_time(stage):
            settle_gates(extractors, extractors.gates.groups(), self.keep)

    def loss(self, batch: Batch, phase: Phase, classify: Classify) -> dict[str, Tensor]:
        extractors = backbone_of(self.net)
        if extractors.gates.there:
            extractors.gates.anneal(batch.clock, self.s_max)
        out = self.net(batch.x)
        terms = {"ce": classify(out, batch.y).mean()}
        if not phase.first:
            logits, _ = self.auxiliary(out.features[:, -extractors.newest.dim :])
            terms["auxiliary"] = softmax_loss(logits, old_as_one(batch.y, phase.old)).mean()
        if extractors.gates.there:
            terms["sparsity"] = self.pressure(extractors.gates.sparsity())
        return terms

    def tune(self, batch: Batch, phase: Phase, classify: Classify) -> dict[str, Tensor]:
        """The objective of the second stage: the classifier alone."""
        return tuned(self.net, batch, classify, self.temperature)

    def weights(self, phase: Phase, stage: Stage) -> dict[str, float]:
        return {"auxiliary": self.lambda_aux}

    def end(self, phase: Phase, pool: Pool, exemplars: Tensor) -> None:
        self.finish_extractor()

    def finish_extractor(self) -> None:
        """Remove what only training needs: the auxiliary classifier and the channels that gates shut out."""
        self.auxiliary.lay_out({"classes": 0, "dim": 0})
        extractors = backbone_of(self.net)
        if extractors.gates.there:
            if not extractors.gates.settled:  # a stage of one epoch never reaches half-time
                settle_gates(extractors, extractors.gates.groups(), self.keep)
            prune(self.net)
