"""WA: its terms as loops, weights that stay above zero, the alignment in closed form, and the head that is redrawn."""

from __future__ import annotations

import math

import pytest
import torch
from references import slow_cross_entropy
from runs import Position, assert_equal, train, train_until
from small import make_batch, make_flat, make_pool
from test_icarl import slow_divergence

from bdr import api
from bdr.configuration.frames import FRAMES
from bdr.configuration.recipes import RECIPES
from bdr.engine.fit import Fit
from bdr.engine.objective import Objective
from bdr.losses import cross_entropy
from bdr.methods.wa import WA
from bdr.nets import LinearHead
from bdr.types import Clock, Phase, Stage

COUNTS, OLD = (6, 7, 8, 9, 5), 3
NOTHING = torch.zeros(0, dtype=torch.long)
FLAT = {"net": "runs:flat", "settings": [("wa.reset_after_warmup", True), ("stage.warmup", 1)]}


def started(**settings):
    """A method at the start of its second phase, with a teacher that differs from the network by now."""
    torch.manual_seed(0)
    method, first, pool = WA(make_flat, **settings), make_pool(COUNTS[:OLD]), make_pool(COUNTS, OLD)
    method.begin(first.phase, first)
    method.end(first.phase, first, NOTHING)
    with torch.no_grad():
        for parameter in method.net.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    method.begin(pool.phase, pool)
    return method, pool


def all_of(pool):
    return make_batch(pool.store.plain(pool.rows), pool.store.labels[pool.rows])


def lengths(rows):
    return [math.sqrt(sum(w * w for w in row)) for row in rows.tolist()]


def mean(values):
    return sum(values) / len(values)


def head_of(rows):
    head = LinearHead(len(rows[0]), bias=False)
    head.grow(len(rows))
    with torch.no_grad():
        head.weight.copy_(torch.tensor(rows))
    return head


# The terms


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_the_two_terms_are_their_loops(temperature):
    method, pool = started(temperature=temperature)
    method.double()
    batch = all_of(pool)._replace(x=all_of(pool).x.double())
    terms = method.loss(batch, pool.phase, cross_entropy)
    ours, theirs = method.net(batch.x).logits.tolist(), method.teacher(batch.x).logits.tolist()
    divergence = [slow_divergence(a[:OLD], b, temperature) for a, b in zip(ours, theirs, strict=True)]
    assert list(terms) == ["ce", "distillation"]
    assert terms["ce"].item() == pytest.approx(slow_cross_entropy(ours, batch.y), abs=1e-9)
    assert terms["distillation"].item() == pytest.approx(mean(divergence), abs=1e-9)


@pytest.mark.parametrize(("old", "new"), [(50, 10), (90, 10), (98, 2), (3, 4)])
def test_distillation_weighs_as_much_as_classes_are_old(old, new):
    share = old / (old + new)
    weights = WA(make_flat).weights(Phase(1, old, old + new), Stage())
    assert weights == {"ce": pytest.approx(1 - share), "distillation": pytest.approx(share)}


def test_the_first_phase_is_plain_cross_entropy():
    method, pool = WA(make_flat), make_pool(COUNTS)
    method.begin(pool.phase, pool)
    assert list(method.loss(all_of(pool), pool.phase, cross_entropy)) == ["ce"]
    assert method.weights(pool.phase, Stage()) == {}


def test_the_classifier_has_no_bias_and_reuses_what_it_knew():
    method, pool = started()
    assert method.net.head.bias is None
    before = method.net.head.weight.detach().clone()
    method.begin(Phase(2, 5, 7), pool)
    assert torch.equal(method.net.head.weight[:5], before)


# The weights of the classifier


def steps(method, pool, stage=None):
    stage = stage or Stage(epochs=2, batch=8, lr=0.5)
    fit = Fit(Objective(method, [], pool.phase, stage), pool, "eager", 0)
    for epoch in range(stage.epochs):
        method.at_epoch(stage, epoch)
        fit.epoch(epoch, 0, None, lambda step, log: None)
        yield method.net.head.weight.detach().clone()


@pytest.mark.parametrize("clamp", [True, False])
def test_no_weight_is_below_zero_after_a_step_if_it_is_clamped(clamp):
    method, pool = started(clamp=clamp)
    assert (method.net.head.weight < 0).any()
    for weight in steps(method, pool):
        assert bool((weight < 0).any()) != clamp


def test_clamping_leaves_what_is_above_zero_where_it_was():
    method, _ = started()
    weight, place = method.net.head.weight.detach().clone(), method.net.head.weight.data_ptr()
    now = torch.zeros((), dtype=torch.long)
    method.stepped(Clock(now, now, now))
    assert torch.equal(method.net.head.weight, weight.clamp(min=0))
    assert method.net.head.weight.data_ptr() == place


def test_alignment_by_hand():
    """Old rows of length 5 and 13, new ones of 2 and 1: gamma = 9 / 1.5 = 6."""
    head = head_of([[3.0, 4.0], [5.0, 12.0], [0.0, 2.0], [1.0, 0.0]])
    assert head.align(2) == 6
    assert head.weight.tolist() == [[3, 4], [5, 12], [0, 12], [6, 0]]


def test_after_a_phase_old_and_new_weights_are_equally_long_on_average():
    method, pool = started()
    with torch.no_grad():
        method.net.head.weight[OLD:] *= 4
    old = method.net.head.weight[:OLD].detach().clone()
    before = mean(lengths(method.net.head.weight[OLD:].detach()))
    method.end(pool.phase, pool, NOTHING)
    weight = method.net.head.weight.detach()
    assert float(method.report(pool.phase)["gamma"]) == pytest.approx(mean(lengths(weight[OLD:])) / before)
    assert mean(lengths(weight[OLD:])) == pytest.approx(mean(lengths(weight[:OLD])), rel=1e-6)
    assert torch.equal(weight[:OLD], old)


def test_alignment_multiplies_the_logits_of_new_classes_by_gamma():
    method, pool = started()
    x, weight = all_of(pool).x, method.net.head.weight.detach()
    gamma = mean(lengths(weight[:OLD])) / mean(lengths(weight[OLD:]))
    before = method.net(x).logits
    method.end(pool.phase, pool, NOTHING)
    after = method.net(x).logits
    torch.testing.assert_close(after[:, OLD:], gamma * before[:, OLD:])
    assert torch.equal(after[:, :OLD], before[:, :OLD])
    assert torch.equal(method.readouts(x)["cnn"], after)


def test_the_aligned_network_is_the_next_teacher():
    method, pool = started()
    method.end(pool.phase, pool, NOTHING)
    x = all_of(pool).x
    assert torch.equal(method.teacher(x).logits, method.net(x).logits)


def test_the_first_phase_is_not_aligned():
    method, pool = WA(make_flat), make_pool(COUNTS)
    method.begin(pool.phase, pool)
    before = method.net.head.weight.detach().clone()
    method.end(pool.phase, pool, NOTHING)
    assert torch.equal(method.net.head.weight, before)


def test_alignment_can_be_left_out():
    method, pool = started(align=False)
    before, x = method.net.head.weight.detach().clone(), all_of(pool).x
    method.end(pool.phase, pool, NOTHING)
    assert torch.equal(method.net.head.weight, before)
    assert torch.equal(method.teacher(x).logits, method.net(x).logits)


def test_new_weights_that_are_all_zero_stay_so():
    head = head_of([[3.0, 4.0], [0.0, 0.0]])
    head.align(1)
    assert head.weight.tolist() == [[3, 4], [0, 0]]


# The head that is redrawn


@pytest.mark.parametrize(("reset", "warmup", "redrawn"), [(True, 2, [2]), (True, 0, []), (False, 2, [])])
def test_the_head_is_redrawn_once_after_the_warm_up_if_asked_for(reset, warmup, redrawn):
    method, _ = started(reset_after_warmup=reset)
    changed = []
    for epoch in range(4):
        before = method.net.head.weight.detach().clone()
        method.at_epoch(Stage(warmup=warmup), epoch)
        if not torch.equal(method.net.head.weight, before):
            changed.append(epoch)
    assert changed == redrawn


def test_a_redrawn_head_is_the_same_parameter_with_fresh_values():
    head = LinearHead(5)
    head.grow(4)
    torch.nn.init.constant_(head.bias, 3.0)
    before, weight = head.weight, head.weight.detach().clone()
    head.redraw()
    assert head.weight is before
    assert not (head.weight == weight).any()
    assert head.weight.abs().max() <= 5**-0.5
    assert head.bias.tolist() == [0, 0, 0, 0]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return train(tmp_path_factory.mktemp("whole") / "run", "wa+bdr", **FLAT)


@pytest.mark.parametrize("position", [Position(1, 0, 1, 0), Position(1, 0, 1, 2), Position(2)])
def test_a_run_stopped_before_or_after_its_head_was_redrawn_ends_equal(position, whole, tmp_path):
    path = train_until(position, tmp_path / "run", "wa+bdr", **FLAT)
    torch.rand(7)  # whatever else happened meanwhile
    api.resume(path)
    assert_equal(path, whole)


# Settings


def test_a_temperature_of_zero_is_refused():
    with pytest.raises(ValueError, match="temperature = 0 is not allowed"):
        WA(make_flat, temperature=0)


def test_the_recipes_are_those_of_the_table_and_of_the_paper():
    frame, original = FRAMES["cifar100"]("wa"), RECIPES["wa-original"]()
    assert (frame.stage.epochs, frame.stage.warmup, frame.stage.drops) == (170, 10, (110, 130))
    assert (original.net, original.memory, original.stage.epochs) == ("resnet32", "2000", 250)
    assert original.stage.drops == (100, 150, 200)
