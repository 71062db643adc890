"""Very short runs to stop and to go on with, and all that must be equal when two of them end."""

import itertools
import json
import multiprocessing
import os
import sys
import tempfile
import time
import weakref
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from small import Flat

from bdr import api
from bdr.cli import main
from bdr.engine import checkpoint
from bdr.engine.checkpoint import Checkpoints, Position, read_state
from bdr.engine.course import Course
from bdr.engine.listen import Listener
from bdr.errors import Interrupted
from bdr.methods import Method
from bdr.nets import LinearHead
from bdr.planning.assemble import plan_run
from bdr.records import RunWriter
from bdr.records.lock import LOCK

BDR = "ucir+cwd+bdr"
FIELDS = {"base": 4, "step": 3, "memory": "3/class", "val": 0.8, "device": "cpu", "checkpoint_every": 1000.0}
KILLED = FIELDS | {"checkpoint_every": 0.0}  # after every step: it may be the last
SETTINGS = {"stage.epochs": 2, "stage.batch": 32}
# Second stages that are long on digits, however short the first is.
LONG = {"bic": "correction", "der": "balanced", "dytox": "balanced", "podnet": "balanced", "simple-der": "balanced"}
TIMES = {"seconds", "images_per_second"}
CHILDREN = multiprocessing.get_context("forkserver")  # torch is imported once; no child inherits a thread
CHILDREN.set_forkserver_preload(["bdr.commands.training", "bdr.report", "torch._dynamo", "pytest"])


# Methods and nets of one's own


def flat(shape, last_relu=True):
    """A backbone for tests of files rather than of networks."""
    return Flat(64 * shape.channels, 8)


class TwoStages(Method):
    """Dropout in the loss, and a second stage on the exemplars alone, with moments of another kind."""

    def __init__(self, make):
        super().__init__()
        self.net = make(LinearHead)

    def begin(self, phase, pool):
        self.net.head.grow(phase.new)

    def stages(self, phase, base):
        second = replace(base, name="balanced", draw="memory", batch=5, optimizer="adamw", lr=0.01)
        return [base, replace(second, train=("net.head",))]

    def loss(self, batch, phase, classify):
        out = self.net(F.dropout(batch.x, 0.5))
        return {"ce": classify(out, batch.y).mean()}


class TakesTurns(TwoStages):
    """After every epoch of a stage, one of the head alone, with moments of another kind; dropout in both."""

    def stages(self, phase, base):
        turn = replace(base, name="turn", draw="fresh", batch=5, optimizer="adamw", lr=0.01, train=("net.head",))
        backbone = replace(base, train=("net.backbone",))
        return [backbone if phase.first else replace(backbone, alternate=turn)]

    def graded(self, clock):
        """Noise into every gradient that is there: one that the other stage left behind would take its share."""
        for slope in (p.grad for p in self.net.parameters() if p.grad is not None):
            slope.add_(0.01 * torch.randn_like(slope))


class Restless(TwoStages):
    """Draws its head anew before every epoch and after every phase."""

    def at_epoch(self, stage, epoch):
        torch.nn.init.uniform_(self.net.head.weight, -0.1, 0.1)

    def end(self, phase, pool, exemplars):
        with torch.no_grad():
            self.net.head.weight += 0.01 * torch.randn_like(self.net.head.weight)


class Slow(TwoStages):
    """Saves itself after a first step, and gives time enough to ask twice in the second."""

    def loss(self, batch, phase, classify):
        if batch.clock.step > 0:
            print("in the second step", flush=True)
            time.sleep(60)
        return super().loss(batch, phase, classify)


# Runs inside this process


def plan(path, what=BDR, runs=None, settings=(), **fields):
    changes = {"share": runs is not None} | FIELDS | fields
    second = [(f"stage.{LONG[name]}.epochs", 2) for name in what.split("+") if name in LONG]
    config, _ = api.configure(what, "digits", [*SETTINGS.items(), *second, *settings], changes)
    return plan_run(config, path, runs or path.parent)


def train(path, what=BDR, listener=None, **fields):
    """A whole run; returns where it is."""
    return api.execute(plan(path, what, **fields), listener).path


def execute_until(plan, there):
    """A run that saves itself after every step and is asked to stop where `there` says so of its position."""
    courses = []

    class Followed(Course):
        def __init__(self, *given):
            super().__init__(*given)
            courses.append(self)

        def due(self):
            return True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bdr.engine.run.Course", Followed)
        with pytest.raises(Interrupted, match="bdr resume"):
            api.execute(plan, stopping=lambda: there(courses[-1].position))


def train_until(position, path, what=BDR, **fields):
    """A run that is asked to stop right after it has saved itself at a position."""
    begun = plan(path, what, **fields)
    execute_until(begun, lambda now: now == position)
    assert where(begun.experiment.path) == position
    return begun.experiment.path


class Looks(Listener):
    """Keeps a module as it is when stages of the second phase begin, and when it ends."""

    def __init__(self, module):
        self.module, self.seen = module, []

    def look(self):
        self.seen.append({name: value.clone() for name, value in self.module.state_dict().items()})

    def stage_begins(self, phase, number, stage, epoch):
        if phase.index == 1:
            self.look()

    def phase_ends(self, line):
        if line["phase"] == 1:
            self.look()


class Loaded(Listener):
    """Counts, when a stage begins, the tensors that were read from files and are still in memory."""

    def __init__(self, monkeypatch):
        self.read, self.held, read = [], [], checkpoint.read_tensors

        def watched(*given):
            found = read(*given)
            self.read += map(weakref.ref, found.values())
            return found

        monkeypatch.setattr(checkpoint, "read_tensors", watched)

    def stage_begins(self, phase, number, stage, first_epoch):
        self.held.append(sum(each() is not None for each in self.read))


def newest(path):
    """The number of the newest checkpoint; 0 before the first."""
    return max((int(folder.name) for folder in Checkpoints(path / "checkpoint").saved()), default=0)


def where(path):
    return Position(**read_state(path / "checkpoint" / f"{newest(path):06d}").info["position"])


# Runs that are killed


def arguments(path, what=BDR, **fields):
    options = [f"--{name.replace('_', '-')}={value}" for name, value in (KILLED | fields).items()]
    settings = [f"--set={name}={value}" for name, value in SETTINGS.items()]
    return ["run", what, "--no-share", f"--out={path}", *options, *settings]


def command(given, log, fatal=None):
    """The command line, inside a child."""
    torch.set_num_threads(1)
    sys.argv = ["bdr", *given]
    tempfile.tempdir = str(log.parent)  # what a killed one leaves there is swept up with the test
    if fatal is not None:
        die_at(fatal)
    with log.open("a", buffering=1) as said, redirect_stdout(said), redirect_stderr(said):
        main()


def start(given, log, fatal=None):
    child = CHILDREN.Process(target=command, args=(given, log, fatal))
    child.start()
    return child


def wait_until(true, seconds=180.0):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.002)


def die_at(number):
    """The process is gone right after the so-manieth write, sync, rename, cut or removal; writes are left half done."""
    events = itertools.count(1)

    def after(function):
        def call(*args, **kwargs):
            result = function(*args, **kwargs)
            if next(events) == number:
                os._exit(9)
            return result

        return call

    def half_written(write, open_file):
        def call(to, content):
            if next(events) == number:
                with open_file(to) as file:
                    file.write(content[: len(content) // 2])
                os._exit(9)
            return write(to, content)

        return call

    for name in ("fsync", "rename", "replace", "truncate", "unlink", "rmdir"):
        setattr(os, name, after(getattr(os, name)))
    checkpoint.write_synced = half_written(checkpoint.write_synced, lambda path: path.open("wb"))
    append = RunWriter._append
    RunWriter._append = lambda self, name, content: half_written(
        lambda path, rest: append(self, name, rest), lambda path: path.open("ab")
    )(self.path / name, content)
    api.rehearse = lambda *_: None  # it writes elsewhere


# What must be equal


def timeless(value):
    if isinstance(value, dict):
        return {key: timeless(item) for key, item in value.items() if key not in TIMES}
    return value


def lines(file):
    return [timeless(json.loads(line)) for line in file.read_text().splitlines()]


def bits(array):
    array = np.asarray(array)
    return array.dtype.str, array.shape, array.tobytes()


def state(folder):
    """Every tensor of a checkpoint or model, and the rest of it but for the lengths of files with times in them."""
    tensors, info = read_state(folder)
    return {name: bits(tensor) for name, tensor in tensors.items()} | timeless(
        {name: value for name, value in info.items() if name != "offsets"}
    )


def arrays(file):
    with np.load(file) as stored:
        return {name: bits(stored[name]) for name in stored.files}


def outcome(path):
    """All that a finished run leaves behind, but for times and speeds, by what it is."""
    assert (path / "DONE").exists()
    left = {str(f.relative_to(path)) for f in path.rglob("*") if f.is_file() and f.parents[1].name != "checkpoint"}
    found = {"files": left - {"log.txt", LOCK}, "checkpoint": state(path / "checkpoint" / f"{newest(path):06d}")}
    found |= {name: lines(path / name) for name in ("phases.jsonl", "epochs.jsonl")}
    found |= {str(file.relative_to(path)): lines(file) for file in path.glob("phase-*/memory.json")}
    found |= {str(file.relative_to(path)): arrays(file) for file in path.rglob("*.npz")}
    return found | {str(folder.relative_to(path)): state(folder) for folder in path.glob("phase-*/model")}


def assert_equal(path, whole):
    """Names the parts that differ: the parts themselves are long."""
    here, there = outcome(path), outcome(whole)
    assert here["files"] == there["files"], here["files"] ^ there["files"]
    differing = [part for part in there if here[part] != there[part]]
    assert not differing, f"{differing} are not what they are in the whole run"
