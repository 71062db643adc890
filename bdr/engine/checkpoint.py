"""Checkpoints, from which a run goes on exactly where it stopped: safetensors and JSON, never a pickle.

A checkpoint is a folder, written under another name, synced, and then renamed. The newest two are kept, so that a
damaged one can be passed over, with a warning that names it. Modules are laid out before their tensors are loaded, and
nothing is replayed. Parts at rest, such as a teacher, are written once, into a file beside the checkpoints, which
refer to it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from bdr.errors import BdrError
from bdr.methods.base import Method
from bdr.nets.base import lay_out, layouts_of
from bdr.records.files import json_object, sync_folder, to_json, writing
from bdr.records.models import instead_of_model

KEPT = 2
RESTING = "resting"

ANEW = "the code has changed since; train it anew, into another folder"


@dataclass(frozen=True, slots=True)
class Position:
    """The next step that a run is to make: its phase, its stage in that, its epoch, and its number in the epoch."""

    phase: int = 0
    stage: int = 0
    epoch: int = 0
    step: int = 0

    @property
    def in_stage(self) -> bool:
        """Whether the stage has begun, so that its optimiser and statistics are part of the state."""
        return self.epoch > 0 or self.step > 0


class State(NamedTuple):
    """The state of a run, or of a part of it, at one moment: its tensors, and all else as JSON."""

    tensors: dict[str, Tensor]
    info: dict[str, Any]


def module_state(module: nn.Module) -> State:
    """Its tensors, its layouts, and the names of the parameters that move."""
    moving = [name for name, p in module.named_parameters() if p.requires_grad]
    return State(dict(module.state_dict()), {"layouts": layouts_of(module), "moving": moving})


def restore_module(module: nn.Module, state: State, device: torch.device | str) -> None:
    lay_out(module, state.info["layouts"])
    module.to(device).load_state_dict(state.tensors)
    moving = set(state.info["moving"])
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name in moving)


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The moments, named by the place of their parameter among all that move: `3/momentum_buffer`."""
    return {
        f"{place}/{name}": value
        for place, parameter in by_place(optimizer).items()
        for name, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    packed = [p for group in optimizer.param_groups for p in group["params"]]  # torch numbers them group after group
    number, there = {id(p): index for index, p in enumerate(packed)}, by_place(optimizer)
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        place, key = name.split("/", 1)
        moves = there.get(int(place))
        if moves is None or (value.ndim and value.shape != moves.shape):
            raise BdrError(f"the moments of the checkpoint are of other parameters than those that move: {ANEW}")
        state.setdefault(number[id(moves)], {})[key] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    for parameter, mine in optimizer.state.items():  # in the memory layout of the parameter, as fused kernels want it
        for key, value in mine.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                mine[key] = torch.empty_like(parameter).copy_(value)


def by_place(optimizer: torch.optim.Optimizer) -> dict[int, nn.Parameter]:
    """The parameters that move by their place, in the order in which the optimiser got them, whatever their group."""
    pairs = (zip(group["places"], group["params"], strict=True) for group in optimizer.param_groups)
    return dict(sorted((pair for of_group in pairs for pair in of_group), key=lambda pair: pair[0]))


def prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}:{name}": value for name, value in tensors.items()}


def with_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {k.removeprefix(f"{prefix}:"): v for k, v in tensors.items() if k.startswith(f"{prefix}:")}


def taken_out(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same, removed from `tensors`: nobody else is to take them, and memory need not hold them twice."""
    mine = with_prefix(prefix, tensors)
    for name in mine:
        del tensors[f"{prefix}:{name}"]
    return mine


def on_the_host(state: State) -> State:
    """A copy that training cannot change: each tensor in memory of its own."""
    tensors = {k: v.detach().contiguous() for k, v in state.tensors.items()}
    return State({k: v.cpu() if v.is_cuda else v.clone() for k, v in tensors.items()}, state.info)


def write_state(folder: Path, state: State) -> None:
    """Write a state into a folder, which appears whole or not at all."""
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
    """Read a state whose checksums hold; an error names what is missing or damaged."""
    try:
        sums = json_object((folder / "sums.json").read_bytes(), str(folder / "sums.json"))
        tensors = read_tensors(folder / "tensors.safetensors", sums.get("tensors"))
        info = json.loads(read_checked(folder / "info.json", sums.get("info")))
        for file, expected in info.pop(RESTING, {}).values():
            tensors |= read_tensors(folder.parent / RESTING / file, expected)
        return State(tensors, info)
    except FileNotFoundError as error:
        raise BdrError(f"{error.filename} is missing") from error
    except (OSError, SafetensorError) as error:
        raise BdrError(f"{folder} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def read_checked(path: Path, expected: object) -> bytes:
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != expected:
        raise BdrError(f"{path} is damaged: its checksum is wrong")
    return content


def read_tensors(path: Path, expected: object) -> dict[str, Tensor]:
    return load(read_checked(path, expected))


def files_at_rest(folder: Path) -> dict[str, list[str]]:
    """The files at rest that a checkpoint refers to, with checksums, by the part they hold; none if unreadable."""
    try:
        return dict(json.loads((folder / "info.json").read_bytes()).get(RESTING, {}))
    except (OSError, ValueError):
        return {}


class Checkpoints:
    """The numbered checkpoints of a run, newest last; written by a thread while training goes on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self.writing: Future[None] | None = None
        self.contents: dict[str, object] = {}  # of the parts at rest that the newest checkpoint refers to

    def saved(self) -> list[Path]:
        return sorted(path for path in self.folder.glob("*") if path.is_dir() and path.name.isdigit())

    def save(self, state: State, resting: Mapping[str, object] | None = None) -> None:
        """Copy the state at once, and write it in the thread; an error in writing the one before is raised here.

        `resting` has the content of each part at rest, by the prefix of its tensors' names. A part is written only if
        its content is new.
        """
        self.wait()
        resting = resting or {}
        known = tuple(part for part, content in resting.items() if self.contents.get(part) is content)
        moving = {name: value for name, value in state.tensors.items() if not name.startswith(known)}
        copied = on_the_host(State(moving, state.info))
        self.writing = self.thread.submit(self.write, copied, dict(resting), known)

    def wait(self) -> None:
        """Wait until the last checkpoint is on the disk."""
        writing, self.writing = self.writing, None
        if writing is not None:
            writing.result()

    def write(self, state: State, resting: dict[str, object], known: tuple[str, ...]) -> None:
        saved = self.saved()
        number = int(saved[-1].name) + 1 if saved else 1
        files = {part: file for part, file in (files_at_rest(saved[-1]) if saved else {}).items() if part in known}
        for place, part in enumerate(part for part in resting if part not in known):
            mine = {name: state.tensors.pop(name) for name in list(state.tensors) if name.startswith(part)}
            files[part] = self.put_to_rest(f"{number:06d}-{place}.safetensors", mine)
        write_copy(self.folder / f"{number:06d}", State(state.tensors, state.info | {RESTING: files}))
        self.contents = resting
        for old in [*saved[: max(0, len(saved) + 1 - KEPT)], *self.folder.glob("*.partial")]:
            shutil.rmtree(old, ignore_errors=True)
        self.sweep()

    def put_to_rest(self, file: str, tensors: dict[str, Tensor]) -> list[str]:
        """Write a file at rest, and return its name and checksum; no checkpoint refers to it until it is whole."""
        path, content = self.folder / RESTING / file, save(tensors)
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_synced(path, content)
            sync_folder(path.parent)
        return [file, hashlib.sha256(content).hexdigest()]

    def sweep(self) -> None:
        """Delete the files at rest that no checkpoint refers to any more."""
        wanted = {file for folder in self.saved() for file, _ in files_at_rest(folder).values()}
        for path in self.folder.glob(f"{RESTING}/*"):
            if path.name not in wanted:
                path.unlink(missing_ok=True)

    def newest(self, lost: Callable[[State], str] = lambda state: "") -> State | None:
        """The newest whole checkpoint whose records are all there; newer ones are removed, with warnings that say why.

        `lost` says what is missing of the records made before a checkpoint. If every one lacks some, the newest whole
        one is returned, and none is removed for that.
        """
        beyond: dict[Path, State] = {}
        for folder in reversed(self.saved()):
            try:
                state = read_state(folder)
            except BdrError as error:
                self.pass_over(folder, error)
                continue
            if not lost(state):
                for each, later in beyond.items():
                    self.pass_over(each, lost(later))
                return state
            beyond[folder] = state
        return next(iter(beyond.values()), None)

    def pass_over(self, folder: Path, why: object) -> None:
        warnings.warn(f"{why}; going on from the checkpoint before it", stacklevel=3)
        shutil.rmtree(folder, ignore_errors=True)

    def trust(self, resting: Mapping[str, object]) -> None:
        """Take the parts at rest to be as in the newest checkpoint, which was just loaded: they need no writing."""
        there = files_at_rest(self.saved()[-1])
        self.contents = {part: content for part, content in resting.items() if part in there}


def position_info(position: Position) -> dict[str, int]:
    return asdict(position)


def save_model(path: Path, method: Method) -> None:
    """Save what inference needs of the trained method; its parts for training alone are left out."""
    state = module_state(method)
    keep = {name: tensor for name, tensor in state.tensors.items() if not method.is_for_training(name)}
    shutil.rmtree(path, ignore_errors=True)
    write_state(path, State(keep, state.info))


def load_model(path: Path, method: Method, device: torch.device | str) -> None:
    try:
        state = read_state(path)
    except BdrError as error:
        raise BdrError(f"{error}; {instead_of_model(path)}") from error
    lay_out(method, state.info["layouts"])
    missing, unexpected = method.to(device).load_state_dict(state.tensors, strict=False)
    lost = [name for name in missing if not method.is_for_training(name)]
    if lost or unexpected:
        raise BdrError(f"{path} does not fit this model: missing {lost}, unexpected {list(unexpected)}")
