"""A method and its plug-ins as one objective: named terms of a batch, their weights, and what is watched besides."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call

from bdr.errors import BdrError
from bdr.fusing import fused
from bdr.losses import old_mass, softmax_loss
from bdr.methods.base import Method
from bdr.plugins.base import Plugin, compose
from bdr.records.steps import ANALYSED, CE_OLD
from bdr.types import Batch, Classify, Outputs, Phase, Stage


def kind_of(value: object) -> str:
    """The shape of a tensor, as `(64, 10)`, else the type, as `list`: for errors about what a user's code returned."""
    return str(tuple(value.shape)) if isinstance(value, Tensor) else type(value).__name__


def checked(terms: object, seam: str, whose: str) -> dict[str, Tensor]:
    """The terms that a method or a plug-in made of a batch; checked, since a user's own code may be wrong."""
    if not isinstance(terms, dict):
        kind = type(terms).__name__
        raise BdrError(f"`{seam}` of {whose} must return named terms, {{'ce': ...}}, and returned a {kind}")
    for name, value in terms.items():
        if not isinstance(value, Tensor):
            kind = type(value).__name__
            raise BdrError(f"term '{name}' of {whose} must be a tensor, and is a {kind}: leave out .item() or float()")
        if value.dim():
            raise BdrError(f"term '{name}' of {whose} must be one number, and is {tuple(value.shape)}: average it")
    return dict(terms)


@fused(logits=1, y=1)
def weighted_loss(logits: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """The mean cross-entropy of samples, each counted by its weight (B,); NaN if none counts."""
    return (softmax_loss(logits, y) * weight).sum() / weight.sum()


def old_loss(objective: Objective, out: Outputs, y: Tensor) -> dict[str, Tensor]:
    """The un-shifted cross-entropy of the batch's old-class samples; NaN where there are none."""
    return {CE_OLD: weighted_loss(out.logits, y, old_mass(y, objective.phase.old))}


def copied(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies of all tensors, made at once: one by one, each of many small tensors would cost a kernel."""
    copies = {name: torch.empty_like(tensor) for name, tensor in tensors.items()}
    if tensors:  # torch refuses to copy nothing
        torch._foreach_copy_(list(copies.values()), list(tensors.values()))
    return copies


def weighed(whose: str, weights: object) -> dict[str, float]:
    """How much each term of a method or a plug-in counts; checked, since a user's own code may be wrong."""
    if isinstance(weights, dict):
        return dict(weights)
    raise BdrError(f"`weights` of {whose} must return a number by term, {{}} for none, and returned {weights!r}")


def owner(plugin: Plugin) -> str:
    return f"plug-in '{plugin.name}'"


def refuse_names(plugin: Plugin, own: Iterable[str], there: Iterable[str]) -> None:
    """Refuse a name that is there already: one of the two values would be missing in the records, or in the loss."""
    if twice := set(own).intersection(there):
        raise BdrError(f"{owner(plugin)} names a term that is there already: {', '.join(sorted(twice))}")


Views = Sequence[tuple[Tensor, ...]]  # the further views of a batch, a tuple for each plug-in


class Objective:
    """What a stage minimises, and what is watched meanwhile."""

    def __init__(
        self,
        method: Method,
        plugins: Sequence[Plugin],
        phase: Phase,
        stage: Stage,
        watches: Sequence[Watch] = (old_loss,),
        criterion: Classify | None = None,  # instead of the method's own
    ) -> None:
        self.method, self.phase, self.stage, self.watches = method, phase, stage, watches
        self.plugins = [plugin for plugin in plugins if plugin.acts(phase, stage)]
        self.parts: list[nn.Module] = [method, *self.plugins]
        self.loss = getattr(method, stage.loss)
        self.around = compose(criterion or method.criterion, self.plugins)
        name = type(method).__name__
        self.weights_of = {name: weighed(name, method.weights(phase, stage))}
        self.added_weights = [weighed(owner(plugin), plugin.weights(phase, stage)) for plugin in self.plugins]
        self.weights_of |= dict(zip(map(owner, self.plugins), self.added_weights, strict=True))
        self.weights = {name: weight for mine in self.weights_of.values() for name, weight in mine.items()}
        self.counted: dict[str, float] = {}  # the weight of every term, known from the first step on
        self.factors: Tensor | None = None  # the same on the device

    def terms(self, batch: Batch, views: Views = ()) -> tuple[dict[str, Tensor], Outputs | None]:
        """All terms by name, unweighted, and the outputs that were classified."""
        heard: list[Outputs] = []
        handed = self.handed(batch, views)

        def classify(out: Outputs, y: Tensor) -> Tensor:
            if not heard:  # a method may classify more than once, but state moves once per batch
                heard.append(out)
                for plugin, mine in handed:
                    plugin.observe(mine, out)
            return self.around(out, y)

        terms = checked(self.loss(batch, self.phase, classify), self.stage.loss, type(self.method).__name__)
        out = heard[0] if heard else None
        whose: dict[str, Plugin | None] = dict.fromkeys(terms)  # None: the method's own
        for plugin, mine in handed:
            if out is None:
                raise BdrError(f"the method never calls `classify`, so plug-in '{plugin.name}' has nothing to act on")
            own = checked(plugin.terms(mine, out, self.beside), "terms", owner(plugin))
            refuse_names(plugin, own, terms)
            terms.update(own)
            whose.update(dict.fromkeys(own, plugin))
        if not self.counted:  # a stage has the same terms in every step: the first shows them
            self.refuse_foreign_weights(whose)
            self.counted = {name: self.weights.get(name, 1.0) for name in terms}
        return terms, out

    def refuse_foreign_weights(self, whose: dict[str, Plugin | None]) -> None:
        """Refuse a plug-in that weighs a term not its own: it could weaken what the method distils or another adds."""
        for plugin, named in zip(self.plugins, self.added_weights, strict=True):
            if others := [term for term in named if whose.get(term, plugin) is not plugin]:
                raise BdrError(f"{owner(plugin)} weighs a term that is not its own: {', '.join(others)}")

    def handed(self, batch: Batch, views: Views) -> list[tuple[Plugin, Batch]]:
        """Each plug-in with the batch as it gets it: with its own further views, or without any if none were made."""
        each = views or [()] * len(self.plugins)
        return [(plugin, batch._replace(views=mine)) for plugin, mine in zip(self.plugins, each, strict=True)]

    def beside(self, x: Tensor) -> Outputs:
        """The network's outputs for further images, which do not change the running statistics that inference reads."""
        buffers = copied(dict(self.method.net.named_buffers()))
        out: Outputs = functional_call(self.method.net, buffers, (x,))
        return out

    def total(self, terms: dict[str, Tensor]) -> Tensor:
        """The weighted sum of the terms; a stage has the same terms in every step."""
        values = torch.stack(list(terms.values()))
        if self.factors is None:
            self.factors = values.new_tensor([self.counted[name] for name in terms])
        return (self.factors * values).sum()

    @torch.no_grad()
    def watched(self, out: Outputs | None, batch: Batch, views: Views = ()) -> dict[str, Tensor]:
        """Values of the batch that are not minimised, by name: the plug-ins' and, after the first phase, our own."""
        if out is None:
            return {}
        found: dict[str, Tensor] = {}
        for plugin, mine in self.handed(batch, views):  # plug-ins first: ours use the loss as it is between batches
            own = checked(plugin.watch(mine, out), "watch", owner(plugin))
            refuse_names(plugin, own, (*self.counted, *found, CE_OLD, *ANALYSED))
            found |= own
        for watch in () if self.phase.first else self.watches:
            found |= watch(self, out, batch.y)
        return found


Watch = Callable[[Objective, Outputs, Tensor], dict[str, Tensor]]  # the objective, outputs and targets of a batch
