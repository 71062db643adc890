"""TADE: three experts that start as one network, what each of them learns by, and what methods see of them."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from runs import Position, assert_equal, lines, plan, read_state, train, train_until
from small import make_flat
from test_engine import World
from torch import nn

import bdr
from bdr import api
from bdr.errors import UsageError
from bdr.losses import cosine_distance, cross_entropy
from bdr.nets import NETS, CosineHead, Levelled, LinearHead, Network, Teacher
from bdr.nets.base import Divisible, Level, lay_out, layouts_of
from bdr.nets.resnet_cifar import ResNet
from bdr.nets.small import SmallNet
from bdr.paper.cells import load_cells
from bdr.paper.mapping import mapped
from bdr.plugins import TADE, AANet, BDRPlugin, CwD
from bdr.plugins.tade import expert_offsets, reversed_ranks
from bdr.types import ImageShape, Outputs, Phase, Stage

FIRST, LATER = Phase(0, 0, 3), Phase(1, 3, 5)
SHAPES = {"resnet": lambda **k: ResNet((4, 6, 8), 2, 1, **k), "small": lambda **k: SmallNet(1, **k)}
HEADS = {"linear": LinearHead, "cosine": CosineHead}


def images(count=5):
    return torch.randn(count, 1, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def single_network(kind="resnet", head="cosine", **options):
    """In float64, with batch norm that knows other statistics than those that it starts with."""
    torch.manual_seed(0)
    backbone = SHAPES[kind](**options)
    net = TADE().net(lambda head: Network(backbone, head(backbone.dim)))(HEADS[head]).double()
    net.head.grow(3)
    net.head.grow(2)
    with torch.no_grad():
        net.train()(3 * images(16) + 1)
    return net.eval()


def split(net):
    net.split()
    return net


def some_experts(kind="resnet", head="cosine", **options):
    """Three that have gone ways of their own."""
    net = split(single_network(kind, head, **options))
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return net


def alone(net, place):
    """The network of one expert, put together by hand."""
    one = Network(copy.deepcopy(net.backbone.plain), copy.deepcopy(net.head.heads[place])).eval()
    if place and isinstance(one.backbone, ResNet):
        one.backbone.stages[-1].load_state_dict(net.backbone.others[place - 1].blocks.state_dict())
    elif place:
        one.backbone.convs[-1].load_state_dict(net.backbone.others[place - 1].conv.state_dict())
        one.backbone.norms[-1].load_state_dict(net.backbone.others[place - 1].norm.state_dict())
    return one


# The network


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("head", HEADS)
def test_before_it_is_split_it_is_the_plain_network(kind, head):
    net = single_network(kind, head)
    assert (type(net.backbone), type(net.head)) == (type(SHAPES[kind]()), HEADS[head])
    assert net(images()).experts is None
    assert net.head.classes == 5


@pytest.mark.parametrize("last_relu", [True, False])
@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("head", HEADS)
def test_at_their_start_the_experts_say_what_the_single_network_says(kind, head, last_relu):
    net = single_network(kind, head, last_relu=last_relu).float()
    before = net(images().float())
    after = split(net)(images().float())
    torch.testing.assert_close(after.logits, before.logits, rtol=0, atol=1e-6)
    assert after.experts.shape == (3, 5, 5)
    for expert in after.experts:
        torch.testing.assert_close(expert, before.logits, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("head", HEADS)
def test_each_expert_is_a_network_and_what_is_told_is_their_mean(kind, head):
    net = some_experts(kind, head)
    out, each = net(images()), [alone(net, place)(images()) for place in range(3)]
    assert not torch.equal(each[0].logits, each[1].logits)
    for said, one in zip(out.experts, each, strict=True):
        torch.testing.assert_close(said, one.logits)
    torch.testing.assert_close(out.logits, sum(one.logits for one in each) / 3)
    torch.testing.assert_close(out.features, torch.cat([F.normalize(one.features) for one in each], 1))
    assert out.features.shape[1] == net.backbone.dim


def test_mean_logits_over_the_scale_are_means_of_cosines():
    net = some_experts()
    with torch.no_grad():
        for head, eta in zip(net.head.heads, (1.0, 5.0, 9.0), strict=True):
            head.eta.fill_(eta)
    out = net(images())
    assert float(out.scale.detach()) == pytest.approx(5.0)
    cosines = [one / eta for one, eta in zip(out.experts, (1.0, 5.0, 9.0), strict=True)]
    weighed = (1 * cosines[0] + 5 * cosines[1] + 9 * cosines[2]) / 15
    torch.testing.assert_close(out.logits / out.scale, weighed)


def test_three_experts_of_resnet18_have_its_last_stage_and_the_head_three_times():
    plain = NETS["resnet18"](ImageShape())
    last = sum(p.numel() for p in plain.stages[-1].parameters())
    whole = sum(p.numel() for p in plain.parameters())
    net = TADE().net(lambda head: Network(plain, head(plain.dim)))(CosineHead)
    net.head.grow(60)
    head = 60 * 512 + 1
    assert sum(p.numel() for p in net.parameters()) == whole + head
    split(net)
    assert (whole, last) == (11_168_832, 8_393_728)
    assert sum(p.numel() for p in net.parameters()) == (whole - last) + 3 * last + 3 * head


@pytest.mark.parametrize("kind", SHAPES)
def test_a_last_level_on_its_own_is_the_last_level(kind):
    plain = single_network(kind).backbone
    x = images()
    for index in range(plain.depth - 1):
        x = plain.level(index, x).x
    ours, own = plain.last_level()(x), plain.level(plain.depth - 1, x)
    assert torch.equal(ours.x, own.x)
    assert torch.equal(ours.map, own.map)
    shared = {id(p) for p in plain.parameters()}
    assert not any(id(p) in shared for p in plain.last_level().parameters())


def test_a_second_split_changes_nothing():
    net = some_experts()
    before = copy.deepcopy(net.state_dict())
    split(net)
    assert before.keys() == net.state_dict().keys()
    assert all(torch.equal(value, net.state_dict()[name]) for name, value in before.items())


def test_a_layout_says_whether_there_are_experts():
    one, three = single_network(), some_experts()
    assert layouts_of(one)[""] == {}
    lay_out(one, layouts_of(three))
    one.load_state_dict(three.state_dict())
    assert torch.equal(one(images()).experts, three(images()).experts)
    parts = list(three.modules())
    lay_out(three, layouts_of(one))
    assert all(before is after for before, after in zip(parts, three.modules(), strict=True))


def test_a_teacher_follows_when_its_network_is_split():
    net = single_network()
    teacher, three = Teacher(net), some_experts()
    assert teacher(images()).experts is None
    teacher.refill(three)
    assert torch.equal(teacher(images()).experts, three(images()).experts)
    assert not any(p.requires_grad for p in teacher.parameters())


def test_a_backbone_compiles_once_as_one_network_and_once_as_three():
    torch._dynamo.reset()
    limits = {"recompile_limit": 2, "fail_on_recompile_limit_hit": True}
    net = single_network().train()
    with torch._dynamo.config.patch(**limits):
        for width in (8, 24):
            net.backbone.compile(fullgraph=True, backend="eager")
            for _ in range(2):
                assert net.backbone(images()).pooled.shape == (5, width)
            net.split()


# Heads that are asked by verbs


def asked(head, verb):
    """Three heads of which each is asked, and the same three, asked one by one."""
    ours = some_experts(head=head).head
    theirs = copy.deepcopy(ours)
    torch.manual_seed(2)
    verb(ours)
    torch.manual_seed(2)
    for one in theirs.heads:
        verb(one)
    return ours, theirs


@pytest.mark.parametrize(
    ("head", "verb"),
    [
        ("cosine", lambda head: head.grow(4)),
        ("linear", lambda head: head.grow(4)),
        ("linear", lambda head: head.restart(4)),
        ("linear", lambda head: head.redraw()),
        ("linear", lambda head: head.clamp()),
        ("linear", lambda head: head.align(3)),
    ],
    ids=["grow-cosine", "grow", "restart", "redraw", "clamp", "align"],
)
def test_what_is_asked_of_the_head_every_expert_does(head, verb):
    before = some_experts(head=head).head.state_dict()
    ours, theirs = asked(head, verb)
    now = ours.state_dict()
    for name, value in theirs.state_dict().items():
        assert torch.equal(now[name], value), name
    assert not all(now[name].shape == value.shape and torch.equal(now[name], value) for name, value in before.items())
    assert ours.classes == theirs.heads[1].classes


def test_each_head_is_imprinted_with_the_directions_of_its_own_features():
    net = some_experts()
    features, labels = net(images(8)).features, torch.tensor([0, 1] * 4)
    unit = F.normalize(features)
    means = F.normalize(torch.stack([unit[labels == k].sum(0) for k in (0, 1)]))
    net.head.imprint(means)
    for place, head in enumerate(net.head.heads):
        own = F.normalize(alone(net, place).backbone(images(8)).pooled)
        hand = F.normalize(torch.stack([own[labels == k].sum(0) for k in (0, 1)]))
        torch.testing.assert_close(head.new.detach(), hand * head.old.norm(dim=1).mean())


def test_embeddings_at_rest_stay_at_rest_in_every_expert():
    net = split(single_network())
    resting = {name for name, p in net.named_parameters() if not p.requires_grad}
    assert resting == {f"head.heads.{place}.old" for place in range(3)}
    net.head.grow(4)
    assert {name for name, p in net.named_parameters() if not p.requires_grad} == resting
    assert [len(head.old) for head in net.head.heads] == [5] * 3


# Ranks and losses


@pytest.mark.parametrize(
    ("psi", "hand"),
    [
        ([0.5, 0.3, 0.2], [0.2, 0.3, 0.5]),
        ([0.1, 0.4, 0.2, 0.3], [0.4, 0.1, 0.3, 0.2]),
        ([0.25] * 4, [0.25] * 4),
        ([0.1, 0.1, 0.8], [(0.8 + 0.1) / 2, (0.8 + 0.1) / 2, 0.1]),
        ([0.1, 0.3, 0.1, 0.1, 0.3, 0.1], [0.2, 0.1, 0.2, 0.2, 0.1, 0.2]),  # (0.3 + 0.3 + 0.1 + 0.1) / 4
    ],
    ids=["in-order", "mixed", "flat", "two-rare", "old-and-new"],
)
def test_the_most_frequent_gets_what_the_rarest_has_and_equals_get_the_same(psi, hand):
    found = reversed_ranks(torch.tensor(psi, dtype=torch.float64))
    torch.testing.assert_close(found, torch.tensor(hand, dtype=torch.float64))
    assert float(found.sum()) == pytest.approx(1.0)


def test_which_of_equal_classes_comes_first_does_not_matter():
    psi = torch.tensor([20.0] * 50 + [500.0] * 10)
    there = torch.randperm(60, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(reversed_ranks(psi[there]), reversed_ranks(psi)[there])


def test_a_flat_prior_is_no_offset_for_any_expert():
    torch.testing.assert_close(expert_offsets(torch.full((7,), 20.0), 2.0), torch.zeros(3, 7), rtol=0, atol=1e-6)


def by_hand(experts, y, count, tau):
    """(B,) the sum of the three losses, number by number."""
    total, ranked = sum(count), sorted(range(len(count)), key=lambda k: count[k])
    psi = [n / total for n in count]
    back = {k: psi[ranked[-1 - place]] for place, k in enumerate(ranked)}
    losses = []
    for b, label in enumerate(y.tolist()):
        loss = 0.0
        for e in range(3):
            z = [float(experts[e, b, k]) for k in range(len(count))]
            if e > 0:
                z = [value + math.log(psi[k]) for k, value in enumerate(z)]
            if e == 2:
                z = [value - tau * math.log(back[k]) for k, value in enumerate(z)]
            loss += math.log(sum(math.exp(value) for value in z)) - z[label]
        losses.append(loss)
    return torch.tensor(losses, dtype=torch.float64)


@pytest.mark.parametrize("tau", [0.0, 1.0, 2.0])
def test_the_loss_is_the_sum_of_three_each_for_another_distribution(tau):
    chance = torch.Generator().manual_seed(0)
    experts, y = torch.randn(3, 6, 5, dtype=torch.float64, generator=chance), torch.tensor([0, 1, 2, 3, 4, 4])
    count, plugin = [20, 7, 300, 41, 5], TADE(tau)
    plugin.offsets = expert_offsets(torch.tensor(count, dtype=torch.float64), tau)
    out = Outputs(experts.mean(0), torch.zeros(6, 1), experts=experts)
    torch.testing.assert_close(plugin.classify(cross_entropy, out, y), by_hand(experts, y, count, tau))


def test_the_criterion_is_asked_three_times_with_the_outputs_of_one_expert_each():
    experts, heard = torch.randn(3, 2, 4), []
    plugin = TADE()
    plugin.offsets = torch.arange(12.0).view(3, 4)

    def inner(out, y):
        heard.append(out)
        return out.logits[:, 0]

    out = Outputs(experts.mean(0), torch.zeros(2, 1), experts=experts)
    total = plugin.classify(inner, out, torch.tensor([0, 1]))
    assert [one.experts for one in heard] == [None] * 3
    for place, one in enumerate(heard):
        assert torch.equal(one.logits, experts[place] + plugin.offsets[place])
    torch.testing.assert_close(total, sum(one.logits[:, 0] for one in heard))


def test_it_rests_in_the_first_phase_and_where_not_all_images_are_drawn():
    plugin = TADE()
    assert plugin.acts(LATER, Stage())
    assert not plugin.acts(FIRST, Stage())
    assert not any(plugin.acts(LATER, Stage(draw=draw)) for draw in ("memory", "rarest", "held", "uniform"))


# In a method


def world_of(method, index=1):
    world = World(method, ("cwd", "tade"), index)
    world.begin(Stage())
    with torch.no_grad():
        for name, parameter in world.method.net.named_parameters():
            if "others" in name or "heads" in name:
                parameter += 0.05 * torch.randn_like(parameter)
    return world


@pytest.fixture(scope="module")
def ucir():
    return world_of("ucir")


def test_gradients_of_a_loss_reach_its_own_expert_and_what_is_shared(ucir):
    world = copy.deepcopy(ucir)
    net, batch, offsets = world.method.net, world.batch(), world.plugins[1].offsets
    for place in range(3):
        net.zero_grad()
        out = net(batch.x)
        cross_entropy(out._replace(logits=out.experts[place] + offsets[place]), batch.y).mean().backward()
        reached = {name for name, p in net.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}
        owners = {name.rsplit(".", 1)[0] for name in reached if name.startswith("head")}
        assert owners == {f"head.heads.{place}"}
        assert {name.split(".")[2] for name in reached if name.startswith("backbone.others")} == (
            {str(place - 1)} if place else set()
        )
        assert any(name.startswith("backbone.plain.stages.1") for name in reached) == (place == 0)
        assert "backbone.plain.stem.weight" in reached


def test_the_objective_moves_every_expert_by_its_own_loss(ucir):
    world = copy.deepcopy(ucir)
    net, batch, offsets = world.method.net, world.batch(), world.plugins[1].offsets
    assert offsets.shape == (3, 5)
    out = net(batch.x)
    loss = world.objective(Stage()).around(out, batch.y).mean()
    whole = torch.autograd.grad(loss, [head.new for head in net.head.heads], retain_graph=True)
    for place, head in enumerate(net.head.heads):
        own = F.cross_entropy(out.experts[place] + offsets[place], batch.y)
        (slope,) = torch.autograd.grad(own, head.new, retain_graph=True)
        torch.testing.assert_close(whole[place], slope)


def test_less_forget_is_the_mean_of_three_against_a_single_teacher(ucir):
    world = copy.deepcopy(ucir)
    batch, method = world.batch(), world.method
    terms, out = world.objective(Stage()).terms(batch)
    old = method.teacher(batch.x)
    assert (old.features.shape[1], old.experts) == (32, None)
    hand = [1 - F.cosine_similarity(own, old.features).mean() for own in out.features.split(32, 1)]
    torch.testing.assert_close(terms["less_forget"], sum(hand) / 3)


def test_less_forget_is_the_mean_of_three_each_against_its_own_teacher():
    net, before = some_experts(), some_experts()
    with torch.no_grad():
        for parameter in before.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    ours, old = net(images()), before(images())
    each = [[alone(one, place)(images()).features for place in range(3)] for one in (net, before)]
    hand = [1 - F.cosine_similarity(now, then) for now, then in zip(*each, strict=True)]
    torch.testing.assert_close(cosine_distance(ours.features, old.features), sum(hand) / 3)


def test_margin_ranking_is_that_of_the_mean(ucir):
    world = copy.deepcopy(ucir)
    batch = world.batch()
    terms, out = world.objective(Stage()).terms(batch)
    mean = Outputs(out.experts.mean(0), out.features, sum(h.eta for h in world.method.net.head.heads) / 3)
    torch.testing.assert_close(terms["margin"], world.method.margin_ranking(mean, batch.y, world.phase))


def test_a_pool_hands_on_what_every_expert_says(ucir, monkeypatch):
    world = copy.deepcopy(ucir)
    monkeypatch.setattr("bdr.data.store.EVALUATION_BATCH", 7)  # several parts
    found = world.pool.outputs(world.method.net, world.pool.rows)
    assert found.experts.shape == (3, len(world.pool.rows), 5)
    torch.testing.assert_close(found.experts.mean(0), found.logits)
    single = single_network("small").float()
    assert world.pool.outputs(single, world.pool.rows).experts is None


def test_exemplars_are_herded_and_nearest_means_found_by_the_features_of_all_experts(ucir):
    world = copy.deepcopy(ucir)
    world.leave()
    means = world.method.nearest.means
    assert means.shape == (5, 3 * 32)
    rows = world.memory.rows("cpu")
    assert len(rows) == 5 * 3
    features = F.normalize(world.pool.outputs(world.method.net, rows).features)
    hand = F.normalize(torch.stack([features[world.store.labels[rows] == k].mean(0) for k in range(5)]))
    torch.testing.assert_close(means, hand)
    scores = world.method.eval().readouts(world.batch().x)
    assert scores["nme"].shape == scores["cnn"].shape == (16, 5)


def test_a_binary_criterion_is_asked_for_each_expert_too():
    world = world_of("icarl")
    batch, offsets = world.batch(), world.plugins[1].offsets
    terms, out = world.objective(Stage()).terms(batch)
    target = F.one_hot(batch.y, 5)[:, 3:].float()
    shifted = [z[:, 3:] + offset[3:] for z, offset in zip(out.experts, offsets, strict=True)]
    hand = [F.binary_cross_entropy_with_logits(z, target, reduction="sum") / 5 / len(batch.y) for z in shifted]
    torch.testing.assert_close(terms["bce"], sum(hand))


def test_the_loss_of_each_expert_is_watched_and_counts_no_second_time(ucir):
    world = copy.deepcopy(ucir)
    batch, objective = world.batch(), world.objective(Stage())
    terms, out = objective.terms(batch)
    watched = objective.watched(out, batch)
    shifted = out.experts + world.plugins[1].offsets[:, None]
    for number, logits in enumerate(shifted, 1):
        torch.testing.assert_close(watched[f"tade_{number}"], F.cross_entropy(logits, batch.y))
        assert not watched[f"tade_{number}"].requires_grad
    assert not any(name.startswith("tade") for name in terms)
    weighted = sum(objective.weights.get(name, 1.0) * value for name, value in terms.items())
    torch.testing.assert_close(objective.total(terms), weighted)


# Runs


WHAT = "ucir+cwd+tade"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return train(tmp_path_factory.mktemp("tade") / "run", WHAT, keep="all")


@pytest.mark.parametrize("position", [Position(1), Position(1, 0, 0, 2), Position(1, 0, 1, 2), Position(2, 0, 0, 1)])
def test_a_run_stopped_anywhere_ends_where_the_whole_one_does(position, whole, tmp_path):
    path = train_until(position, tmp_path / "run", WHAT, keep="all")
    torch.rand(7)  # whatever else happened meanwhile
    api.resume(path)
    assert_equal(path, whole)


def test_the_records_count_the_parameters_of_every_phase(whole):
    net = SmallNet(1)
    plain, last = (sum(p.numel() for p in part.parameters()) for part in (net, net.last_level()))
    counts = [line["parameters"] for line in lines(whole / "phases.jsonl")]
    heads = [64 * seen + 1 for seen in (4, 7, 10)]
    assert counts == [plain + heads[0], *(plain + 2 * last + 3 * head for head in heads[1:])]


def test_the_losses_of_a_phase_are_those_of_three_experts(whole):
    initial = lines(whole / "phases.jsonl")[1]["losses"]
    assert set(initial) == {"initial_old", "initial_new", "final_old", "final_new"}
    assert all(math.isfinite(value) for value in initial.values())
    terms = lines(whole / "epochs.jsonl")[2]["terms"]
    assert set(terms) == {"ce", "less_forget", "margin", "ce_old", "tade_1", "tade_2", "tade_3"}
    assert sum(terms[f"tade_{expert}"] for expert in (1, 2, 3)) == pytest.approx(terms["ce"], rel=1e-5)


def test_the_records_have_the_scale_of_the_cosines_as_the_mean_of_the_experts(whole):
    for line in lines(whole / "phases.jsonl"):
        tensors = read_state(whole / f"phase-{line['phase']:02d}" / "model").tensors
        scales = [float(value) for name, value in tensors.items() if name.endswith(".eta")]
        assert len(scales) == (1 if line["phase"] == 0 else 3)
        assert line["method_at_end"] == {"eta": pytest.approx(sum(scales) / len(scales))}


def test_the_experts_differ_once_they_have_learnt(whole):
    tensors = read_state(whole / "phase-01" / "model").tensors
    names = "plain.convs.2", "others.0.conv", "others.1.conv"
    ours = [tensors[f"net.backbone.{name}.weight"] for name in names]
    assert not any(torch.equal(ours[a], ours[b]) for a, b in ((0, 1), (1, 2), (0, 2)))
    assert all(torch.equal(tensors["net.head.heads.0.old"], tensors[f"net.head.heads.{e}.old"]) for e in (1, 2))


def test_the_first_phase_is_that_of_the_plain_method(whole, tmp_path):
    plain = train(tmp_path / "run", "ucir+cwd", phases=1)
    ours, theirs = (lines(path / "phases.jsonl")[0] for path in (whole, plain))
    assert {k: ours[k] for k in ("accuracy", "top5", "parameters")} == {
        k: theirs[k] for k in ("accuracy", "top5", "parameters")
    }
    assert lines(whole / "epochs.jsonl")[1]["terms"] == lines(plain / "epochs.jsonl")[1]["terms"]
    assert lines(whole / "phase-00" / "memory.json") == lines(plain / "phase-00" / "memory.json")


def test_a_first_phase_is_shared_with_runs_that_have_no_experts(tmp_path):
    runs = tmp_path / "runs"
    keys = {plan(runs / what, what, runs=runs).experiment.shared for what in ("ucir+cwd", "ucir+cwd+la", WHAT)}
    assert len(keys) == 1


def test_a_kept_model_is_loaded_with_all_experts(whole):
    model = bdr.load(whole)
    assert (len(model.net.backbone.others), len(model.net.head.heads)) == (2, 3)


@pytest.mark.parametrize("what", ["wa+tade", "e2e+tade", "ucir+tade"])
def test_methods_with_other_verbs_and_stages_run_to_their_end(what, tmp_path):
    settings = [("ucir.imprint", True)] if what == "ucir+tade" else []
    path = train(tmp_path / "run", what, settings=[("stage.epochs", 1), *settings])
    counts = [line["parameters"] for line in lines(path / "phases.jsonl")]
    assert counts[0] < counts[1] < counts[2]


# What is refused, and the paper's rows


@pytest.mark.parametrize(
    ("what", "fields", "said"),
    [
        ("ucir+tade+bdr", {}, "'tade' and 'bdr' both set the prior: use one of them"),
        ("ucir+la+tade", {}, "'la' and 'tade' both set the prior: use one of them"),
        ("ucir+tade+aanet", {}, "'tade' and 'aanet' both set the net: use one of them"),
        ("ucir+tade", {"net": "runs:flat"}, "Flat has none of its own: use ucir, .* on --net resnet18"),
        ("ucir+tade", {"memory": "0"}, "plug-in 'tade' balances old classes against new ones"),
        ("bic+tade", {}, "this method needs a single CorrectedHead: use ucir"),
        ("podnet+tade", {}, "this method needs the maps of a single last level: use ucir"),
        ("rwalk+tade", {}, "'rwalk' needs all parameters of its network from the start, and plug-in 'tade' adds"),
        ("der+tade", {}, "'der' needs all parameters of its network from the start, and plug-in 'tade' adds"),
        ("dytox+tade", {"net": "convit-small"}, "TokenTransformer has none of its own"),
        ("rpsnet+tade", {"net": "rps-small"}, "PathNet has none of its own: use ucir, .* on --net resnet18"),
    ],
)
def test_what_cannot_be_is_refused_before_training(what, fields, said, tmp_path):
    with pytest.raises(UsageError, match=said):
        plan(tmp_path / "run", what, **fields)


def test_what_wraps_the_network_sets_it_whatever_else_it_is():
    assert TADE().roles == {"prior", "net"}
    assert AANet().roles == {"net"}
    assert BDRPlugin().roles == {"prior"}
    assert CwD().roles == set()


def test_a_reversal_below_zero_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"tade: tau = -1.0 is not allowed: it is 0 or more"):
        plan(tmp_path / "run", WHAT, settings=[("tade.tau", -1)])


def test_a_network_that_another_made_is_named():
    with pytest.raises(AssertionError, match="built without"):
        TADE().begin(LATER, None, make_flat(LinearHead))


def test_a_backbone_of_ones_own_says_what_its_last_level_is():
    class Own(Levelled):
        """Has levels, and cannot say what the last one is by itself."""

        dim, depth, keeps_maps = 64, 1, False

        def level(self, index, x, gates=None):
            return Level.last(x, relu=True)

    class Single(Own, Divisible):
        """Says it, and has no other."""

        def last_level(self):
            return nn.Identity()

    for backbone, lacks in ((Own(), "Own has none of its own"), (Single(), "Single has no level before it")):
        with pytest.raises(UsageError, match=lacks):
            TADE().net(lambda head, backbone=backbone, **options: Network(backbone, head(64)))(LinearHead)


def test_the_rows_of_table_8_are_runs_of_ucir_with_cwd():
    rows = [one for one in load_cells() if one.table == "T8" and "TADE" in one.parts]
    assert {one.S for one in rows} == {10, 5}
    for cell in rows:
        wanted = mapped(cell)
        assert (wanted.spec, dict(wanted.fields)["net"], wanted.settings) == (WHAT, "resnet18", ())
