"""What methods share that give every phase an extractor of its own: growing, a classifier from scratch, its tuning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor

from bdr.data.pool import Pool
from bdr.methods.base import accustom
from bdr.nets import Expandable, LinearHead, MakeNetwork, Network
from bdr.nets.prunable import best_channels
from bdr.types import Batch, Classify, Phase, Stage

EPOCHS = 170  # of the first stage in the published schedule that the next line's numbers belong to
TUNING_EPOCHS, TUNING_DROP = 30, 15


def expandable(make: MakeNetwork) -> Network[LinearHead]:
    """A network that can be given further extractors, with a linear classifier without a bias."""
    net = make(partial(LinearHead, bias=False))
    net.backbone = Expandable(net.backbone)
    return net


def backbone_of(net: Network[LinearHead]) -> Expandable:
    assert isinstance(net.backbone, Expandable)
    return net.backbone


def check_keep(net: Network[LinearHead], keep: float) -> None:
    if not 0 < keep <= 1:
        raise ValueError(f"keep = {keep} is not allowed: it is a share of the parameters, more than 0 and at most 1")
    if keep < 1:
        backbone_of(net).prunable()


def begin_expanded(net: Network[LinearHead], phase: Phase, pool: Pool) -> None:
    """Add an extractor, except in the first phase, and start a fresh classifier of all features."""
    extractors = backbone_of(net)
    if not phase.first and extractors.grow():
        accustom(extractors.newest, pool)  # plug-ins look at its features before it has learnt anything
    net.head.renew(phase.seen, extractors.dim)


def half_time(stage: Stage) -> int:
    """The epoch before which the gates are settled; the weights need the other half to adapt to the open channels."""
    return (stage.epochs + 1) // 2


def settle_gates(extractors: Expandable, scores: Sequence[Tensor], keep: float) -> None:
    """Open the gates of the channels with the highest scores, up to the share `keep` of parameters; shut the rest."""
    net = extractors.prunable()
    extractors.gates.settle(best_channels(net, scores, keep * net.size(net.full)))


def prune(net: Network[LinearHead]) -> None:
    """Remove the channels whose gates are shut from the newest extractor and the classifier."""
    extractors = backbone_of(net)
    net.head.narrow(extractors.prune(extractors.gates.kept()))


def tuning(base: Stage) -> Stage:
    """The stage that trains the classifier alone, on a balanced draw; scaled from the published one like the first."""
    share = base.epochs / EPOCHS
    stage = replace(base, name="balanced", draw="rarest", loss="tune", train=("net.head",), warmup=0)
    stage = replace(stage, schedule="steps", drops=(max(1, round(TUNING_DROP * share)),), drop=0.1)
    return replace(stage, epochs=max(1, round(TUNING_EPOCHS * share)))


def tuned(net: Network[LinearHead], batch: Batch, classify: Classify, temperature: float = 1.0) -> dict[str, Tensor]:
    """The objective of `tuning`: cross-entropy of the logits divided by the temperature."""
    out = net(batch.x)
    return {"ce": classify(out._replace(logits=out.logits / temperature), batch.y).mean()}
