"""BCL and its namesake: both losses against loops, the memory of single images, and how it strengthens views."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from runs import Position, assert_equal, plan, train, train_until
from small import make_flat, make_pool

from bdr import api
from bdr.data.randaugment import NONE
from bdr.engine.fit import Fit
from bdr.engine.objective import Objective
from bdr.errors import UsageError
from bdr.methods.plain import Replay
from bdr.nets import LinearHead
from bdr.plugins import BalancedContrast, BoostedContrast, LogitAdjustment
from bdr.plugins import bcl as module
from bdr.plugins.balanced_contrastive import balanced
from bdr.plugins.bcl import boosts, nt_xent, remembered
from bdr.types import Clock, Outputs, Phase, Stage

COUNTS, OLD = (6, 7, 8, 9), 2


def chance(seed=0):
    return torch.Generator().manual_seed(seed)


def units(count, dim=6, seed=0):
    return F.normalize(torch.randn(count, dim, generator=chance(seed), dtype=torch.float64))


def begun(plugin, pool=None):
    pool, net = pool or make_pool(COUNTS, OLD), make_flat(LinearHead)
    plugin.begin(pool.phase, pool.census("all", 0), net)
    return plugin, pool


def fit_of(plugin, pool=None):
    torch.manual_seed(0)
    pool, method = pool or make_pool(COUNTS, OLD), Replay(make_flat)
    method.net.head.grow(pool.phase.seen)
    stage = Stage(epochs=2, batch=5)
    plugin.begin(pool.phase, pool.census("all", 0), method.net)
    fit = Fit(Objective(method, [plugin], pool.phase, stage), pool, "eager", 0)
    fit.open(0)
    return fit


# NT-Xent


def test_nt_xent_is_that_of_simclr():
    views, losses = units(8), []
    for a in range(8):
        score = [math.exp(float(views[a] @ views[j]) / 0.2) for j in range(8)]
        losses.append(-math.log(score[(a + 4) % 8] / (sum(score) - score[a])))
    torch.testing.assert_close(nt_xent(views, 0.2), torch.tensor(losses, dtype=torch.float64))


def test_its_term_is_nt_xent_of_both_views_and_reaches_backbone_and_projection():
    plugin = BoostedContrast()
    fit = fit_of(plugin)
    batch, (wanted,) = fit.step.batch(torch.tensor([0]))
    terms, _ = fit.objective.terms(batch, [wanted])
    net = fit.objective.method.net
    views = plugin.projection(net(torch.cat(wanted)).features)
    torch.testing.assert_close(terms["bcl"], nt_xent(views, 0.2).mean())
    terms["bcl"].backward()
    moved = (net.backbone.matrix.weight, *plugin.projection.parameters())
    assert all(float(p.grad.abs().sum()) > 0 for p in moved[:-1])
    assert net.head.weight.grad is None


# The memory of single images


def test_boosts_are_halved_standard_scores():
    losses = torch.rand(12, generator=chance(), dtype=torch.float64)
    there = torch.arange(12) % 3 > 0
    known = losses[there].numpy()
    score = (known - known.mean()) / known.std()
    wanted = torch.from_numpy(0.5 + 0.5 * score / np.abs(score).max())
    torch.testing.assert_close(boosts(losses, there)[there], wanted)


def test_images_of_equal_loss_are_boosted_by_one_half():
    found = boosts(torch.full((7,), 0.3), torch.ones(7, dtype=torch.bool))
    torch.testing.assert_close(found, torch.full((7,), 0.5), rtol=0, atol=0.001)


def test_losses_are_remembered_by_image_as_moving_averages():
    losses = torch.full((12,), torch.nan)
    losses = remembered(losses, torch.tensor([4, 1]), torch.tensor([2.0, 1.0]), 0.97)
    assert losses[[4, 1]].tolist() == [2.0, 1.0]  # the first one is taken as it is
    losses = remembered(losses, torch.tensor([4, 9, 4]), torch.tensor([4.0, 5.0, 6.0]), 0.97)
    torch.testing.assert_close(losses[[4, 1, 9]], torch.tensor([0.97 * 2 + 0.03 * 5, 1.0, 5.0]))
    assert int(losses.isnan().sum()) == 12 - 3


def clock(step, steps):
    return Clock(*(torch.tensor(value) for value in (0, step, steps)))


def test_boosts_are_taken_anew_when_an_epoch_is_over():
    plugin, pool = begun(BoostedContrast())
    rows = pool.rows[:4]
    plugin.fresh = rows, torch.tensor([1.0, 2.0, 3.0, 6.0])
    plugin.stepped(None, clock(0, 3))
    assert not plugin.boost.any()
    plugin.stepped(None, clock(2, 3))
    torch.testing.assert_close(plugin.boost[rows], 0.5 + 0.5 * torch.tensor([-2.0, -1, 0, 3]) / 3)
    assert float(plugin.boost.sum()) == pytest.approx(float(plugin.boost[rows].sum()))  # the others begin with 0


def test_it_tells_how_much_exemplars_are_boosted_and_how_much_new_images():
    plugin, pool = begun(BoostedContrast())
    plugin.boost[pool.rows] = torch.rand(len(pool.rows), generator=chance())
    told, exemplar = plugin.report(pool.phase, None), pool.store.labels[pool.rows] < pool.phase.old
    assert 0 < int(exemplar.sum()) < len(exemplar)
    torch.testing.assert_close(told["boost_old"], plugin.boost[pool.rows[exemplar]].mean())
    torch.testing.assert_close(told["boost_new"], plugin.boost[pool.rows[~exemplar]].mean())


def test_exemplars_keep_what_they_had_and_new_images_begin_with_nothing():
    plugin, pool = begun(BoostedContrast())
    plugin.fresh = pool.rows, torch.rand(len(pool.rows), generator=chance())
    plugin.stepped(None, clock(0, 1))
    before, losses = plugin.boost.clone(), plugin.losses.clone()
    later = make_pool(COUNTS, 3)
    begun(plugin, later)
    kept = later.rows[torch.isin(later.rows, pool.rows)]
    assert torch.equal(plugin.boost[kept], before[kept])
    assert torch.equal(plugin.losses[kept], losses[kept])
    assert plugin.present.nonzero().flatten().tolist() == later.rows.sort().values.tolist()
    unseen = later.rows[~torch.isin(later.rows, pool.rows)]
    assert not plugin.boost[unseen].any()


def test_what_is_remembered_well_is_left_alone_and_what_is_not_is_changed_strongly(monkeypatch):
    plugin, pool = begun(BoostedContrast())
    plugin.boost[pool.rows] = torch.linspace(0, 1, len(pool.rows))
    asked = []
    monkeypatch.setattr(module, "operated", lambda images, *chosen: asked.append(chosen) or images)
    drawn = tuple(column[0] for column in plugin.draws(1, len(pool.rows), chance()))
    one, other = plugin.look(pool.store, pool.rows, drawn)
    (operation, level, _), boost = asked[0], plugin.boost[pool.rows].repeat(2)
    assert one.shape == other.shape == (len(pool.rows), 1, 4, 4)
    assert not torch.equal(one, other)
    assert torch.equal(operation != NONE, drawn[-1] < boost)
    torch.testing.assert_close(level.abs(), (10 + 20 * boost) / 3)  # of 10, where the paper has 30
    assert {-1.0, 1.0} == set(level.sign().tolist())


# Balanced Contrastive Learning


def slow_balanced(views, y, prototypes, temperature):
    """Equation 8, view by view."""
    everyone, labels = torch.cat([views, prototypes]), [*y.tolist(), *range(len(prototypes))]
    losses = []
    for a in range(len(views)):
        score = [math.exp(float(views[a] @ other) / temperature) for other in everyone]
        members = [[j for j in range(len(labels)) if labels[j] == k and j != a] for k in range(len(prototypes))]
        mass = sum(sum(score[j] for j in mine) / len(mine) for mine in members)
        own = members[labels[a]]
        losses.append(-sum(math.log(score[p] / mass) for p in own) / len(own))
    return torch.tensor(losses, dtype=views.dtype)


def test_the_balanced_loss_is_that_of_the_paper():
    views, y, prototypes = units(9), torch.tensor([0, 1, 1, 3, 3, 3, 1, 0, 3]), units(4, seed=5)
    torch.testing.assert_close(balanced(views, y, prototypes, 0.1), slow_balanced(views, y, prototypes, 0.1))


def test_a_class_counts_the_same_however_many_images_it_has_in_the_batch():
    views, prototypes = units(3), units(2, seed=5)
    prototypes[1] = views[2]
    few = balanced(views, torch.tensor([0, 0, 1]), prototypes, 0.1)[:2]
    many = balanced(torch.cat([views, views[2:].expand(6, -1)]), torch.tensor([0, 0, *[1] * 7]), prototypes, 0.1)[:2]
    torch.testing.assert_close(few, many)


def test_a_class_without_an_image_in_the_batch_is_there_by_its_prototype():
    views, prototypes = units(4), units(3, seed=5).requires_grad_()
    balanced(views, torch.tensor([0, 0, 1, 1]), prototypes, 0.1).mean().backward()
    assert float(prototypes.grad[2].abs().sum()) > 0


def test_it_classifies_as_logit_adjustment():
    (plugin, pool), adjusted = begun(BalancedContrast()), LogitAdjustment()
    adjusted.begin(pool.phase, pool.census("all", 0), None)
    out, y = Outputs(torch.randn(6, 4, generator=chance()), None), torch.tensor([0, 1, 2, 3, 3, 2])
    assert torch.equal(plugin.classify(Replay.criterion, out, y), adjusted.classify(Replay.criterion, out, y))


def test_prototypes_are_kept_when_classes_arrive():
    plugin, _ = begun(BalancedContrast())
    before = plugin.prototypes.detach().clone()
    more = make_pool((*COUNTS, 5), 4)
    fit_of(plugin, more)
    assert plugin.prototypes.shape == (5, 128)
    assert torch.equal(plugin.prototypes[:4], before)


def test_prototypes_and_projection_learn_with_the_method():
    plugin = BalancedContrast()
    fit = fit_of(plugin)
    before = [p.detach().clone() for p in plugin.parameters()]
    fit.step()
    assert all(not torch.equal(a, b) for a, b in zip(before, plugin.parameters(), strict=True))


# Runs


@pytest.mark.parametrize("plugin", [BoostedContrast(), BalancedContrast()], ids=["bcl", "balanced-contrastive"])
def test_they_rest_in_the_first_phase_and_where_not_all_is_drawn(plugin):
    assert plugin.acts(Phase(1, 2, 4), Stage())
    assert not plugin.acts(Phase(0, 0, 2), Stage())
    assert not plugin.acts(Phase(1, 2, 4), Stage(draw="memory"))


def test_boosted_contrast_acts_where_classes_are_drawn_equally_often_too():
    assert BoostedContrast().acts(Phase(1, 2, 4), Stage(draw="uniform"))
    assert not BalancedContrast().acts(Phase(1, 2, 4), Stage(draw="uniform"))


@pytest.mark.parametrize("what", ["ucir+bcl+bdr", "ucir+balanced-contrastive"])
@pytest.mark.parametrize("position", [Position(1, 0, 1, 2)])
def test_a_run_that_contrasts_ends_where_the_whole_one_does(what, position, tmp_path):
    fields = {"net": "runs:flat", "phases": 2}
    whole = train(tmp_path / "whole" / "run", what, **fields)
    path = train_until(position, tmp_path / "stopped" / "run", what, **fields)
    api.resume(path)
    assert_equal(path, whole)


def test_only_one_of_them_sets_the_prior(tmp_path):
    with pytest.raises(UsageError, match="'balanced-contrastive' and 'la' both set the prior"):
        plan(tmp_path / "run", "ucir+balanced-contrastive+la")
    plan(tmp_path / "run", "icarl+bcl+la")


@pytest.mark.parametrize("kind", [BoostedContrast, BalancedContrast])
def test_settings_that_cannot_be_are_refused(kind):
    with pytest.raises(ValueError, match=r"temperature = 0\.0 is not allowed"):
        kind(temperature=0.0)
    with pytest.raises(ValueError, match=r"weight = -1\.0 is not allowed: it is 0 or more"):
        kind(weight=-1.0)
    with pytest.raises(ValueError, match=r"crop = 0\.0 is not allowed"):
        kind(crop=0.0)
