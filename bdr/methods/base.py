"""Method: the one class to subclass. A method turns a batch into named loss terms, and says how it grows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bdr.data.pool import Pool
from bdr.losses import cross_entropy, distillation
from bdr.nets import Resumable, Teacher
from bdr.types import Batch, Classify, Clock, ImageShape, Outputs, Phase, Stage, has_name


class NearestMeans(Resumable):
    """The class means of the exemplars, and scores by the distance of features to them."""

    means: Tensor  # (K, D), normalised

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("means", torch.empty(0, 0))

    def layout(self) -> dict[str, Any]:
        return {"shape": list(self.means.shape)}

    def lay_out(self, layout: dict[str, Any]) -> None:
        self.means = torch.empty(layout["shape"], device=self.means.device)

    def fit(self, net: nn.Module, pool: Pool, exemplars: Tensor, classes: int) -> None:
        """Set the means from normalised exemplar features, with those of mirror images if the data set is mirrored."""
        labels = pool.store.labels[exemplars]
        views = [False, True] if pool.store.augment.flip else [False]
        sums: Tensor | float = 0.0
        for mirrored in views:
            features = F.normalize(pool.outputs(net, exemplars, mirrored=mirrored).features)
            sums = sums + features.new_zeros(classes, features.shape[1]).index_add_(0, labels, features)
        self.means = F.normalize(torch.as_tensor(sums))

    def scores(self, features: Tensor) -> Tensor:
        """(B, K) the negative squared distances of normalised features to the class means."""
        unit = F.normalize(features)
        # Not torch.cdist: from 25 rows on it runs other code, so no model could be exported for batches of any size.
        square = unit.square().sum(1, keepdim=True) + self.means.square().sum(1)
        return 2 * F.linear(unit, self.means) - square


class ReadOffset(Resumable):
    """An offset per class, added to the scores when they are read, and kept with the model; empty until set."""

    by_class = ("offset",)
    offset: Tensor  # (K,)

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("offset", torch.zeros(0))

    def forward(self, scores: Tensor) -> Tensor:
        return scores + self.offset if len(self.offset) == scores.shape[1] else scores


class Present(Resumable):
    """The classes that a phase has images of: only the new ones without exemplars, all of them with exemplars."""

    by_class = ("mask",)
    mask: Tensor  # (K,)

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.empty(0, dtype=torch.bool))

    def begin(self, pool: Pool) -> None:
        self.mask = pool.counts(pool.rows) > 0

    def cross_entropy(self, out: Outputs, y: Tensor) -> Tensor:
        """(B,) cross-entropy over the present classes; the logits of the others get no gradient."""
        lowest = torch.finfo(out.logits.dtype).min  # finite, because targets that are mixtures multiply it by zero
        return cross_entropy(out._replace(logits=out.logits.masked_fill(~self.mask, lowest)), y)


@torch.no_grad()
def accustom(net: nn.Module, pool: Pool, batch: int = 128) -> None:
    """Adapt batch-norm statistics to new weights, as in training, in one pass over the images of the phase.

    Parts without a parameter that learns stay as they are.
    """
    for part in net.modules():
        part.training = any(p.requires_grad for p in part.parameters())
    for rows in pool.rows[torch.randperm(len(pool.rows)).to(pool.rows.device)].split(batch):
        net(pool.store.plain(rows))


def classified_and_distilled(
    net: nn.Module, teacher: nn.Module, batch: Batch, phase: Phase, classify: Classify, temperature: float
) -> dict[str, Tensor]:
    """Cross-entropy, and after the first phase distillation from the teacher's softened scores of the old classes."""
    out = net(batch.x)
    terms = {"ce": classify(out, batch.y).mean()}
    if not phase.first:
        old = teacher(batch.x).logits
        terms["distillation"] = distillation(out.logits[:, : phase.old], old, temperature).mean()
    return terms


class Method(nn.Module, ABC):
    """Abstract; every subclass is final. `net` maps a batch of images to Outputs.

    `criterion` is the loss that plug-ins wrap. It takes targets, and outputs for all seen classes. A method whose
    classification loss covers only some classes selects them inside `criterion`, so that offsets reach all logits.
    """

    net: nn.Module
    classes: tuple[str, ...]  # names in order of arrival; set by `bdr.load`, like the next three
    image: ImageShape  # the shape of the images that it takes
    mean: tuple[float, ...]  # of each channel, of pixels from 0 to 1: with `std`, how images are normalised
    std: tuple[float, ...]
    criterion: Classify = staticmethod(cross_entropy)
    distillation: str | None = None  # the term of `loss` that preserves the old network, for the analysis
    readout = "cnn"  # the readout that its results are reported for; with "nme", a memory of 0 is refused
    scale_setting: str | None = None  # the setting that the scale of its cosine classifier starts from
    held = 0.0  # share of the exemplars held out of training, for stages that draw "held"
    optional_stages: tuple[str, ...] = ()  # stages that a setting of the method can leave out
    later: tuple[str, ...] = ()  # settings not read in the first phase: runs that differ only in them share it
    counts_parameters = False  # whether the backbone must have all of its parameters from the start
    keeps: tuple[str, ...] = ("none", "some", "all")  # how many images of earlier classes; other memories are refused
    training_only: tuple[str, ...] = ()  # parts and buffers that inference does not need; not in `parameter_count`
    softmax = True  # whether the logits of all classes compete in its criterion
    soft_targets = True  # whether its losses take mixtures of classes (B, K) as well as ids (B,)

    def __init__(self) -> None:
        super().__init__()
        self.nearest = NearestMeans()
        self.correction: ReadOffset | None = None  # set when a plug-in of the run corrects scores

    @property
    def extensible(self) -> bool:
        """Whether a finished run can be extended from its exemplars: not if the method needs all images."""
        return self.keeps != ("all",)

    @abstractmethod
    def loss(self, batch: Batch, phase: Phase, classify: Classify) -> dict[str, Tensor]:
        """Return the loss terms by name, unweighted. Classify with `classify`: plug-ins may have wrapped it."""

    def classification(self, batch: Batch, phase: Phase, classify: Classify) -> dict[str, Tensor]:
        """The classification loss alone: an objective for stages without other terms."""
        return {"classification": classify(self.net(batch.x), batch.y).mean()}

    def weights(self, phase: Phase, stage: Stage) -> dict[str, float]:
        """The weight of each term in the objective; a term that is not named has weight 1."""
        return {}

    def decays(self, name: str, parameter: nn.Parameter) -> bool:
        """Whether the weight decay of a stage acts on a parameter that moves."""
        return True

    def begin(self, phase: Phase, pool: Pool) -> None:
        """Called before a phase, to let the head and other parts grow."""

    def stages(self, phase: Phase, base: Stage) -> list[Stage]:
        """The optimisations of a phase, one after the other."""
        return [base]

    def begin_stage(self, stage: Stage, phase: Phase, pool: Pool) -> None:
        """Called before a stage, outside any captured graph."""

    def at_epoch(self, stage: Stage, epoch: int) -> None:
        """Called before an epoch, outside any captured graph. Change only tensors: anything else is lost at a stop."""

    def graded(self, clock: Clock) -> None:
        """Called between backward and the optimiser's step."""

    def stepped(self, clock: Clock) -> None:
        """Called after the optimiser's step, while the gradients are still there."""

    def end(self, phase: Phase, pool: Pool, exemplars: Tensor) -> None:
        """Called after the last stage, once the exemplars are chosen, to refill a teacher or align weights."""

    def report(self, phase: Phase) -> dict[str, Tensor]:
        """Values of the method for the records, read once a phase, at its very end."""
        return {}

    def remember(self, phase: Phase, pool: Pool, exemplars: Tensor) -> None:
        """Fit the class means of the exemplars, for the nearest-mean readout, unless some class has no exemplar."""
        if len(exemplars) and bool((pool.counts(exemplars) > 0).all()):
            self.nearest.fit(self.net, pool, exemplars, phase.seen)

    def readouts(self, x: Tensor) -> dict[str, Tensor]:
        """(B, K) scores by readout: `cnn`, the network's own, and `nme`, by class means, once there are exemplars."""
        out = self.net(x)
        scores = {"cnn": out.logits if self.correction is None else self.correction(out.logits)}
        if len(self.nearest.means) == out.logits.shape[1]:
            scores["nme"] = self.nearest.scores(out.features)
        return scores

    def forward(self, x: Tensor) -> Tensor:
        """(B, K) scores of the readout that results are reported for; what a loaded model returns for images."""
        scores = self.readouts(x)
        return scores.get(self.readout, scores["cnn"])

    def parts_for_training(self) -> list[str]:
        """The names of teachers and of other parts that inference does not need."""
        return [*(name for name, part in self.named_modules() if isinstance(part, Teacher)), *self.training_only]

    def is_for_training(self, name: str) -> bool:
        """Whether a parameter or buffer belongs to a part that only training needs."""
        return any(has_name(name, part) for part in self.parts_for_training())

    def parameter_count(self) -> int:
        """The number of parameters kept for inference."""
        return sum(p.numel() for name, p in self.named_parameters() if not self.is_for_training(name))
