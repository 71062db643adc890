"""One training step: eager, compiled, or captured as a CUDA graph. One signature, and the only home of speed tricks.

A step takes the rows of a batch and their augmentation draws, and returns the values of all loss terms as one tensor on
the device. Nothing in it is read by the host. In the captured form, gathering, augmenting, both networks, the losses,
backward and the optimiser are one graph launch; the backbones and the augmentation inside it are compiled.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Iterator
from typing import Protocol

import torch
from torch import Tensor, nn

from bdr.data.augment import Draws
from bdr.data.pool import Store
from bdr.engine.objective import WATCHED, Objective
from bdr.errors import UsageError
from bdr.nets.base import Backbone, Network
from bdr.types import Batch, Clock

ENGINES = ("eager", "compile", "graph")
PRECISIONS = ("fp32", "tf32", "bf16")
WARM_UPS = 3


class Step(Protocol):
    @property
    def names(self) -> tuple[str, ...]:
        """Of the values; known after the first call."""
        ...

    def __call__(self, rows: Tensor, draws: Draws) -> Tensor: ...


class EagerStep:
    """The step as it reads."""

    def __init__(
        self, objective: Objective, optimizer: torch.optim.Optimizer, store: Store, clock: Clock, clip: float | None
    ) -> None:
        self.objective, self.optimizer, self.store, self.clock, self.clip = objective, optimizer, store, clock, clip
        self.augmented = store.augmented
        self.names: tuple[str, ...] = ()

    def __call__(self, rows: Tensor, draws: Draws) -> Tensor:
        batch = Batch(self.augmented(rows, draws), self.store.labels[rows], rows, self.clock)
        self.optimizer.zero_grad(set_to_none=True)
        terms, out = self.objective.terms(batch)
        self.objective.total(terms).backward()
        self.update()
        watched = self.objective.watched(out, batch.y)
        values = terms if watched is None else terms | {WATCHED: watched}
        self.names = tuple(values)
        self.clock.step.add_(1)
        return torch.stack([value.detach() for value in values.values()])

    def update(self) -> None:
        method = self.objective.method
        method.graded(self.clock)
        if self.clip is not None:
            moving = [p for group in self.optimizer.param_groups for p in group["params"]]
            nn.utils.clip_grad_norm_(moving, self.clip)
        self.optimizer.step()
        method.stepped(self.clock)
        for plugin in self.objective.plugins:
            plugin.stepped(method.net)


class CompiledStep:
    """The same with compiled backbones and augmentation; everything outside a step stays eager."""

    def __init__(self, step: EagerStep) -> None:
        self.step = step
        # Backbones of one kind share their compiled code, and each shape and mode of theirs is a version of it.
        torch._dynamo.config.recompile_limit = 64
        for module in step.objective.method.modules():
            if isinstance(module, Backbone) and module._compiled_call_impl is None:
                module.compile(dynamic=False)
        step.augmented = torch.compile(step.store.augmented, dynamic=False)

    @property
    def names(self) -> tuple[str, ...]:
        return self.step.names

    def __call__(self, rows: Tensor, draws: Draws) -> Tensor:
        with torch.compiler.set_stance("default"):
            return self.step(rows, draws)


class GraphStep:
    """The step captured once a stage and replayed; what the warm-up moved is put back, so that it does not count."""

    def __init__(self, step: Step, state: Iterable[Tensor], optimizer: torch.optim.Optimizer) -> None:
        self.step, self.optimizer = step, optimizer
        self.state = list(state)
        self.graph: torch.cuda.CUDAGraph | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return self.step.names

    def __call__(self, rows: Tensor, draws: Draws) -> Tensor:
        if self.graph is None:
            self.capture(rows, draws)
        assert self.graph is not None
        self.rows.copy_(rows)
        for mine, theirs in zip(self.draws, draws, strict=True):
            mine.copy_(theirs)
        self.graph.replay()
        return self.values

    def capture(self, rows: Tensor, draws: Draws) -> None:
        self.rows, self.draws = rows.clone(), Draws(*(column.clone() for column in draws))
        with self.undone():
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(WARM_UPS):
                    self.step(self.rows, self.draws)
            torch.cuda.current_stream().wait_stream(side)
            self.optimizer.zero_grad(set_to_none=True)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self.values = self.step(self.rows, self.draws)
        self.graph = graph

    @contextlib.contextmanager
    def undone(self) -> Iterator[None]:
        """Whatever happens inside leaves state and optimiser as they were; the optimiser's new buffers become zero."""
        before = [tensor.detach().clone() for tensor in self.state]
        moments = {id(t): t.clone() for t in optimizer_tensors(self.optimizer)}
        yield
        with torch.no_grad():
            for tensor, value in zip(self.state, before, strict=True):
                tensor.copy_(value)
            for tensor in optimizer_tensors(self.optimizer):
                tensor.copy_(moments[id(tensor)]) if id(tensor) in moments else tensor.zero_()


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]


def make_step(engine: str, eager: EagerStep, state: Iterable[Tensor]) -> Step:
    """The step in the form that the engine names."""
    if engine == "eager":
        return eager
    compiled: Step = CompiledStep(eager) if can_compile(eager.store.device) else eager
    return GraphStep(compiled, state, eager.optimizer) if engine == "graph" else compiled


def choose_engine(engine: str, device: torch.device) -> str:
    """What `auto` means here, and a refusal of what cannot be."""
    if engine == "auto":
        return "graph" if device.type == "cuda" else "eager"
    if engine == "graph" and device.type != "cuda":
        raise UsageError(
            f"the engine 'graph' needs a CUDA device and this is '{device}'; use --engine eager or compile"
        )
    return engine


def can_compile(device: torch.device) -> bool:
    if device.type != "cuda":
        return True
    from torch.utils._triton import has_triton

    if not has_triton():
        warnings.warn("Triton is missing, so nothing is compiled: steps will take about a quarter longer", stacklevel=2)
    return has_triton()


def eager_between_steps(engine: str) -> contextlib.AbstractContextManager[object]:
    """Evaluation, herding and statistics come in many shapes: compiled only inside a step, eager elsewhere."""
    if engine == "eager":  # asking for a stance would import the compiler, which takes seconds
        return contextlib.nullcontext()
    return torch.compiler.set_stance("force_eager")


def set_precision(method: nn.Module, precision: str, device: torch.device) -> None:
    """Backbones in bfloat16 under `bf16`; convolutions in TensorFloat-32 under `tf32`; channels last on a GPU."""
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    for module in method.modules():
        if isinstance(module, Network):
            module.precision = torch.bfloat16 if precision == "bf16" else None
    if device.type == "cuda":
        method.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def choose_precision(precision: str, device: torch.device) -> str:
    if precision == "auto":
        return "bf16" if device.type == "cuda" else "fp32"
    return precision
