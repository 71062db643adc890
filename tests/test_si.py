"""SI: the path integral against plain gradient descent and a second backward pass, and the importance by hand."""

import pytest
import torch
from runs import assert_equal, train, train_until
from small import make_flat
from test_ewc import NOTHING, all_of, built, first_phase, later, trained

from bdr import api
from bdr.engine.checkpoint import Position
from bdr.engine.fit import Fit
from bdr.engine.objective import Objective
from bdr.losses import cross_entropy
from bdr.methods import SI, Replay
from bdr.methods.importance import parameters_of
from bdr.types import Stage


class Listening(SI):
    """Adds up the squares of the gradients that the steps are made with."""

    squares = 0.0

    def graded(self, clock):
        super().graded(clock)
        self.squares = self.squares + self.net.backbone.matrix.weight.grad.double().flatten().square()


def test_under_plain_gradient_descent_the_gain_is_the_rate_times_the_squared_gradients():
    torch.manual_seed(0)
    method = Listening(make_flat)
    pool = first_phase(method)
    stage = Stage(epochs=1, batch=8, lr=0.05, momentum=0.0, weight_decay=0.0)
    fit = Fit(Objective(method, [], pool.phase, stage), pool, "eager", 0)
    for epoch in range(4):
        fit.epoch(epoch, 0, None, lambda step, log: None)
    torch.testing.assert_close(method.path.gained.double(), 0.05 * method.squares, rtol=1e-3, atol=1e-7)
    assert method.path.gained.max() > 1e-4


def test_the_gain_leaves_the_penalty_out_as_a_second_backward_pass_would():
    torch.manual_seed(0)
    method = SI(make_flat, weight=3.0).double()
    pool = later(method)
    method.anchor.importance.uniform_(0, 2)
    method.begin_stage(Stage(lr=0.1), pool.phase, pool)
    moving, matrix = (
        torch.optim.SGD(method.parameters(), 0.1, 0.9, weight_decay=0.01),
        method.net.backbone.matrix.weight,
    )
    batch, gained = all_of(pool), torch.zeros_like(matrix)
    batch = batch._replace(x=batch.x.double())
    for _ in range(5):
        moving.zero_grad()
        terms = method.loss(batch, pool.phase, cross_entropy)
        (slope,) = torch.autograd.grad(terms["ce"], [matrix], retain_graph=True)
        (terms["ce"] + 3.0 * terms["penalty"]).backward()
        before = matrix.detach().clone()
        method.graded(batch.clock)
        moving.step()
        method.stepped(batch.clock)
        gained -= slope * (matrix.detach() - before)
    torch.testing.assert_close(method.path.gained, gained.flatten(), rtol=1e-9, atol=1e-12)


def test_importance_by_hand():
    """A gain of 0.3 on a way of 0.2 is 0.3 / (0.04 + 0.1); a loss leaves less than nothing, and counts as nothing."""
    torch.manual_seed(0)
    method = SI(make_flat)
    pool, matrix = first_phase(method), method.net.backbone.matrix.weight
    with torch.no_grad():
        matrix[0, 0] += 0.2
    method.path.gained[:3] = torch.tensor([0.3, 0.5, -0.4])
    method.anchor.importance[2:4] = torch.tensor([1.0, 2.0])
    method.end(pool.phase, pool, NOTHING)
    wanted = torch.tensor([0.3 / 0.14, 5.0, 0.0, 2.0, 0.0])
    torch.testing.assert_close(method.anchor.importance[:5], wanted)
    assert torch.equal(method.anchor.place, parameters_of(method.net.backbone).detach())
    assert method.path.gained.abs().max() == 0


def test_the_weight_is_the_setting_and_the_first_phase_is_plain():
    method = SI(make_flat, weight=0.4)
    pool = first_phase(method)
    assert method.weights(pool.phase, Stage()) == {"penalty": 0.4}
    assert list(method.loss(all_of(pool), pool.phase, cross_entropy)) == ["ce"]


def test_where_nothing_matters_training_is_plain_bit_by_bit():
    plain, held = trained(built(Replay)), trained(built(SI))
    assert all(torch.equal(held[name], value) for name, value in plain.items())


def test_nothing_to_divide_by_is_refused():
    with pytest.raises(ValueError, match="damping = 0 is not allowed: it is more than 0"):
        SI(make_flat, damping=0)


@pytest.mark.parametrize("position", [Position(0, 0, 1, 1), Position(1, 0, 1, 2)])
def test_a_run_stopped_on_its_way_keeps_what_it_has_gained(position, tmp_path):
    given = {"what": "si", "net": "runs:flat", "memory": "0"}
    whole = train(tmp_path / "whole" / "run", **given)
    path = train_until(position, tmp_path / "stopped" / "run", **given)
    api.resume(path)
    assert_equal(path, whole)
