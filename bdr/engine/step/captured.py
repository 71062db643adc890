"""A step captured as one CUDA graph."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from bdr.data.pool import Epoch
from bdr.engine.step.eager import EagerStep, Step
from bdr.engine.step.optimizer import optimizer_tensors
from bdr.engine.step.paired import Paired, paired_forms
from bdr.engine.step.resting import Resting, resting_forms, running
from bdr.nets.base import Frozen

WARM_UPS = 3
SIDE_STREAMS = 3


class GraphStep:
    """The step captured once per stage and replayed; what the warm-up changes is put back, so it does not count."""

    def __init__(self, step: Step, eager: EagerStep) -> None:
        self.step, self.eager, self.optimizer = step, eager, eager.optimizer
        self.state = state_of(eager)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.contents: list[object] = []  # of the frozen parts when the graph was captured
        self.forms: list[Resting | Paired] = []  # held as long as the graph, which reads the weights of some

    def open(self, epoch: Epoch, log: Tensor | None) -> None:
        """Open an epoch; capture again if a frozen part was refilled, for the graph has its old weights folded in."""
        now = [frozen.content for frozen in frozen_parts(self.eager)]
        if now != self.contents:
            self.graph, self.contents = None, now
        self.step.open(epoch, log)

    def __call__(self) -> None:
        if self.graph is None:
            self.forms = forms_of(self.eager)
            with running(self.forms), frozen_aside(self.eager):
                self.graph = self.capture()
        self.graph.replay()

    def capture(self) -> torch.cuda.CUDAGraph:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                with self.undone():
                    self.step()
        torch.cuda.current_stream().wait_stream(side)
        self.optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):  # torch's default stays on the GPU of the first capture
            self.step()
        return graph

    @contextlib.contextmanager
    def undone(self) -> Iterator[None]:
        """Afterwards, state, optimiser and random numbers are as they were before; new moments become zero."""
        before = [tensor.detach().clone() for tensor in self.state]
        moments = {id(t): t.clone() for t in optimizer_tensors(self.optimizer)}
        random = torch.cuda.get_rng_state()
        yield
        torch.cuda.set_rng_state(random)
        with torch.no_grad():
            for tensor, value in zip(self.state, before, strict=True):
                tensor.copy_(value)
            for tensor in optimizer_tensors(self.optimizer):
                tensor.copy_(moments[id(tensor)]) if id(tensor) in moments else tensor.zero_()


def forms_of(step: EagerStep) -> list[Resting | Paired]:
    """The other forms that a step can call its networks in; two branches at rest are joined by the resting form."""
    resting = resting_forms(step)
    rest = {form.net for form in resting}
    return [*resting, *(form for form in paired_forms(step) if form.net not in rest)]


def state_of(step: EagerStep) -> list[Tensor]:
    """All tensors that a step may change, apart from the moments of its optimiser."""
    parts = [tensor for part in step.objective.parts for tensor in part.state_dict(keep_vars=True).values()]
    return [*parts, *(now for now in step.clock if isinstance(now, Tensor))]


def frozen_parts(step: EagerStep) -> list[Frozen[Any]]:
    return [module for part in step.objective.parts for module in part.modules() if isinstance(module, Frozen)]


@contextlib.contextmanager
def frozen_aside(step: EagerStep) -> Iterator[None]:
    """Inside, frozen networks run on streams of their own, in parallel with the network that learns and each other.

    A small batch leaves much of a GPU idle. A side stream starts when the images of the batch are ready, and is joined
    when its outputs are asked for. Any other input of a frozen network depends on the main stream, and stays on it.
    """
    frozen = frozen_parts(step)
    streams = [torch.cuda.Stream() for _ in frozen[:SIDE_STREAMS]]
    ready, shown = torch.cuda.Event(), list[Tensor]()
    said: list[object] = []  # kept until the step is over: their memory belongs to a side stream, and others read it

    def seen(images: Sequence[Tensor]) -> None:
        shown[:] = images
        said.clear()
        ready.record()

    def aside(forward: Callable[[Tensor], Any], stream: torch.cuda.Stream) -> Callable[[Tensor], Any]:
        def run(x: Tensor) -> Any:
            if not any(x is image for image in shown):
                return forward(x)
            stream.wait_event(ready)
            with torch.cuda.stream(stream):
                out = forward(x)
            torch.cuda.current_stream().wait_stream(stream)
            said.append(out)
            return out

        return run

    before, step.seen = step.seen, seen
    for module, stream in zip(frozen, itertools.cycle(streams)):
        module.forward = aside(module.forward, stream)  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        step.seen = before
        for module in frozen:
            del module.forward


def give_back(device: torch.device) -> None:
    """Free the memory that the graphs of a finished stage still hold: other runs may want it."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
