"""Mix-up: how batches and targets are mixed, the seams it hangs on, who takes mixtures, and who refuses them."""

import copy
import re

import pytest
import torch
import torch.nn.functional as F
from references import SlowBDR
from runs import Position, assert_equal, plan, train, train_until
from small import make_batch, make_flat, make_pool
from test_engine import World

from bdr import api
from bdr.engine.fit import Fit
from bdr.engine.objective import Objective
from bdr.errors import UsageError
from bdr.losses import one_hot
from bdr.methods import METHODS
from bdr.methods.base import Present
from bdr.methods.plain import Replay
from bdr.plugins import PLUGINS, Mixup
from bdr.plugins.bdr import BDRPlugin
from bdr.plugins.mixup import beta
from bdr.types import Outputs, Phase, Stage

COUNTS, OLD = (6, 7, 8, 9), 2
SOFT = [name for name, method in METHODS.items() if method.soft_targets]


def chance(seed=0):
    return torch.Generator().manual_seed(seed)


def begun(pool=None, **settings):
    plugin, pool = Mixup(**settings), pool or make_pool(COUNTS, OLD)
    plugin.begin(pool.phase, pool.census("all", 0), None)
    return plugin


def some_batch(size=6, seed=0):
    x, y = torch.randn(size, 1, 4, 4, generator=chance(seed)), torch.randint(4, (size,), generator=chance(seed))
    return make_batch(x, y)


# A batch


@pytest.mark.parametrize("size", [6, 5])
def test_an_image_is_mixed_with_its_mirror_place_in_the_batch(size):
    batch = some_batch(size)
    mixed = begun().batch(batch, (torch.tensor(0.3),))
    for i in range(size):
        partner = size - 1 - i
        torch.testing.assert_close(mixed.x[i], 0.3 * batch.x[i] + 0.7 * batch.x[partner])
        hand = [0.3 * (k == batch.y[i]) + 0.7 * (k == batch.y[partner]) for k in range(4)]
        torch.testing.assert_close(mixed.y[i], torch.tensor(hand, dtype=torch.float32))
    assert torch.equal(mixed.rows, batch.rows)


def test_targets_are_the_pure_mixture():
    mixed = begun().batch(some_batch(), (torch.tensor(0.3),))
    torch.testing.assert_close(mixed.y.sum(1), torch.ones(6))
    assert ((mixed.y > 0).sum(1) <= 2).all()


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_with_all_of_one_image_nothing_is_mixed(share):
    batch = some_batch()
    mixed, order = begun().batch(batch, (torch.tensor(share),)), slice(None) if share else torch.arange(5, -1, -1)
    torch.testing.assert_close(mixed.x, batch.x[order])
    torch.testing.assert_close(mixed.y.argmax(1), batch.y[order])


# The draws


@pytest.mark.parametrize("alpha", [0.2, 0.8, 3.0])
def test_shares_are_beta_distributed(alpha):
    drawn = beta(alpha, 40000, chance())
    assert 0 <= float(drawn.min()) <= float(drawn.max()) <= 1
    assert float(drawn.mean()) == pytest.approx(0.5, abs=0.01)
    assert float(drawn.var()) == pytest.approx(1 / (4 * (2 * alpha + 1)), abs=0.005)
    wanted = torch.distributions.Beta(alpha, alpha).sample((40000,))
    for part in (0.1, 0.25, 0.4):
        assert float(drawn.quantile(part)) == pytest.approx(float(wanted.quantile(part)), abs=0.02)


def fit_of(plugins, stage=None, seed=1993):
    torch.manual_seed(0)
    pool, method = make_pool(COUNTS, OLD, run_seed=seed), Replay(make_flat)
    method.net.head.grow(len(COUNTS))
    stage = stage or Stage(epochs=2, batch=5)
    for plugin in plugins:
        plugin.begin(pool.phase, pool.census("all", 0), method.net)
    return Fit(Objective(method, plugins, pool.phase, stage), pool, "eager", 0)


def test_an_epoch_has_a_share_a_step_and_every_epoch_its_own():
    fit = fit_of([Mixup()])
    ((share,),) = fit.plan(0).plugins
    assert share.shape == (fit.steps,)
    assert len(share.unique()) == fit.steps
    assert torch.equal(share, fit.plan(0).plugins[0][0])
    assert not torch.equal(share, fit.plan(1).plugins[0][0])
    assert not torch.equal(share, fit_of([Mixup()], seed=1994).plan(0).plugins[0][0])


def test_the_images_of_a_step_are_drawn_as_without_it():
    plain, mixing = fit_of([]).plan(0), fit_of([Mixup()]).plan(0)
    assert torch.equal(plain.rows, mixing.rows)
    assert all(torch.equal(a, b) for a, b in zip(plain.draws.columns(), mixing.draws.columns(), strict=True))


class Looks(PLUGINS["la"]):
    """Keeps what it observes."""

    def observe(self, batch, out):
        self.seen = batch


def test_a_step_hands_the_mixed_batch_to_the_method_and_to_other_plug_ins():
    looks = Looks()
    fit, plain = fit_of([looks, Mixup()]), fit_of([])
    epoch = fit.plan(0)
    fit.step.open(epoch, None)
    plain.open(0)
    raw, _ = plain.step.batch(torch.tensor([0]))
    fit.step()
    share = epoch.plugins[1][0][0]
    torch.testing.assert_close(looks.seen.x, share * raw.x + (1 - share) * raw.x.flip(0))
    assert looks.seen.y.shape == (5, len(COUNTS))


def test_a_compiled_step_mixes_as_the_eager_one():
    fit = fit_of([Mixup()])
    fit.open(0)

    def images_and_targets(at):
        batch, _ = fit.step.batch(at)
        return batch.x, batch.y  # alone: in torch 2.11 no named tuple may leave a graph that `_replace` made inside it

    eager = images_and_targets(torch.tensor([1]))
    compiled = torch.compile(images_and_targets, fullgraph=True, backend="eager")(torch.tensor([1]))
    assert all(map(torch.equal, eager, compiled))


# Beside others


@pytest.mark.parametrize("formula", ["corrected", "anchored"])  # the slip of the released one is about whole samples
def test_bdr_counts_mixtures_by_their_shares(formula):
    pool, mixup, bdr = make_pool(COUNTS, OLD), begun(), BDRPlugin(formula=formula)
    labels, features = pool.store.labels[pool.rows], torch.randn(200, 5, generator=chance(3), dtype=torch.float64)
    first = features[: len(labels)]
    bdr.balance.begin(labels, first, 4)
    slow = SlowBDR(labels.tolist(), first.tolist(), 4, 0.8, 0.8, 0.99, 1.0, formula)
    for step in range(4):
        batch = mixup.batch(some_batch(12, step), (torch.tensor(0.35),))
        now = features[20 * step : 20 * step + 12]
        bdr.balance.observe(now, batch.y)
        slow.step(now.tolist(), batch.y.tolist())
    wanted = torch.tensor(slow.offset, dtype=torch.float64)
    torch.testing.assert_close(bdr.balance.offset, wanted, rtol=1e-6, atol=1e-6)


def values(world, stage, batch):
    torch.manual_seed(3)
    objective = copy.deepcopy(world).objective(stage)
    views = world.views(objective.plugins, batch)
    terms, out = objective.terms(batch, views)
    return terms | objective.watched(out, batch, views)


@pytest.mark.parametrize("name", SOFT)
def test_a_mixture_that_is_one_class_costs_what_that_class_costs(name):
    world = World(name, ("bdr",) if "some" in METHODS[name].keeps else (), 1)
    world.method.smoothing = 0.0  # of methods that smooth mixtures
    for number, stage in enumerate(world.stages(Stage())):
        if not Mixup().acts(world.phase, stage):
            continue
        world.begin(stage, number)
        batch = world.batch()
        whole = batch._replace(y=one_hot(batch.y, torch.empty(0, world.phase.seen)))
        ids, targets = values(world, stage, batch), values(world, stage, whole)
        for term, value in ids.items():
            torch.testing.assert_close(targets[term], value, rtol=1e-5, atol=1e-6, equal_nan=True, msg=term)


@pytest.mark.parametrize("name", SOFT)
def test_a_mixture_of_several_classes_can_be_learnt_from(name):
    world = World(name, (), 1)
    for number, stage in enumerate(world.stages(Stage())):
        if Mixup().acts(world.phase, stage):
            world.begin(stage, number)
            found = values(world, stage, begun(world.pool).batch(world.batch(), (torch.tensor(0.4),)))
            assert all(value.isfinite() for value in found.values())


def test_classes_without_images_cost_a_mixture_nothing():
    """Without exemplars, fine-tuning has none of the old classes."""
    present, out = Present(), Outputs(torch.randn(6, 4, generator=chance()), None)
    present.mask = torch.tensor([False, False, True, True])
    y = torch.tensor([2, 3, 3, 2, 2, 3])
    mixture = begun().batch(some_batch()._replace(y=y), (torch.tensor(0.3),)).y
    hand = 0.3 * present.cross_entropy(out, y) + 0.7 * present.cross_entropy(out, y.flip(0))
    torch.testing.assert_close(present.cross_entropy(out, mixture), hand)
    torch.testing.assert_close(
        present.cross_entropy(out, y), F.cross_entropy(out.logits[:, 2:], y - 2, reduction="none")
    )


@pytest.mark.parametrize(
    ("what", "taker", "instead"),
    [
        ("ucir+mixup", "method 'ucir'", "leave 'mixup' out, or use another method, such as dytox+mixup"),
        ("ucir+cwd+mixup", "method 'ucir'", "leave 'mixup' out, or use another method"),
        ("replay+cwd+mixup", "plug-in 'cwd'", "use one of them"),
        ("dytox+mixup+cwd", "plug-in 'cwd'", "use one of them"),
    ],
)
def test_who_needs_the_one_class_of_an_image_refuses_mixtures_before_training(what, taker, instead, tmp_path):
    said = f"'mixup' mixes images of different classes, and {taker} needs the one class of each image: {instead}"
    with pytest.raises(UsageError, match=re.escape(said)):
        plan(tmp_path / "run", what)


def test_it_acts_in_every_phase_and_on_exemplars_but_not_on_what_is_held_out():
    acting = [draw for draw in ("all", "uniform", "memory", "held") if Mixup().acts(Phase(1, 2, 4), Stage(draw=draw))]
    assert acting == ["all", "uniform", "memory"]
    assert Mixup().acts(Phase(0, 0, 2), Stage())


def test_shares_need_an_alpha_above_zero():
    with pytest.raises(ValueError, match=r"alpha = 0\.0 is not allowed"):
        Mixup(alpha=0.0)


@pytest.mark.parametrize("position", [Position(1, 0, 1, 2)])
def test_a_run_that_mixes_ends_where_the_whole_one_does(position, tmp_path):
    fields = {"net": "runs:flat", "phases": 2}
    whole = train(tmp_path / "whole" / "run", "replay+mixup+bdr", **fields)
    path = train_until(position, tmp_path / "stopped" / "run", "replay+mixup+bdr", **fields)
    api.resume(path)
    assert_equal(path, whole)
