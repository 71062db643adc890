"""DER: its terms as loops, what moves when, classifiers drawn anew, and extractors that end at a wanted size."""

import copy
import itertools
import json
import math

import pytest
import torch
from runs import Looks, Position, assert_equal, plan, train, train_until
from small import make_batch, make_flat, make_pool
from torch.utils.flop_counter import FlopCounterMode

from bdr import api
from bdr.bench.untrained import pass_for_trained
from bdr.engine.fit import set_modes, set_moving
from bdr.losses import cross_entropy, old_as_one
from bdr.methods.der import DER
from bdr.methods.expanding import backbone_of, settle_gates
from bdr.methods.pressure import Pressure, wanted_share
from bdr.nets import Network
from bdr.nets.gates import Gates
from bdr.nets.resnet_cifar import ResNet
from bdr.nets.small import SmallNet
from bdr.records import Run
from bdr.types import Clock, Phase, Stage

COUNTS, OLD = (6, 7, 8, 9, 5), 3
NOTHING = torch.zeros(0, dtype=torch.long)
TUNED = {"settings": [("stage.balanced.epochs", 2)]}
PRUNED = {
    "net": "test_der:tiny",
    "phases": 2,
    "settings": [("der.keep", 0.4), ("stage.balanced.epochs", 2), ("stage.epochs", 4)],
}


def tiny(shape, last_relu=True, maps=False):
    return ResNet((8, 16), 1, shape.channels, last_relu, maps)


def make_tiny(head, **options):
    return Network(ResNet((8, 16), 1, 1, **options), head(16))


def started(**settings):
    """A method at the start of its second phase, and the pool."""
    torch.manual_seed(0)
    method, first, pool = DER(make_tiny, **settings), make_pool(COUNTS[:OLD], side=8), make_pool(COUNTS, OLD, side=8)
    method.begin(first.phase, first)
    method.end(first.phase, first, NOTHING)
    method.begin(pool.phase, pool)
    return method, pool


def all_of(pool):
    return make_batch(pool.store.plain(pool.rows), pool.store.labels[pool.rows])


def slow_cross_entropy(logits, y):
    losses = [math.log(sum(math.exp(v) for v in row)) - row[k] for row, k in zip(logits.tolist(), y, strict=True)]
    return sum(losses) / len(losses)


# Terms


def test_the_terms_are_their_loops():
    method, pool = started()
    method.double().eval()
    batch = all_of(pool)._replace(x=all_of(pool).x.double())
    terms = method.loss(batch, pool.phase, method.criterion)
    old, new = (part(batch.x).pooled for part in backbone_of(method.net).extractors())
    logits, aside = torch.cat([old, new], 1) @ method.net.head.weight.T, new @ method.auxiliary.weight.T
    y = batch.y.tolist()
    assert list(terms) == ["ce", "auxiliary"]
    assert terms["ce"].item() == pytest.approx(slow_cross_entropy(logits, y), abs=1e-9)
    theirs = [0 if k < OLD else k - OLD + 1 for k in y]
    assert aside.shape[1] == 3
    assert terms["auxiliary"].item() == pytest.approx(slow_cross_entropy(aside, theirs), abs=1e-9)


def test_tuning_is_cross_entropy_at_a_temperature():
    method, pool = started(temperature=4.0)
    method.double().eval()
    batch = all_of(pool)._replace(x=all_of(pool).x.double())
    terms = method.tune(batch, pool.phase, method.criterion)
    logits = method.net(batch.x).logits / 4
    assert list(terms) == ["ce"]
    assert terms["ce"].item() == pytest.approx(slow_cross_entropy(logits, batch.y.tolist()), abs=1e-9)


def test_the_first_phase_is_classification_alone():
    method, pool = DER(make_tiny), make_pool(COUNTS, side=8)
    method.begin(pool.phase, pool)
    assert list(method.loss(all_of(pool), pool.phase, cross_entropy)) == ["ce"]


def test_plug_ins_stand_around_classification_and_leave_the_auxiliary_term_alone():
    method, pool = started()
    plain = method.loss(all_of(pool), pool.phase, cross_entropy)
    other = method.loss(all_of(pool), pool.phase, lambda out, y: torch.full((len(y),), 3.0))
    assert other["ce"] == 3
    assert torch.equal(other["auxiliary"], plain["auxiliary"])


def test_old_classes_are_one_class_to_the_auxiliary_classifier():
    assert old_as_one(torch.tensor([0, 2, 3, 4]), 3).tolist() == [0, 0, 1, 2]
    mixed = torch.tensor([[0.5, 0.0, 0.2, 0.3, 0.0]])
    assert old_as_one(mixed, 3).flatten().tolist() == pytest.approx([0.7, 0.3, 0.0])


# What grows, what moves


def test_every_phase_adds_an_extractor_and_counts_what_inference_needs():
    method, counts = DER(make_tiny), (3, 5, 6)
    size = sum(p.numel() for p in method.net.backbone.parameters())
    for index, seen in enumerate(counts):
        old = counts[index - 1] if index else 0
        pool = make_pool([6] * seen, old, side=8)
        phase = Phase(index, old, seen)
        method.begin(phase, pool)
        assert method.net(all_of(pool).x).features.shape[1] == 16 * (index + 1)
        assert method.net.head.layout() == {"classes": seen, "dim": 16 * (index + 1)}
        assert method.auxiliary.classes == (seen - old + 1 if index else 0)
        method.end(phase, pool, NOTHING)
        assert method.parameter_count() == (index + 1) * size + seen * 16 * (index + 1)


def test_gradients_reach_the_newest_extractor_and_both_classifiers():
    method, pool = started(keep=0.5)
    sum(method.loss(all_of(pool), pool.phase, method.criterion).values()).backward()
    with_slope = {name for name, p in method.named_parameters() if p.grad is not None and p.numel()}
    everything = {name for name, p in method.named_parameters() if p.numel()}
    assert everything - with_slope == {name for name in everything if name.startswith("net.backbone.old.")}
    assert {"net.head.weight", "auxiliary.weight", "net.backbone.gates.e"} <= with_slope


def test_old_extractors_rest_in_training_and_all_but_the_classifier_in_tuning(tmp_path):
    begun = plan(tmp_path / "run", "der", phases=2, **TUNED)
    looks = Looks(begun.experiment.method)
    api.execute(begun, looks)
    start, trained, tuned = looks.seen
    moved = {
        name for name in trained if trained[name].shape == start[name].shape and (trained[name] != start[name]).any()
    }
    assert not any(name.startswith("net.backbone.old.") for name in moved)
    assert {"net.head.weight", "net.backbone.newest.convs.0.weight", "net.backbone.newest.norms.2.running_var"} <= moved
    assert trained["auxiliary.weight"].numel() == 0
    later = {name for name in tuned if tuned[name].shape != trained[name].shape or (tuned[name] != trained[name]).any()}
    assert later == {"net.head.weight", "nearest.means"}


def test_the_balanced_stage_sees_equally_many_of_every_class():
    method, pool = started()
    stage = method.stages(pool.phase, Stage(batch=4))[1]
    seen = pool.epoch(stage, 1, 0).rows.flatten()
    once = pool.candidates(stage.draw, 1)
    assert pool.counts(once).tolist() == [3] * 5
    assert set(seen.tolist()) == set(once.tolist())


def test_the_second_stage_is_as_published_and_shrinks_with_the_first():
    method = DER(make_tiny)
    base = Stage(epochs=170, warmup=10, drops=(110, 130))
    assert method.stages(Phase(0, 0, 50), base) == [base]
    main, tuned = method.stages(Phase(1, 50, 60), base)
    assert main == base
    assert (tuned.epochs, tuned.drops, tuned.lr, tuned.warmup, tuned.draw) == (30, (15,), 0.1, 0, "rarest")
    assert tuned.train == ("net.head",)
    assert method.stages(Phase(1, 50, 60), Stage(epochs=17))[1].epochs == 3
    assert method.stages(Phase(1, 50, 60), Stage(epochs=1))[1].epochs == 1


def test_without_the_balanced_stage_the_classifier_that_was_trained_with_the_extractor_is_kept():
    phase, base = Phase(1, 50, 60), Stage(epochs=170)
    assert [stage.name for stage in DER(make_tiny).stages(phase, base)] == ["main", "balanced"]
    assert DER(make_tiny, balanced=False).stages(phase, base) == [base]


def test_the_balanced_stage_can_be_left_out_where_a_frame_speaks_of_it(tmp_path):
    found = api.run("der", phases=2, set={"der.balanced": False, "stage.epochs": 1}, out=tmp_path / "run")
    assert [line["stage"] for line in Run.open(found.path).epochs] == ["main", "main"]


def test_classifiers_begin_normal_and_are_drawn_uniformly_and_in_place_after_the_warm_up():
    method, _ = started()
    heads = (method.net.head, method.auxiliary)
    places, before = [head.weight.data_ptr() for head in heads], [head.weight.clone() for head in heads]
    for stage, epoch in ((Stage(warmup=10), 9), (Stage(warmup=10), 11), (Stage(), 0)):
        method.at_epoch(stage, epoch)
        assert all(torch.equal(head.weight, weight) for head, weight in zip(heads, before, strict=True))
    method.at_epoch(Stage(warmup=10), 10)
    for head, weight, place in zip(heads, before, places, strict=True):
        bound = weight.shape[1] ** -0.5
        assert weight.abs().max() > bound  # a normal of that spread has a third beyond it
        assert bound / 2 < head.weight.abs().max() <= bound
        assert head.weight.data_ptr() == place


def test_the_first_phase_draws_its_classifier_anew_too():
    method, pool = DER(make_tiny), make_pool(COUNTS, side=8)
    method.begin(pool.phase, pool)
    before = method.net.head.weight.clone()
    method.at_epoch(Stage(warmup=2), 2)
    assert not torch.equal(method.net.head.weight, before)


# Pruning


def test_a_wanted_size_is_reached_in_one_run(tmp_path):
    fields = {"base": 5, "step": 5, "memory": "5/class", "val": 0.6, "phases": 2, "checkpoint_every": 1e9}
    settings = [("der.keep", 0.2), ("stage.epochs", 12), ("stage.balanced.epochs", 2)]
    begun = plan(tmp_path / "run", "der", settings=settings, **fields)
    api.execute(begun)
    for part in backbone_of(begun.experiment.method.net).extractors():
        assert sum(p.numel() for p in part.parameters()) == pytest.approx(0.2 * part.size(part.full), rel=0.1)


@pytest.mark.parametrize("epochs", [1, 2, 5])
def test_a_wanted_size_is_met_however_short_the_training(tmp_path, epochs):
    fields = {"base": 5, "step": 5, "memory": "5/class", "val": 0.6, "phases": 1}
    begun = plan(tmp_path / "run", "der", settings=[("der.keep", 0.2), ("stage.epochs", epochs)], **fields)
    api.execute(begun)
    (part,) = backbone_of(begun.experiment.method.net).extractors()
    left = sum(p.numel() for p in part.parameters()) / part.size(part.full)
    assert 0.18 < left <= 0.2


def test_gates_learn_in_the_first_half_and_are_settled_for_the_second():
    method, pool = started(keep=0.3)
    gates, net = backbone_of(method.net).gates, backbone_of(method.net).prunable()
    stage = Stage(epochs=9)
    method.begin_stage(stage, pool.phase, pool)
    for epoch in range(5):
        method.at_epoch(stage, epoch)
        assert gates.e.abs().max() < 10
    gates.e.data[::2] *= 1e-6  # ajar
    method.at_epoch(stage, 5)
    gates.anneal(Clock(torch.tensor(5), torch.tensor(0), torch.tensor(30)), 100.0)
    assert all(torch.equal(m, mask.float()) for m, mask in zip(gates(), gates.kept(), strict=True))
    assert net.size([int(mask.sum()) for mask in gates.kept()]) <= 0.3 * net.size(net.full)
    before = gates.e.detach().clone()
    for epoch in (6, 7, 8):
        method.at_epoch(stage, epoch)
    assert torch.equal(gates.e, before)


def test_after_a_long_training_the_pruned_network_says_what_was_trained(tmp_path):
    """With gates left to themselves to the end, many are ajar then: in training all is well, and half is lost."""
    fields = {"base": 8, "step": 2, "phases": 1, "net": "test_der:tiny"}
    settings = [("der.keep", 0.3), ("stage.epochs", 100), ("stage.warmup", 4)]
    begun = plan(tmp_path / "run", "der", settings=settings, **fields)
    api.execute(begun)
    (line,) = (tmp_path / "run" / "phases.jsonl").read_text().splitlines()
    assert json.loads(line)["accuracy"]["cnn"] > 85


def test_the_sparsity_term_is_told_as_it_is_and_pulls_as_it_weighs():
    pressure, left = Pressure(), torch.tensor(0.3, requires_grad=True)
    pressure.weight.fill_(-7.0)
    term = pressure(left)
    assert term.item() == pytest.approx(0.3)
    assert torch.autograd.grad(term, left)[0] == -7


def test_weight_decay_leaves_the_gates_alone():
    method, _ = started(keep=0.5)
    spared = {name for name, parameter in method.named_parameters() if not method.decays(name, parameter)}
    assert spared == {"net.backbone.gates.e"}


def test_the_size_wanted_falls_from_the_warm_up_to_half_time():
    stage = Stage(epochs=170, warmup=10)
    shares = [wanted_share(0.1, stage, epoch) for epoch in range(170)]
    assert shares[:10] == [1.0] * 10
    assert all(later < earlier for earlier, later in itertools.pairwise(shares[9:85]))
    assert shares[84:] == pytest.approx([0.1] * 86)
    assert shares[47] / shares[46] == pytest.approx(shares[20] / shares[19])


@pytest.mark.parametrize("push", [0.0, 0.003, -0.003])
def test_the_controller_holds_the_size_against_whatever_else_pushes_the_gates(push):
    """Gates alone, moved by plain descent on the weighted sparsity and a constant push, in epochs of 30 steps."""
    torch.manual_seed(0)
    net, gates, pressure, stage = SmallNet(1), Gates(), Pressure(), Stage(epochs=60, lr=0.1, momentum=0.0, drops=(40,))
    gates.begin(net)
    pressure.begin(30)
    for epoch in range(stage.epochs):
        pressure.press(gates, net, wanted_share(0.2, stage, epoch), pressure.reach(stage, epoch))
        for step in range(30):
            gates.anneal(Clock(torch.tensor(epoch), torch.tensor(step), torch.tensor(30)), 100.0)
            (slope,) = torch.autograd.grad(pressure(gates.sparsity()), gates.e)
            rate = 0.1 if epoch < 40 else 0.01
            gates.e.data -= rate * (slope + push)
    size = net.size([int(mask.sum()) for mask in gates.kept()])
    assert size == pytest.approx(0.2 * net.size(net.full), rel=0.05)


def test_a_gated_step_compiles_without_a_break_and_is_the_same():
    torch._dynamo.reset()
    method, pool = started(keep=0.5)
    method.pressure.weight.fill_(3.0)
    set_modes(method)
    found = []
    for wrap in (lambda f: f, lambda f: torch.compile(f, fullgraph=True, backend="eager")):
        mine = copy.deepcopy(method)
        batch = all_of(pool)._replace(clock=Clock(torch.tensor(0), torch.tensor(2), torch.tensor(5)))
        terms = wrap(lambda batch, mine=mine: mine.loss(batch, pool.phase, mine.criterion))(batch)
        sum(terms.values()).backward()
        found.append((terms, backbone_of(mine.net).gates.e.grad, backbone_of(mine.net).gates.s))
    torch.testing.assert_close(*found)
    terms, slope, s = found[0]
    assert list(terms) == ["ce", "auxiliary", "sparsity"]
    assert (slope != 0).all()
    assert s.item() == pytest.approx(0.01 + (100 - 0.01) / 2)


def test_pruning_leaves_what_the_network_says_as_it_was():
    method, pool = started(keep=0.5)
    method.double()
    gates = backbone_of(method.net).gates
    gates.e.data.normal_(generator=torch.Generator().manual_seed(1))
    settle_gates(backbone_of(method.net), gates.groups(), 0.5)
    method.eval()
    x = all_of(pool).x.double()
    before, count = method.net(x), method.parameter_count()
    method.end(pool.phase, pool, NOTHING)
    after = method.net(x)
    torch.testing.assert_close(after.logits, before.logits, rtol=0, atol=1e-9)
    assert after.features.shape[1] < before.features.shape[1]
    assert method.parameter_count() < count
    assert not gates.there
    state = {name: value for name, value in method.state_dict().items() if name.startswith("net.")}
    newest = [value for name, value in state.items() if "newest" in name and "running" not in name]
    assert sum(v.numel() for v in newest) == sum(p.numel() for p in backbone_of(method.net).newest.parameters())


def test_pruned_extractors_are_removed_before_the_classifier_is_tuned():
    method, pool = started(keep=0.5)
    backbone_of(method.net).gates.e.data.normal_(generator=torch.Generator().manual_seed(1))
    method.begin_stage(method.stages(pool.phase, Stage())[1], pool.phase, pool)
    assert not backbone_of(method.net).newest.whole
    assert method.net.head.layout()["dim"] == method.net.backbone.dim
    bound = method.net.backbone.dim**-0.5
    assert method.net.head.weight.abs().max() <= bound


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"keep": 0.0}, "keep = 0.0"),
        ({"keep": 1.5}, "keep = 1.5"),
        ({"temperature": 0}, "temp"),
        ({"s_max": 1}, "s_max"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        DER(make_tiny, **settings)


def test_pruning_a_network_that_cannot_be_pruned_is_refused():
    with pytest.raises(ValueError, match=r"a Flat cannot be pruned: set keep = 1"):
        DER(make_flat, keep=0.5)
    DER(make_flat)


# Going on


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return train(tmp_path_factory.mktemp("whole") / "run", "der+bdr", **PRUNED)


@pytest.mark.parametrize("position", [Position(0, 0, 3, 1), Position(1, 0, 2, 2), Position(1, 1, 1, 0)])
def test_a_pruned_run_stopped_anywhere_ends_where_the_whole_one_does(position, whole, tmp_path):
    path = train_until(position, tmp_path / "run", "der+bdr", **PRUNED)
    api.resume(path)
    assert_equal(path, whole)


# Many phases


def grown(keep):
    """What autograd keeps for backward in every phase, and the work that each phase adds to a step."""
    torch.manual_seed(0)
    method, kept, work = DER(make_tiny, keep=keep), [], []
    for index in range(5):
        pool = make_pool([8] * (index + 2), index + 1 if index else 0, side=8)
        phase = Phase(index, index + 1 if index else 0, index + 2)
        method.begin(phase, pool)
        set_moving(method, [name for name, p in method.named_parameters() if p.requires_grad])
        set_modes(method)
        kept.append(0)

        def note(tensor, kept=kept):
            kept[-1] += tensor.numel() if tensor.dim() == 4 else 0
            return tensor

        x, y = torch.randn(64, 1, 8, 8), torch.arange(64) % phase.seen
        saved = torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor)
        with FlopCounterMode(display=False) as counter, saved:
            sum(method.loss(make_batch(x, y), phase, cross_entropy).values()).backward()
        work.append(counter.get_total_flops())
        pass_for_trained(method)
        method.end(phase, pool, NOTHING)
    return kept, [after - before for before, after in itertools.pairwise(work)]


def test_work_and_memory_of_a_step_grow_no_faster_than_the_extractors():
    """What autograd keeps for backward is that of one extractor, however many there are."""
    kept, more = grown(keep=1.0)
    assert kept == [kept[0]] * 5
    assert max(more) < 1.1 * min(more)  # a forward of one extractor each time, and classifiers that are small


def test_a_pruned_extractor_adds_less_work_than_a_whole_one_and_no_more_memory():
    (kept, more), (_, whole) = grown(keep=0.4), grown(keep=1.0)
    assert kept == [kept[0]] * 5
    assert max(more) < min(whole)
    assert max(more) < 1.5 * min(more)  # equally many parameters, of layers that work more and less
