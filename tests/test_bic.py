"""BiC: its terms as loops, its correction in closed form, what is held out, and what moves when."""

from __future__ import annotations

import copy

import pytest
import torch
from references import slow_cross_entropy
from runs import Position, assert_equal, plan, train, train_until
from small import make_batch, make_flat, make_pool
from test_icarl import slow_divergence

from bdr import api
from bdr.configuration.frames import FRAMES
from bdr.configuration.recipes import RECIPES
from bdr.data.pool import Pool
from bdr.engine.fit import Fit, set_modes, set_moving
from bdr.engine.objective import Objective
from bdr.errors import UsageError
from bdr.losses import cross_entropy
from bdr.methods.bic import BiC, CorrectedHead
from bdr.nets import LinearHead
from bdr.nets.base import lay_out, layouts_of
from bdr.plugins import PLUGINS
from bdr.records import Run
from bdr.types import Phase, Stage

COUNTS, OLD, EACH = (20, 22, 24, 26, 21), 3, 20
NOTHING = torch.zeros(0, dtype=torch.long)
FLAT = {"net": "runs:flat", "settings": [("stage.correction.epochs", 2), ("bic.keep_corrections", True)]}
PUBLISHED = Stage(epochs=250, drops=(100, 150, 200), weight_decay=2e-4)


def pool_of(held=0.1, seed=1993, each=EACH):
    plain = make_pool(COUNTS, OLD, each)
    return Pool(plain.store, plain.phase, plain.new, plain.memory, seed, held)


def set_pair(head, alpha, beta):
    with torch.no_grad():
        head.correction.alpha.fill_(alpha)
        head.correction.beta.fill_(beta)


def started(alpha=1.0, beta=0.0, **settings):
    """At the start of the third phase; the pair of the second was (0.7, -0.3), the present one is as given."""
    torch.manual_seed(0)
    method, nothing = BiC(make_flat, **settings), make_pool(COUNTS[:1])
    for phase in (Phase(0, 0, 1), Phase(1, 1, OLD)):
        method.begin(phase, nothing)
        if not phase.first:
            set_pair(method.net.head, 0.7, -0.3)
        method.end(phase, nothing, NOTHING)
    with torch.no_grad():
        for parameter in (*method.net.backbone.parameters(), *method.net.head.linear.parameters()):
            parameter += 0.1 * torch.randn_like(parameter)
    pool = pool_of()
    method.begin(pool.phase, pool)
    set_pair(method.net.head, alpha, beta)
    return method.double(), pool


def batch_of(pool, rows):
    return make_batch(pool.store.plain(rows).double(), pool.store.labels[rows])


def plain_logits(net, x):
    """What the classifier says before any correction."""
    return net.head.linear(net.backbone(x).pooled)[0]


def by_hand(rows, first, alpha, beta):
    return [[alpha * z + beta if k >= first else z for k, z in enumerate(row)] for row in rows.tolist()]


# The terms


def test_the_first_stage_is_cross_entropy_and_the_divergence_from_the_corrected_teacher():
    method, pool = started()
    batch = batch_of(pool, pool.rows)
    terms = method.loss(batch, pool.phase, cross_entropy)
    ours = plain_logits(method.net, batch.x).tolist()
    theirs = by_hand(plain_logits(method.teacher.net, batch.x), 1, 0.7, -0.3)
    divergence = [slow_divergence(a[:OLD], b, 2.0) for a, b in zip(ours, theirs, strict=True)]
    assert list(terms) == ["ce", "distillation"]
    assert terms["ce"].item() == pytest.approx(slow_cross_entropy(ours, batch.y), abs=1e-6)
    assert terms["distillation"].item() == pytest.approx(sum(divergence) / len(ours), abs=1e-6)


def test_the_second_stage_is_cross_entropy_of_corrected_logits_and_half_the_square_of_beta():
    method, pool = started(0.6, -0.5)
    batch = batch_of(pool, pool.held)
    terms = method.correct(batch, pool.phase, cross_entropy)
    corrected = by_hand(plain_logits(method.net, batch.x), OLD, 0.6, -0.5)
    assert terms["ce"].item() == pytest.approx(slow_cross_entropy(corrected, batch.y), abs=1e-6)
    assert terms["beta"].item() == pytest.approx(0.125)


@pytest.mark.parametrize(("old", "new"), [(50, 10), (90, 10), (3, 2)])
def test_distillation_weighs_as_much_as_classes_are_old(old, new):
    method, phase = BiC(make_flat, beta_decay=0.3), Phase(1, old, old + new)
    first, second = method.stages(phase, PUBLISHED)
    share = old / (old + new)
    assert method.weights(phase, first) == {"ce": pytest.approx(1 - share), "distillation": pytest.approx(share)}
    assert method.weights(phase, second) == {"beta": 0.3}


def test_the_first_phase_is_plain_cross_entropy_in_one_stage():
    method, pool = BiC(make_flat), make_pool(COUNTS)
    method.begin(pool.phase, pool)
    batch = make_batch(pool.store.plain(pool.rows), pool.store.labels[pool.rows])
    assert list(method.loss(batch, pool.phase, cross_entropy)) == ["ce"]
    assert method.stages(pool.phase, PUBLISHED) == [PUBLISHED]
    assert method.weights(pool.phase, PUBLISHED) == {}


# The correction


def test_a_correction_that_learnt_nothing_is_the_identity_to_the_bit():
    method, pool = started()
    x = pool.store.plain(pool.rows).double()
    assert torch.equal(method.net(x).logits, plain_logits(method.net, x))


def test_the_correction_touches_the_newest_classes_alone():
    method, pool = started(0.6, -0.5)
    x = pool.store.plain(pool.rows).double()
    plain, corrected = plain_logits(method.net, x), method.net(x).logits
    assert torch.equal(corrected[:, :OLD], plain[:, :OLD])
    torch.testing.assert_close(corrected[:, OLD:], 0.6 * plain[:, OLD:] - 0.5)


def test_what_is_told_is_corrected():
    method, pool = started(0.6, -0.5)
    x = pool.store.plain(pool.rows).double()
    told = method.readouts(x)["cnn"]
    assert told.tolist() == [pytest.approx(row) for row in by_hand(plain_logits(method.net, x), OLD, 0.6, -0.5)]


def test_the_teacher_says_what_was_told_at_the_end_of_its_phase():
    method, pool = started(0.6, -0.5)
    x = pool.store.plain(pool.rows).double()
    method.end(pool.phase, pool, NOTHING)
    assert torch.equal(method.teacher(x).logits, method.net(x).logits)
    set_pair(method.net.head, 2.0, 2.0)
    assert method.teacher(x).logits.tolist() == [
        pytest.approx(row) for row in by_hand(plain_logits(method.net, x), OLD, 0.6, -0.5)
    ]


@pytest.mark.parametrize(("keep", "factor", "summand"), [(False, [1, 1, 1], [0, 0, 0]), (True, [1, 2, 2], [0, 3, 3])])
def test_the_pairs_of_earlier_phases_are_forgotten_or_kept(keep, factor, summand):
    head = CorrectedHead(5, keep)
    for count, pair in ((1, None), (2, (2.0, 3.0)), (2, (0.5, 7.0))):
        head.grow(count)
        assert [float(value) for value in (head.correction.alpha, head.correction.beta)] == [1, 0]
        if pair:
            set_pair(head, *pair)
    ours = head.correction(torch.ones(1, 5))
    wanted = [a + b for a, b in zip([*factor, 0.5, 0.5], [*summand, 7, 7], strict=True)]
    assert ours.tolist() == [wanted]


def test_kept_pairs_are_there_when_the_student_learns():
    method, pool = started(keep_corrections=True)
    batch = batch_of(pool, pool.rows)
    logits = [
        [0.7 * z - 0.3 if 1 <= k < OLD else z for k, z in enumerate(row)]
        for row in plain_logits(method.net, batch.x).tolist()
    ]
    terms = method.loss(batch, pool.phase, cross_entropy)
    assert terms["ce"].item() == pytest.approx(slow_cross_entropy(logits, batch.y), abs=1e-6)


def test_the_correction_is_two_parameters():
    method, _ = started()
    plain = make_flat(LinearHead)
    plain.head.grow(len(COUNTS))
    assert method.parameter_count() == sum(p.numel() for p in plain.parameters()) + 2


def test_a_corrected_head_is_laid_out_as_it_has_grown():
    method, _ = started(0.6, -0.5, keep_corrections=True)
    fresh = BiC(make_flat, keep_corrections=True).double()
    lay_out(fresh, layouts_of(method))
    fresh.load_state_dict(method.state_dict())
    x = torch.randn(4, 1, 4, 4, dtype=torch.float64)
    assert torch.equal(fresh.net(x).logits, method.net(x).logits)
    assert torch.equal(fresh.teacher(x).logits, method.teacher(x).logits)


# What moves


def test_stages_train_different_parts_on_different_images():
    first, second = BiC(make_flat).stages(Phase(1, 3, 5), PUBLISHED)
    assert first == PUBLISHED
    assert (second.draw, second.loss, second.train) == ("held", "correct", ("net.head.correction",))
    assert (second.epochs, second.drops, second.weight_decay) == (200, (60, 120, 160, 180), 0.0)
    assert (second.lr, second.momentum, second.batch) == (PUBLISHED.lr / 2, PUBLISHED.momentum, 128)


@pytest.mark.parametrize(("epochs", "wanted", "drops"), [(25, 20, (6, 12, 16, 18)), (1, 1, (1, 1, 1, 1))])
def test_a_shorter_first_stage_shortens_the_second(epochs, wanted, drops):
    _, second = BiC(make_flat).stages(Phase(1, 3, 5), Stage(epochs=epochs))
    assert (second.epochs, second.drops) == (wanted, drops)


def gradients(method, stage, pool):
    """The names of all parameters that a step of a stage gives a gradient to."""
    before = [name for name, p in method.named_parameters() if p.requires_grad]
    set_moving(method, stage.train or before)
    objective = Objective(method, [], pool.phase, stage)
    terms, _ = objective.terms(batch_of(pool, pool.candidates(stage.draw, 0)))
    objective.total(terms).backward()
    return {name for name, p in method.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}


def test_the_second_stage_reaches_alpha_and_beta_alone_and_the_first_all_but_them():
    pair = {"net.head.correction.alpha", "net.head.correction.beta"}
    others = {"net.backbone.matrix.weight", "net.head.linear.weight", "net.head.linear.bias"}
    for number, wanted in ((0, others), (1, pair)):
        method, pool = started(0.9, -0.1) if number else started()
        stage = method.stages(pool.phase, PUBLISHED)[number]
        assert gradients(method, stage, pool) == wanted


def test_the_gradient_of_the_pair_is_its_closed_form():
    """d/dalpha = mean_i sum_new (p_ik - y_ik) z_ik, d/dbeta = mean_i sum_new (p_ik - y_ik) + 0.1 beta."""
    method, pool = started(0.8, -0.4)
    stage = method.stages(pool.phase, PUBLISHED)[1]
    gradients(method, stage, pool)
    batch = batch_of(pool, pool.held)
    plain = plain_logits(method.net, batch.x)[:, OLD:]
    wrong = (method.net(batch.x).logits.softmax(1) - torch.eye(len(COUNTS))[batch.y])[:, OLD:]
    correction = method.net.head.correction
    torch.testing.assert_close(correction.alpha.grad, (wrong * plain).sum(1).mean())
    torch.testing.assert_close(correction.beta.grad, wrong.sum(1).mean() + 0.1 * correction.beta.detach())


def test_a_biased_classifier_is_corrected_and_rests_meanwhile():
    """New logits are three times as large as they should be, and three too high."""
    method, pool = started()
    method.float()
    with torch.no_grad():
        for part in (method.net.head.linear.weight, method.net.head.linear.bias):
            part[OLD:] *= 3
        method.net.head.linear.bias[OLD:] += 3
    stage = method.stages(pool.phase, PUBLISHED)[1]
    set_moving(method, stage.train)
    set_modes(method)
    before = copy.deepcopy(method.state_dict())
    fit = Fit(Objective(method, [], pool.phase, stage), pool, "eager", 1)
    losses = [float(fit.epoch(epoch, 0, None, lambda step, log: None).term("ce")[-1]) for epoch in range(60)]
    assert losses[-1] < losses[0] - 0.2
    correction = method.net.head.correction
    assert (correction.alpha < 1, correction.beta < 0) == (True, True)
    changed = {name for name, value in method.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"net.head.correction.alpha", "net.head.correction.beta"}


# What is held out


def test_a_tenth_of_the_exemplars_and_as_many_new_images_are_held_out():
    pool = pool_of(BiC(make_flat).held)
    assert pool.counts(pool.held).tolist() == [2] * len(COUNTS)
    assert pool.counts(pool.rows).tolist() == [18, 18, 18, 24, 19]
    assert not set(pool.held.tolist()) & set(pool.rows.tolist())
    assert sorted([*pool.held.tolist(), *pool.rows.tolist()]) == sorted([*pool.new.tolist(), *pool.memory.tolist()])


def test_the_same_images_are_held_out_when_a_pool_is_made_again():
    assert torch.equal(pool_of().held, pool_of().held)
    assert set(pool_of().held.tolist()) != set(pool_of(seed=1994).held.tolist())


def test_plug_ins_do_not_see_what_is_held_out():
    method, pool = started()
    method.float()
    first, second = method.stages(pool.phase, PUBLISHED)
    for name in ("bdr", "la"):
        assert PLUGINS[name]().acts(pool.phase, first)
        assert not PLUGINS[name]().acts(pool.phase, second)
    census, balance = pool.census(first.draw, 0), PLUGINS["bdr"]()
    assert sorted(census.rows.tolist()) == sorted(pool.rows.tolist())
    balance.begin(pool.phase, census, method.net)
    assert balance.balance.count.tolist() == [18, 18, 18, 24, 19]


# Runs


@pytest.mark.parametrize("settings", [{"held": 0.0}, {"held": 1.0}, {"temperature": 0.0}])
def test_settings_that_make_no_sense_are_refused(settings):
    with pytest.raises(ValueError, match="is not allowed"):
        BiC(make_flat, **settings)


@pytest.mark.parametrize("memory", ["1/class", "15"])
def test_a_memory_too_small_to_hold_something_out_of_is_refused_before_anything_trains(memory, tmp_path):
    with pytest.raises(UsageError, match=f"'bic' .*--memory {memory} "):
        plan(tmp_path / "run", "bic", **{"step": 2, "memory": memory})


def test_the_work_of_the_second_stage_is_that_of_the_held_out_images(tmp_path):
    work = plan(tmp_path / "run", "bic", **FLAT).workload()
    assert [len(of_phase) for of_phase in work] == [1, 2, 2]
    assert [of_phase[1] for of_phase in work[1:]] == [7 * 2, 10 * 2]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return train(tmp_path_factory.mktemp("whole") / "run", "bic+bdr", **FLAT)


@pytest.mark.parametrize("position", [Position(1, 0, 1, 2), Position(2, 1, 1)])
def test_a_run_stopped_in_either_stage_ends_equal(position, whole, tmp_path):
    path = train_until(position, tmp_path / "run", "bic+bdr", **FLAT)
    api.resume(path)
    assert_equal(path, whole)
    correction = api.load(path, device="cpu").net.head.correction
    told = Run.open(path).phases[-1]["method_at_end"]
    assert told == {"alpha": float(correction.alpha), "beta": float(correction.beta)}


def test_the_recipes_have_the_published_schedule():
    stage, original = FRAMES["cifar100"]("bic").stage, RECIPES["bic-original"]()
    assert (stage, stage.lr, stage.batch) == (PUBLISHED, 0.1, 128)
    assert (original.net, original.memory, original.stage) == ("resnet32", "2000", PUBLISHED)
