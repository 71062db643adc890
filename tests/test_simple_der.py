"""simple-DER: its terms as loops, a teacher that costs nothing, and channels that go by their batch norm."""

import json
import math

import pytest
import torch
from runs import Position, assert_equal, train, train_until
from small import make_batch, make_flat, make_pool

from bdr import api
from bdr.engine.fit import set_modes
from bdr.engine.step import make_optimizer
from bdr.methods.expanding import backbone_of
from bdr.methods.simple_der import SimpleDER, importance
from bdr.nets import Network
from bdr.nets.prunable import best_channels
from bdr.nets.resnet_cifar import ResNet
from bdr.types import Phase, Stage

COUNTS, OLD = (6, 7, 8, 9, 5), 3
NOTHING = torch.zeros(0, dtype=torch.long)


def make_tiny(head, **options):
    return Network(ResNet((8, 16), 1, 1, **options), head(16))


def tune(method, pool):
    method.begin_stage(method.stages(pool.phase, Stage())[-1], pool.phase, pool)


def started(**settings):
    """A method at the start of its second phase, the pool, and what it said of its images at the end of the first."""
    torch.manual_seed(0)
    method, first = SimpleDER(make_tiny, **settings), make_pool(COUNTS[:OLD], side=8)
    pool = make_pool(COUNTS, OLD, side=8)
    method.begin(first.phase, first)
    tune(method, first)
    method.end(first.phase, first, NOTHING)
    said = pool.outputs(method.net, pool.rows).logits
    method.begin(pool.phase, pool)
    with torch.no_grad():
        for parameter in backbone_of(method.net).newest.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return method, pool, said


def all_of(pool):
    return make_batch(pool.store.plain(pool.rows), pool.store.labels[pool.rows])


def softened(row, temperature=2.0):
    powers = [math.exp(v / temperature) for v in row]
    return [p / sum(powers) for p in powers]


def test_the_terms_are_their_loops():
    method, pool, said = started()
    set_modes(method)
    batch = all_of(pool)
    out = method.net(batch.x)
    terms = method.loss(batch, pool.phase, method.criterion)
    assert list(terms) == ["ce", "gamma", "distillation"]
    kl = 0.0
    for theirs, mine in zip(said.tolist(), out.logits[:, :OLD].tolist(), strict=True):
        pairs = zip(softened(theirs), softened(mine), strict=True)
        kl += sum(p * (math.log(p) - math.log(q)) for p, q in pairs) / len(said)
    assert terms["distillation"].item() == pytest.approx(kl, abs=1e-5)
    state = backbone_of(method.net).newest.state_dict()
    gammas = [value for name, value in state.items() if value.dim() == 1 and name.endswith("weight")]
    assert terms["gamma"].item() == pytest.approx(sum(abs(g) for value in gammas for g in value.tolist()), rel=1e-5)


def test_the_weights_are_as_derived():
    method = SimpleDER(make_tiny)
    assert method.weights(Phase(1, 50, 60), Stage()) == {"gamma": 1e-4, "distillation": 50 / 60}
    assert method.weights(Phase(0, 0, 50), Stage())["distillation"] == 0


def test_the_first_phase_distils_nothing():
    method, pool = SimpleDER(make_tiny), make_pool(COUNTS, side=8)
    method.begin(pool.phase, pool)
    assert list(method.loss(all_of(pool), pool.phase, method.criterion)) == ["ce", "gamma"]


def test_gradients_reach_the_newest_extractor_and_the_classifier():
    method, pool, _ = started()
    sum(method.loss(all_of(pool), pool.phase, method.criterion).values()).backward()
    for name, parameter in method.named_parameters():
        moves = parameter.numel() and name.startswith(("net.backbone.newest.", "net.head."))
        assert (parameter.grad is not None and bool(parameter.grad.any())) == bool(moves), name


def test_a_channel_counts_as_much_as_its_batch_norms():
    net = ResNet((4, 6), 1, 1)
    for value, layer in enumerate(net.layers()):
        layer.norm.weight.data = -(value + torch.arange(float(layer.conv.out_channels)))
    # stem, conv1, conv2 of the first block; conv1, conv2 and the shortcut of the second
    means = [
        [1.0, 2.0, 3.0, 4.0],  # of the stem 0, 1, 2, 3 and of conv2 2, 3, 4, 5
        [4.5, 5.5, 6.5, 7.5, 8.5, 9.5],
        [1.0, 2.0, 3.0, 4.0],
        [3.0, 4.0, 5.0, 6.0, 7.0, 8.0],
    ]
    for found, mean in zip(importance(net), map(torch.tensor, means), strict=True):
        torch.testing.assert_close(found, mean / mean.mean())


def test_groups_that_begin_small_are_not_emptied_first():
    net = ResNet((16, 32), 1, 1, zero_init=True)
    scores = [group + 1e-3 * torch.rand(len(group)) for group in importance(net)]
    kept = best_channels(net, scores, 0.45 * net.size(net.full))
    shares = [float(mask.float().mean()) for mask in kept]
    assert min(shares) > 0.4


@pytest.mark.parametrize("keep", [0.2, 0.45, 0.9])
def test_the_least_important_channels_are_removed_down_to_the_wanted_size(keep):
    method, pool, _ = started(keep=keep)
    before = backbone_of(method.net).prunable()
    scores = importance(before)
    tune(method, pool)
    after = backbone_of(method.net).prunable()
    size, wanted = sum(p.numel() for p in after.parameters()), keep * before.size(before.full)
    assert wanted * 0.75 < size <= wanted  # the channels of a small network weigh much
    left = [sorted(group.tolist(), reverse=True)[:width] for group, width in zip(scores, after.widths, strict=True)]
    gone = [sorted(group.tolist(), reverse=True)[width:] for group, width in zip(scores, after.widths, strict=True)]
    assert max(max(group, default=0) for group in gone) <= min(min(group) for group in left if len(group) > 1)
    ours, theirs = sorted(importance(after)[1].tolist(), reverse=True), torch.tensor(left[1])
    assert ours == pytest.approx((theirs / theirs.mean()).tolist(), rel=1e-5)
    assert method.net.head.layout() == {"classes": 5, "dim": method.net.backbone.dim}


def test_channels_are_shut_out_at_half_time_and_those_are_the_ones_removed():
    method, pool, _ = started(keep=0.3)
    extractors, stage = backbone_of(method.net), Stage(epochs=9)
    for epoch in range(5):
        method.at_epoch(stage, epoch)
        assert all(mask.all() for mask in extractors.gates.kept())
    method.at_epoch(stage, 5)
    kept = extractors.gates.kept()
    net = extractors.prunable()
    assert net.size([int(mask.sum()) for mask in kept]) <= 0.3 * net.size(net.full)
    for layer in net.layers():
        layer.norm.weight.data.uniform_(0.1, 1)  # what training makes of them does not matter any more
    for epoch in (6, 7, 8):
        method.at_epoch(stage, epoch)
    net.eval()
    x = all_of(pool).x
    before = net(x, extractors.gates()).pooled
    tune(method, pool)
    extractors.newest.eval()
    torch.testing.assert_close(extractors.newest(x).pooled, before[:, kept[net.pooled]])
    assert not extractors.gates.there


def test_the_gates_are_masks_that_no_step_moves():
    method, pool, _ = started()
    gates = backbone_of(method.net).gates
    moving = {name for name, parameter in method.named_parameters() if parameter.requires_grad}
    assert not any("gates" in name for name in moving)
    method.at_epoch(Stage(epochs=2), 1)
    before = gates.e.clone()
    set_modes(method)
    optimizer = make_optimizer(Stage(lr=1.0, weight_decay=0.1), method.parameters(), torch.device("cpu"))
    sum(method.loss(all_of(pool), pool.phase, method.criterion).values()).backward()
    optimizer.step()
    assert torch.equal(gates.e, before)
    assert {float(value) for mask in gates() for value in mask} == {0.0, 1.0}


def test_masks_that_could_learn_would_learn_nothing_and_change_nothing():
    found = []
    for learns in (False, True):
        method, pool, _ = started(keep=0.3)
        gates = backbone_of(method.net).gates
        method.at_epoch(Stage(epochs=2), 1)
        gates.e.requires_grad_(learns)
        set_modes(method)
        assert gates.training == learns
        sum(method.loss(all_of(pool), pool.phase, method.criterion).values()).backward()
        assert gates.e.grad is None or not gates.e.grad.any()
        found.append({name: p.grad for name, p in method.named_parameters() if p is not gates.e and p.grad is not None})
    resting, learning = found
    assert resting.keys() == learning.keys()
    assert all(torch.equal(resting[name], learning[name]) for name in resting)


def test_a_run_stopped_with_channels_shut_out_ends_where_the_whole_one_does(tmp_path):
    fields = {"net": "test_der:tiny", "phases": 2, "settings": [("simple-der.keep", 0.3)]}
    whole = train(tmp_path / "whole", "simple-der", **fields)
    path = train_until(Position(1, 0, 1, 2), tmp_path / "run", "simple-der", **fields)
    api.resume(path)
    assert_equal(path, whole)


def test_the_pruned_network_says_what_was_trained(tmp_path):
    """With channels removed after training there is nothing left that fits together."""
    fields = {"base": 8, "step": 2, "phases": 1, "net": "test_der:tiny"}
    train(tmp_path / "run", "simple-der", settings=[("simple-der.keep", 0.3)], **fields)
    lines = (tmp_path / "run" / "epochs.jsonl").read_text().splitlines()
    trained = [each["loss"] for each in map(json.loads, lines) if each["stage"] == "main"]
    tuned = [each["loss"] for each in map(json.loads, lines) if each["stage"] == "balanced"]
    assert tuned[-1] < trained[-1] + 0.1


def test_without_pruning_extractors_stay_whole():
    method, pool, _ = started(keep=1.0)
    tune(method, pool)
    assert all(part.whole for part in backbone_of(method.net).extractors())


def test_the_classifier_is_tuned_in_every_phase():
    for phase in (Phase(0, 0, 50), Phase(1, 50, 60)):
        _, tuned = SimpleDER(make_tiny).stages(phase, Stage(epochs=170))
        assert (tuned.epochs, tuned.drops, tuned.draw, tuned.train) == (30, (15,), "rarest", ("net.head",))


@pytest.mark.parametrize(
    ("make", "settings", "said"),
    [
        (make_tiny, {"temperature": 0}, "temp"),
        (make_tiny, {"keep": 2}, "keep = 2"),
        (make_flat, {}, "cannot be pruned"),
    ],
)
def test_what_cannot_be_is_refused(make, settings, said):
    with pytest.raises(ValueError, match=said):
        SimpleDER(make, **settings)
