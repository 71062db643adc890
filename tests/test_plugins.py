"""The plug-ins: CwD against its per-class loop, LA and BDR around a loss, and where each of them is idle."""

import math
import warnings
from inspect import signature

import pytest
import torch
from references import SlowBDR, one_hot, slow_decorrelation
from small import STILL, Flat, make_batch, make_flat, make_pool

from bdr.balance import BDR, FORMULAS
from bdr.data.augment import Augment
from bdr.engine.checkpoint import State, restore_module
from bdr.engine.objective import Objective
from bdr.losses import cross_entropy
from bdr.methods.ucir import UCIR
from bdr.nets import CosineHead, LinearHead, Network
from bdr.plugins.base import Plugin, Prior, compose
from bdr.plugins.bdr import BDRPlugin
from bdr.plugins.cwd import CwD, decorrelation
from bdr.plugins.la import LogitAdjustment
from bdr.types import Outputs, Phase, Stage

COUNTS, OLD, EACH = (9, 8, 12, 10), 2, 3
SEEN = [EACH] * OLD + list(COUNTS[OLD:])
FIRST, LATER = Phase(0, 0, len(COUNTS)), Phase(1, OLD, len(COUNTS))
DRAWS = ("all", "rarest", "uniform", "memory")


def later_pool(**store):
    return make_pool(COUNTS, OLD, EACH, **store)


def network(head=LinearHead):
    torch.manual_seed(0)
    net = Network(Flat(), head(5))
    net.head.grow(len(COUNTS))
    return net


def begun(plugin, pool=None, net=None, draw="all"):
    pool = pool or later_pool()
    plugin.begin(pool.phase, pool.census(draw, 0), net or network())
    return plugin


def some_outputs(size=12, seed=0, classes=4):
    chance = torch.Generator().manual_seed(seed)
    logits, features = torch.randn(size, classes, generator=chance), torch.randn(size, 5, generator=chance)
    return Outputs(logits, features), torch.randint(classes, (size,), generator=chance)


def loss_of(plugin, out, y):
    return compose(cross_entropy, [plugin])(out, y)


def objective(plugin, phase, draw="all"):
    """What a stage that draws so minimises, with this plug-in named for the run."""
    return Objective(UCIR(make_flat), [plugin], phase, Stage(draw=draw))


def where_it_acts(plugin):
    return [(phase.index, draw) for phase in (FIRST, LATER) for draw in DRAWS if plugin.acts(phase, Stage(draw=draw))]


@pytest.mark.parametrize("dim", [2, 5])
@pytest.mark.parametrize(
    "y", [[0] * 6, [0, 1, 0, 1, 0, 1], [0, 0, 1, 2, 2, 2, 3, 9], [4, 4], [7, 7, 7, 1, 1, 5, 5, 5, 5, 2, 3]]
)
def test_cwd_is_its_per_class_loop_and_so_is_its_gradient(y, dim):
    chance, y = torch.Generator().manual_seed(len(y)), torch.tensor(y)
    ours = torch.randn(len(y), dim, generator=chance, dtype=torch.float64).requires_grad_()
    theirs = ours.detach().clone().requires_grad_()
    one, other = decorrelation(ours, y), slow_decorrelation(theirs, y)
    torch.testing.assert_close(one, other, rtol=0, atol=1e-9)
    one.backward()
    other.backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-9, atol=1e-9)


def test_cwd_of_single_images_is_zero_with_a_finite_gradient():
    features = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    loss = decorrelation(features, torch.arange(5))
    loss.backward()
    assert loss.item() == 0
    assert features.grad.abs().max() == 0


def test_cwd_does_not_feel_the_length_of_features():
    out, y = some_outputs()
    lengths = torch.rand(12, 1) + 0.5
    torch.testing.assert_close(decorrelation(out.features * lengths, y), decorrelation(out.features, y))


def test_cwd_acts_in_the_first_phase_alone():
    out, y = some_outputs()
    cwd = begun(CwD(0.75), make_pool(COUNTS))
    assert cwd.terms(make_batch(out.features, y), out, None)["cwd"] == decorrelation(out.features, y)
    assert cwd.weights(FIRST, Stage()) == {"cwd": 0.75}
    assert where_it_acts(cwd) == [(0, "all")]
    assert (objective(cwd, FIRST).plugins, objective(cwd, FIRST).weights) == ([cwd], {"cwd": 0.75})
    assert objective(cwd, LATER).plugins == objective(cwd, FIRST, "memory").plugins == []
    assert "cwd" not in objective(cwd, LATER).weights | objective(cwd, FIRST, "memory").weights


def test_logit_adjustment_adds_the_log_of_the_class_frequency():
    (out, y), adjustment = some_outputs(), begun(LogitAdjustment(tau=1.5))
    frequency = torch.tensor(SEEN) / sum(SEEN)
    expected = cross_entropy(Outputs(out.logits + 1.5 * frequency.log(), out.features), y)
    torch.testing.assert_close(loss_of(adjustment, out, y), expected)
    torch.testing.assert_close(adjustment.offset, 1.5 * torch.log(len(SEEN) * frequency))


@pytest.mark.parametrize("formula", ["corrected", "anchored"])
def test_bdr_with_both_shares_one_is_logit_adjustment(formula):
    bdr, la = begun(BDRPlugin(1.0, 1.0, tau=1.5, formula=formula)), begun(LogitAdjustment(1.5))
    for seed in range(5):
        out, y = some_outputs(seed=seed)
        bdr.observe(make_batch(out.features, y), out)
        torch.testing.assert_close(bdr.balance.offset, la.offset)
        torch.testing.assert_close(loss_of(bdr, out, y), loss_of(la, out, y))


def test_constant_rebalancing_is_logit_adjustment():
    torch.testing.assert_close(begun(BDRPlugin(components="cr")).balance.offset, begun(LogitAdjustment()).offset)


@pytest.mark.parametrize("formula", FORMULAS)
def test_bdr_starts_from_the_images_of_the_stage_and_follows_the_batches(formula):
    pool, net = later_pool(), network()
    bdr = begun(BDRPlugin(0.6, 0.7, 0.9, 1.0, formula), pool, net)
    with torch.no_grad():
        features = net(pool.store.plain(pool.rows)).features
    labels = pool.store.labels[pool.rows].tolist()
    slow = SlowBDR(labels, features.tolist(), 4, 0.6, 0.7, 0.9, 1.0, formula)
    assert slow.count == SEEN
    for seed in range(5):
        out, y = some_outputs(seed=seed)
        bdr.observe(make_batch(out.features, y), out)
        slow.step(out.features.tolist(), one_hot(y.tolist(), 4))
    torch.testing.assert_close(bdr.balance.offset, torch.tensor(slow.offset), rtol=1e-4, atol=1e-4)
    shifted = cross_entropy(out._replace(logits=out.logits + torch.tensor(slow.offset)), y)
    torch.testing.assert_close(loss_of(bdr, out, y), shifted, rtol=1e-4, atol=1e-4)


def test_classifying_moves_no_state():
    (out, y), bdr = some_outputs(), begun(BDRPlugin())
    before = bdr.balance.offset.clone()
    assert torch.equal(loss_of(bdr, out, y), loss_of(bdr, out, y))
    assert torch.equal(bdr.balance.offset, before)


def test_the_first_statistics_see_training_augmentation_in_eval_mode():
    net, seen = network(), []
    net.register_forward_pre_hook(lambda module, x: seen.append((module.training, x[0])))
    pool = later_pool(augment=Augment(pad=1, flip=True))
    begun(BDRPlugin(), pool, net.train())
    assert [training for training, _ in seen] == [False]
    assert not torch.equal(seen[0][1], pool.store.plain(pool.rows))
    assert net.training


@pytest.mark.parametrize("plugin", [BDRPlugin, LogitAdjustment])
def test_a_prior_acts_after_the_first_phase_where_a_stage_draws_all(plugin):
    (out, y), prior = some_outputs(), begun(plugin())
    assert isinstance(prior, Prior)
    assert (prior.role, prior.needs_exemplars) == ("prior", True)
    assert where_it_acts(prior) == [(1, "all")]
    acting = objective(prior, LATER)
    assert acting.plugins == [prior]
    assert torch.equal(acting.around(out, y), loss_of(prior, out, y))
    assert not torch.allclose(acting.around(out, y), cross_entropy(out, y))


@pytest.mark.parametrize("plugin", [BDRPlugin, LogitAdjustment])
def test_a_prior_is_idle_in_the_first_phase(plugin):
    (out, y), idle = some_outputs(), objective(begun(plugin()), FIRST)
    assert idle.plugins == []
    assert torch.equal(idle.around(out, y), cross_entropy(out, y))


@pytest.mark.parametrize("draw", ["rarest", "uniform", "memory"])
@pytest.mark.parametrize("plugin", [BDRPlugin, LogitAdjustment])
def test_a_prior_is_idle_where_a_stage_does_not_draw_all(plugin, draw):
    (out, y), idle = some_outputs(), objective(begun(plugin()), LATER, draw)
    assert idle.plugins == []
    assert torch.equal(idle.around(out, y), cross_entropy(out, y))


def test_bdr_reports_the_mean_offset_spread_and_compensation_of_old_and_of_new_classes():
    bdr, (out, y) = begun(BDRPlugin()), some_outputs()
    bdr.observe(make_batch(out.features, y), out)
    offset, spread = bdr.balance.offset.tolist(), bdr.balance.spread.tolist()
    omega = [1 / each / sum(1 / other for other in spread) for each in spread]
    assert {name: float(value) for name, value in bdr.report(LATER, network()).items()} == {
        "offset_old": pytest.approx(sum(offset[:OLD]) / OLD),
        "offset_new": pytest.approx(sum(offset[OLD:]) / 2),
        "spread_old": pytest.approx(sum(spread[:OLD]) / OLD),
        "spread_new": pytest.approx(sum(spread[OLD:]) / 2),
        "omega_old": pytest.approx(sum(omega[:OLD]) / OLD),
        "omega_new": pytest.approx(sum(omega[OLD:]) / 2),
    }
    assert Plugin().report(LATER, network()) == {}


def test_bdr_touches_the_classification_term_of_ucir_alone():
    torch.manual_seed(0)
    method, first, pool = UCIR(make_flat, eta=10.0), make_pool(COUNTS[:OLD]), later_pool()
    method.begin(first.phase, first)
    method.end(first.phase, first, first.rows[:0])
    method.begin(pool.phase, pool)
    bdr = begun(BDRPlugin(), pool, method.net)
    batch = make_batch(pool.store.plain(pool.rows), pool.store.labels[pool.rows])
    with_it = method.loss(batch, pool.phase, compose(cross_entropy, [bdr]))
    without = method.loss(batch, pool.phase, cross_entropy)
    assert {name for name in without if not torch.equal(with_it[name], without[name])} == {"ce"}


def test_bdr_warns_when_its_offsets_span_more_than_cosines_can():
    with pytest.warns(UserWarning, match=r"start with a larger scale \(a setting of the method"):
        begun(BDRPlugin(1.0, 1.0, tau=4.0), net=network(CosineHead))


@pytest.fixture
def every_warning_is_an_error():
    """Torch gives some warnings once a process only, which would make a test depend on those before it."""
    torch.set_warn_always(True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
    torch.set_warn_always(False)


@pytest.mark.usefixtures("every_warning_is_an_error")
@pytest.mark.parametrize("head", [LinearHead, lambda dim: CosineHead(dim, 10.0)])
def test_bdr_says_nothing_where_the_logits_have_room(head):
    begun(BDRPlugin(1.0, 1.0, tau=4.0), net=network(head))


@pytest.mark.parametrize("make", [BDRPlugin, LogitAdjustment, CwD])
def test_a_plugin_laid_out_and_loaded_again_goes_on_as_before(make):
    pool = make_pool(COUNTS) if make is CwD else later_pool()
    (out, y), old, fresh = some_outputs(), begun(make(), pool), make()
    fresh.lay_out(old.layout())
    fresh.load_state_dict(old.state_dict())
    old.observe(make_batch(out.features, y), out)
    fresh.observe(make_batch(out.features, y), out)
    assert torch.equal(loss_of(fresh, out, y), loss_of(old, out, y))
    assert fresh.layout() == old.layout()
    assert "active" not in fresh.layout()
    assert where_it_acts(fresh) == where_it_acts(old) != []


def test_a_state_of_bdr_from_before_it_made_room_by_itself_is_restored():
    old, fresh = begun(BDRPlugin()), BDRPlugin()
    info = {"layouts": {"": {"classes": len(COUNTS), "dim": 5}}, "moving": []}
    restore_module(fresh, State(old.state_dict(), info), "cpu")
    assert all(map(torch.equal, fresh.state_dict().values(), old.state_dict().values()))
    assert fresh.balance.classes == len(COUNTS)


def test_bdr_has_the_settings_of_the_module_with_its_defaults_but_for_several_processes():
    module, plugin = (dict(signature(kind).parameters) for kind in (BDR, BDRPlugin))
    assert module.pop("across_ranks").default is False
    assert list(plugin.values()) == list(module.values())


class Tells(Plugin):
    def __init__(self, name, heard):
        super().__init__()
        self.name, self.heard = name, heard

    def classify(self, inner, out, y):
        self.heard.append(self.name)
        return 2 * inner(out, y)


def test_the_first_plugin_stands_nearest_to_the_criterion():
    heard, (out, y) = [], some_outputs()
    loss = compose(cross_entropy, [Tells("near", heard), Tells("far", heard)])(out, y)
    assert heard == ["far", "near"]
    torch.testing.assert_close(loss, 4 * cross_entropy(out, y))


def test_a_plain_plugin_is_the_identity():
    (out, y), plain = some_outputs(), begun(Plugin())
    plain.observe(make_batch(out.features, y), out)
    assert torch.equal(loss_of(plain, out, y), cross_entropy(out, y))
    assert plain.terms(make_batch(out.features, y), out, None) == {}
    assert plain.net(make_flat) is make_flat
    assert len(where_it_acts(plain)) == 2 * len(DRAWS)
    assert (plain.weights(LATER, Stage()), plain.stages(LATER, [Stage()])) == ({}, [Stage()])


def test_a_shift_reaches_every_expert():
    out = Outputs(torch.zeros(2, 3), torch.zeros(2, 5), experts=torch.zeros(4, 2, 3))
    shifted = out.shift(torch.tensor([0.0, 1.0, 2.0]))
    assert shifted.logits[0].tolist() == [0, 1, 2]
    assert shifted.experts.sum() == 4 * 2 * 3


def test_a_census_counts_what_an_epoch_is_expected_to_hold():
    pool = later_pool()
    assert pool.census("all", 0).counts.tolist() == SEEN
    assert pool.census("rarest", 0).counts.tolist() == [EACH] * 4
    assert pool.census("uniform", 0).counts.tolist() == pytest.approx([sum(SEEN) / 4] * 4)
    assert pool.census("memory", 0).counts.tolist() == [EACH, EACH, 0, 0]
    assert math.isclose(float(pool.census("all", 0).counts.sum()), len(pool.rows))
    assert pool.store.augment is STILL
