"""PODNet: its classifier, both forms of NCA and both distillations as loops; k-means; which proxies move, and when."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from references import cosine, normalised, squared_distance
from runs import Looks, Position, assert_equal, lines, plan, train, train_until
from small import make_batch, make_pool

from bdr import api
from bdr.engine.checkpoint import read_state
from bdr.engine.fit import set_modes, set_moving
from bdr.losses import cross_entropy
from bdr.methods.podnet import PODNet, nca_as_coded, nca_as_printed, of_the_others, pod_spatial
from bdr.nets import CosineHead, Network, ProxyHead
from bdr.nets.base import lay_out, layouts_of
from bdr.nets.proxies import inertia, kmeans
from bdr.nets.resnet_cifar import ResNet
from bdr.types import Clock, ImageShape, Outputs, Phase, Stage

COUNTS, OLD = (6, 7, 8, 9, 5), 3
NOTHING = torch.zeros(0, dtype=torch.long)
RUN = {"net": "test_podnet:tiny", "phases": 2}
TUNED = RUN | {"settings": [("stage.balanced.epochs", 3)]}


def tiny(shape, last_relu=True, maps=False):
    return ResNet((8, 16), 1, shape.channels, last_relu, maps)


def make_tiny(head, **options):
    return Network(tiny(ImageShape(1, 8, 8), **options), head(16))


def started(**settings):
    """A method at the start of its second phase, with a teacher that differs from the network by now, and the pool."""
    torch.manual_seed(0)
    method, first, pool = PODNet(make_tiny, **settings), make_pool(COUNTS[:OLD], side=8), make_pool(COUNTS, OLD, side=8)
    method.begin(first.phase, first)
    method.end(first.phase, first, NOTHING)
    with torch.no_grad():
        for parameter in method.net.backbone.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    method.begin(pool.phase, pool)
    return method, pool


def all_of(pool):
    return make_batch(pool.store.plain(pool.rows), pool.store.labels[pool.rows])


def random(*shape, seed=0, spread=1.0):
    return spread * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def chance(seed=0):
    return torch.Generator().manual_seed(seed)


# The equations as loops


def slow_score(feature, proxies):
    """Minus the squared distances to the proxies of a class, weighted by their own softmax."""
    near = [-squared_distance(normalised(feature), normalised(p)) for p in proxies]
    total = sum(math.exp(s) for s in near)
    return sum(math.exp(s) / total * s for s in near)


def slow_coded(scores, y, eta=1.0, margin=0.6, bias=None):
    """Margin off every score, the best moved to zero, one's own class counted as exp(0)."""
    losses = []
    for row, label in zip(scores, y, strict=True):
        v = [eta * (float(s) - margin) + (bias[k] if bias else 0.0) for k, s in enumerate(row)]
        v = [value - max(v) for value in v]
        others = sum(math.exp(value) for k, value in enumerate(v) if k != label)
        losses.append(-(v[label] - math.log(others + 1)))
    return losses


def slow_printed(scores, y, eta=1.0, margin=0.6, bias=None):
    """- log of exp(eta (own - margin)) over the sum of the others, and never below zero."""
    losses = []
    for row, label in zip(scores, y, strict=True):
        v = [eta * float(s) + (bias[k] if bias else 0.0) for k, s in enumerate(row)]
        others = sum(math.exp(value) for k, value in enumerate(v) if k != label)
        losses.append(max(0.0, -math.log(math.exp(v[label] - eta * margin) / others)))
    return losses


def slow_profile(channels):
    """(C, H, W) to its normalised sums of squares, along rows and along columns."""
    square = [[[float(v) ** 2 for v in row] for row in channel] for channel in channels]
    along = [sum(row) for channel in square for row in channel]
    along += [sum(column) for channel in square for column in zip(*channel, strict=True)]
    return normalised(along)


def slow_pod_spatial(maps, reference):
    losses = []
    for now, before in zip(maps, reference, strict=True):
        distances = [
            math.sqrt(squared_distance(slow_profile(a), slow_profile(b)))
            for a, b in zip(now.tolist(), before.tolist(), strict=True)
        ]
        losses.append(sum(distances) / len(distances))
    return sum(losses) / len(losses)


# The classifier


def grown(*counts, dim=5, proxies=3, eta=1.0):
    torch.manual_seed(0)
    head = ProxyHead(dim, proxies, eta)
    for count in counts:
        head.grow(count)
    return head


def test_logits_are_the_scaled_scores_of_the_loop_but_for_a_constant():
    head, features = grown(3, 2, eta=7.0).double(), random(6, 5)
    logits, scale = head(features)
    proxies = torch.cat([head.old, head.new]).tolist()
    slow = [[7 * (slow_score(f, mine) + 2) for mine in proxies] for f in features.tolist()]
    torch.testing.assert_close(logits, torch.tensor(slow, dtype=torch.float64))
    assert scale.item() == 14


def test_with_one_proxy_a_class_it_is_a_cosine_classifier_of_twice_the_scale():
    head, plain, features = grown(4, proxies=1, eta=3.0), CosineHead(5, 6.0), torch.randn(6, 5)
    plain.grow(4)
    with torch.no_grad():
        plain.new.copy_(head.new[:, 0])
    torch.testing.assert_close(head(features), plain(features))


def test_equal_proxies_score_like_a_single_one():
    several, one, features = grown(4, proxies=5), grown(4, proxies=1), torch.randn(6, 5)
    with torch.no_grad():
        several.new.copy_(one.new.expand(-1, 5, -1))
    torch.testing.assert_close(several(features)[0], one(features)[0])


def test_a_class_scores_between_its_nearest_proxy_and_their_mean():
    head, features = grown(4, proxies=6, eta=0.5), torch.randn(20, 5)
    cosines = torch.einsum("bd,kpd->bkp", F.normalize(features), F.normalize(head.new, dim=2))
    logits, _ = head(features)
    assert (logits <= cosines.amax(2) + 1e-6).all()
    assert (logits >= cosines.mean(2) - 1e-6).all()


def test_growth_keeps_old_proxies_and_puts_them_to_rest():
    head, features = grown(3), torch.randn(6, 5)
    before, proxies = head(features)[0], head.new.clone()
    head.grow(2)
    assert torch.equal(head.old, proxies)
    assert (head.old.requires_grad, head.new.requires_grad, head.eta.requires_grad) == (False, True, True)
    assert head.classes == 5
    torch.testing.assert_close(head(features)[0][:, :3], before)
    head.grow(4)
    torch.testing.assert_close(head(features)[0][:, :3], before)


def test_a_grown_head_is_laid_out_again_and_loaded():
    head, other, features = grown(3, 2, proxies=4), ProxyHead(5, 4), torch.randn(6, 5)
    lay_out(other, layouts_of(head))
    other.load_state_dict(head.state_dict())
    assert torch.equal(other(features)[0], head(features)[0])
    assert not other.old.requires_grad


def test_first_proxies_are_as_long_as_one_on_average():
    assert grown(50, dim=64, proxies=10).new.norm(dim=2).mean().item() == pytest.approx(1, abs=0.02)


def test_imprinted_proxies_are_the_centres_as_long_as_old_ones_are_on_average():
    head, centres = grown(3, 2), torch.randn(2, 3, 5)
    head.imprint(centres)
    torch.testing.assert_close(head.new.data, centres * head.old.norm(dim=2).mean())


# NCA


@pytest.mark.parametrize("seed", range(3))
def test_both_forms_of_nca_are_their_loops(seed):
    scores, y = random(20, 7, seed=seed, spread=1.5), torch.randint(7, (20,), generator=chance(seed))
    coded, printed = slow_coded(scores, y, eta=4.0), slow_printed(scores, y, eta=4.0)
    assert nca_as_coded(4 * scores, y).tolist() == pytest.approx(coded, abs=1e-9)
    assert nca_as_printed(4 * scores, y, torch.tensor(2.4, dtype=torch.float64)).tolist() == pytest.approx(
        printed, abs=1e-9
    )
    assert 0.0 in printed


@pytest.mark.parametrize(("nca", "slow"), [("coded", slow_coded), ("printed", slow_printed)])
def test_the_criterion_takes_its_scale_from_the_outputs(nca, slow):
    method, scores, y = PODNet(make_tiny, nca=nca, margin=0.3), random(9, 5), torch.arange(9) % 5
    out = Outputs(3 * scores, None, torch.tensor(6.0))
    assert method.criterion(out, y).tolist() == pytest.approx(slow(scores, y, 3.0, 0.3), abs=1e-6)


def test_nca_by_hand():
    """Three classes at 0, and one's own at ln 2 or at - ln 2."""
    logits = torch.tensor([[math.log(2), 0.0, 0.0, 0.0], [-math.log(2), 0.0, 0.0, 0.0]], dtype=torch.float64)
    y = torch.tensor([0, 0])
    assert nca_as_coded(logits, y).tolist() == pytest.approx([math.log(2.5), math.log(4) + math.log(2)])
    printed = nca_as_printed(logits, y, torch.tensor(0.1))
    assert printed.tolist() == pytest.approx([math.log(1.5) + 0.1, math.log(6) + 0.1])


def test_the_coded_form_is_cross_entropy_where_the_right_class_is_best_and_steeper_elsewhere():
    logits = random(50, 6, spread=3.0)
    y = logits.argmax(1)
    torch.testing.assert_close(nca_as_coded(logits, y), F.cross_entropy(logits, y, reduction="none"))
    wrong = (y + 1) % 6
    assert (nca_as_coded(logits, wrong) > F.cross_entropy(logits, wrong, reduction="none")).all()


def form(nca):
    return (lambda v, y: nca_as_printed(v, y, torch.tensor(2.4))) if nca == "printed" else nca_as_coded


@pytest.mark.parametrize("nca", ["coded", "printed"])
def test_a_flat_offset_leaves_the_loss_alone(nca):
    logits, y = random(20, 7, spread=4.0), torch.arange(20) % 7
    torch.testing.assert_close(form(nca)(logits + 12.5, y), form(nca)(logits, y))


@pytest.mark.parametrize(("nca", "slow"), [("coded", slow_coded), ("printed", slow_printed)])
def test_an_offset_is_a_bias_inside_the_exponentials(nca, slow):
    method, scores, y, bias = PODNet(make_tiny, nca=nca), random(20, 7), torch.arange(20) % 7, random(7, seed=1)
    out = Outputs(4 * scores, None, torch.tensor(8.0)).shift(bias)
    assert method.criterion(out, y).tolist() == pytest.approx(slow(scores, y, 4.0, 0.6, bias.tolist()), abs=1e-6)


def test_an_offset_of_ln_n_counts_a_class_n_times_among_the_others():
    logits, y = random(10, 4), torch.zeros(10, dtype=torch.long)
    offset = torch.tensor([0.0, math.log(3), 0.0, math.log(2)], dtype=torch.float64)
    counted = torch.cat([logits, logits[:, [1, 1, 3]]], 1)
    margin = torch.tensor(2.4)
    torch.testing.assert_close(nca_as_printed(logits + offset, y, margin), nca_as_printed(counted, y, margin))


@pytest.mark.parametrize("nca", ["coded", "printed"])
def test_a_mixture_costs_the_mixed_losses_of_its_classes(nca):
    logits, a, b = random(12, 5, spread=2.0), torch.arange(12) % 5, torch.arange(12) * 2 % 5
    share = torch.linspace(0, 1, 12, dtype=torch.float64)[:, None]
    mixed = share * F.one_hot(a, 5) + (1 - share) * F.one_hot(b, 5)
    hand = share[:, 0] * form(nca)(logits, a) + (1 - share[:, 0]) * form(nca)(logits, b)
    torch.testing.assert_close(form(nca)(logits, mixed), hand)


@pytest.mark.parametrize("nca", ["coded", "printed"])
@pytest.mark.parametrize("span", [0.0, 20.0, 3e3, 1e30])
def test_sure_and_undecided_logits_give_finite_losses_and_gradients(nca, span):
    logits = (span * torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0], [1.0, -1.0, 0.0]])).requires_grad_()
    loss = form(nca)(logits, torch.tensor([0, 0, 2])).sum()
    loss.backward()
    assert loss.isfinite()
    assert logits.grad.isfinite().all()


def test_what_the_others_come_to_is_right_however_sure_one_class_is():
    logits = torch.tensor([[60.0, 0.0, -1.0], [3.0, 3.0, 3.0]])
    slow = [
        [math.log(sum(math.exp(v) for i, v in enumerate(row) if i != k)) for k in range(3)] for row in logits.tolist()
    ]
    torch.testing.assert_close(of_the_others(logits), torch.tensor(slow))


def test_a_single_class_has_no_others_to_exceed():
    logits = torch.tensor([[2.0]], requires_grad=True)
    for nca in ("coded", "printed"):
        loss = form(nca)(logits, torch.tensor([0])).sum()
        loss.backward()
        assert loss == 0
        assert logits.grad == 0


# Distillation


def test_pod_spatial_is_its_loop():
    maps, before = ([random(3, *shape, seed=s) for shape in ((2, 4, 4), (3, 2, 5))] for s in (0, 1))
    ours = pod_spatial(tuple(maps), tuple(before))
    assert ours.shape == (3,)
    assert ours.mean().item() == pytest.approx(slow_pod_spatial(maps, before), abs=1e-12)


def test_pod_spatial_by_hand():
    """One hot pixel that moves along its row: profiles (1, 1) / sqrt 2 that differ in one place of two."""
    now, before = torch.zeros(1, 1, 2, 2), torch.zeros(1, 1, 2, 2)
    now[0, 0, 0, 0], before[0, 0, 0, 1] = 5.0, -2.0
    assert pod_spatial((now,), (before,)).item() == pytest.approx(1.0)


def test_equal_maps_are_at_no_distance_and_pull_nowhere():
    now = torch.randn(2, 3, 4, 4).requires_grad_()
    loss = pod_spatial((now,), (now.detach().clone(),)).sum()
    loss.backward()
    assert loss == 0
    assert (now.grad == 0).all()


def test_maps_in_half_precision_are_compared_in_single():
    maps = torch.randn(2, 3, 4, 4)
    ours = pod_spatial((maps.bfloat16(),), (maps.flip(3).bfloat16(),))
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, pod_spatial((maps,), (maps.flip(3),)), rtol=0.02, atol=0.0)


def test_the_three_terms_are_their_loops():
    method, pool = started(eta=5.0)
    method.double().eval()
    batch = all_of(pool)._replace(x=all_of(pool).x.double())
    terms = method.loss(batch, pool.phase, method.criterion)
    now, before = method.net.backbone(batch.x), method.teacher.net.backbone(batch.x)
    proxies, y = torch.cat([method.net.head.old, method.net.head.new]).tolist(), batch.y.tolist()
    scores = [[slow_score(f, mine) for mine in proxies] for f in now.pooled.tolist()]
    flat = [1 - cosine(a, b) for a, b in zip(now.pooled.tolist(), before.pooled.tolist(), strict=True)]
    assert list(terms) == ["nca", "pod_flat", "pod_spatial"]
    assert terms["nca"].item() == pytest.approx(sum(slow_coded(scores, y, 5.0)) / len(y), abs=1e-9)
    assert terms["pod_flat"].item() == pytest.approx(sum(flat) / len(y), abs=1e-9)
    assert terms["pod_spatial"].item() == pytest.approx(slow_pod_spatial(now.maps, before.maps), abs=1e-9)


@pytest.mark.parametrize(("old", "new"), [(50, 10), (98, 2), (3, 4)])
def test_distillation_weighs_more_the_more_classes_there_are(old, new):
    weights = PODNet(make_tiny).weights(Phase(1, old, old + new), Stage())
    grown = math.sqrt((old + new) / new)
    assert weights == {"pod_flat": pytest.approx(grown), "pod_spatial": pytest.approx(3 * grown)}


def test_the_first_phase_is_classification_alone():
    method, pool = PODNet(make_tiny), make_pool(COUNTS, side=8)
    method.begin(pool.phase, pool)
    assert list(method.loss(all_of(pool), pool.phase, cross_entropy)) == ["nca"]
    assert method.weights(pool.phase, Stage()) == {}


def test_the_classification_loss_is_the_one_that_is_handed_in():
    method, pool = started()
    terms = method.loss(all_of(pool), pool.phase, lambda out, y: torch.full((len(y),), 3.0))
    assert terms["nca"] == 3


# K-means


def blobs(count=4, each=25, dim=6, spread=0.05):
    centres = random(count, dim, seed=1, spread=3.0)
    return torch.cat([centre + random(each, dim, seed=k, spread=spread) for k, centre in enumerate(centres)])


def spent(points, centres):
    return inertia(points, centres[None]).item()


def slow_inertia(points, centres):
    return sum(min(squared_distance(p, c) for c in centres.tolist()) for p in points.tolist())


def test_k_means_finds_separate_blobs_as_well_as_scikit_learn():
    cluster = pytest.importorskip("sklearn.cluster")
    points = blobs()
    theirs = cluster.KMeans(4, n_init=10, random_state=0).fit(points.numpy())
    ours = kmeans(points, 4, chance())
    assert spent(points, ours) == pytest.approx(theirs.inertia_, rel=1e-9)
    assert spent(points, ours) == pytest.approx(slow_inertia(points, ours))


@pytest.mark.parametrize("seed", range(3))
def test_k_means_is_near_scikit_learn_where_nothing_is_separate(seed):
    cluster = pytest.importorskip("sklearn.cluster")
    points = F.normalize(random(150, 8, seed=seed))
    theirs = cluster.KMeans(10, n_init=10, random_state=seed).fit(points.numpy()).inertia_
    assert spent(points, kmeans(points, 10, chance(seed))) < 1.02 * theirs


def test_k_means_repeats_itself_for_a_seed():
    points = random(60, 5)
    assert torch.equal(kmeans(points, 6, chance(3)), kmeans(points, 6, chance(3)))


def test_the_centres_are_the_means_of_what_is_nearest_to_them():
    points = random(80, 5)
    centres = kmeans(points, 5, chance())
    nearest = torch.cdist(points, centres).argmin(1)
    for k, centre in enumerate(centres):
        torch.testing.assert_close(centre, points[nearest == k].mean(0))


@pytest.mark.parametrize("there", [1, 3, 10])
def test_with_no_more_points_than_centres_every_point_is_one(there):
    points = random(there, 5)
    centres = kmeans(points, 10, chance())
    assert centres.shape == (10, 5)
    assert spent(points, centres) == pytest.approx(0, abs=1e-12)
    assert torch.cdist(centres, points).amin(1).max() < 1e-6


def test_equal_points_are_no_trouble():
    points = torch.ones(7, 3, dtype=torch.float64)
    assert torch.equal(kmeans(points, 4, chance()), torch.ones(4, 3, dtype=torch.float64))


def test_new_proxies_are_the_centres_of_their_class():
    method, pool = started(proxies=4)
    labels = pool.store.labels[pool.new]
    features = F.normalize(pool.outputs(method.net, pool.new).features.double())
    length = method.net.head.old.norm(dim=2).mean()
    for k in range(OLD, len(COUNTS)):
        mine = features[labels == k]
        placed = method.net.head.new[k - OLD].double() / length
        nearest = torch.cdist(mine, placed).argmin(1)
        for j in nearest.unique():
            torch.testing.assert_close(placed[j], mine[nearest == j].mean(0), rtol=1e-4, atol=1e-5)


def test_new_proxies_are_the_same_for_the_same_seed():
    (one, _), (other, _) = started(), started()
    assert torch.equal(one.net.head.new, other.net.head.new)


# What moves, and when


def test_the_first_phase_has_one_stage_and_later_ones_tune_the_proxies_on_the_memory():
    method, base = PODNet(make_tiny), Stage(schedule="cosine")
    assert method.stages(Phase(0, 0, 50), base) == [base]
    main, tuned = method.stages(Phase(1, 50, 60), base)
    assert main == base
    assert (tuned.epochs, tuned.lr, tuned.schedule, tuned.draw, tuned.batch) == (20, 0.05, "constant", "memory", 128)
    assert tuned.train == ("net.head.old", "net.head.new")


@pytest.mark.parametrize(("epochs", "then"), [(160, 20), (16, 2), (1, 1)])
def test_tuning_is_as_long_as_training_lets_it_be(epochs, then):
    assert PODNet(make_tiny).stages(Phase(1, 50, 60), Stage(epochs=epochs))[1].epochs == then


def test_old_proxies_rest_in_training_and_move_in_tuning_where_all_else_rests(tmp_path):
    begun = plan(tmp_path / "run", "podnet", **TUNED)
    looks = Looks(begun.experiment.method.net)
    api.execute(begun, looks)
    start, trained, tuned = looks.seen
    moved = {name for name in start if not torch.equal(start[name], trained[name])}
    assert "head.old" not in moved
    assert {"head.new", "head.eta", "backbone.stem.weight", "backbone.bn.running_mean"} <= moved
    assert {name for name in start if not torch.equal(trained[name], tuned[name])} == {"head.old", "head.new"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Bits are compared between runs, so all of them add in the same order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield train(tmp_path_factory.mktemp("whole") / "run", "podnet+bdr", **TUNED)
    torch.set_num_threads(before)


@pytest.mark.parametrize("position", [Position(1, 0, 1, 2), Position(1, 1, 1, 0), Position(1, 1, 2, 0)])
def test_a_run_stopped_in_training_or_tuning_ends_where_the_whole_one_does(position, whole, tmp_path):
    path = train_until(position, tmp_path / "run", "podnet+bdr", **TUNED)
    api.resume(path)
    assert_equal(path, whole)


def test_tuning_by_the_whole_loss_would_end_with_the_same_bits(whole, tmp_path, monkeypatch):
    monkeypatch.setattr(PODNet, "tune", PODNet.loss)
    slow = train(tmp_path / "run", "podnet+bdr", **TUNED)
    ours, theirs = (read_state(run / "phase-01" / "model").tensors for run in (whole, slow))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    terms = [[line["terms"].keys() for line in lines(run / "epochs.jsonl")][-1] for run in (whole, slow)]
    assert [set(each) for each in terms] == [{"nca", "ce_old"}, {"nca", "pod_flat", "pod_spatial", "ce_old"}]


def test_the_tuning_stage_compiles_without_a_break():
    method, pool = started()
    set_moving(method, method.stages(pool.phase, Stage())[1].train)
    set_modes(method)
    slopes = []
    for wrap in (lambda f: f, lambda f: torch.compile(f, fullgraph=True, backend="eager")):
        mine = copy.deepcopy(method)
        terms = wrap(lambda batch, mine=mine: mine.tune(batch, pool.phase, mine.criterion))(all_of(pool))
        sum(terms.values()).backward()
        slopes.append(mine.net.head.old.grad)
        assert mine.net.backbone.stem.weight.grad is None
    torch.testing.assert_close(*slopes)


def test_every_gradient_is_clamped_to_five():
    method, _ = started()
    for scale, parameter in enumerate(method.net.parameters()):
        parameter.grad = (scale + 1) * torch.randn_like(parameter)
    method.net.head.old.grad = None
    before = {name: p.grad.clone() for name, p in method.net.named_parameters() if p.grad is not None}
    now = torch.zeros((), dtype=torch.long)
    method.graded(Clock(now, now, now))
    for name, slope in before.items():
        assert torch.equal(method.net.get_parameter(name).grad, slope.clamp(-5, 5))
    assert max(slope.abs().max() for slope in before.values()) > 5
    assert method.net.head.old.grad is None


def test_the_teacher_is_the_network_of_the_phase_before():
    method, pool = started()
    method.end(pool.phase, pool, NOTHING)
    method.eval()
    x = all_of(pool).x
    assert torch.equal(method.teacher(x).logits, method.net(x).logits)


@pytest.mark.parametrize(("settings", "said"), [({"proxies": 0}, "proxies = 0"), ({"nca": "paper"}, "no nca 'paper'")])
def test_settings_that_cannot_be_are_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        PODNet(make_tiny, **settings)
