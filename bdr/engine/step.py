"""One training step: eager, compiled, or captured as a CUDA graph. One signature, and the only home of speed tricks.

A step finds its rows and their augmentation in the draws of the epoch, at the place where the clock stands, and leaves
the values of all loss terms in the epoch's log. Nothing in it is read by the host. In the captured form all of it is
one graph launch: gathering, augmenting, both networks (side by side), the losses, backward, optimiser and log; the
backbones, the augmentation and the functions marked in `bdr.fusing` are compiled.
"""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from bdr.data.pool import Epoch, Store
from bdr.engine.objective import Objective
from bdr.errors import BdrError, UsageError
from bdr.fusing import fusing, mark_growing
from bdr.nets.base import Backbone, Frozen, Network
from bdr.plugins.base import Plugin
from bdr.types import OPTIMIZERS, Batch, Clock, Stage

WARM_UPS = 3
VERSIONS = 64  # backbones of one kind share their compiled code, and each shape and mode of theirs is a version of it
SIDE_STREAMS = 3


class Step(Protocol):
    @property
    def names(self) -> tuple[str, ...]:
        """Of the values; known after the first step."""
        ...

    @property
    def log(self) -> Tensor:
        """(steps, terms) values of the epoch so far, on the device; there after the first step."""
        ...

    def open(self, epoch: Epoch, log: Tensor | None) -> None:
        """Takes in the draws of an epoch, and the values of steps that were made before a stop."""
        ...

    def __call__(self) -> None:
        """The step of the epoch that the clock stands at; the clock moves on."""
        ...


def taken(store: Store, epoch: Epoch, at: Tensor) -> tuple[Tensor, Tensor, Epoch]:
    """Images and labels of the step (1,) of an epoch, and its draws."""
    now = epoch.at(at)
    return store.augmented(now.rows, now.draws), store.labels[now.rows], now


def looked(plugin: Plugin, store: Store, rows: Tensor, drawn: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The further views of these images that a plug-in wants."""
    views = tuple(plugin.look(store, rows, drawn))
    if len(views) != plugin.views:
        raise BdrError(f"plug-in '{plugin.name}' wants {plugin.views} further views, and its `look` makes {len(views)}")
    return views


class EagerStep:
    """The step as it reads."""

    def __init__(
        self, objective: Objective, optimizer: torch.optim.Optimizer, store: Store, clock: Clock, clip: float | None
    ) -> None:
        self.objective, self.optimizer, self.store, self.clock, self.clip = objective, optimizer, store, clock, clip
        self.taken, self.looked = taken, looked
        self.names: tuple[str, ...] = ()
        self.epoch: Epoch | None = None
        self.values: Tensor | None = None
        self.seen: Callable[[Sequence[Tensor]], None] = lambda images: None  # told when the images of a batch are there

    def open(self, epoch: Epoch, log: Tensor | None) -> None:
        if self.epoch is None:
            self.epoch = epoch.each(torch.clone)
        for mine, theirs in zip(self.epoch.tensors(), epoch.tensors(), strict=True):
            mine.copy_(theirs)  # in place: a captured graph reads them where they were
        if log is not None:
            self.values = log.clone()

    @property
    def log(self) -> Tensor:
        assert self.values is not None, "no step was made yet"
        return self.values

    def __call__(self) -> None:
        at = self.clock.step.view(1)
        batch = self.batch(at)
        self.seen((batch.x, *batch.views))
        self.optimizer.zero_grad(set_to_none=True)
        terms, out = self.objective.terms(batch)
        self.objective.total(terms).backward()
        self.update()
        self.keep(at, terms | self.objective.watched(out, batch.y))
        self.clock.step.add_(1)

    def batch(self, at: Tensor) -> Batch:
        """What the epoch has drawn for this step, as plug-ins hand it on."""
        assert self.epoch is not None, "open an epoch first"
        x, y, now = self.taken(self.store, self.epoch, at)
        batch = Batch(x, y, now.rows, self.clock)
        views: list[Tensor] = []
        for plugin, drawn in zip(self.objective.plugins, now.plugins, strict=True):
            batch = plugin.batch(batch, drawn)
            views += self.looked(plugin, self.store, now.rows, drawn) if plugin.views else ()
        return batch._replace(views=tuple(views))

    def update(self) -> None:
        method = self.objective.method
        method.graded(self.clock)
        if self.clip is not None:
            moving = [p for group in self.optimizer.param_groups for p in group["params"]]
            nn.utils.clip_grad_norm_(moving, self.clip)
        self.optimizer.step()
        method.stepped(self.clock)
        for plugin in self.objective.plugins:
            plugin.stepped(method.net, self.clock)

    def keep(self, at: Tensor, values: dict[str, Tensor]) -> None:
        self.names = tuple(values)
        row = torch.stack([value.detach() for value in values.values()])
        if self.values is None:
            self.values = row.new_zeros(int(self.clock.steps), len(row))
        self.values.index_copy_(0, at, row[None])


class CompiledStep:
    """The same with compiled backbones, augmentation and losses; everything outside a step stays eager."""

    def __init__(self, step: EagerStep) -> None:
        self.step = step
        # The weights of a backbone are cast one by one; side by side, many such small kernels become one.
        options = {"combo_kernels": True} if step.store.device.type == "cuda" else None
        for module in (part for root in step.objective.parts for part in backbone_parts(root)):
            if module._compiled_call_impl is None:
                module.compile(dynamic=False, options=options)
        step.taken, step.looked = torch.compile(taken), torch.compile(looked)

    @property
    def names(self) -> tuple[str, ...]:
        return self.step.names

    @property
    def log(self) -> Tensor:
        return self.step.log

    def open(self, epoch: Epoch, log: Tensor | None) -> None:
        self.step.open(epoch, log)
        assert self.step.epoch is not None
        for tensor in self.step.epoch.tensors():
            mark_growing(tensor, 0)
            if tensor.dim() > 1:  # a stage of another batch is another version, and leaves that of this one as it is
                torch._dynamo.mark_static(tensor, 1)

    def __call__(self) -> None:
        with torch.compiler.set_stance("default"), fusing(), tried_convolutions():
            self.step()


def backbone_parts(module: nn.Module) -> Iterator[nn.Module]:
    """What is to be compiled of every backbone; one inside another is the outer one's to name."""
    if isinstance(module, Backbone):
        yield from module.to_compile()
    else:
        for child in module.children():
            yield from backbone_parts(child)


class GraphStep:
    """The step captured once a stage and replayed; what the warm-up moved is put back, so that it does not count."""

    def __init__(self, step: Step, eager: EagerStep, state: Iterable[Tensor]) -> None:
        self.step, self.eager, self.optimizer, self.open = step, eager, eager.optimizer, step.open
        self.state = list(state)
        self.graph: torch.cuda.CUDAGraph | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return self.step.names

    @property
    def log(self) -> Tensor:
        return self.step.log

    def __call__(self) -> None:
        if self.graph is None:
            with frozen_aside(self.eager):
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
        with torch.cuda.graph(graph):
            self.step()
        return graph

    @contextlib.contextmanager
    def undone(self) -> Iterator[None]:
        """Whatever happens inside leaves state, optimiser and random numbers as they were; new moments become zero."""
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


def tried_convolutions() -> contextlib.AbstractContextManager[object]:
    """Inside, cuDNN times all its algorithms once for every shape of convolution and keeps the fastest."""
    now = torch.backends.cudnn
    as_now = {"enabled": now.enabled, "deterministic": now.deterministic, "allow_tf32": now.allow_tf32}
    return now.flags(benchmark=True, benchmark_limit=0, **as_now)  # 0: no limit to how many


@contextlib.contextmanager
def frozen_aside(step: EagerStep) -> Iterator[None]:
    """Inside, frozen networks look at a batch on streams of their own, beside the network that learns and each other.

    A small batch leaves much of a GPU idle. The branch starts when the images are there and joins when its outputs are
    asked for; what else a frozen network may be shown depends on the main branch, and stays on it.
    """
    frozen = [m for part in step.objective.parts for m in part.modules() if isinstance(m, Frozen)]
    streams = [torch.cuda.Stream() for _ in frozen[:SIDE_STREAMS]]
    ready, shown = torch.cuda.Event(), list[Tensor]()
    said: list[object] = []  # kept until the step is over: their memory is a side stream's, and others read it

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


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]


def make_step(engine: str, eager: EagerStep, state: Iterable[Tensor], whole: bool = True) -> Step:
    """The step in the form that the engine names; batches that are not whole are not worth compiling for."""
    if engine == "eager":
        return eager
    compiled: Step = CompiledStep(eager) if whole and can_compile(eager.store.device) else eager
    return GraphStep(compiled, eager, state) if engine == "graph" else compiled


def make_optimizer(stage: Stage, parameters: Iterable[nn.Parameter], device: torch.device) -> torch.optim.Optimizer:
    moving = [p for p in parameters if p.requires_grad and p.numel()]
    if not moving:
        raise BdrError(f"stage '{stage.name}' moves no parameter: its `train` {stage.train} fits none")
    fast = device.type == "cuda"
    # A learning rate on the device can change without capturing the graph again.
    lr = torch.tensor(stage.lr, device=device) if fast else stage.lr
    if stage.optimizer == "adamw":
        return torch.optim.AdamW(moving, lr, weight_decay=stage.weight_decay, fused=fast, capturable=fast)
    if stage.optimizer == "sgd":
        return torch.optim.SGD(moving, lr, stage.momentum, weight_decay=stage.weight_decay, fused=fast or None)
    raise UsageError(f"no optimiser '{stage.optimizer}'; there are {', '.join(OPTIMIZERS)}")


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def give_back(device: torch.device) -> None:
    """What the graphs of a stage that is over still hold: other runs may want it."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


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


@contextlib.contextmanager
def eager_between_steps(engine: str) -> Iterator[None]:
    """Evaluation, herding and statistics come in many shapes: compiled only inside a step, eager elsewhere."""
    if engine == "eager":  # asking for a stance would import the compiler, which takes seconds
        yield
        return
    with torch.compiler.set_stance("force_eager"), many_versions():
        yield


def many_versions() -> contextlib.AbstractContextManager[object]:
    """Inside, code may be compiled for many shapes; for too many is an error rather than slow without a word.

    Around a run and not around a step: each such patch leaves a context variable behind for good.
    """
    return torch._dynamo.config.patch(recompile_limit=VERSIONS, fail_on_recompile_limit_hit=True)


def set_precision(part: nn.Module, precision: str, device: torch.device) -> None:
    """Backbones in bfloat16 under `bf16`; convolutions in TensorFloat-32 under `tf32`; channels last on a GPU."""
    for module in part.modules():
        if isinstance(module, Network):
            module.precision = torch.bfloat16 if precision == "bf16" else None
            module.tf32 = precision == "tf32"
        if isinstance(module, Backbone) and precision == "bf16":
            for layer in module.kept_elsewhere():
                layer.to(torch.bfloat16)  # as autocast would cast it, each time that it is used
    if device.type == "cuda":
        part.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


@contextlib.contextmanager
def convolving_as(part: nn.Module) -> Iterator[None]:
    """Inside, convolutions are as precise as the part's networks say; outside, as the process has them."""
    cudnn, before = torch.backends.cudnn, torch.backends.cudnn.allow_tf32
    cudnn.allow_tf32 = any(module.tf32 for module in part.modules() if isinstance(module, Network))
    try:
        yield
    finally:
        cudnn.allow_tf32 = before


def choose_precision(precision: str, device: torch.device) -> str:
    if precision == "auto":
        return "bf16" if device.type == "cuda" else "fp32"
    return precision
