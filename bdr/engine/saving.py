"""All that a run is at one moment, how it takes that up again, and what it takes over from others.

That is a first phase that equal runs share, or all phases of the run that it extends.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from bdr.engine.checkpoint import (
    Position,
    State,
    module_state,
    optimizer_state,
    position_info,
    prefixed,
    read_state,
    restore_module,
    restore_optimizer,
    with_prefix,
    write_state,
)
from bdr.engine.fit import Fit
from bdr.errors import BdrError
from bdr.methods.base import Method
from bdr.nets.base import Frozen
from bdr.plugins.base import Plugin
from bdr.records import Run

if TYPE_CHECKING:
    from bdr.engine.run import Experiment


def modules_of(run: Experiment) -> dict[str, Method | Plugin]:
    return {"method": run.method} | {f"plugins.{plugin.name}": plugin for plugin in run.plugins}


def resting_in(run: Experiment) -> dict[str, object]:
    """The parts at rest, by what the names of their tensors begin with; one inside another belongs to that."""
    found: dict[str, object] = {}
    for name, module in modules_of(run).items():
        for part, frozen in module.named_modules():
            start = f"{name}:{part}."
            if isinstance(frozen, Frozen) and frozen.rests and not start.startswith(tuple(found)):
                found[start] = frozen.content
    return found


def state_of(run: Experiment, fits: Mapping[str, Fit], log: Tensor | None) -> State:
    """The modules, the moments of what is being fitted, by name, and an epoch that is half-way."""
    tensors: dict[str, Tensor] = {}
    info: dict[str, Any] = {"position": position_info(run.position), "offsets": run.writer.offsets()}
    for name, module in modules_of(run).items():
        mine = module_state(module)
        tensors |= prefixed(name, mine.tensors)
        info[name] = mine.info
    for name, fit in fits.items():
        tensors |= prefixed(name, optimizer_state(fit.optimizer))
    if log is not None:
        tensors |= {"log:values": log, "rng:cpu": torch.get_rng_state()}
        if run.device.type == "cuda":
            tensors["rng:cuda"] = torch.cuda.get_rng_state(run.device)
    if run.snapshots is not None:
        seen = run.snapshots.state()
        tensors |= seen.tensors
        info |= seen.info
    info |= {"exemplars": run.memory.exemplars, "replayed": run.replayed, "moving": run.moving}
    return State(tensors, info | {"seconds": run.seconds, "losses": run.losses})


def restore(run: Experiment, state: State) -> None:
    for name, module in modules_of(run).items():
        if name in state.info:  # a shared first phase knows nothing of plug-ins that idle in it
            restore_module(module, State(with_prefix(name, state.tensors), state.info[name]), run.device)
    run.settle()
    run.memory.exemplars, run.replayed = state.info["exemplars"], state.info["replayed"]
    run.moving, run.seconds, run.losses = state.info["moving"], state.info["seconds"], state.info["losses"]
    run.position, run.waiting = Position(**state.info["position"]), state


def restore_fits(run: Experiment, fits: Mapping[str, Fit]) -> None:
    """Moments, and the random state of an epoch that was left half-way."""
    if not run.position.in_stage:
        return
    waiting = run.waiting.tensors
    for name, fit in fits.items():
        restore_optimizer(fit.optimizer, with_prefix(name, waiting))
    random = with_prefix("rng", waiting)
    if "cpu" in random:
        torch.set_rng_state(random["cpu"])
    if "cuda" in random:
        torch.cuda.set_rng_state(random["cuda"], run.device)
    run.waiting = State(prefixed("log", with_prefix("log", waiting)), {})


def publish(run: Experiment) -> None:
    """Leaves the trained first phase where equal runs will find it; the first to come is kept.

    One that has trained on its exemplars depends on the memory, and is no other run's first phase.
    """
    if run.shared is None or run.shared.exists() or run.memory.covers(run.phases[0]):
        return
    state = state_of(run, {}, None)
    try:
        write_state(run.shared, State(state.tensors, state.info | {"epochs": Run.open(run.path).epochs}))
    except BdrError:
        if not run.shared.is_dir():  # another run was quicker: its copy is as good
            raise


def adopt(run: Experiment, folder: Path) -> bool:
    """Whether the first phase that lies there was taken; a damaged one is thrown away."""
    try:
        state = read_state(folder)
    except BdrError as error:
        run.note(f"warning: {error}; training the first phase anew")
        shutil.rmtree(folder, ignore_errors=True)
        return False
    restore(run, state)
    for line in state.info["epochs"]:
        run.writer.epoch(line)
    run.note(f"the first phase was trained before by an equal run: taken from {folder}")
    return True


class Earlier(NamedTuple):
    """A finished run that is extended, with its exemplars as rows of the images that are here now."""

    run: Run
    state: State  # after its last phase
    exemplars: list[list[int]]  # of each class


def take_over(run: Experiment, earlier: Earlier) -> None:
    """The records and the state of the run that is extended become those of this one."""
    before = earlier.state.info["exemplars"]
    run.writer.take_over(earlier.run)
    try:
        restore(run, State(earlier.state.tensors, earlier.state.info | {"exemplars": earlier.exemplars}))
    except (RuntimeError, KeyError) as error:
        said = str(error).splitlines()[0]
        raise BdrError(
            f"the model of {earlier.run.path} does not fit these settings ({said}): leave out --set"
        ) from None
    renumber(run, before, earlier.exemplars)
    run.note(f"extends {earlier.run.path}, which trained the first {run.taken_over} phases")


def renumber(run: Experiment, before: Sequence[Sequence[int]], after: Sequence[Sequence[int]]) -> None:
    """Tells plug-ins that remember single images which rows these are now."""
    rows = [torch.tensor([row for mine in each for row in mine], dtype=torch.long) for each in (before, after)]
    for plugin in run.plugins:
        plugin.renumber(rows[0].to(run.device), rows[1].to(run.device), len(run.train))
