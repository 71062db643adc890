"""The state of a learner, and the moments of what it is fitting: how they are saved and restored."""

from __future__ import annotations

import torch
from torch import Tensor

from bdr.engine.checkpoint import (
    State,
    module_state,
    optimizer_state,
    prefixed,
    restore_module,
    restore_optimizer,
    taken_out,
    with_prefix,
)
from bdr.engine.fit import Fit, Fits
from bdr.engine.learner import Learner
from bdr.nets.base import Frozen


def learner_state(learner: Learner) -> State:
    """The state of a learner: its modules, by name, and the images that it remembers."""
    states = {name: module_state(module) for name, module in learner.modules().items()}
    tensors = {name: tensor for part, mine in states.items() for name, tensor in prefixed(part, mine.tensors).items()}
    info = {"exemplars": learner.memory.exemplars, "replayed": learner.replayed, "moving": learner.moving}
    return State(tensors, {name: mine.info for name, mine in states.items()} | info)


def restore_learner(learner: Learner, state: State) -> None:
    for name, module in learner.modules().items():
        if name in state.info:  # a shared first phase knows nothing of plug-ins that idle in it
            restore_module(module, State(with_prefix(name, state.tensors), state.info[name]), learner.device)
    learner.settle()
    learner.memory.exemplars = state.info["exemplars"]
    learner.replayed, learner.moving = state.info["replayed"], state.info["moving"]


def beside_modules(state: State) -> State:
    """What is left to restore once a learner has its own state: moments, an epoch that is half-way, snapshots."""
    of_modules = tuple(f"{name}:" for name in modules_in(state))
    tensors = {name: tensor for name, tensor in state.tensors.items() if not name.startswith(of_modules)}
    return State(tensors, {name: told for name, told in state.info.items() if name == "snapshots"})


def modules_in(state: State) -> list[str]:
    """The modules of a state, known by their layouts: a shared first phase may hold a plug-in that this run lacks."""
    return [name for name, told in state.info.items() if isinstance(told, dict) and "layouts" in told]


def resting_in(learner: Learner) -> dict[str, object]:
    """The content of each part at rest, by the prefix of its tensors' names; parts inside it belong to it."""
    found: dict[str, object] = {}
    for name, module in learner.modules().items():
        for part, frozen in module.named_modules():
            start = f"{name}:{part}."
            if isinstance(frozen, Frozen) and frozen.rests and not start.startswith(tuple(found)):
                found[start] = frozen.content
    return found


def by_prefix(fits: Fits) -> dict[str, Fit]:
    """The fits, by the prefix that their moments' names have in a checkpoint."""
    return {"optimizer": fits.main} | ({} if fits.aside is None else {"alternate": fits.aside})


def fits_state(fits: Fits | None, log: Tensor | None, device: torch.device) -> dict[str, Tensor]:
    """The moments, by name; of an epoch that is half-way, also its log and the state of the random numbers."""
    tensors: dict[str, Tensor] = {}
    for name, fit in ({} if fits is None else by_prefix(fits)).items():
        tensors |= prefixed(name, optimizer_state(fit.optimizer))
    if log is not None:
        tensors |= {"log:values": log, "rng:cpu": torch.get_rng_state()}
        if device.type == "cuda":
            tensors["rng:cuda"] = torch.cuda.get_rng_state(device)
    return tensors


def restore_fits(fits: Fits, waiting: State, device: torch.device) -> None:
    """Restore moments and random numbers, which are taken out of `waiting`; the log stays there for the epoch."""
    for name, fit in by_prefix(fits).items():
        restore_optimizer(fit.optimizer, taken_out(name, waiting.tensors))
    random = taken_out("rng", waiting.tensors)
    if "cpu" in random:
        torch.set_rng_state(random["cpu"])
    if "cuda" in random:
        torch.cuda.set_rng_state(random["cuda"], device)
