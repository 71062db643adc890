"""What it takes to go on exactly where a run stopped: tensors as safetensors, the rest as JSON, never a pickle.

A checkpoint is a folder, written beside, synced and renamed; the newest two are kept, so that a damaged one can be
named and passed over. Modules are laid out before their tensors are loaded: nothing is replayed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from bdr.errors import BdrError
from bdr.nets.base import Teacher, lay_out, layouts_of
from bdr.records.files import json_object, sync_folder, to_json, writing

KEPT = 2


@dataclass(frozen=True, slots=True)
class Position:
    """What comes next: this step of this epoch of this stage of this phase."""

    phase: int = 0
    stage: int = 0
    epoch: int = 0
    step: int = 0

    @property
    def in_stage(self) -> bool:
        """The stage has begun: its optimiser and statistics are part of the state."""
        return self.epoch > 0 or self.step > 0


class State(NamedTuple):
    """All that a run is at one moment."""

    tensors: dict[str, Tensor]
    info: dict[str, Any]


def module_state(module: nn.Module) -> State:
    """Tensors, layouts and which parameters move."""
    moving = [name for name, p in module.named_parameters() if p.requires_grad]
    return State(dict(module.state_dict()), {"layouts": layouts_of(module), "moving": moving})


def restore_module(module: nn.Module, state: State, device: torch.device | str) -> None:
    lay_out(module, state.info["layouts"])
    module.to(device).load_state_dict(state.tensors)
    moving = set(state.info["moving"])
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name in moving)


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Moments by the place of their parameter: `3/momentum_buffer`."""
    state = optimizer.state_dict()["state"]
    return {f"{place}/{k}": v for place, mine in state.items() for k, v in mine.items() if isinstance(v, Tensor)}


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        place, key = name.split("/", 1)
        state.setdefault(int(place), {})[key] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    for parameter, mine in optimizer.state.items():  # in the memory layout of the parameter, as fused kernels want it
        for key, value in mine.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                mine[key] = torch.empty_like(parameter).copy_(value)


def prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}:{name}": value for name, value in tensors.items()}


def with_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {k.removeprefix(f"{prefix}:"): v for k, v in tensors.items() if k.startswith(f"{prefix}:")}


def on_the_host(state: State) -> State:
    """A copy that training cannot change: each tensor in memory of its own."""
    tensors = {k: v.detach().contiguous() for k, v in state.tensors.items()}
    return State({k: v.cpu() if v.is_cuda else v.clone() for k, v in tensors.items()}, state.info)


def write_state(folder: Path, state: State) -> None:
    """The folder appears whole, or not at all."""
    write_copy(folder, on_the_host(state))


def write_copy(folder: Path, state: State) -> None:
    partial = folder.with_name(f"{folder.name}.{os.getpid()}.partial")
    with writing(folder):
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        tensors = save(state.tensors)
        body = to_json(state.info)
        sums = {"tensors": hashlib.sha256(tensors).hexdigest(), "info": hashlib.sha256(body.encode()).hexdigest()}
        try:
            write_synced(partial / "tensors.safetensors", tensors)
            write_synced(partial / "info.json", body.encode())
            write_synced(partial / "sums.json", to_json(sums).encode())
            os.rename(partial, folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        sync_folder(folder.parent)


def write_synced(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def read_state(folder: Path) -> State:
    """A state whose checksums hold, or an error that names what is damaged."""
    try:
        sums = json_object((folder / "sums.json").read_bytes(), str(folder / "sums.json"))
        tensors, body = (folder / "tensors.safetensors").read_bytes(), (folder / "info.json").read_bytes()
        if hashlib.sha256(tensors).hexdigest() != sums.get("tensors"):
            raise BdrError(f"{folder / 'tensors.safetensors'} is damaged: its checksum is wrong")
        if hashlib.sha256(body).hexdigest() != sums.get("info"):
            raise BdrError(f"{folder / 'info.json'} is damaged: its checksum is wrong")
        return State(load(tensors), json.loads(body))
    except (OSError, SafetensorError) as error:
        raise BdrError(f"{folder} cannot be read: {error}") from error


class Checkpoints:
    """The numbered checkpoints of a run, newest last; written by a thread while training goes on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self.writing: Future[None] | None = None

    def saved(self) -> list[Path]:
        return sorted(path for path in self.folder.glob("*") if path.is_dir() and path.name.isdigit())

    def save(self, state: State) -> None:
        """Copies the state at once; what went wrong with the one before is raised here."""
        state = on_the_host(state)
        self.wait()
        self.writing = self.thread.submit(self.write, state)

    def wait(self) -> None:
        """Until the last one is on the disk."""
        writing, self.writing = self.writing, None
        if writing is not None:
            writing.result()

    def write(self, state: State) -> None:
        saved = self.saved()
        number = int(saved[-1].name) + 1 if saved else 1
        write_copy(self.folder / f"{number:06d}", state)
        for old in [*saved[: max(0, len(saved) + 1 - KEPT)], *self.folder.glob("*.partial")]:
            shutil.rmtree(old, ignore_errors=True)

    def newest(self) -> State | None:
        """The newest whole checkpoint; damaged ones are named, passed over and removed."""
        for folder in reversed(self.saved()):
            try:
                return read_state(folder)
            except BdrError as error:
                warnings.warn(f"{error}; going on from the checkpoint before it", stacklevel=2)
                shutil.rmtree(folder, ignore_errors=True)
        return None


def position_info(position: Position) -> dict[str, int]:
    return asdict(position)


def save_model(path: Path, method: nn.Module) -> None:
    """The trained module alone, for loading: teachers are left out."""
    teachers = [name for name, part in method.named_modules() if isinstance(part, Teacher)]
    state = module_state(method)
    keep = {k: v for k, v in state.tensors.items() if not any(k.startswith(f"{name}.") for name in teachers)}
    shutil.rmtree(path, ignore_errors=True)
    write_state(path, State(keep, state.info))


def load_model(path: Path, method: nn.Module, device: torch.device | str) -> None:
    state = read_state(path)
    lay_out(method, state.info["layouts"])
    missing, unexpected = method.to(device).load_state_dict(state.tensors, strict=False)
    teachers = [name for name, part in method.named_modules() if isinstance(part, Teacher)]
    lost = [k for k in missing if not any(k.startswith(f"{name}.") for name in teachers)]
    if lost or unexpected:
        raise BdrError(f"{path} does not fit this model: missing {lost}, unexpected {list(unexpected)}")
