"""The engine: objectives that compile in one graph, plug-ins around the loss, rates, modes, and what stops a run."""

from __future__ import annotations

import contextlib
import copy
import json
import math
import shutil
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from runs import train
from small import OWN_MAKERS, make_batch, make_flat, make_pool
from test_cli import SHORT, typed
from torch import nn

from bdr import api
from bdr.data.memory import Memory, Quota
from bdr.data.pool import Pool
from bdr.data.store import Store
from bdr.engine import step as stepping
from bdr.engine.checkpoint import Checkpoints, optimizer_state, read_state, restore_optimizer
from bdr.engine.evaluate import predict
from bdr.engine.fit import Awake, Fit, set_modes, set_moving
from bdr.engine.objective import Objective
from bdr.engine.recording import read
from bdr.engine.step import convolving_as, eager_between_steps, make_optimizer, set_precision
from bdr.errors import BdrError
from bdr.methods import METHODS
from bdr.methods.base import Method
from bdr.nets import Backbone, Features, Frozen, LinearHead, Network
from bdr.nets.base import layouts_of
from bdr.nets.resnet_cifar import ResNet
from bdr.planning.assemble import plan_run
from bdr.plugins import PLUGINS
from bdr.plugins.base import Plugin
from bdr.records import Run, RunWriter
from bdr.schedules import learning_rate
from bdr.types import Outputs, Phase, Stage

SETS = {0: [(), ("cwd", "bdr")], 1: [(), ("la",), ("cwd", "bdr")]}  # first priors rest, later CwD does
# With two heads and two criteria; those that ask nothing of a method but its logits and features, with one.
FURTHER = {1: [("aanet", "cwd", "bdr"), ("cwd", "tade"), ("focal", "reweight"), ("ldam",), ("resample",)]}
CONTRASTIVE = {1: [("cwd", "paco"), ("balanced-contrastive",), ("bcl", "bdr"), ("paco", "aanet", "bcl")]}
COUNTS, OLD = [12, 12, 12, 12, 12], 3
PHASES = [Phase(0, 0, OLD), Phase(1, OLD, len(COUNTS))]
SMALL_RUN = {"base": 4, "step": 3, "memory": "3/class", "phases": 2, "val": 0.8, "share": False, "device": "cpu"}


def two_blocks(head, last_relu=True, **options):
    return Network(ResNet((16, 32), 1, channels=1, last_relu=last_relu, **options), head(32))


def one_block(head, last_relu=True, **options):
    return Network(ResNet((16,), 1, channels=1, last_relu=last_relu, **options), head(16))


@pytest.fixture(scope="module", autouse=True)
def elsewhere(tmp_path_factory):
    """Away from the source: runs with equal first phases share them in a folder beside, wherever they are typed."""
    with contextlib.chdir(tmp_path_factory.mktemp("elsewhere")):
        yield


class OneConvolution(Backbone):
    """As little as the real compiler can be given to do."""

    def __init__(self):
        super().__init__()
        self.dim, self.conv, self.norm = 16, nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16)

    def forward(self, x):
        return Features(self.norm(self.conv(x)).mean((2, 3)))


def one_convolution(head, last_relu=True):
    return Network(OneConvolution(), head(16))


class World:
    """A method with its plug-ins, brought to the stages of one phase as a run would bring it there."""

    def __init__(self, method, plugins, index, device="cpu", make=two_blocks, **settings):
        torch.manual_seed(0)
        images = make_pool(COUNTS, side=8).store
        self.store = Store(images.pixels, images.labels, (0.4,), (0.3,), images.augment, device)
        self.memory = Memory(Quota(3, per_class=True))
        self.plugins, make = [PLUGINS[name]() for name in plugins], OWN_MAKERS.get(method, make)
        for plugin in self.plugins:
            make = plugin.net(make)
        self.method = METHODS[method](make, **settings).to(device)
        for plugin in self.plugins:
            plugin.attach(self.method.net)
        self.device = device
        for phase in PHASES[: index + 1]:
            self.enter(phase)
            if phase.index < index:
                self.leave()

    def enter(self, phase):
        self.phase, new = phase, self.store.of_classes(phase.old, phase.seen)
        self.pool = Pool(self.store, phase, new, self.memory.rows(self.device), 1993, self.method.held)
        self.method.begin(phase, self.pool)
        self.method.to(self.device)

    def choose(self):
        if not self.memory.covers(self.phase):
            self.memory.select(self.phase, self.pool, self.method.net)
            self.pool.memory = self.memory.rows(self.device)

    def leave(self):
        self.choose()
        self.method.end(self.phase, self.pool, self.memory.rows(self.device))
        self.method.remember(self.phase, self.pool, self.memory.rows(self.device))

    def begin(self, stage, number=0):
        if stage.draw == "memory":
            self.choose()
        self.method.begin_stage(stage, self.phase, self.pool)
        if stage.train:
            set_moving(self.method, stage.train)
        for plugin in sorted(self.plugins, key=lambda plugin: plugin.role != "net"):
            if plugin.acts(self.phase, stage):
                plugin.begin(self.phase, self.pool.census(stage.draw, number), self.method.net)
        for part in (self.method, *self.plugins):
            set_modes(part.to(self.device))

    def objective(self, stage):
        return Objective(self.method, self.plugins, self.phase, stage)

    def stages(self, base):
        stages = self.method.stages(self.phase, base)
        for plugin in self.plugins:
            stages = plugin.stages(self.phase, stages)
        return stages

    def batch(self, size=16, draw="all", number=0):
        there = self.pool.candidates(draw, number)
        rows = there[torch.randperm(len(there), generator=torch.Generator().manual_seed(1))[:size]]
        return make_batch(self.store.plain(rows), self.store.labels[rows])._replace(rows=rows)

    def views(self, plugins, batch):
        """Of a batch, those that each of these plug-ins wants."""
        return [self.looked(plugin, batch.rows) for plugin in plugins]

    def looked(self, plugin, rows):
        chance = torch.Generator(self.device).manual_seed(2)
        return plugin.look(self.store, rows, tuple(drawn[0] for drawn in plugin.draws(1, len(rows), chance)))


def losses_and_gradients(objective, batch, compiled, views=()):
    """Every term, the watched one and every gradient of one batch."""

    def values_of(batch):
        terms, out = objective.terms(batch, views)
        return terms, objective.total(terms), objective.watched(out, batch, views)

    torch.manual_seed(3)
    work = torch.compile(values_of, fullgraph=True, backend="eager") if compiled else values_of
    terms, total, watched = work(batch)
    total.backward()
    slopes = {name: p.grad for name, p in objective.method.named_parameters() if p.grad is not None}
    return terms | {"total": total} | watched | slopes


def whole(function):
    return torch.compile(function, fullgraph=True, backend="eager")


def whole_terms(terms):
    """The terms as one graph, which outputs leave as a plain tuple.

    In torch 2.11 no named tuple may leave a graph that `_replace` made inside it.
    """

    def with_plain_outputs(batch, views):
        found, out = terms(batch, views)
        return found, tuple(out)

    compiled = whole(with_plain_outputs)

    def call(batch, views=()):
        found, out = compiled(batch, views)
        return found, Outputs(*out)

    return call


def compile_whole(objective):
    """Each thing that a method or a plug-in does in a step is one graph without a break."""
    seams = [(objective.method, Method, seam) for seam in ("graded", "stepped")]
    seams += [(plugin, Plugin, seam) for plugin in objective.plugins for seam in ("stepped", "watch")]
    objective.terms = whole_terms(objective.terms)
    for part, base, seam in seams:
        if getattr(type(part), seam) is not getattr(base, seam):
            setattr(part, seam, whole(getattr(part, seam)))


def left_by_a_batch(world, stage, number, compiled):
    """Every term of a batch, the watched one and every gradient."""
    objective, batch = world.objective(stage), world.batch(draw=stage.draw, number=number)
    found = losses_and_gradients(objective, batch, compiled, world.views(objective.plugins, batch))
    assert found["total"].isfinite()
    return {f"slope of {name}" if "." in name else name: value for name, value in found.items()}


def left_by_two_steps(world, stage, number, compiled):
    """Every value of two steps of the engine, the gradients of the last one, and all that method and plug-ins keep."""
    objective = world.objective(stage)
    if compiled:
        compile_whole(objective)
    fit, left = Fit(objective, world.pool, "eager", number), {}
    torch.manual_seed(3)
    for epoch in range(2):
        fit.epoch(epoch, 0, None, lambda step, log: None)
        assert fit.steps == 1
        left |= {
            f"{name} of step {epoch}": value
            for name, value in zip(fit.eager.names, fit.eager.log[0].clone(), strict=True)
        }
    for part in objective.parts:
        left |= {f"slope of {name}": p.grad for name, p in part.named_parameters() if p.grad is not None}
        left |= {f"{type(part).__name__}.{name}": value for name, value in part.state_dict().items()}
    return left


def pairs():
    """(method, phase, plug-ins)"""
    for method in METHODS:
        several = (SETS, FURTHER) if method in ("ucir", "icarl") else (SETS,)
        several += (CONTRASTIVE,) * (method == "ucir")
        for index, plugins in ((i, names) for sets in several for i, each in sets.items() for names in each):
            name = f"{method}-{('first', 'later')[index]}-{'+'.join(plugins) or 'plain'}"
            yield pytest.param(method, index, plugins, id=name)


@pytest.mark.parametrize(("method", "index", "plugins"), list(pairs()))
def test_every_pair_compiles_without_a_break_and_is_the_same(method, index, plugins):
    torch._dynamo.reset()
    rebuilt = any(PLUGINS[name].adds_parameters for name in plugins)
    deep = rebuilt or not plugins  # around a loss, one level is as good as two, and traced in half the time
    world = World(method, plugins, index, make=two_blocks if deep else one_block)
    for number, stage in enumerate(world.stages(Stage())):
        world.begin(stage, number)
        if plugins and not world.objective(stage).plugins:
            continue  # all of them rest, and it is the stage that it is without them
        # What a method does around the optimiser's step, it does whoever stands around its loss.
        left_by = left_by_two_steps if deep else left_by_a_batch
        eager = left_by(copy.deepcopy(world), stage, number, compiled=False)
        compiled = left_by(copy.deepcopy(world), stage, number, compiled=True)
        assert eager.keys() == compiled.keys()
        assert any(value.abs().sum() > 0 for name, value in eager.items() if name.startswith("slope of "))
        for name, value in eager.items():
            torch.testing.assert_close(compiled[name], value, rtol=1e-5, atol=1e-6, equal_nan=True, msg=name)


def losses_of(
    engine, device="cpu", index=1, steps=4, precision="fp32", make=two_blocks, plugins=("cwd", "bdr"), method="ucir"
):
    """The terms of the first steps of a stage, run by one of the engines."""
    world = World(method, plugins, index, device, make)
    stage = world.stages(Stage(epochs=1, batch=16, lr=0.01))[0]
    world.begin(stage)
    for part in (world.method, *world.plugins):
        set_precision(part, precision, torch.device(device))
    fit = Fit(world.objective(stage), world.pool, engine, 0)
    values = []
    with eager_between_steps("graph"):
        for epoch in range(-(-steps // fit.steps)):
            fit.open(epoch)
            fit.step()
            with unread(device):
                for _ in range(1, fit.steps):
                    fit.step()
            values.append(fit.eager.log.clone())
    return torch.cat(values)[:steps].cpu(), fit.eager.names


class unread:
    """Inside, a value that the host reads from a GPU is an error."""

    def __init__(self, device):
        self.mode = {"cuda": ("error", "default")}.get(device)

    def __enter__(self):
        if self.mode:
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode(self.mode[0])

    def __exit__(self, *_):
        if self.mode:
            torch.cuda.set_sync_debug_mode(self.mode[1])


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None and shutil.which("g++") is None, reason="needs a C++ compiler")
def test_compiled_steps_are_eager_steps():
    torch._dynamo.reset()
    eager, names = losses_of("eager", make=one_convolution)
    compiled, same = losses_of("compile", make=one_convolution)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
    assert names == same == ("ce", "less_forget", "margin", "ce_old")
    torch.testing.assert_close(compiled, eager, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    ("index", "plugins"),
    [
        pytest.param(0, ("cwd", "bdr"), id="first"),
        pytest.param(1, ("cwd", "bdr"), id="later"),
        *(pytest.param(1, (name,), id=name) for name in ("la", "reweight", "resample", "focal", "ldam", "tade")),
    ],
)
def test_the_three_engines_agree_and_no_step_is_read_by_the_host(index, plugins):
    torch._dynamo.reset()
    options = {"index": index, "steps": 20, "precision": "bf16", "plugins": plugins}
    eager, names = losses_of("eager", "cuda", **options)
    for engine in ("compile", "graph"):
        values, same = losses_of(engine, "cuda", **options)
        assert same == names
        torch.testing.assert_close(values, eager, rtol=0.05, atol=0.05, equal_nan=True, msg=engine)


# DyTox leaves out blocks by chance, in each engine others: its own tests have it without.
SAME_IN_EVERY_ENGINE = [name for name in METHODS if name != "dytox"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", SAME_IN_EVERY_ENGINE)
@pytest.mark.parametrize("index", [0, 1], ids=["first", "later"])
def test_the_three_engines_agree_for_every_method(name, index):
    torch._dynamo.reset()
    eager, names = losses_of("eager", "cuda", index=index, steps=6, method=name)
    for engine in ("compile", "graph"):
        values, same = losses_of(engine, "cuda", index=index, steps=6, method=name)
        assert same == names
        torch.testing.assert_close(values, eager, rtol=0.01, atol=0.01, equal_nan=True, msg=engine)


# Plug-ins around the loss


class Plain(Method):
    """Cross-entropy, classified as often as is asked for."""

    def __init__(self, times=1):
        super().__init__()
        self.net, self.times = make_flat(LinearHead), times
        self.net.head.grow(4)

    def loss(self, batch, phase, classify):
        out = self.net(batch.x)
        return {f"ce{i}": classify(out, batch.y).mean() for i in range(self.times)}


class Times(Plugin):
    def __init__(self, factor=1.0, added=0.0):
        super().__init__()
        self.factor, self.added, self.seen = factor, added, []

    def observe(self, batch, out):
        self.seen.append(len(batch.y))

    def classify(self, inner, out, y):
        return inner(out, y) * self.factor + self.added


def gradient_of(method, plugins, phase=PHASES[0]):
    torch.manual_seed(0)
    batch = make_batch(torch.randn(6, 1, 4, 4), torch.tensor([0, 1, 2, 3, 0, 1]))
    objective = Objective(method, plugins, phase, Stage())
    terms, _ = objective.terms(batch)
    method.zero_grad()
    objective.total(terms).backward()
    return terms, method.net.head.weight.grad.clone()


def test_a_plug_in_that_multiplies_the_loss_multiplies_its_gradient():
    method = Plain()
    (plain, slope), (tripled, steeper) = gradient_of(method, []), gradient_of(method, [Times(3.0)])
    torch.testing.assert_close(tripled["ce0"], 3 * plain["ce0"])
    torch.testing.assert_close(steeper, 3 * slope)


def terms_around(world, plugins, stage, number):
    torch.manual_seed(3)
    objective = Objective(copy.deepcopy(world.method), plugins, world.phase, stage)
    return objective.terms(world.batch(draw=stage.draw, number=number))[0]


@pytest.mark.parametrize("name", METHODS)
def test_a_factor_around_the_loss_is_one_of_the_first_term_alone_in_every_stage_of_every_phase(name):
    world = World(name, (), 0, make=one_block)
    for phase in PHASES:
        if not phase.first:
            world.leave()
            world.enter(phase)
        for number, stage in enumerate(world.stages(Stage())):
            world.begin(stage, number)
            expected, found = (terms_around(world, plugins, stage, number) for plugins in ([], [Times(3.0)]))
            expected[next(iter(expected))] *= 3.0
            assert found.keys() == expected.keys()
            for term, value in expected.items():
                torch.testing.assert_close(found[term], value, msg=f"{term} of {stage.name}, phase {phase.index}")


def test_the_first_plug_in_stands_nearest_to_the_criterion():
    method = Plain()
    plain = gradient_of(method, [])[0]["ce0"]
    torch.testing.assert_close(gradient_of(method, [Times(2.0), Times(1.0, 10.0)])[0]["ce0"], 2 * plain + 10)
    torch.testing.assert_close(gradient_of(method, [Times(1.0, 10.0), Times(2.0)])[0]["ce0"], 2 * (plain + 10))


def test_a_batch_is_observed_once_however_often_it_is_classified():
    plugin = Times()
    terms, _ = gradient_of(Plain(times=3), [plugin])
    assert len(terms) == 3
    assert plugin.seen == [6]


def kept_by(plugin):
    """Bit by bit, since a loss that nobody knows yet is no number."""
    return layouts_of(plugin), {name: value.numpy().tobytes() for name, value in plugin.state_dict().items()}


def changed_by_classifying(world, stage):
    """What a plug-in that acts keeps otherwise, after its loss was taken three times more than it was observed."""
    (plugin,) = world.objective(stage).plugins
    batch = world.batch()
    out = world.method.net(batch.x)
    plugin.observe(batch._replace(views=world.looked(plugin, batch.rows)), out)
    before = kept_by(plugin)
    for _ in range(3):
        plugin.classify(world.method.criterion, out, batch.y)
    (layout, tensors), (same, after) = before, kept_by(plugin)
    assert (layout, tensors.keys()) == (same, after.keys())
    return [name for name in tensors if tensors[name] != after[name]]


@pytest.mark.parametrize("name", PLUGINS)
def test_classifying_moves_no_state_of_a_plug_in(name):
    stage = Stage(draw="uniform" if name == "resample" else "all")
    world = World("ucir", (name,), 0 if name == "cwd" else 1, make=two_blocks)
    world.begin(stage)
    assert not changed_by_classifying(world, stage)


def test_state_that_moves_in_classify_would_be_found():
    class Counts(Times):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(1))

        def classify(self, inner, out, y):
            self.count += 1
            return super().classify(inner, out, y)

    world = World("ucir", (), 1)
    world.plugins = [Counts()]
    world.begin(Stage())
    assert changed_by_classifying(world, Stage()) == ["count"]


def test_terms_of_a_plug_in_count_with_their_weight():
    class Extra(Plugin):
        def terms(self, batch, out, forward):
            return {"extra": out.logits.square().mean()}

        def weights(self, phase, stage):
            return {"extra": 0.25 if stage.name == "main" else 0.5}

    batch = make_batch(torch.randn(3, 1, 4, 4), torch.tensor([0, 1, 2]))
    for stage, weight in ((Stage(), 0.25), (Stage(name="second"), 0.5)):
        objective = Objective(Plain(), [Extra()], PHASES[0], stage)
        terms, _ = objective.terms(batch)
        torch.testing.assert_close(objective.total(terms), terms["ce0"] + weight * terms["extra"])


def test_terms_of_a_method_count_with_the_weight_of_the_stage():
    class Weighs(Plain):
        def weights(self, phase, stage):
            return {"ce1": 3.0 * (phase.index + 1)} if stage.name == "second" else {}

    batch = make_batch(torch.randn(3, 1, 4, 4), torch.tensor([0, 1, 2]))
    for phase, stage, weight in (
        (PHASES[1], Stage(), 1.0),
        (PHASES[0], Stage(name="second"), 3.0),
        (PHASES[1], Stage(name="second"), 6.0),
    ):
        objective = Objective(Weighs(times=2), [], phase, stage)
        terms, _ = objective.terms(batch)
        torch.testing.assert_close(objective.total(terms), terms["ce0"] + weight * terms["ce1"])


@pytest.mark.parametrize("named", ["ce0", "extra"])
def test_a_term_with_a_name_that_is_there_already_is_an_error(named):
    class Names(Plugin):
        def __init__(self, name, term):
            super().__init__()
            self.name, self.term = name, term

        def terms(self, batch, out, forward):
            return {self.term: out.logits.mean()}

    objective = Objective(Plain(), [Names("one", "extra"), Names("other", named)], PHASES[0], Stage())
    with pytest.raises(BdrError, match=rf"plug-in 'other' names a term that is there already: {named}"):
        objective.terms(make_batch(torch.randn(3, 1, 4, 4), torch.tensor([0, 1, 2])))


@pytest.mark.parametrize("named", ["ce0", "extra", "later"])
def test_a_plug_in_weighs_no_term_but_its_own(named):
    class Weighs(Plugin):
        def __init__(self, name, term, weighed):
            super().__init__()
            self.name, self.term, self.weighed = name, term, weighed

        def terms(self, batch, out, forward):
            return {self.term: out.logits.mean()}

        def weights(self, phase, stage):
            return {self.weighed: 0.0}

    plugins = [Weighs("one", "extra", "extra"), Weighs("other", "further", named), Weighs("last", "later", "later")]
    with pytest.raises(BdrError, match=rf"plug-in 'other' weighs a term that is not its own: {named}"):
        Objective(Plain(), plugins, PHASES[0], Stage()).terms(
            make_batch(torch.randn(3, 1, 4, 4), torch.tensor([0, 1, 2]))
        )


SEAMS = ("begin", "draws", "batch", "observe", "classify", "terms", "weights", "watch", "report", "stepped")


class Restful(Plugin):
    """Acts in the second phase alone, and says which of its seams are called, and where."""

    def __init__(self):
        super().__init__()
        self.called, self.phase = [], None

    def acts(self, phase, stage):
        self.phase = phase.index
        return not phase.first and stage.draw == "all"

    def __getattribute__(self, name):
        if name in SEAMS:
            self.called.append((self.phase, name))
        return super().__getattribute__(name)


def test_where_a_plug_in_does_not_act_none_of_its_seams_is_called(tmp_path, monkeypatch):
    monkeypatch.setattr("bdr.planning.rehearsal.rehearse_going_on", lambda *_: None)  # it builds by name
    config, _ = api.configure("ucir", "digits", [("stage.epochs", 1), ("stage.batch", 64)], SMALL_RUN)
    plan, plugin = plan_run(config, tmp_path / "run", tmp_path), Restful()
    plan.learner.plugins = [plugin]
    api.execute(plan)
    assert plan.experiment.phases[0].first
    assert {name for phase, name in plugin.called if phase == 1} == set(SEAMS)
    assert {phase for phase, _ in plugin.called} == {1}
    assert plugin.called.count((1, "begin")) == 1


# Around the optimiser's step


def test_a_method_hears_before_and_after_the_step_with_the_gradients_there():
    heard = []

    class Hears(Plain):
        def look(self, name, clock):
            weight = self.net.head.weight
            heard.append((name, int(clock.step), weight.detach().clone(), weight.grad.clone()))

        def graded(self, clock):
            self.look("graded", clock)
            self.net.head.weight.grad.mul_(2.0)

        def stepped(self, clock):
            self.look("stepped", clock)

    torch.manual_seed(0)
    method, pool = Hears(), make_pool([6, 6, 6, 6])
    stage = Stage(epochs=1, batch=8, lr=0.5, momentum=0.0, weight_decay=0.0)
    fit = Fit(Objective(method, [], pool.phase, stage), pool, "eager", 0)
    fit.epoch(0, 0, None, lambda step, log: None)
    assert [(name, step) for name, step, _, _ in heard] == [(n, s) for s in range(3) for n in ("graded", "stepped")]
    for (_, _, before, slope), (_, _, after, doubled) in zip(heard[::2], heard[1::2], strict=True):
        assert slope.abs().sum() > 0
        torch.testing.assert_close(doubled, 2 * slope)
        torch.testing.assert_close(after, before - 0.5 * doubled)


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (lambda out: out.logits.sum(1), "`loss` of Slips must return named terms, .* and returned a Tensor"),
        (lambda out: {"ce": out.logits.sum(1)}, r"term 'ce' of Slips must be one number, and is \(2,\): average it"),
        (lambda out: {"ce": 3.0}, r"term 'ce' of Slips must be a tensor, and is a float: leave out \.item\(\)"),
    ],
)
def test_a_slip_in_a_loss_of_ones_own_is_named(loss, said):
    class Slips(Plain):
        def loss(self, batch, phase, classify):
            return loss(self.net(batch.x))

    with pytest.raises(BdrError, match=said):
        Objective(Slips(), [], PHASES[0], Stage()).terms(make_batch(torch.randn(2, 1, 4, 4), torch.tensor([0, 1])))


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda out: None, "`{}` of plug-in 'plugin' must return named terms, .* and returned a NoneType"),
        (
            lambda out: {"own": out.features.mean(1)},
            r"term 'own' of plug-in 'plugin' must be one number, and is \(2,\)",
        ),
        (lambda out: {"own": 3.0}, "term 'own' of plug-in 'plugin' must be a tensor, and is a float"),
    ],
)
@pytest.mark.parametrize("seam", ["terms", "watch"])
def test_a_slip_in_the_terms_of_a_plug_in_is_named(seam, made, said):
    plugin = type("Slips", (Plugin,), {seam: lambda self, batch, out, *forward: made(out)})()
    objective = Objective(Plain(), [plugin], PHASES[0], Stage())
    batch = make_batch(torch.randn(2, 1, 4, 4), torch.tensor([0, 1]))
    with pytest.raises(BdrError, match=said.format(seam)):
        objective.watched(objective.terms(batch)[1], batch)


@pytest.mark.parametrize(
    ("made", "found"),
    [
        (lambda steps: {"share": torch.rand(steps)}, "dict"),
        (lambda steps: None, "NoneType"),
        (lambda steps: torch.rand(steps), r"\(3,\)"),
        (lambda steps: (torch.rand(steps + 1), 2.0), r"\(\(4,\), float\)"),
        (lambda steps: (torch.rand(()),), r"\(\(\)\)"),
    ],
)
def test_a_slip_in_what_a_plug_in_draws_is_named(made, found):
    plugin = type("Slips", (Plugin,), {"draws": lambda self, steps, size, chance: made(steps)})()
    pool = make_pool([6, 6, 6, 6])
    fit = Fit(Objective(Plain(), [plugin], pool.phase, Stage(epochs=1, batch=8)), pool, "eager", 0)
    with pytest.raises(
        BdrError, match=rf"`draws` of plug-in 'plugin' must .* a row a step \(3, ...\), and returned {found}$"
    ):
        fit.plan(0)


def test_a_plug_in_that_hands_on_no_batch_is_named():
    plugin = type("Slips", (Plugin,), {"batch": lambda self, batch, drawn: None})()
    pool = make_pool([6, 6, 6, 6])
    fit = Fit(Objective(Plain(), [plugin], pool.phase, Stage(epochs=1, batch=8)), pool, "eager", 0)
    with pytest.raises(BdrError, match="`batch` of plug-in 'plugin' must return the batch, and returned a NoneType"):
        fit.epoch(0, 0, None, lambda step, log: None)


def test_the_term_that_was_not_finite_first_is_named():
    class Broken(Plain):
        def loss(self, batch, phase, classify):
            return super().loss(batch, phase, classify) | {
                "broken": (-1 - self.net(batch.x).logits.square().mean()).sqrt()
            }

    pool, stage = make_pool([6, 6, 6, 6]), Stage(epochs=1, batch=8)
    fit = Fit(Objective(Broken(), [], pool.phase, stage), pool, "eager", 0)
    with pytest.raises(BdrError, match="term 'broken' at step 1 of epoch 1"):
        fit.epoch(0, 0, None, lambda step, log: None)


def test_a_method_that_never_classifies_leaves_plug_ins_nothing_to_act_on():
    with pytest.raises(BdrError, match=r"never calls `classify`.*'plugin'"):
        Objective(Plain(times=0), [Times()], PHASES[0], Stage()).terms(
            make_batch(torch.randn(2, 1, 4, 4), torch.tensor([0, 1]))
        )


# What is watched


def watched_of(y, phase, plugins=()):
    objective = Objective(Plain(), plugins, phase, Stage())
    batch = make_batch(torch.randn(len(y), 1, 4, 4, generator=torch.Generator().manual_seed(2)), y)
    _, out = objective.terms(batch)
    return objective.watched(out, batch).get("ce_old"), out


def test_nothing_is_watched_in_the_first_phase():
    assert watched_of(torch.tensor([0, 1]), PHASES[0])[0] is None


class Counting(Plugin):
    """Watches what is no number."""

    def __init__(self, column="extra"):
        super().__init__()
        self.name, self.column = "counts", column

    def watch(self, batch, out):
        value = out.logits.sum() * torch.nan
        assert not value.requires_grad
        return {self.column: value}


@pytest.mark.parametrize("old", [0, 2])
def test_what_a_plug_in_watches_is_recorded_in_every_phase_and_never_minimised(old):
    torch.manual_seed(0)
    method, pool = Plain(), make_pool([6, 6, 6, 6], old)
    fit = Fit(Objective(method, [Counting()], pool.phase, Stage(epochs=1, batch=8)), pool, "eager", 0)
    log = fit.epoch(0, 0, None, lambda step, log: None)
    assert log.names == ("ce0", "extra", *(["ce_old"] if old else []))
    assert np.isnan(log.term("extra")).all()
    assert log.loss == log.mean("ce0")
    assert all(p.isfinite().all() for p in method.parameters())


@pytest.mark.parametrize("named", ["ce0", "ce_old", "gradient_new"])
def test_a_watched_value_with_a_name_that_is_there_already_is_an_error(named):
    objective = Objective(Plain(), [Counting(named)], PHASES[1], Stage())
    batch = make_batch(torch.randn(3, 1, 4, 4), torch.tensor([0, 1, 2]))
    _, out = objective.terms(batch)
    with pytest.raises(BdrError, match=rf"plug-in 'counts' names a term that is there already: {named}"):
        objective.watched(out, batch)


def test_a_batch_without_old_samples_has_no_watched_value():
    assert watched_of(torch.tensor([3, 3, 3]), PHASES[1])[0].isnan()


def test_the_watched_value_is_the_plain_cross_entropy_of_old_samples_whatever_shifts_the_loss():
    class Shift(Plugin):
        def classify(self, inner, out, y):
            return inner(out.shift(torch.tensor([5.0, -5.0, 0.0, 3.0])), y)

    y = torch.tensor([0, 3, 2, 3, 1])
    value, out = watched_of(y, PHASES[1], [Shift()])
    old = torch.tensor([0, 2, 4])
    torch.testing.assert_close(value, F.cross_entropy(out.logits[old], y[old]))
    assert not value.requires_grad


def test_mixed_targets_are_watched_by_their_old_part():
    y = torch.tensor([[0.5, 0.0, 0.0, 0.5], [0.0, 0.0, 0.0, 1.0]])
    value, out = watched_of(y, PHASES[1])
    torch.testing.assert_close(value, F.cross_entropy(out.logits[:1], y[:1]))


# Predictions


def test_classes_are_ranked_by_scores_even_where_probabilities_tie_at_zero():
    scores = torch.tensor([0.0, -300.0, -200.0, -250.0, -400.0, -150.0, -1000.0])

    class Sure(Plain):
        def readouts(self, x):
            return {"cnn": scores.expand(len(x), -1), "other": -scores.expand(len(x), -1)}

    found = predict(Sure(), make_pool([3] * 7).store, seen=7)
    ids, chances = found.readouts["cnn"]
    assert ids.tolist() == [[0, 5, 2, 3, 1]] * 21
    assert chances.tolist() == [[1, 0, 0, 0, 0]] * 21
    assert found.readouts["other"][0].tolist() == [[6, 4, 1, 3, 2]] * 21
    assert len(found.labels) == 21


# Rates, and what moves


def rates(**fields):
    stage = Stage(lr=0.4, **fields)
    return [learning_rate(stage, epoch) for epoch in range(stage.epochs)]


def test_rates_drop_at_the_given_epochs():
    assert rates(epochs=5, drops=(2, 4)) == pytest.approx([0.4, 0.4, 0.04, 0.04, 0.004])


def test_rates_drop_by_the_given_factor():
    assert rates(epochs=3, drops=(1, 2), drop=0.5) == pytest.approx([0.4, 0.2, 0.1])


def test_rates_warm_up_in_equal_steps():
    assert rates(epochs=6, drops=(5,), warmup=4) == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4, 0.04])


def test_rates_follow_half_a_cosine_after_the_warm_up():
    quarter = 0.5 * (1 + math.cos(math.pi / 4))
    hand = [0.2, 0.4, 0.4, 0.4 * quarter, 0.2, 0.4 * (1 - quarter)]
    assert rates(epochs=6, schedule="cosine", warmup=2) == pytest.approx(hand)


def test_a_constant_rate_knows_no_drops():
    assert rates(epochs=3, schedule="constant", drops=(1,)) == [0.4] * 3


def test_exactly_the_named_parameters_move():
    net = nn.ModuleDict({"head": nn.Linear(2, 2), "header": nn.Linear(2, 2)})
    set_moving(net, ["head", "header.bias"])
    assert [n for n, p in net.named_parameters() if p.requires_grad] == ["head.weight", "head.bias", "header.bias"]


def test_a_module_that_does_not_move_runs_in_eval_mode():
    net = nn.Sequential(nn.BatchNorm1d(2), nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), nn.Dropout())
    set_moving(net, ["1.0"])
    set_modes(net)
    assert [part.training for part in net.modules()] == [True, False, True, True, False, True]


def flags_of(net):
    moving = [(p.requires_grad, p.grad is None) for p in net.parameters()]
    return moving, [part.training for part in net.modules()]


def test_parts_that_take_turns_are_awake_again_as_when_they_were_set_so():
    def rest_of_the_net():
        return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout())

    net = nn.ModuleList([rest_of_the_net(), nn.Sequential(nn.Dropout(), rest_of_the_net()), Frozen(rest_of_the_net())])
    seen = {}
    for name in ("0", "1", "1.1.0"):
        set_moving(net, [name])
        set_modes(net)
        seen[name] = Awake.now([net]), flags_of(net)
    for awake, flags in [*seen.values(), *reversed(seen.values())]:
        net.train().requires_grad_()
        for parameter in net.parameters():
            parameter.grad = torch.ones_like(parameter)
        awake.again()
        moving = [moves for moves, _ in flags[0]]
        assert flags_of(net) == ([(moves, not moves) for moves in moving], flags[1])


@pytest.mark.parametrize("precision", ["tf32", "fp32"])
@pytest.mark.parametrize("there", [True, False])
def test_how_precise_convolutions_are_is_said_for_as_long_as_a_part_runs(there, precision, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", there)
    net = two_blocks(LinearHead)
    set_precision(net, precision, torch.device("cpu"))
    assert torch.backends.cudnn.allow_tf32 is there
    with convolving_as(net):
        assert torch.backends.cudnn.allow_tf32 is (precision == "tf32")
    assert torch.backends.cudnn.allow_tf32 is there


@pytest.mark.parametrize("precision", ["tf32", "fp32"])
def test_training_loading_and_predicting_leave_the_process_as_it_was(precision, tmp_path, monkeypatch):
    seen, plain = [], Store.plain

    def looked(self, *given):
        seen.append(torch.backends.cudnn.allow_tf32)
        return plain(self, *given)

    monkeypatch.setattr(Store, "plain", looked)
    there = torch.backends.cudnn.allow_tf32
    path = train(tmp_path / "run", "ucir", phases=1, precision=precision)
    api.load(path)
    api.evaluate(path)
    assert set(seen) == {precision == "tf32"}  # whoever looks at images, whatever the process has
    assert torch.backends.cudnn.allow_tf32 is there


def settings_of_the_process():
    return torch._dynamo.config.save_config(), stance_of(torch.zeros(1)), warnings.showwarning, warnings.filters[:]


@torch.compile(backend="eager")
def stance_of(x):
    return torch.compiler.is_compiling()


@pytest.mark.parametrize("fails", [False, True])
def test_a_run_that_compiles_leaves_the_compiler_and_the_warnings_of_the_process_as_they_were(
    fails, tmp_path, monkeypatch
):
    limits = []

    def steps_as_it_reads(self):
        limits.append((torch._dynamo.config.recompile_limit, torch._dynamo.config.fail_on_recompile_limit_hit))
        if fails:
            raise BdrError("in a step")
        self.step()

    monkeypatch.setattr(stepping.CompiledStep, "__call__", steps_as_it_reads)
    before = settings_of_the_process()
    with pytest.raises(BdrError, match="in a step") if fails else contextlib.nullcontext():
        train(tmp_path / "run", "ucir", phases=1, engine="compile", net="runs:flat")
    assert set(limits) == {(stepping.compiled.VERSIONS, True)}
    assert settings_of_the_process() == before


def test_in_a_run_code_is_compiled_for_many_shapes_and_for_too_many_is_an_error(monkeypatch):
    monkeypatch.setattr(stepping.compiled, "VERSIONS", 12)
    torch._dynamo.reset()
    doubled = torch.compile(lambda x: (torch.compiler.is_compiling(), 2 * x), dynamic=False, backend="eager")
    with eager_between_steps("compile"), torch.compiler.set_stance("default"):
        assert all(doubled(torch.zeros(length))[0] for length in range(2, 14))
        with pytest.raises(torch._dynamo.exc.FailOnRecompileLimitHit):
            doubled(torch.zeros(14))
    assert not doubled(torch.zeros(15))[0]  # outside, too many run as they read


def test_importing_leaves_the_warnings_of_the_process_as_they_were():
    modules = "bdr.paper.reproduce, bdr.commands.training, bdr.sweep, bdr.cli"
    code = f"import warnings; before = warnings.showwarning; import {modules}; assert warnings.showwarning is before"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert said.returncode == 0, said.stderr


def test_a_stage_that_moves_nothing_is_an_error():
    stage = Stage(name="balance", train=("heads",))
    with pytest.raises(BdrError, match=r"'balance' moves no parameter.*heads"):
        make_optimizer(stage, [nn.Parameter(torch.ones(1), requires_grad=False)], torch.device("cpu"))


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_weight_decay_leaves_alone_what_is_named(kind):
    decayed, spared = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    stage = Stage(optimizer=kind, weight_decay=0.5)
    optimizer = make_optimizer(stage, [decayed, spared], torch.device("cpu"), undecayed=[spared])
    for parameter in (decayed, spared):
        parameter.grad = torch.zeros(2)
    optimizer.step()
    assert bool((decayed < 1).all())
    assert bool((spared == 1).all())


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_moments_are_kept_by_the_place_of_their_parameter_whatever_its_group(kind):
    def made(undecayed=()):
        parameters = [nn.Parameter(torch.full((size,), float(size))) for size in (2, 3, 4)]
        for parameter in parameters:
            parameter.grad = parameter.detach().clone()
        spared = [parameters[place] for place in undecayed]
        return parameters, make_optimizer(Stage(optimizer=kind), parameters, torch.device("cpu"), spared)

    one, before = made()
    before.step()
    kept = optimizer_state(before)
    parameters, after = made(undecayed=[1])
    restore_optimizer(after, kept)
    assert optimizer_state(after).keys() == kept.keys()
    assert all(torch.equal(value, kept[name]) for name, value in optimizer_state(after).items())
    assert all(
        torch.equal(after.state[new][name], before.state[old][name])
        for old, new in zip(one, parameters, strict=True)
        for name in before.state[old]
    )
    with pytest.raises(BdrError, match="of other parameters than those that move"):
        restore_optimizer(after, {"0/momentum_buffer": torch.ones(5)})


OWN = """
from bdr.plugins import Plugin

class Poison(Plugin):
    "After some batches of the second phase, the loss is not a number."
    def __init__(self, spared=10):
        super().__init__()
        self.spared = spared
    def acts(self, phase, stage):
        return not phase.first
    def begin(self, phase, census, net):
        self.calls = 0
    def observe(self, batch, out):
        self.calls += 1
    def classify(self, inner, out, y):
        return inner(out, y) * (float("nan") if self.calls > self.spared else 1.0)
"""


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    (tmp_path / "own_poison.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)


def test_what_rests_has_no_gradient_of_an_earlier_stage():
    method = Plain()
    gradient_of(method, [])
    assert all(p.grad is not None for p in method.net.parameters())
    set_moving(method, ["net.head"])
    assert {name for name, p in method.named_parameters() if p.grad is not None} == {"net.head.weight", "net.head.bias"}


def test_stage_train_moves_exactly_that_part(tmp_path):
    said = typed("run", "ucir", *SHORT, "--set", "stage.train=[net.head]", "--keep", "all", "--out", tmp_path / "run")
    assert said.code == 0, said.err
    first, later = (kept(tmp_path / "run", phase) for phase in (0, 1))
    assert all(torch.equal(first[name], later[name]) for name in first if name.startswith("net.backbone"))
    assert not torch.equal(first["net.head.eta"], later["net.head.eta"])


class Thaws(Plain):
    """Rests its backbone, and lets it go when a stage begins."""

    def __init__(self, make):
        super().__init__()
        self.net = make(LinearHead)
        self.net.backbone.requires_grad_(False)

    def begin(self, phase, pool):
        self.net.head.grow(phase.new)

    def begin_stage(self, stage, phase, pool):
        self.net.backbone.requires_grad_(not phase.first)


def test_what_a_stage_sets_free_when_it_begins_moves_in_it(tmp_path):
    fields = SMALL_RUN | {"keep": "all"}
    config, _ = api.configure("test_engine:Thaws", "digits", [("stage.epochs", 1), ("stage.batch", 64)], fields)
    plan = plan_run(config, tmp_path / "run", tmp_path)
    start = {name: value.clone() for name, value in plan.experiment.method.state_dict().items()}
    api.execute(plan)
    weights = [name for name in start if name.startswith("net.backbone") and name.endswith("convs.0.weight")]
    first, later = (kept(tmp_path / "run", phase) for phase in (0, 1))
    assert weights
    assert all(torch.equal(first[name], start[name]) for name in weights)
    assert not any(torch.equal(later[name], first[name]) for name in weights)


def kept(run, phase):
    return read_state(run / f"phase-{phase:02d}" / "model").tensors


def test_what_plug_ins_report_is_read_at_once_to_the_last_digit():
    told = {"one": {"a": torch.tensor(0.1), "b": 3.25}, "none": {}, "other": {"c": torch.tensor([2**53 - 1])}}
    found = read(told, torch.device("cpu"))
    assert found == {"one": {"a": float(torch.tensor(0.1)), "b": 3.25}, "other": {"c": float(2**53 - 1)}}
    assert read({"none": {}}, torch.device("cpu")) == {}


def test_what_plug_ins_report_is_in_the_record_of_every_epoch_that_they_act_in(tmp_path):
    path = tmp_path / "run"
    said = typed("run", "ucir+cwd+bdr", *SHORT, "--set", "stage.epochs=2", "--out", path)
    assert said.code == 0, said.err
    lines = [json.loads(line) for line in (path / "epochs.jsonl").read_text().splitlines()]
    assert [line["phase"] for line in lines] == [0, 0, 1, 1]
    assert all("plugins" not in line for line in lines[:2])
    for line in lines[2:]:
        assert list(line["plugins"]) == ["bdr"]
        told = line["plugins"]["bdr"]
        assert set(told) == {f"{name}_{part}" for name in ("offset", "spread", "omega") for part in ("old", "new")}
        assert all(math.isfinite(value) for value in told.values())
        assert told["offset_old"] < told["offset_new"]
        assert min(told["spread_old"], told["spread_new"]) > 0
    assert lines[2]["plugins"] != lines[3]["plugins"]
    first, later = Run.open(path).phases
    assert first["plugins_at_start"] == {}
    assert set(later["plugins_at_start"]["bdr"]) == set(lines[2]["plugins"]["bdr"])
    assert later["plugins_at_start"] != lines[2]["plugins"]


# What stops a run


@pytest.mark.usefixtures("own_module")
def test_a_loss_that_is_no_number_stops_the_run_and_keeps_the_checkpoint_before_it(tmp_path):
    path = tmp_path / "run"
    said = typed("run", "ucir+own_poison:Poison", *SHORT, "--set", "stage.epochs=2", "--out", path)
    assert said.code == 1
    assert "term 'ce'" in said.err
    assert "of epoch 2, stage 'main', phase 1" in said.err
    assert "the checkpoint before it is kept" in said.err
    state = Checkpoints(path / "checkpoint").newest()
    assert state is not None
    assert state.info["position"] == {"phase": 1, "stage": 0, "epoch": 0, "step": 0}
    assert all(value.isfinite().all() for value in state.tensors.values() if value.is_floating_point())
    run = Run.open(path)
    assert not run.done
    assert len(run.phases) == 1
    assert "failed: BdrError: " in last_logged(path)
    assert "term 'ce'" in last_logged(path)
    assert "Try a smaller --set stage.lr=" in said.err


@pytest.mark.usefixtures("own_module")
def test_no_smaller_learning_rate_is_advised_where_no_step_has_been_made(tmp_path):
    said = typed("run", "ucir+own_poison:Poison", *SHORT, "--set", "Poison.spared=0", "--out", tmp_path / "run")
    assert said.code == 1
    assert "the loss is not finite: term 'ce' at step 1 of epoch 1, stage 'main', phase 1" in said.err
    assert "no learning rate mends it" in said.err
    assert "stage.lr" not in said.err


def last_logged(path):
    return (path / "log.txt").read_text().splitlines()[-1]


def test_a_failure_of_any_kind_is_in_the_log_in_one_line_until_the_run_goes_on(tmp_path, monkeypatch):
    def broken(*_):
        raise ZeroDivisionError("a reason\nof two lines")

    with monkeypatch.context() as patch:
        patch.setattr(stepping.EagerStep, "__call__", broken)
        with pytest.raises(ZeroDivisionError):
            train(tmp_path / "run", "ucir", phases=1)
    assert last_logged(tmp_path / "run").endswith(" failed: ZeroDivisionError: a reason of two lines")
    train(tmp_path / "run", "ucir", phases=1)
    assert last_logged(tmp_path / "run").endswith(" there is no checkpoint: the run begins anew")


def test_a_disk_that_takes_no_log_does_not_hide_what_went_wrong(tmp_path, monkeypatch):
    def broken(*_):
        raise ZeroDivisionError

    def full(*_):
        raise BdrError("cannot write log.txt")

    monkeypatch.setattr(stepping.EagerStep, "__call__", broken)
    monkeypatch.setattr(RunWriter, "log", full)
    with pytest.raises(ZeroDivisionError):
        train(tmp_path / "run", "ucir", phases=1)


def test_out_of_memory_names_the_batch_to_try(tmp_path, monkeypatch):
    def full(*_):
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(stepping.EagerStep, "__call__", full)
    said = typed("run", "ucir", *SHORT, "--out", tmp_path / "run")
    assert said.code == 1
    assert "out of memory on cpu with a batch of 64: try --set stage.batch=32" in said.err
    assert "Traceback" not in said.err


def test_shifted_outputs_shift_every_expert():
    out = Outputs(torch.zeros(2, 3), torch.zeros(2, 1), experts=torch.zeros(4, 2, 3)).shift(torch.arange(3.0))
    assert torch.equal(out.experts[3], out.logits)


@pytest.mark.parametrize(("batch", "kind"), [(8, stepping.CompiledStep), (1000, stepping.EagerStep)])
def test_only_whole_batches_are_worth_compiling_for(batch, kind):
    world = World("ucir", (), 1)
    stage = Stage(batch=batch)
    assert isinstance(Fit(world.objective(stage), world.pool, "compile", 0).step, kind)
