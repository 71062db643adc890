"""What `--analyse` measures during a run: how old and new samples pull at the last layer, and where old classes move.

The paper's theorem 1 bounds the destruction of old knowledge by the gradient of the mean classification loss, and this
gradient from below by the contributions of old and new samples; the bound is reached where both are equal:

    dL/dW = 1/B ( sum_{i old} g_i f_i^T + sum_{i new} g_i f_i^T ),      g_i = dl_i/dz_i

W is the last layer, z = W f, l the classification loss used in training. The norms of the two parts are recorded.
Under a cosine head f is the unit feature times eta, and W the unit embeddings, whether they are trained or not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bdr.data.pool import Pool
from bdr.engine.checkpoint import State, prefixed, taken_out
from bdr.engine.listen import EpochLog
from bdr.engine.objective import Objective, Watch, old_loss, weighted_loss
from bdr.fusing import fused
from bdr.losses import old_mass
from bdr.metrics import short_window
from bdr.records.steps import CE_NEW, CE_OLD, GRADIENTS
from bdr.types import Outputs, Stage

CLASSES = 10  # a plot of more could not be read
DIMENSIONS = 50  # the usual number of inputs to t-SNE
EARLY = 0.3  # the share of a stage, from its start, in which the peak is looked for
LOOKS = 4  # how often an epoch looks for the peak: each time, a GPU has to wait for the host


def gradient_norms(objective: Objective, out: Outputs, y: Tensor) -> dict[str, Tensor]:
    """How hard the old and the new samples of a batch pull at the last layer; NaN if there are none."""
    with torch.enable_grad():
        scores = scores_of(out).detach().requires_grad_()
        loss = objective.around(read_again(out, scores), y)
        (pull,) = torch.autograd.grad(loss.sum(), scores)
    norms = norms_of_parts(pull, out.features, out.scale, old_mass(y, objective.phase.old))
    return dict(zip(GRADIENTS, norms.unbind(), strict=True))


def new_loss(objective: Objective, out: Outputs, y: Tensor) -> dict[str, Tensor]:
    """The un-shifted cross-entropy of the batch's new samples, as `old_loss` is that of the old ones."""
    return {CE_NEW: weighted_loss(out.logits, y, 1 - old_mass(y, objective.phase.old))}


def watches_of(number: int, analysed: bool) -> tuple[Watch, ...]:
    """What is watched in stage `number` of a phase: more than the loss on old classes if it is first and analysed."""
    return (old_loss, new_loss, gradient_norms) if analysed and number == 0 else (old_loss,)


def scores_of(out: Outputs) -> Tensor:
    """(E, B, K) the logits of every expert; without experts, E is 1."""
    return out.logits[None] if out.experts is None else out.experts


def read_again(out: Outputs, scores: Tensor) -> Outputs:
    """The same outputs, computed from these scores and nothing else, so that gradients end there."""
    scale = out.scale.detach() if isinstance(out.scale, Tensor) else out.scale
    experts = None if out.experts is None else scores
    return Outputs(scores.mean(0) if experts is not None else scores[0], out.features.detach(), scale, experts=experts)


@fused(pull=2)
def norms_of_parts(pull: Tensor, features: Tensor, scale: Tensor | float, old: Tensor) -> Tensor:
    """(2,) norms of what old and new samples add to the last layer's gradient.

    `pull` is g (E, B, K), `features` are (B, E D), `scale` is a tensor under a cosine head, and `old` (B,) says how
    much of each sample belongs to old classes.
    """
    inputs = features.unflatten(1, (len(pull), -1)).transpose(0, 1)  # (E, B, D): each expert reads its own features
    if isinstance(scale, Tensor):
        inputs = scale * F.normalize(inputs, dim=2)
    shares = torch.stack([old, 1 - old])
    slopes = (shares[:, None, :, None] * pull).transpose(2, 3) @ inputs  # (2, E, K, D)
    norms = slopes.square().sum((1, 2, 3)).sqrt() / pull.shape[1]
    return norms.masked_fill(shares.sum(1) == 0, math.nan)


def spread_evenly(classes: int) -> list[int]:
    """The ids of at most ten classes, spread evenly over all: the same ones whatever is trained."""
    return sorted({round(place) for place in np.linspace(0, classes - 1, min(CLASSES, classes))})


def principal_axes(features: Tensor) -> Tensor:
    """(D, 50) the directions in which centred features (N, D) differ most; the identity if D is 50 or less."""
    if features.shape[1] <= DIMENSIONS:
        return torch.eye(features.shape[1], device=features.device)
    return torch.linalg.eigh(features.T @ features).eigenvectors[:, -DIMENSIONS:].flip(1).contiguous()


def is_early(stage: Stage, epoch: int) -> bool:
    return epoch < math.ceil(EARLY * stage.epochs)


def is_due(step: int, steps: int) -> bool:
    """Whether the peak is to be looked for after this step: whether one more of the epoch's equal parts is over."""
    return step * LOOKS // steps > (step - 1) * LOOKS // steps


def copied(net: nn.Module) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in (*net.parameters(), *net.buffers())]


@torch.no_grad()
def refill(net: nn.Module, held: Sequence[Tensor]) -> None:
    """Copy the held weights back in place: a captured graph reads them where they were."""
    for tensor, value in zip((*net.parameters(), *net.buffers()), held, strict=True):
        tensor.copy_(value)


@contextmanager
def as_it_was(net: nn.Module, held: Sequence[Tensor]) -> Iterator[None]:
    """Inside, the network has the weights of an earlier moment."""
    now = copied(net)
    refill(net, held)
    try:
        yield
    finally:
        refill(net, now)


class Snapshots:
    """Features of all training images of some first-phase classes, exemplars or not, in a later phase's first stage.

    They are taken at the start, at the peak and at the end of the stage. Where the peak lies is known only afterwards:
    at every new maximum of the mean over a quarter of an epoch, a copy of the weights replaces the one held before, and
    the features are computed with the last copy.
    """

    def __init__(
        self, net: nn.Module, pool: Pool, first: int, exemplars: Sequence[int], distillation: str | None = None
    ) -> None:
        self.net, self.pool, self.distillation, labels = net, pool, distillation, pool.store.labels
        self.classes = spread_evenly(first)  # old in every later phase, so that one can follow them
        self.rows = torch.isin(labels, torch.tensor(self.classes, device=labels.device)).nonzero().flatten()
        self.exemplar = np.isin(self.rows.cpu().numpy(), list(exemplars))
        self.steps: dict[str, int] = {}  # the number made before each moment
        self.seen: dict[str, Tensor] = {}  # projected features at each moment, and the mean and axes of the projection
        self.highest: float | None = None
        self.before = np.zeros(0, np.float32)  # the series in the epoch that ended last: a window may begin there
        self.held: list[Tensor] = []

    def start(self) -> None:
        features = self.look()
        self.seen = {"mean": features.mean(0), "axes": principal_axes(features - features.mean(0))}
        self.take("start", 0, features)

    def look(self) -> Tensor:
        """(N, D) the features of the images, with the network as it is now."""
        return self.pool.outputs(self.net, self.rows).features.float()

    def take(self, moment: str, step: int, features: Tensor) -> None:
        self.seen[moment] = ((features - self.seen["mean"]) @ self.seen["axes"]).half()
        self.steps[moment] = step

    def series(self, names: Sequence[str]) -> str:
        """The series whose peak is looked for: the distillation term, or the loss on old classes if there is none."""
        return self.distillation if self.distillation is not None and self.distillation in names else CE_OLD

    def step_ends(self, stage: Stage, epoch: int, step: int, names: Sequence[str], log: Tensor) -> None:
        """Look for the peak between two steps of an early epoch, if this is due: it reads the device."""
        if is_early(stage, epoch) and is_due(step, len(log)):
            now = log[:step, names.index(self.series(names))].cpu().numpy()
            self.hold(now, len(log), epoch * len(log) + step)

    def epoch_ends(self, stage: Stage, log: EpochLog) -> None:
        steps = (log.epoch + 1) * len(log.values)
        if is_early(stage, log.epoch):
            now = log.term(self.series(log.names)).copy()
            self.hold(now, len(now), steps)
            self.before = now
        if log.epoch + 1 == stage.epochs:
            self.take("end", steps, self.look())

    def hold(self, now: np.ndarray, steps_per_epoch: int, steps: int) -> None:
        """Hold a copy of the weights if the mean over a short window is a new maximum; `now` is this epoch so far."""
        length = short_window(steps_per_epoch)
        window = np.concatenate([self.before, now])[-length:]
        told = len(window) == length and np.isfinite(window).any()
        value = float(np.nanmean(window)) if told else -math.inf
        if value > (-math.inf if self.highest is None else self.highest):
            self.highest, self.steps["peak"] = value, steps
            self.held = copied(self.net)

    def develop(self) -> None:
        """Take the features with the weights that are held, and let these go."""
        if self.held:
            with as_it_was(self.net, self.held):
                self.take("peak", self.steps["peak"], self.look())
            self.held = []

    def arrays(self) -> dict[str, np.ndarray]:
        """All that was taken, for the records."""
        self.develop()
        moments = [moment for moment in ("start", "peak", "end") if moment in self.steps]
        labels = self.pool.store.labels[self.rows].cpu().numpy()
        found = {"labels": labels, "exemplar": self.exemplar, "classes": np.array(self.classes)}
        found |= {f"{moment}_features": self.seen[moment].cpu().numpy() for moment in moments}
        return found | {f"{moment}_step": np.array(self.steps[moment]) for moment in moments}

    def state(self) -> State:
        self.develop()
        info: dict[str, Any] = {"steps": dict(self.steps), "highest": self.highest}
        tensors = prefixed("snapshots", self.seen) | prefixed("series", {"before": torch.from_numpy(self.before)})
        return State(tensors, {"snapshots": info})

    def restore(self, state: State) -> None:
        self.steps, self.highest = state.info["snapshots"]["steps"], state.info["snapshots"]["highest"]
        self.before = taken_out("series", state.tensors)["before"].cpu().numpy()
        tensors = taken_out("snapshots", state.tensors)
        self.seen = {name: tensor.to(self.rows.device) for name, tensor in tensors.items()}
