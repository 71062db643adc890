"""PODNet: Pooled Outputs Distillation for Small-Tasks Incremental Learning (Douillard et al., ECCV 2020).

    L = NCA  +  lambda_flat sqrt(K / K_new) POD-flat  +  lambda_spatial sqrt(K / K_new) POD-spatial      (section 3)

POD-flat holds the direction of the features, POD-spatial (section 3.1) the profiles of all feature maps along height
and width, as the previous network has them. The classifier (3.2) has ten proxies a class, placed by k-means when the
class arrives; those of old classes rest. Then the proxies of all classes are tuned on the exemplars alone, by NCA: not
in the paper, and used for its numbers. The other terms are there in the published code, and are constant.

With v the logits, b the highest of them, and r_k = log sum_{i != k} exp v_i that of all others, a sample of class k has

    softmax         log(1 + exp(r_k - v_k))
    NCA, coded      log(1 + exp(r_k - b)) + b - v_k       the margin stood on all classes alike, and cancels
    NCA, printed    max(0, r_k - v_k + eta margin)        the margin is asked of one's own class

so that the published code's loss is softmax cross-entropy wherever the right class scores best.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bdr.data.pool import Pool
from bdr.errors import check_more_than_zero, check_not_negative, check_one_or_more
from bdr.fusing import fused
from bdr.losses import cosine_distance, one_hot
from bdr.methods.base import Method
from bdr.nets import MakeNetwork, Network, ProxyHead, Teacher
from bdr.nets.proxies import kmeans
from bdr.seeding import generator
from bdr.types import Batch, Classify, Clock, Outputs, Phase, Stage

NCA = Literal["coded", "printed"]
STEEPEST = 5.0  # every gradient is clamped to [-5, 5]


def of_the_others(logits: Tensor) -> Tensor:
    """(B, K) for each class, the log-sum-exp of all other logits.

    The best class can hold nearly all of the sum, so for it the others are added up anew rather than subtracted. No
    other class holds more than half of the sum, unless rounding has swallowed the rest.
    """
    best = one_hot(logits.argmax(1), logits).bool()
    every = logits.logsumexp(1, keepdim=True)
    share = (logits - every).exp().masked_fill(best, 0.0).clamp(max=0.75)
    but_best = logits.masked_fill(best, torch.finfo(logits.dtype).min).logsumexp(1, keepdim=True)
    return torch.where(best, but_best, every + torch.log1p(-share))


@fused(logits=1, y=1)
def nca_as_coded(logits: Tensor, y: Tensor) -> Tensor:
    """(B,) NCA as coded: with the best logit moved to 0, a sample's own class counts as 1 in the denominator."""
    best = logits.amax(1, keepdim=True)
    return (one_hot(y, logits) * (F.softplus(of_the_others(logits) - best) + best - logits)).sum(1)


@fused(logits=1, y=1)
def nca_as_printed(logits: Tensor, y: Tensor, margin: Tensor) -> Tensor:
    """(B,) NCA as printed: the own logit must exceed log-sum-exp of the others by the margin, in units of logits."""
    return (one_hot(y, logits) * torch.relu(of_the_others(logits) - logits + margin)).sum(1)


def profiles(maps: Tensor) -> Tensor:
    """(B, C (H + W)) the profiles of maps (B, C, H, W): squares summed over width and over height, normalised."""
    square = maps.to(torch.promote_types(maps.dtype, torch.float32)).square()
    return F.normalize(torch.cat([square.sum(3).flatten(1), square.sum(2).flatten(1)], 1))


@fused()
def pod_spatial(maps: tuple[Tensor, ...], reference: tuple[Tensor, ...]) -> Tensor:
    """(B,) the distance of the profiles from those of the previous network, averaged over the maps."""
    pairs = zip(maps, reference, strict=True)
    return torch.stack([(profiles(now) - profiles(before)).norm(dim=1) for now, before in pairs]).mean(0)


class PODNet(Method):
    net: Network[ProxyHead]
    distillation = "pod_flat"
    later = ("lambda_flat", "lambda_spatial")
    softmax = False  # NCA, in which the own class does not compete
    keeps = ("some", "all")
    # No `scale_setting`: on digits a larger eta leaves the last phase no better in three epochs, and worse in twenty.

    def __init__(
        self,
        make: MakeNetwork,
        lambda_flat: float = 1.0,
        lambda_spatial: float = 3.0,
        proxies: int = 10,
        eta: float = 1.0,
        nca: NCA = "coded",
        margin: float = 0.6,
    ) -> None:
        super().__init__()
        check_more_than_zero(eta=eta)
        check_not_negative(lambda_flat=lambda_flat, lambda_spatial=lambda_spatial, margin=margin)
        check_one_or_more(proxies=proxies)
        if nca not in ("coded", "printed"):
            raise ValueError(f"no nca '{nca}'; there are coded, printed")
        self.net = make(partial(ProxyHead, proxies=proxies, eta=eta), last_relu=False, maps=True)
        self.teacher = Teacher(self.net)
        self.lambda_flat, self.lambda_spatial, self.nca, self.margin = lambda_flat, lambda_spatial, nca, margin

    def begin(self, phase: Phase, pool: Pool) -> None:
        self.net.head.grow(phase.new)
        if not phase.first:
            self.net.head.imprint(self.centres(phase, pool))

    def centres(self, phase: Phase, pool: Pool) -> Tensor:
        """(K_new, P, D) the k-means centres of the features of each new class, seen by the network as it stands."""
        features = F.normalize(pool.outputs(self.net, pool.new).features.double())
        labels, found = pool.store.labels[pool.new], []
        for k in range(phase.old, phase.seen):
            chance = generator(features.device, pool.seed, "phase", phase.index, "proxies", k)
            found.append(kmeans(features[labels == k], self.net.head.proxies, chance))
        return torch.stack(found)

    def stages(self, phase: Phase, base: Stage) -> list[Stage]:
        """After the first phase, a second stage with 1/8 of the epochs (20 after 160), in which eta rests."""
        if phase.first:
            return [base]
        short = replace(base, name="balanced", epochs=max(1, round(base.epochs / 8)), lr=0.05, schedule="constant")
        return [base, replace(short, warmup=0, draw="memory", train=("net.head.old", "net.head.new"), loss="tune")]

    def criterion(self, out: Outputs, y: Tensor) -> Tensor:
        """(B,) NCA; an offset on the logits is a class bias inside the exponentials of either form."""
        if self.nca == "coded":
            return nca_as_coded(out.logits, y)
        return nca_as_printed(out.logits, y, self.margin * torch.as_tensor(out.scale) / 2)

    def loss(self, batch: Batch, phase: Phase, classify: Classify) -> dict[str, Tensor]:
        out = self.net(batch.x)
        terms = {"nca": classify(out, batch.y).mean()}
        if not phase.first:
            old = self.teacher(batch.x)
            terms["pod_flat"] = cosine_distance(out.features, old.features).mean()
            terms["pod_spatial"] = pod_spatial(out.maps, old.maps).mean()
        return terms

    def tune(self, batch: Batch, phase: Phase, classify: Classify) -> dict[str, Tensor]:
        """Classification alone: only proxies move, on which features and maps do not depend."""
        return {"nca": classify(self.net(batch.x), batch.y).mean()}

    def weights(self, phase: Phase, stage: Stage) -> dict[str, float]:
        grown = (phase.seen / phase.new) ** 0.5
        return {} if phase.first else {"pod_flat": self.lambda_flat * grown, "pod_spatial": self.lambda_spatial * grown}

    def graded(self, clock: Clock) -> None:
        nn.utils.clip_grad_value_(self.net.parameters(), STEEPEST)

    def end(self, phase: Phase, pool: Pool, exemplars: Tensor) -> None:
        self.teacher.refill(self.net)
