"""DyTox: Transformers for Continual Learning with DYnamic TOken eXpansion (Douillard et al., CVPR 2022).

A transformer shared by all phases, and a learned token a phase, which one class-attention block reads out of it. Each
token has a classifier of its own for the classes of its phase (section 3); earlier tokens and classifiers rest.

    L = (1 - lambda) BCE  +  lambda KD  +  0.1 divergence,      lambda = K_old / K                      (section 3.4)

BCE is binary cross-entropy over all K outputs, KD the divergence from the previous network's softmax over old classes,
and `divergence` the binary cross-entropy of a further classifier on the newest token, which tells new classes from each
other and from anything old. Then all but the encoder is tuned on the exemplars alone, by BCE. `dytox+mixup` is DyTox+.

With loss="softce" softmax cross-entropy stands in the place of BCE. Where two classes compete, each logit of BCE is the
whole of their log-odds, z_1 - z_2 is twice that, and an offset counts half as much as it does under a softmax.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from torch import Tensor, nn

from bdr.data.pool import Pool
from bdr.errors import check_below_one, check_not_negative
from bdr.losses import binary, distillation, old_as_one, one_hot, softmax_loss
from bdr.methods.base import Method
from bdr.nets import MakeNetwork, Network, Teacher, TokenHeads
from bdr.nets.dytox import TokenTransformer
from bdr.types import Batch, Classify, Outputs, Phase, Stage

Loss = Literal["bce", "softce"]
SHARE_OF_EPOCHS = 25  # the tuning takes 1/25 of the epochs: 20 after 500
TUNED = ("net.backbone.tokens", "net.backbone.decoder", "net.head")


class DyTox(Method):
    net: Network[TokenHeads]
    distillation = "distillation"
    later = ("divergence_weight",)
    keeps = ("some", "all")
    training_only = ("divergence",)

    def __init__(
        self, make: MakeNetwork, divergence_weight: float = 0.1, smoothing: float = 0.1, loss: Loss = "bce"
    ) -> None:
        super().__init__()
        check_not_negative(divergence_weight=divergence_weight)
        check_below_one(smoothing=smoothing)
        if loss not in ("bce", "softce"):
            raise ValueError(f"no loss '{loss}'; there are bce, softce")
        self.net = make(TokenHeads)
        if not isinstance(self.net.backbone, TokenTransformer):
            raise ValueError("needs a network with task tokens: use --net convit, or convit-small for a few pixels")
        self.teacher = Teacher(self.net)
        self.divergence = TokenHeads(self.transformer.dim)
        self.divergence_weight, self.smoothing = divergence_weight, smoothing
        self.term: str = loss
        self.softmax = loss == "softce"  # with bce, each class is a yes or no of its own

    @property
    def transformer(self) -> TokenTransformer:
        assert isinstance(self.net.backbone, TokenTransformer)
        return self.net.backbone

    def begin(self, phase: Phase, pool: Pool) -> None:
        self.net.head.grow(phase.new)
        if not phase.first:  # the transformer has a token for the first phase from the start
            self.transformer.grow()
            self.divergence.restart(1 + phase.new)

    def stages(self, phase: Phase, base: Stage) -> list[Stage]:
        """After the first phase, a tuning stage at 1/10 of the rate, in which old tokens and classifiers move too."""
        if phase.first:
            return [base]
        epochs = max(1, round(base.epochs / SHARE_OF_EPOCHS))
        tuning = replace(base, name="balanced", epochs=epochs, lr=base.lr / 10, schedule="constant", warmup=0)
        return [base, replace(tuning, draw="memory", train=TUNED, loss="balanced")]

    def decays(self, name: str, parameter: nn.Parameter) -> bool:
        """Exempt biases and norms; those of the classifiers have a row per token, so they are told by their names."""
        return parameter.ndim > 1 and not name.endswith(("scale", "shift"))

    def target(self, y: Tensor, like: Tensor) -> Tensor:
        """(B, K) the targets; mixtures are smoothed over the classes known so far, ids are not."""
        target = one_hot(y, like)
        return target if y.dim() == 1 else (1 - self.smoothing) * target + self.smoothing / like.shape[1]

    def criterion(self, out: Outputs, y: Tensor) -> Tensor:
        """(B,) binary cross-entropy averaged over all classes, or softmax cross-entropy with loss="softce"."""
        target = self.target(y, out.logits)
        return softmax_loss(out.logits, target) if self.softmax else binary(out.logits, target) / out.logits.shape[1]

    def loss(self, batch: Batch, phase: Phase, classify: Classify) -> dict[str, Tensor]:
        out = self.net(batch.x)
        terms = {self.term: classify(out, batch.y).mean()}
        if not phase.first:
            old = self.teacher(batch.x).logits
            # Averaged over classes too, as by the authors: the term is K_old times weaker than the divergence itself.
            terms["distillation"] = distillation(out.logits[:, : phase.old], old, 1.0).mean() / phase.old
            terms["divergence"] = self.diverging(out, batch.y, phase)
        return terms

    def diverging(self, out: Outputs, y: Tensor, phase: Phase) -> Tensor:
        """Binary cross-entropy of the divergence classifier, which reads the newest token."""
        logits, _ = self.divergence(out.features[:, -self.divergence.dim :])
        return binary(logits, old_as_one(self.target(y, out.logits), phase.old)).mean() / logits.shape[1]

    def balanced(self, batch: Batch, phase: Phase, classify: Classify) -> dict[str, Tensor]:
        """The objective of the tuning stage: classification alone, without a teacher."""
        return {self.term: classify(self.net(batch.x), batch.y).mean()}

    def weights(self, phase: Phase, stage: Stage) -> dict[str, float]:
        if phase.first or stage.loss == "balanced":
            return {}
        share = phase.old / phase.seen
        # The other terms are means over classes, like binary cross-entropy: an undivided softmax loss would drown them.
        over = phase.seen if self.softmax else 1
        return {self.term: (1 - share) / over, "distillation": share, "divergence": self.divergence_weight}

    def end(self, phase: Phase, pool: Pool, exemplars: Tensor) -> None:
        self.teacher.refill(self.net)
