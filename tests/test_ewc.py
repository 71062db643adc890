"""EWC, and what SI and RWalk share with it: Fisher information by hand, the penalty, and what is held by it."""

import numpy as np
import pytest
import torch
from runs import assert_equal, train, train_until
from small import make_batch, make_flat, make_pool

from bdr import api
from bdr.engine.checkpoint import Position
from bdr.engine.fit import Fit
from bdr.engine.objective import Objective
from bdr.losses import cross_entropy
from bdr.methods import EWC, SI, Replay, RWalk
from bdr.methods.base import Present
from bdr.methods.importance import Anchor, fisher, in_a_row, parameters_of
from bdr.nets import NETS, LinearHead, Network
from bdr.types import ImageShape, Phase, Stage

COUNTS, OLD = (6, 7, 8, 9, 5), 3
NOTHING = torch.zeros(0, dtype=torch.long)


def small_net(head, last_relu=True):
    return Network(NETS["small"](ImageShape(1, 8, 8), last_relu), head(64))


def first_phase(method):
    pool = make_pool(COUNTS[:OLD])
    method.begin(pool.phase, pool)
    return pool


def later(method, each=3):
    """The method at the beginning of its second phase, a little away from where the first one ended."""
    pool = first_phase(method)
    method.end(pool.phase, pool, NOTHING)
    pool = make_pool(COUNTS, OLD, each)
    method.begin(pool.phase, pool)
    with torch.no_grad():
        for parameter in method.net.backbone.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return pool


def all_of(pool):
    return make_batch(pool.store.plain(pool.rows), pool.store.labels[pool.rows])


def slow_fisher(pixels, matrix, weight, bias, batch, present):
    """The squared gradients of a linear softmax model with respect to its first matrix, batch by batch."""
    total = np.zeros_like(matrix)
    for start in range(0, len(pixels), batch):
        some, slope = pixels[start : start + batch], np.zeros_like(matrix)
        for x in some:
            z = weight @ (matrix @ x) + bias
            z = np.where(present, z, -np.inf)
            p = np.exp(z - z.max()) / np.exp(z - z.max()).sum()
            wrong = p - np.eye(len(z))[z.argmax()]
            slope += np.outer(weight.T @ wrong, x) / len(some)
        total += len(some) * slope**2
    return total / len(pixels)


@pytest.mark.parametrize("batch", [1, 4, 100])
@pytest.mark.parametrize("each", [3, 0])
def test_fisher_information_is_its_loop(batch, each):
    torch.manual_seed(0)
    pool, net, present = make_pool(COUNTS, OLD, each), make_flat(LinearHead).double(), Present()
    net.head.grow(5)
    present.begin(pool)
    pool.store.mean, pool.store.std = pool.store.mean.double(), pool.store.std.double()
    ours = fisher(net, net.backbone, present, pool, batch)
    pixels = pool.store.plain(pool.rows).flatten(1).numpy()
    numbers = (p.detach().numpy() for p in (net.backbone.matrix.weight, net.head.weight, net.head.bias))
    slow = slow_fisher(pixels, *numbers, batch, present.mask.numpy())
    assert present.mask.tolist() == [each > 0] * 3 + [True] * 2
    np.testing.assert_allclose(ours.numpy(), slow.reshape(-1), rtol=1e-9)


def test_taking_it_leaves_the_network_as_it_was():
    method, pool = EWC(small_net), make_pool(COUNTS[:OLD], side=8)
    method.begin(pool.phase, pool)
    method.train()
    before = {name: value.clone() for name, value in method.net.state_dict().items()}
    method.end(pool.phase, pool, NOTHING)
    assert all(torch.equal(value, before[name]) for name, value in method.net.state_dict().items())
    assert all(module.training for module in method.net.modules())
    assert all(p.grad is None for p in method.parameters())
    assert method.anchor.importance.min() >= 0
    assert method.anchor.importance.max() > 0


def test_the_penalty_and_its_gradient_by_hand():
    """Weights 1 and 3 away from theirs, which matter 2 and 5: 2 * 1 + 5 * 9 = 47, with slopes 4 and 30."""
    line = torch.nn.Linear(2, 1, bias=False)
    anchor = Anchor(line)
    anchor.importance.copy_(torch.tensor([2.0, 5.0]))
    anchor.hold(weight=1.0, rate=0.1)
    with torch.no_grad():
        line.weight.copy_(anchor.place.view(1, 2) + torch.tensor([[1.0, -3.0]]))
    penalty = anchor.penalty(line)
    penalty.backward()
    assert penalty.item() == pytest.approx(47, rel=1e-6)
    torch.testing.assert_close(line.weight.grad, torch.tensor([[4.0, -30.0]]))
    torch.testing.assert_close(anchor.slope(line), line.weight.grad.flatten())
    torch.testing.assert_close(anchor.moved(line), torch.tensor([1.0, 9.0]))


def test_a_row_is_the_same_in_every_memory_layout():
    net = small_net(LinearHead)
    row = parameters_of(net)
    assert torch.equal(row, parameters_of(net.to(memory_format=torch.channels_last)))
    assert len(row) == sum(p.numel() for p in net.parameters())
    filters = torch.arange(24.0).view(2, 3, 2, 2)
    assert in_a_row([filters]).tolist()[:6] == [0, 4, 8, 1, 5, 9]


def test_a_later_phase_is_held_to_the_end_of_the_one_before():
    torch.manual_seed(0)
    method = EWC(make_flat, weight=7.0)
    pool = later(method)
    method.begin_stage(Stage(), pool.phase, pool)
    terms = method.loss(all_of(pool), pool.phase, cross_entropy)
    here, place = method.net.backbone.matrix.weight.flatten(), method.anchor.place
    slow = sum(
        f * (a - b) ** 2 for f, a, b in zip(*(v.tolist() for v in (method.anchor.importance, here, place)), strict=True)
    )
    assert list(terms) == ["ce", "penalty"]
    assert terms["penalty"].item() == pytest.approx(slow, rel=1e-5)
    assert method.weights(pool.phase, Stage()) == {"penalty": 3.5}
    assert list(method.loss(all_of(pool), Phase(0, 0, 5), cross_entropy)) == ["ce"]


def test_information_of_two_phases_is_merged_half_and_half():
    torch.manual_seed(0)
    method = EWC(make_flat)
    pool = later(method)
    before = method.anchor.importance.clone()
    new = fisher(method.net, method.net.backbone, method.present, pool, 64)
    method.end(pool.phase, pool, NOTHING)
    torch.testing.assert_close(method.anchor.importance, (before + new) / 2)
    assert torch.equal(method.anchor.place, parameters_of(method.net.backbone))
    assert before.max() > 0


@pytest.mark.parametrize("each", [0, 3])
def test_classes_without_images_neither_rise_nor_fall(each):
    torch.manual_seed(0)
    method = EWC(make_flat)
    pool = later(method, each)
    method.loss(all_of(pool), pool.phase, method.criterion)["ce"].backward()
    assert (method.net.head.bias.grad != 0).tolist() == [each > 0] * OLD + [True] * 2


def trained(method, steps=3, each=3):
    """The second phase of a method, run by the engine."""
    torch.manual_seed(0)
    pool = first_phase(method)
    pool = make_pool(COUNTS, OLD, each)
    method.begin(pool.phase, pool)
    run(method, pool, steps)
    return method.net.state_dict()


def run(method, pool, epochs):
    stage = Stage(epochs=1, batch=8)
    method.begin_stage(stage, pool.phase, pool)
    fit = Fit(Objective(method, [], pool.phase, stage), pool, "eager", 0)
    for epoch in range(epochs):
        fit.epoch(epoch, 0, None, lambda step, log: None)


def built(kind):
    torch.manual_seed(1)
    return kind(small_net)


def test_where_nothing_matters_training_is_plain_bit_by_bit():
    plain, held = trained(built(Replay)), trained(built(EWC))
    assert all(torch.equal(held[name], value) for name, value in plain.items())


@pytest.mark.parametrize("kind", [EWC, SI, RWalk])
@pytest.mark.parametrize("each", [0, 3])
def test_the_classifier_of_classes_without_images_stays_bit_by_bit(kind, each):
    method = built(kind)
    first_phase(method)
    before = {name: value.clone() for name, value in method.net.head.state_dict().items()}
    torch.manual_seed(0)
    pool = make_pool(COUNTS, OLD, each)
    method.begin(pool.phase, pool)
    run(method, pool, epochs=2)
    for name, value in method.net.head.state_dict().items():
        assert torch.equal(value[:OLD], before[name]) is (each == 0)
        assert not torch.equal(value[OLD:], torch.zeros_like(value[OLD:]))


def test_what_matters_most_stays():
    plain, held = built(EWC), built(EWC)
    held.anchor.importance.fill_(1e-3)
    start = held.anchor.place.clone()
    trained(plain)
    trained(held)
    away = [(parameters_of(method.net.backbone) - start).norm().item() for method in (plain, held)]
    assert away[1] < 0.5 * away[0]


def test_no_parameter_is_held_so_firmly_that_a_step_overshoots():
    """A step at the limit is the whole way back, and at any higher importance the same."""
    line = torch.nn.Linear(3, 1, bias=False)
    anchor = Anchor(line)
    anchor.importance.copy_(torch.tensor([0.5, 2.5, 1e6]))
    anchor.hold(weight=4.0, rate=0.1)
    torch.testing.assert_close(anchor.grip, torch.tensor([0.5, 1.25, 1.25]))
    with torch.no_grad():
        line.weight += 1.0
    (4.0 * anchor.penalty(line)).backward()
    torch.testing.assert_close(0.1 * line.weight.grad, torch.tensor([[0.4, 1.0, 1.0]]))
    assert torch.equal(anchor.importance, torch.tensor([0.5, 2.5, 1e6]))


def test_a_penalty_of_enormous_weight_stays_finite():
    method = built(EWC)
    method.weight = 1e9
    method.anchor.importance.fill_(1.0)
    assert all(value.isfinite().all() for value in trained(method).values())


def test_a_batch_of_no_image_is_refused():
    with pytest.raises(ValueError, match="fisher_batch = 0 is not allowed: it is 1 or more"):
        EWC(make_flat, fisher_batch=0)


def test_a_stopped_run_ends_where_the_whole_one_does(tmp_path):
    given = {"what": "ewc", "net": "runs:flat", "memory": "0"}
    whole = train(tmp_path / "whole" / "run", **given)
    path = train_until(Position(1, 0, 1, 2), tmp_path / "stopped" / "run", **given)
    api.resume(path)
    assert_equal(path, whole)
