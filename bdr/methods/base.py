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
    """Class means of the exemplars, and how near features are to them."""

    means: Tensor  # (K, D), normalised

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("means", torch.empty(0, 0))

    def layout(self) -> dict[str, Any]:
        return {"shape": list(self.means.shape)}

    def lay_out(self, layout: dict[str, Any]) -> None:
        self.means = torch.empty(layout["shape"], device=self.means.device)

    def fit(self, net: nn.Module, pool: Pool, exemplars: Tensor, classes: int) -> None:
        """The mean of normalised exemplar features, averaged with that of their mirror images where mirroring fits."""
        labels = pool.store.labels[exemplars]
        views = [False, True] if pool.store.augment.flip else [False]
        sums: Tensor | float = 0.0
        for mirrored in views:
            features = F.normalize(pool.outputs(net, exemplars, mirrored=mirrored).features)
            sums = sums + features.new_zeros(classes, features.shape[1]).index_add_(0, labels, features)
        self.means = F.normalize(torch.as_tensor(sums))

    def scores(self, features: Tensor) -> Tensor:
        """(B, K) minus the squared distances of normalised features to the class means."""
        unit = F.normalize(features)
        # Not torch.cdist: it goes another way from 25 rows on, and no model could be exported for batches of any size.
        square = unit.square().sum(1, keepdim=True) + self.means.square().sum(1)
        return 2 * F.linear(unit, self.means) - square


class ReadOffset(Resumable):
    """An offset a class on the network's scores when they are read, kept with the model; none until one is given."""

    by_class = ("offset",)
    offset: Tensor  # (K,)

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("offset", torch.zeros(0))

    def forward(self, scores: Tensor) -> Tensor:
        return scores + self.offset if len(self.offset) == scores.shape[1] else scores


class Present(Resumable):
    """The classes that a phase has images of: without exemplars the new ones, else all."""

    by_class = ("mask",)
    mask: Tensor  # (K,)

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.empty(0, dtype=torch.bool))

    def begin(self, pool: Pool) -> None:
        self.mask = pool.counts(pool.rows) > 0

    def cross_entropy(self, out: Outputs, y: Tensor) -> Tensor:
        """(B,) over the classes that are present; the others neither rise nor fall."""
        lowest = torch.finfo(out.logits.dtype).min  # finite: a mixture multiplies it by zero
        return cross_entropy(out._replace(logits=out.logits.masked_fill(~self.mask, lowest)), y)


@torch.no_grad()
def accustom(net: nn.Module, pool: Pool, batch: int = 128) -> None:
    """Batch norm gets used to weights that are new: its statistics move as in training, over one pass of the images.

    Parts that rest stay as they are.
    """
    for part in net.modules():
        part.training = any(p.requires_grad for p in part.parameters())
    for rows in pool.rows[torch.randperm(len(pool.rows)).to(pool.rows.device)].split(batch):
        net(pool.store.plain(rows))


def classified_and_distilled(
    net: nn.Module, teacher: nn.Module, batch: Batch, phase: Phase, classify: Classify, temperature: float
) -> dict[str, Tensor]:
    """Cross-entropy, and after the first phase the teacher's softened opinion of the old classes."""
    out = net(batch.x)
    terms = {"ce": classify(out, batch.y).mean()}
    if not phase.first:
        old = teacher(batch.x).logits
        terms["distillation"] = distillation(out.logits[:, : phase.old], old, temperature).mean()
    return terms


class Method(nn.Module, ABC):
    """Abstract; every subclass is final. `net` maps a batch of images to Outputs.

    `criterion` is what plug-ins stand around. It is a function of outputs for all seen classes and targets; a method
    whose classification loss covers some of them only slices inside it, so that offsets meet all of their logits.
    """

    net: nn.Module
    classes: tuple[str, ...]  # names in order of arrival; given by `bdr.load`, as are the next three
    image: ImageShape  # of the images that it takes
    mean: tuple[float, ...]  # of their channels, from 0 to 1: they are normalised so
    std: tuple[float, ...]
    criterion: Classify = staticmethod(cross_entropy)
    distillation: str | None = None  # the term of `loss` that holds on to the old network, for the analysis
    readout = "cnn"  # by which of the readouts its results are told; with "nme" a memory of none is refused
    scale_setting: str | None = None  # the setting from which the scale of its cosine classifier starts to grow
    held = 0.0  # share of the exemplars held out of training, for stages that draw "held"
    optional_stages: tuple[str, ...] = ()  # those that a setting of the method leaves out
    later: tuple[str, ...] = ()  # settings that nothing reads in the first phase: runs that differ in them share it
    counts_parameters = False  # whether the backbone must have all of its parameters from the start
    keeps: tuple[str, ...] = ("none", "some", "all")  # of the images of earlier classes; other memories are refused
    training_only: tuple[str, ...] = ()  # parts and buffers that inference does without; none of its parameters
    softmax = True  # its criterion lets the logits of all classes compete
    soft_targets = True  # its losses take mixtures of classes (B, K) as well as ids (B,)

    def __init__(self) -> None:
        super().__init__()
        self.nearest = NearestMeans()
        self.correction: ReadOffset | None = None  # given to the model of a run whose plug-ins want it

    @property
    def extensible(self) -> bool:
        """Whether a finished run of it can go on from its exemplars: not where nothing less than all images will do."""
        return self.keeps != ("all",)

    @abstractmethod
    def loss(self, batch: Batch, phase: Phase, classify: Classify) -> dict[str, Tensor]:
        """Named terms, unweighted. `classify` is the classification loss to use: plug-ins may stand around it."""

    def classification(self, batch: Batch, phase: Phase, classify: Classify) -> dict[str, Tensor]:
        """The classification loss alone: an objective for stages that concern no other term."""
        return {"classification": classify(self.net(batch.x), batch.y).mean()}

    def weights(self, phase: Phase, stage: Stage) -> dict[str, float]:
        """How much each term counts in the objective; 1 where nothing is said."""
        return {}

    def decays(self, name: str, parameter: nn.Parameter) -> bool:
        """Whether the weight decay of a stage acts on a parameter that moves."""
        return True

    def begin(self, phase: Phase, pool: Pool) -> None:
        """Before a phase: grow."""

    def stages(self, phase: Phase, base: Stage) -> list[Stage]:
        """The optimisations of a phase, one after the other."""
        return [base]

    def begin_stage(self, stage: Stage, phase: Phase, pool: Pool) -> None:
        """Before a stage, outside any captured graph."""

    def at_epoch(self, stage: Stage, epoch: int) -> None:
        """Before an epoch, outside any captured graph; what it changes lives in tensors, or is lost at a stop."""

    def graded(self, clock: Clock) -> None:
        """Between backward and the optimiser's step."""

    def stepped(self, clock: Clock) -> None:
        """After the optimiser's step, gradients still there."""

    def end(self, phase: Phase, pool: Pool, exemplars: Tensor) -> None:
        """After the last stage, once the exemplars are chosen: refill a teacher, align weights."""

    def report(self, phase: Phase) -> dict[str, Tensor]:
        """Numbers about itself for the records, read once a phase, at its very end."""
        return {}

    def remember(self, phase: Phase, pool: Pool, exemplars: Tensor) -> None:
        """The class means of the exemplars, for the nearest-mean readout; none where a class has no exemplar."""
        if len(exemplars) and bool((pool.counts(exemplars) > 0).all()):
            self.nearest.fit(self.net, pool, exemplars, phase.seen)

    def readouts(self, x: Tensor) -> dict[str, Tensor]:
        """(B, K) scores by name: the network's own, and the nearest class mean once there are exemplars."""
        out = self.net(x)
        scores = {"cnn": out.logits if self.correction is None else self.correction(out.logits)}
        if len(self.nearest.means) == out.logits.shape[1]:
            scores["nme"] = self.nearest.scores(out.features)
        return scores

    def forward(self, x: Tensor) -> Tensor:
        """(B, K) scores of the readout by which the method's results are told: what a loaded model says of images."""
        scores = self.readouts(x)
        return scores.get(self.readout, scores["cnn"])

    def parts_for_training(self) -> list[str]:
        """Teachers, and what else inference does without, by name."""
        return [*(name for name, part in self.named_modules() if isinstance(part, Teacher)), *self.training_only]

    def is_for_training(self, name: str) -> bool:
        """Whether a parameter or buffer belongs to them."""
        return any(has_name(name, part) for part in self.parts_for_training())

    def parameter_count(self) -> int:
        """Parameters kept for inference."""
        return sum(p.numel() for name, p in self.named_parameters() if not self.is_for_training(name))
