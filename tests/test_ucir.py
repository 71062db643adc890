"""UCIR: its three terms as loops, its weights, its growing head, its teacher, and the nearest-mean readout."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from references import cosine, mean_of, normalised, slow_cross_entropy, slow_margin_ranking
from small import Flat, make_batch, make_flat, make_pool

from bdr.data.augment import Augment
from bdr.losses import cross_entropy, masked_mean, old_mass
from bdr.methods.ucir import UCIR
from bdr.nets import NETS, Network
from bdr.types import ImageShape, Outputs, Phase, Stage

COUNTS, OLD = (6, 7, 8, 9, 5), 3
NOTHING = torch.zeros(0, dtype=torch.long)


def after_first_phase(make=make_flat, counts=COUNTS, old=OLD, **settings):
    """A method whose first phase is over, with a teacher that differs from the network by now, and the next pool."""
    torch.manual_seed(0)
    method, first, pool = UCIR(make, **settings), make_pool(counts[:old]), make_pool(counts, old)
    method.begin(first.phase, first)
    method.end(first.phase, first, NOTHING)
    with torch.no_grad():
        for parameter in method.net.backbone.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    return method, pool


def started(**settings):
    method, pool = after_first_phase(**settings)
    method.begin(pool.phase, pool)
    return method, pool


def all_of(pool):
    return make_batch(pool.store.plain(pool.rows), pool.store.labels[pool.rows])


def cosines_of(method, features):
    embeddings = torch.cat([method.net.head.old, method.net.head.new]).tolist()
    return [[cosine(f, w) for w in embeddings] for f in features.tolist()]


def test_the_three_terms_are_their_loops():
    method, pool = started(eta=7.0)
    method.double()
    batch = all_of(pool)._replace(x=all_of(pool).x.double())
    terms = method.loss(batch, pool.phase, cross_entropy)
    now, before = method.net.backbone(batch.x).pooled, method.teacher.net.backbone(batch.x).pooled
    cosines, y = cosines_of(method, now), batch.y.tolist()
    logits = [[7 * c for c in row] for row in cosines]
    forgotten = [1 - cosine(a, b) for a, b in zip(now.tolist(), before.tolist(), strict=True)]
    assert list(terms) == ["ce", "less_forget", "margin"]
    assert terms["ce"].item() == pytest.approx(slow_cross_entropy(logits, y), abs=1e-9)
    assert terms["less_forget"].item() == pytest.approx(sum(forgotten) / len(y), abs=1e-9)
    assert terms["margin"].item() == pytest.approx(slow_margin_ranking(cosines, y, OLD), abs=1e-9)


@pytest.mark.parametrize("negatives", [1, 2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_margin_ranking_is_its_loop(seed, negatives):
    chance, method = torch.Generator().manual_seed(seed), UCIR(make_flat, negatives=negatives, margin=0.4)
    cosines = 2 * torch.rand(20, 7, generator=chance, dtype=torch.float64) - 1
    y = torch.randint(7, (20,), generator=chance)
    ours = method.margin_ranking(Outputs(12.0 * cosines, None, 12.0), y, Phase(1, 4, 7))
    assert ours.item() == pytest.approx(slow_margin_ranking(cosines.tolist(), y.tolist(), 4, negatives, 0.4), abs=1e-12)


def test_margin_ranking_by_hand():
    """One old sample at 0.6; new classes at 0.5 and 0.2: (0.5 - 0.6 + 0.5 + 0.5 - 0.6 + 0.2) / 2 = 0.25."""
    cosines = torch.tensor([[0.6, -1.0, 0.5, 0.2, -0.9], [0.0, 0.0, 0.9, 0.9, 0.9]])
    loss = UCIR(make_flat).margin_ranking(Outputs(cosines, None), torch.tensor([0, 2]), Phase(1, 2, 5))
    assert loss.item() == pytest.approx(0.25)


def test_margin_ranking_without_old_samples_is_zero():
    cosines = torch.randn(4, 5, requires_grad=True)
    loss = UCIR(make_flat).margin_ranking(Outputs(cosines, None), torch.tensor([3, 4, 4, 3]), Phase(1, 3, 5))
    loss.backward()
    assert loss.item() == 0
    assert cosines.grad.abs().sum() == 0


def test_a_single_new_class_is_enough():
    method, pool = started(counts=(6, 7, 8), old=2)
    terms, batch = method.loss(all_of(pool), pool.phase, cross_entropy), all_of(pool)
    cosines = cosines_of(method, method.net.backbone(batch.x).pooled)
    assert terms["margin"].item() == pytest.approx(slow_margin_ranking(cosines, batch.y.tolist(), 2), abs=1e-5)


@pytest.mark.parametrize(("old", "new"), [(50, 10), (90, 10), (98, 2), (3, 4)])
def test_less_forget_weighs_more_the_more_is_old(old, new):
    weights = UCIR(make_flat, lambda_base=5.0).weights(Phase(1, old, old + new), Stage())
    assert weights == {"less_forget": pytest.approx(5 * math.sqrt(old / new))}


def test_the_first_phase_is_plain_cross_entropy():
    method, pool = UCIR(make_flat), make_pool(COUNTS)
    method.begin(pool.phase, pool)
    assert list(method.loss(all_of(pool), pool.phase, cross_entropy)) == ["ce"]
    assert method.weights(pool.phase, Stage()) == {}


def test_the_classification_loss_is_the_one_that_is_handed_in():
    method, pool = started()
    terms = method.loss(all_of(pool), pool.phase, lambda out, y: torch.full((len(y),), 3.0))
    assert terms["ce"] == 3


def small_net(head, last_relu=True):
    return Network(NETS["small"](ImageShape(1, 8, 8), last_relu), head(64))


def trained(method, pool, steps=3):
    moving = torch.optim.SGD(method.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    method.train()
    for _ in range(steps):
        moving.zero_grad()
        sum(method.loss(all_of(pool), pool.phase, cross_entropy).values()).backward()
        moving.step()


def test_training_leaves_the_teacher_and_the_old_embeddings_alone():
    method, pool = started(make=small_net)
    teacher = {name: value.clone() for name, value in method.teacher.state_dict().items()}
    old, new = method.net.head.old.clone(), method.net.head.new.clone()
    trained(method, pool)
    assert all(torch.equal(value, teacher[name]) for name, value in method.teacher.state_dict().items())
    assert torch.equal(method.net.head.old, old)
    assert not torch.equal(method.net.head.new, new)
    assert method.net.head.eta != 1


def test_no_train_call_wakes_the_teacher_up():
    method, _ = started(make=small_net)
    method.train()
    assert method.net.training
    assert not any(module.training for module in method.teacher.net.modules())
    assert not any(parameter.requires_grad for parameter in method.teacher.parameters())


def test_the_teacher_is_the_network_of_the_phase_before():
    method, pool = started(make=small_net)
    trained(method, pool, 1)
    method.end(pool.phase, pool, NOTHING)
    method.eval()
    x = all_of(pool).x
    assert torch.equal(method.teacher(x).logits, method.net(x).logits)
    assert method.teacher(x).logits.shape[1] == len(COUNTS)


def test_the_teacher_is_not_counted_among_the_parameters_kept():
    method, _ = started()
    assert method.parameter_count() == sum(p.numel() for p in Flat().parameters()) + len(COUNTS) * 5 + 1


def test_imprinting_points_new_embeddings_at_the_class_means():
    method, pool = after_first_phase(imprint=True)
    with torch.no_grad():
        method.net.head.new *= torch.tensor([[1.0], [2.0], [6.0]])
        features = method.net.backbone(pool.store.plain(pool.new)).pooled.tolist()
    labels = pool.store.labels[pool.new].tolist()
    method.begin(pool.phase, pool)
    lengths = [math.sqrt(sum(v * v for v in row)) for row in method.net.head.old.tolist()]
    for k, ours in enumerate(method.net.head.new.tolist(), start=OLD):
        mine = [normalised(f) for f, y in zip(features, labels, strict=True) if y == k]
        assert ours == pytest.approx([v * sum(lengths) / len(lengths) for v in normalised(mean_of(mine))], abs=1e-5)


def test_without_imprinting_new_embeddings_are_small_and_random():
    method, _ = started()
    assert method.net.head.new.abs().max() <= 5**-0.5
    assert not torch.equal(method.net.head.new[0], method.net.head.new[1])


def test_growth_keeps_the_embeddings_and_the_scale_of_the_phase_before():
    method, pool = after_first_phase(eta=4.0)
    before = method.net.head.new.clone()
    method.begin(pool.phase, pool)
    assert torch.equal(method.net.head.old, before)
    assert method.net.head.eta == 4


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize("flip", [False, True])
def test_the_nearest_mean_is_scikit_learns_nearest_centroid(flip):
    neighbors = pytest.importorskip("sklearn.neighbors")
    torch.manual_seed(0)
    method, pool = UCIR(make_flat), make_pool((20, 30, 25), augment=Augment(pad=0, flip=flip))
    method.begin(pool.phase, pool)
    exemplars, rest = pool.rows[::3], pool.rows[1::3]
    method.remember(pool.phase, pool, exemplars)
    views = [pool.store.plain(exemplars)] + [pool.store.plain(exemplars).flip(3)] * flip
    with torch.no_grad():
        known = np.concatenate([unit(method.net(x).features.numpy()) for x in views])
        asked = unit(method.net(pool.store.plain(rest)).features.numpy())
        scores = method.readouts(pool.store.plain(rest))["nme"]
    theirs = neighbors.NearestCentroid().fit(known, np.tile(pool.store.labels[exemplars].numpy(), len(views)))
    theirs.centroids_ = unit(theirs.centroids_)
    assert scores.argmax(1).tolist() == theirs.predict(asked).tolist()
    distances = ((asked[:, None] - theirs.centroids_[None]) ** 2).sum(2)
    np.testing.assert_allclose(-scores.numpy(), distances, atol=1e-5)


def test_without_exemplars_of_every_class_there_is_no_nearest_mean():
    method, pool = UCIR(make_flat), make_pool(COUNTS)
    method.begin(pool.phase, pool)
    method.remember(pool.phase, pool, pool.store.of_classes(0, 2))
    assert set(method.readouts(pool.store.plain(pool.rows))) == {"cnn"}


def test_a_phase_under_way_has_no_nearest_mean_of_the_phase_before():
    torch.manual_seed(0)
    method, first, pool = UCIR(make_flat), make_pool(COUNTS[:OLD]), make_pool(COUNTS, OLD)
    method.begin(first.phase, first)
    method.end(first.phase, first, first.rows)
    assert "nme" not in method.readouts(first.store.plain(first.rows))
    method.remember(first.phase, first, first.rows)
    assert "nme" in method.readouts(first.store.plain(first.rows))
    method.begin(pool.phase, pool)
    assert "nme" not in method.readouts(pool.store.plain(pool.rows))


def test_a_masked_mean_counts_what_the_mask_lets_through():
    values, mask = torch.tensor([1.0, 2.0, 6.0]), torch.tensor([True, False, True])
    assert masked_mean(values, mask) == 3.5
    assert masked_mean(values, torch.zeros(3)) == 0


def test_old_mass_of_ids_and_of_mixtures():
    assert old_mass(torch.tensor([0, 2, 1]), 2).tolist() == [1, 0, 1]
    assert old_mass(torch.tensor([[0.5, 0.25, 0.25]]), 2).tolist() == [0.75]
    assert torch.equal(old_mass(F.one_hot(torch.tensor([0, 2, 1]), 3).float(), 2), old_mass(torch.tensor([0, 2, 1]), 2))
