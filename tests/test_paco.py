"""PaCo: its loss against a loop, the queue, the encoder that follows, what learns, and who refuses it."""

import copy
import math
import shutil
from functools import partial

import pytest
import torch
from runs import Position, assert_equal, lines, plan, train, train_until
from small import make_flat, make_pool
from test_engine import World, losses_of, one_convolution

from bdr import api
from bdr.engine.analyse import gradient_norms
from bdr.engine.checkpoint import read_state
from bdr.engine.fit import Fit
from bdr.engine.objective import Objective
from bdr.engine.step import set_precision
from bdr.errors import UsageError
from bdr.losses import softmax_loss
from bdr.methods.plain import Replay
from bdr.nets.base import Follower
from bdr.paper.cells import load_cells
from bdr.paper.mapping import mapped
from bdr.plugins import PLUGINS, BalancedContrast, LogitAdjustment, PaCo
from bdr.plugins.paco import EMPTY, contrasted, enqueue, parametric
from bdr.records.steps import GRADIENTS
from bdr.types import Outputs, Phase, Stage

COUNTS, OLD = (6, 7, 8, 9), 2
SMALL = {"queue": 12, "momentum": 0.9}


def chance(seed=0):
    return torch.Generator().manual_seed(seed)


def units(count, dim=6, seed=0):
    return torch.nn.functional.normalize(torch.randn(count, dim, generator=chance(seed), dtype=torch.float64))


def slow_loss(logits, y, query, keys, queue, queue_y, alpha, beta, gamma, temperature):
    """The paper's formula, image by image: logits hold the frequencies."""
    everyone = [*query.tolist(), *keys.tolist(), *queue.tolist()]
    labels, losses = [*y.tolist(), *y.tolist(), *queue_y.tolist()], []
    for i, anchor in enumerate(query.tolist()):
        others = [j for j in range(len(everyone)) if j != i and labels[j] != EMPTY]
        score = {j: sum(a * b for a, b in zip(anchor, everyone[j], strict=True)) / temperature for j in others}
        mass = sum(map(math.exp, logits[i].tolist())) + gamma * sum(map(math.exp, score.values()))
        weighed = [(beta, float(logits[i, y[i]]))] + [(alpha, score[j]) for j in others if labels[j] == labels[i]]
        top = sum(weight * (value - math.log(mass)) for weight, value in weighed)
        losses.append(-top / sum(weight for weight, _ in weighed))
    return losses


@pytest.mark.parametrize(
    ("alpha", "beta", "gamma", "temperature"), [(0.01, 1, 1, 0.05), (0.3, 2, 0.5, 0.2), (0, 1, 1, 1)]
)
def test_the_loss_is_that_of_the_paper(alpha, beta, gamma, temperature):
    y, queue_y = torch.tensor([0, 1, 1, 3, 2]), torch.tensor([1, 3, EMPTY, 0, EMPTY, 1, 1])
    logits = 3 * torch.randn(5, 4, generator=chance(), dtype=torch.float64)
    query, keys, queue = units(5), units(5, seed=1), units(7, seed=2)
    contrast = contrasted(query, y, torch.cat([keys, queue]), torch.cat([y, queue_y]), temperature)
    ours = parametric(softmax_loss(logits, y), logits, contrast, alpha, beta, gamma)
    hand = slow_loss(logits, y, query, keys, queue, queue_y, alpha, beta, gamma, temperature)
    torch.testing.assert_close(ours, torch.tensor(hand, dtype=torch.float64))


def fit_of(plugin, pool=None):
    torch.manual_seed(0)
    pool, method = pool or make_pool(COUNTS, OLD), Replay(make_flat)
    method.net.head.grow(len(COUNTS))
    plugin.attach(method.net)
    stage = Stage(epochs=2, batch=5, lr=0.1)
    plugin.begin(pool.phase, pool.census("all", 0), method.net)
    fit = Fit(Objective(method, [plugin], pool.phase, stage), pool, "eager", 0)
    fit.open(0)
    return fit


def test_a_step_takes_the_loss_of_the_paper_in_place_of_cross_entropy():
    plugin = PaCo(**SMALL)
    fit = fit_of(plugin)
    fit.step()  # so that there is something in the queue
    objective, (batch, views) = fit.objective, fit.step.batch(torch.tensor([1]))
    queue, queue_y = plugin.queue.clone(), plugin.labels.clone()
    copied = copy.deepcopy(plugin)
    terms, out = objective.terms(batch, views)
    query = copied.projection(out.features)
    keys = copied.key_projection(copied.key_net(views[0][0]).features)
    logits = out.logits + torch.log(torch.tensor([3.0, 3, 8, 9]) / 23)
    hand = slow_loss(logits.detach(), batch.y, query.detach(), keys, queue, queue_y, 0.01, 1, 1, 0.05)
    assert float(terms["ce"].detach()) == pytest.approx(sum(hand) / len(hand), rel=1e-4)
    assert float(objective.total(terms).detach()) == pytest.approx(float(terms["ce"].detach()))
    assert objective.watched(out, batch, views)["paco"].isfinite()  # for the records


def test_gradients_are_watched_without_the_images_that_a_step_contrasts():
    fit = fit_of(PaCo(**SMALL))
    objective, (batch, views) = fit.objective, fit.step.batch(torch.tensor([0]))
    objective.watches = (gradient_norms,)
    _, out = objective.terms(batch, views)
    found = objective.watched(out, batch, views)
    assert found.keys() == {"paco", *GRADIENTS}
    alone = gradient_norms(objective, out, batch.y)  # between two steps
    assert all(torch.equal(found[name], alone[name]) for name in GRADIENTS)


def test_the_classes_stand_beside_the_images_with_their_frequencies_as_they_are():
    y, counts = torch.tensor([0, 1, 1, 3, 2]), [2, 3, 11, 24]
    logits = 3 * torch.randn(5, 4, generator=chance(), dtype=torch.float64)
    query, keys, nobody = units(5), units(5, seed=1), torch.zeros(0, 6, dtype=torch.float64)
    pool, plugin = make_pool((9, 9, 11, 24), OLD), PaCo(**SMALL)
    rows = [pool.rows[pool.store.labels[pool.rows] == k][:count] for k, count in enumerate(counts)]
    census = pool.census("all", 0)
    census.rows = torch.cat(rows)
    method = Replay(make_flat)
    plugin.attach(method.net)
    plugin.begin(pool.phase, census, method.net)
    plugin.contrast = contrasted(query, y, keys, y, plugin.temperature)
    ours = plugin.classify(Replay.criterion, Outputs(logits, query), y)
    shifted = logits + torch.log(torch.tensor(counts, dtype=torch.float64) / sum(counts))
    hand = slow_loss(shifted, y, query, keys, nobody, y[:0], 0.01, 1, 1, 0.05)
    torch.testing.assert_close(ours, torch.tensor(hand, dtype=torch.float64), rtol=1e-6, atol=0)


def test_outside_of_a_step_it_is_logit_adjustment():
    pool, out = make_pool(COUNTS, OLD), Outputs(torch.randn(6, 4, generator=chance()), torch.zeros(6, 5))
    y, adjusted, paco = torch.tensor([0, 1, 2, 3, 3, 2]), LogitAdjustment(), PaCo(**SMALL)
    adjusted.begin(pool.phase, pool.census("all", 0), None)
    fit_of(paco, pool).step()
    criterion = Replay.criterion
    torch.testing.assert_close(paco.classify(criterion, out, y), adjusted.classify(criterion, out, y))


# The queue


def test_the_queue_holds_the_newest_views_with_their_classes():
    plugin = PaCo(**SMALL)
    plugin.empty(7)
    keys, y = units(12, 128).float(), torch.arange(12)
    for start in (0, 4, 8):
        enqueue(plugin.queue, plugin.labels, plugin.place, keys[start : start + 4], y[start : start + 4])
    assert sorted(plugin.labels.tolist()) == [5, 6, 7, 8, 9, 10, 11]
    assert torch.equal(plugin.queue, keys[plugin.labels])


def test_a_batch_longer_than_the_queue_leaves_its_end_there():
    plugin = PaCo()
    plugin.empty(3)
    enqueue(plugin.queue, plugin.labels, plugin.place, units(8, 128).float(), torch.arange(8))
    assert sorted(plugin.labels.tolist()) == [5, 6, 7]


def test_the_queue_is_empty_when_a_phase_begins():
    plugin = PaCo(**SMALL)
    fit = fit_of(plugin)
    fit.step()
    assert int((plugin.labels != EMPTY).sum()) == 5
    plugin.begin(fit.pool.phase, fit.pool.census("all", 0), fit.objective.method.net)
    assert (plugin.labels == EMPTY).all()


# What moves


def test_what_follows_is_a_moving_average_of_what_learns_running_statistics_included():
    one, other = torch.nn.BatchNorm1d(3), torch.nn.BatchNorm1d(3)
    torch.nn.init.constant_(other.weight, 5.0)
    other.running_mean.fill_(2.0)
    follower = Follower(one)
    follower.follow(other, 0.75)
    torch.testing.assert_close(follower.net.weight, torch.full((3,), 2.0))
    torch.testing.assert_close(follower.net.running_mean, torch.full((3,), 0.5))


def test_the_momentum_encoder_follows_after_every_step_and_learns_nothing_itself():
    plugin = PaCo(**SMALL)
    fit = fit_of(plugin)
    net = fit.objective.method.net
    before = plugin.key_net.net.backbone.matrix.weight.clone()
    assert torch.equal(before, net.backbone.matrix.weight)
    fit.step()
    hand = 0.9 * before + 0.1 * net.backbone.matrix.weight
    torch.testing.assert_close(plugin.key_net.net.backbone.matrix.weight, hand)
    assert not any(p.requires_grad or p.grad is not None for p in plugin.key_net.parameters())
    assert not plugin.key_net.net.training


def test_keys_are_normalised_by_their_own_batch():
    """With statistics of the projection that learns, which moves fast at first, all keys would point one way."""
    torch.manual_seed(0)
    plugin = PaCo(momentum=0.999)
    fit = fit_of(plugin)
    fit.step()
    keys, features = plugin.key_projection, torch.randn(7, plugin.projection.dim) + 3
    first, norm, _, last = keys.net.layers
    hidden = first(features)
    mean, var = hidden.mean(0), hidden.var(0, correction=0)
    hand = (hidden - mean) / (var + norm.eps).sqrt() * norm.weight + norm.bias
    hand = torch.nn.functional.normalize(last(hand.relu()))
    for _ in range(2):
        assert not keys.net.training
        torch.testing.assert_close(keys(features), hand)
    assert not list(keys.buffers())


def test_the_projection_learns_with_the_method():
    plugin = PaCo(**SMALL)
    fit = fit_of(plugin)
    before = copy.deepcopy(plugin.projection.state_dict())
    fit.step()
    assert all(not torch.equal(before[name], p) for name, p in plugin.projection.named_parameters())
    moving = {id(p) for group in fit.optimizer.param_groups for p in group["params"]}
    assert {id(p) for p in plugin.projection.parameters()} <= moving
    assert not {id(p) for p in (*plugin.key_net.parameters(), *plugin.key_projection.parameters())} & moving


def test_the_momentum_encoder_runs_in_the_precision_of_the_backbone():
    plugin = PaCo(**SMALL)
    fit_of(plugin)
    set_precision(plugin, "bf16", torch.device("cpu"))
    assert plugin.key_net.net.precision == torch.bfloat16


@pytest.mark.parametrize("method", ["der", "wa"])
def test_it_follows_networks_that_grow(method):
    world = World(method, ("paco",), 1)
    stage = world.stages(Stage())[0]
    world.begin(stage)
    objective, (plugin,), batch = world.objective(stage), world.plugins, world.batch()
    terms, _ = objective.terms(batch, world.views(world.plugins, batch))
    objective.total(terms).backward()
    plugin.stepped(world.method.net, batch.clock)
    assert plugin.projection.dim == plugin.key_net(batch.x).features.shape[1]
    assert all(value.isfinite() for value in terms.values())


# Runs


def test_it_rests_in_the_first_phase_and_where_not_all_is_drawn():
    assert PaCo().acts(Phase(1, 2, 4), Stage())
    assert not PaCo().acts(Phase(0, 0, 2), Stage())
    assert not PaCo().acts(Phase(1, 2, 4), Stage(draw="memory"))


@pytest.mark.parametrize("what", ["ucir+cwd+paco"])
@pytest.mark.parametrize("position", [Position(1, 0, 1, 2)])
def test_a_run_ends_where_the_whole_one_does_and_keeps_nothing_of_it_with_the_model(what, position, tmp_path):
    fields = {"net": "runs:flat", "phases": 2}
    whole = train(tmp_path / "whole" / "run", what, **fields)
    path = train_until(position, tmp_path / "stopped" / "run", what, **fields)
    api.resume(path)
    assert_equal(path, whole)
    kept = read_state(whole / "phase-01" / "model").tensors
    plain = train(tmp_path / "plain" / "run", "ucir+cwd", **fields)
    assert kept.keys() == read_state(plain / "phase-01" / "model").tensors.keys()
    counts = [[line["parameters"] for line in lines(run / "phases.jsonl")] for run in (whole, plain)]
    assert counts[0] == counts[1]


def test_a_network_is_branched_before_it_is_copied_in_whatever_order_they_are_named(tmp_path):
    short = {"phases": 2, "settings": [("stage.epochs", 1)]}
    assert (train(tmp_path / "run", "ucir+paco+aanet", **short) / "DONE").exists()


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("ucir+paco+bdr", "'paco' and 'bdr' both set the prior: use one of them"),
        ("replay+paco+mixup", "'mixup' mixes images of different classes, and plug-in 'paco' needs the one class"),
        ("icarl+paco", "'paco' lets images compete with the classes of a softmax, and 'icarl' has another"),
        ("podnet+paco", "'podnet' has another classification loss"),
    ],
)
def test_what_makes_no_sense_is_refused_before_training(what, reason, tmp_path):
    with pytest.raises(UsageError, match=reason):
        plan(tmp_path / "run", what)


@pytest.mark.parametrize(
    "settings", [{"alpha": -1}, {"beta": 0}, {"gamma": 0}, {"temperature": 0}, {"queue": 0}, {"momentum": 1.0}]
)
def test_settings_that_cannot_be_are_refused(settings):
    ((name, value),) = settings.items()
    with pytest.raises(ValueError, match=f"{name} = {value} is not allowed"):
        PaCo(**settings)


@pytest.mark.parametrize(("printed", "plugin"), [("PaCo", "paco"), ("BCL", "bcl")])
def test_its_rows_of_table_8_are_runs(printed, plugin):
    rows = [cell for cell in load_cells() if cell.table == "T8" and printed in cell.parts]
    assert rows
    assert {mapped(cell).spec for cell in rows} == {f"ucir+cwd+{plugin}"}


def as_good_as_calm(monkeypatch):
    """Settings under which two engines can be compared over many steps.

    As it is, similarities at a temperature of 0.05 make a difference of 1e-6 in the features one of several per cent
    within 20 steps, on one device and by one engine: rounding alone parts two runs. At 0.2 even one of 1e-3 stays below
    half of what is allowed, while a queue that is not written is ten times above it and an encoder that does not follow
    six times: here the queue goes round, and half of the encoder is new in every step. Balanced contrastive learning
    at its 0.1 is carried over the limit by one of 1e-3, and at 0.5 to an eighth of it.
    """
    monkeypatch.setitem(PLUGINS, "paco", partial(PaCo, temperature=0.2, queue=64, momentum=0.5))
    monkeypatch.setitem(PLUGINS, "balanced-contrastive", partial(BalancedContrast, temperature=0.5))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("plugin", ["paco", "bcl", "balanced-contrastive"])
def test_the_engines_agree_and_no_step_is_read_by_the_host(plugin, monkeypatch):
    torch._dynamo.reset()
    as_good_as_calm(monkeypatch)
    eager, names = losses_of("eager", "cuda", steps=20, plugins=(plugin,))
    for engine in ("compile", "graph"):
        values, same = losses_of(engine, "cuda", steps=20, plugins=(plugin,))
        assert same == names
        torch.testing.assert_close(values, eager, rtol=0.02, atol=0.02, equal_nan=True, msg=engine)


@pytest.mark.parametrize("plugin", ["paco", "bcl", "balanced-contrastive"])
def test_a_graph_puts_back_all_that_its_warm_up_moves(plugin):
    world, stage = World("ucir", (plugin,), 1), Stage(epochs=1, batch=16)
    world.begin(stage)
    parts = (world.method, *world.plugins)
    kept = {id(t) for part in parts for t in part.state_dict(keep_vars=True).values()}
    assert all(id(t) in kept for part in parts for t in (*part.parameters(), *part.buffers()))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None and shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("plugin", ["paco", "bcl", "balanced-contrastive"])
def test_compiled_steps_are_eager_steps(plugin, monkeypatch):
    torch._dynamo.reset()
    as_good_as_calm(monkeypatch)
    eager, names = losses_of("eager", steps=8, make=one_convolution, plugins=(plugin,))
    compiled, same = losses_of("compile", steps=8, make=one_convolution, plugins=(plugin,))
    assert names == same
    torch.testing.assert_close(compiled, eager, rtol=1e-3, atol=1e-3, equal_nan=True)


def test_a_first_phase_is_shared_whatever_the_queue(tmp_path):
    fields = {"net": "runs:flat", "phases": 2, "settings": [("stage.epochs", 1)]}
    shorter = fields | {"settings": [*fields["settings"], ("paco.queue", 8)]}
    train(tmp_path / "shared" / "one", "ucir+paco", runs=tmp_path / "shared", **fields)
    other = train(tmp_path / "shared" / "other", "ucir+paco", runs=tmp_path / "shared", **shorter)
    assert "was trained before by an equal run" in (other / "log.txt").read_text()
    assert_equal(other, train(tmp_path / "alone" / "run", "ucir+paco", **shorter))
