"""RWalk: information and path scores by hand, averaged over phases, and held together."""

import pytest
import torch
from runs import assert_equal, train, train_until
from small import make_flat
from test_ewc import NOTHING, all_of, built, later, trained

from bdr import api
from bdr.engine.checkpoint import Position
from bdr.losses import cross_entropy
from bdr.methods import Replay, RWalk
from bdr.methods.importance import fisher, parameters_of
from bdr.types import Stage


def test_scores_are_the_gain_for_the_way_on_the_manifold():
    torch.manual_seed(0)
    method = RWalk(make_flat, damping=0.2)
    later(method)
    method.path.gained.uniform_(-1, 1)
    method.fisher.uniform_(0, 3)
    rows = (method.path.gained, method.fisher, parameters_of(method.net.backbone), method.anchor.place)
    numbers = zip(*(row.tolist() for row in rows), strict=True)
    slow = [max(0.0, w / (f * (here - there) ** 2 + 0.2)) for w, f, here, there in numbers]
    torch.testing.assert_close(method.path_score(), torch.tensor(slow))
    assert 0 < slow.count(0.0) < len(slow)


def test_both_are_averaged_over_the_phases_and_held_together():
    torch.manual_seed(0)
    method = RWalk(make_flat, fisher_batch=16)
    pool = later(method)
    first = method.fisher.clone()
    assert torch.equal(method.anchor.importance, first)  # nothing was gained yet
    method.score.fill_(0.5)
    method.path.gained.uniform_(0, 1)
    gained, moved = method.path.gained.clone(), method.anchor.moved(method.net.backbone)
    new = fisher(method.net, method.net.backbone, method.present, pool, 16)
    method.end(pool.phase, pool, NOTHING)
    information = (first + new) / 2
    torch.testing.assert_close(method.fisher, information)
    torch.testing.assert_close(method.score, (0.5 + gained / (information * moved + 0.1)) / 2)
    torch.testing.assert_close(method.anchor.importance, method.fisher + method.score)
    assert method.path.gained.abs().max() == 0


def test_the_penalty_is_not_halved_and_classes_with_exemplars_all_count():
    torch.manual_seed(0)
    method = RWalk(make_flat)
    pool = later(method)
    assert method.weights(pool.phase, Stage()) == {"penalty": 1.0}
    assert list(method.loss(all_of(pool), pool.phase, cross_entropy)) == ["ce", "penalty"]
    assert method.present.mask.all()


def test_where_nothing_matters_training_is_plain_bit_by_bit():
    plain, held = trained(built(Replay)), trained(built(RWalk))
    assert all(torch.equal(held[name], value) for name, value in plain.items())


@pytest.mark.parametrize("setting", ["damping", "fisher_batch"])
def test_settings_that_cannot_be_are_refused(setting):
    with pytest.raises(ValueError, match=f"{setting} = 0 is not allowed"):
        RWalk(make_flat, **{setting: 0})


def test_a_stopped_run_ends_where_the_whole_one_does(tmp_path):
    given = {"what": "rwalk+bdr", "net": "runs:flat"}
    whole = train(tmp_path / "whole" / "run", **given)
    path = train_until(Position(1, 0, 1, 2), tmp_path / "stopped" / "run", **given)
    api.resume(path)
    assert_equal(path, whole)
