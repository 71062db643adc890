"""AANet: two branches that start as one network, are mixed level by level, and whose shares learn in turns."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from runs import Position, assert_equal, lines, plan, read_state, train, train_until
from small import make_flat, make_pool
from test_engine import World, losses_and_gradients
from torch import nn

import bdr
from bdr import api
from bdr.bench.cases import fits_of
from bdr.configuration.config import changed
from bdr.engine.course import Course
from bdr.engine.fit import set_modes, set_moving
from bdr.engine.objective import Objective
from bdr.errors import UsageError
from bdr.nets import NETS, CosineHead, Levelled, LinearHead, Network, Teacher, TwoBranches
from bdr.nets.aanet import ScaledConv
from bdr.nets.base import lay_out, layouts_of
from bdr.nets.resnet_cifar import ResNet
from bdr.nets.small import SmallNet
from bdr.paper import mapping
from bdr.paper.cells import load_cells
from bdr.paper.mapping import mapped
from bdr.plugins import AANet
from bdr.types import ImageShape, Outputs, Phase, Stage

FIRST, LATER = Phase(0, 0, 3), Phase(1, 3, 5)
SHAPES = {"resnet": lambda **k: ResNet((4, 6, 8), 2, 1, **k), "small": lambda **k: SmallNet(1, **k)}
STABLE_SHARE = torch.tensor([0.2, 0.9, -0.3])


def images(count=5, dtype=torch.float32):
    return torch.randn(count, 1, 8, 8, dtype=dtype, generator=torch.Generator().manual_seed(0))


def trained_a_little(backbone):
    """Batch norm knows other statistics than those that it starts with."""
    backbone.train()
    with torch.no_grad():
        backbone(3 * images(16, next(backbone.parameters()).dtype) + 1)
    return backbone.eval()


def some_backbone(kind, **options):
    torch.manual_seed(0)
    return trained_a_little(SHAPES[kind](**options))


def network(kind="small"):
    """As the plug-in has it built; three classes."""

    def make(head, **options):
        backbone = some_backbone(kind, **options)
        return Network(backbone, head(backbone.dim))

    net = AANet().net(make)(CosineHead)
    net.head.grow(3)
    return net


def some_branches(kind, **options):
    """Two branches in float64 that have gone ways of their own."""
    branches = TwoBranches(some_backbone(kind, **options))
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in branches.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
        branches.aggregation.copy_(STABLE_SHARE)
    return trained_a_little(branches.double())


# Levels


def resnet_by_hand(net, x):
    x, maps = net.bn(net.stem(x)), []
    for stage in net.stages:
        x = stage(F.relu(x))
        maps.append(x)
    return (F.relu(x) if net.last_relu else x).mean((2, 3)), maps


def small_by_hand(net, x):
    maps = []
    for place, (conv, norm) in enumerate(zip(net.convs, net.norms, strict=True)):
        x = norm(conv(F.max_pool2d(x, 2) if place else x))
        maps.append(x)
        x = F.relu(x) if net.last_relu or place < 2 else x
    return x.mean((2, 3)), maps


@pytest.mark.parametrize("last_relu", [True, False])
@pytest.mark.parametrize(("kind", "by_hand"), [("resnet", resnet_by_hand), ("small", small_by_hand)])
def test_levels_one_after_the_other_are_the_backbone(kind, by_hand, last_relu):
    net = some_backbone(kind, last_relu=last_relu, maps=True).double()
    pooled, maps = by_hand(net, images(dtype=torch.float64))
    seen = net(images(dtype=torch.float64))
    assert torch.equal(seen.pooled, pooled)
    assert len(seen.maps) == net.depth == 3
    assert all(torch.equal(one, other) for one, other in zip(seen.maps, maps, strict=True))


def test_the_tensors_of_a_backbone_have_the_names_that_they_had():
    assert {name.split(".")[0] for name in NETS["resnet32"](ImageShape()).state_dict()} == {"stem", "bn", "stages"}
    assert {name.split(".")[0] for name in NETS["small"](ImageShape()).state_dict()} == {"convs", "norms"}


@pytest.mark.parametrize("name", NETS)
def test_every_net_of_images_has_levels_or_is_refused(name):
    def make(head, **options):
        backbone = NETS[name](ImageShape(3, 32, 32), **options)
        return Network(backbone, head(backbone.dim))

    if issubclass(type(make(LinearHead).backbone), Levelled):
        net = AANet().net(make)(LinearHead)
        net.split()
        assert isinstance(net.backbone, TwoBranches)
    else:
        with pytest.raises(UsageError, match="has no levels"):
            AANet().net(make)(LinearHead)


# Two branches


@pytest.mark.parametrize("kind", SHAPES)
def test_before_it_is_split_it_is_the_plain_network(kind):
    """Bit by bit and name by name, so that its first phase can be that of a run without the plug-in."""
    plain, own = some_backbone(kind), network(kind).backbone
    assert type(own) is type(plain)
    assert plain.state_dict().keys() == own.state_dict().keys()
    assert all(torch.equal(value, own.state_dict()[name]) for name, value in plain.state_dict().items())


@pytest.mark.parametrize("last_relu", [True, False])
@pytest.mark.parametrize("kind", SHAPES)
def test_at_its_start_it_equals_the_single_network(kind, last_relu):
    plain = some_backbone(kind, last_relu=last_relu, maps=True)
    before = plain(images())
    branched = TwoBranches(plain)
    after = branched(images())
    assert branched.aggregation.tolist() == [0.5] * 3
    torch.testing.assert_close(after.pooled, before.pooled, rtol=0, atol=1e-6)
    for one, other in zip(after.maps, before.maps, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


def by_hand(branches, x):
    """Every level of both branches, mixed number by number as the paper has it."""
    maps = []
    for place, share in enumerate(STABLE_SHARE.tolist()):
        stable, plastic = branches.stable.level(place, x), branches.plastic.level(place, x)
        x = share * stable.x + (1 - share) * plastic.x
        maps.append(share * stable.map + (1 - share) * plastic.map)
    return x, maps


@pytest.mark.parametrize("kind", SHAPES)
def test_every_level_is_mixed_by_its_share(kind):
    branches = some_branches(kind, maps=True)
    seen, (pooled, maps) = branches(images(dtype=torch.float64)), by_hand(branches, images(dtype=torch.float64))
    torch.testing.assert_close(seen.pooled, pooled, rtol=1e-6, atol=1e-6)
    for one, other in zip(seen.maps, maps, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)
    assert seen.pooled.shape == (5, branches.dim)


@pytest.mark.parametrize(("share", "branch"), [(1.0, "stable"), (0.0, "plastic")])
def test_a_branch_alone_is_that_branch(share, branch):
    branches = some_branches("resnet")
    branches.aggregation.fill_(share)
    alone = getattr(branches, branch)(images(dtype=torch.float64))
    assert torch.equal(branches(images(dtype=torch.float64)).pooled, alone.pooled)


@pytest.mark.parametrize("options", [{}, {"stride": 2, "groups": 2, "bias": True}, {"padding_mode": "circular"}])
def test_a_scaled_convolution_multiplies_every_plane_of_its_filters(options):
    torch.manual_seed(0)
    conv = nn.Conv2d(4, 6, 3, padding=1, **options).double()
    x = torch.randn(2, 4, 8, 8, dtype=torch.float64)
    scaled, plain = ScaledConv(conv), conv(x).detach()
    assert torch.equal(scaled(x), plain)
    with torch.no_grad():
        scaled.scale.normal_()
    other = nn.Conv2d(4, 6, 3, padding=1, **options).double()
    other.load_state_dict(conv.state_dict())
    with torch.no_grad():
        for out in range(6):
            for into in range(scaled.scale.shape[1]):
                other.weight[out, into] *= scaled.scale[out, into, 0, 0]
    torch.testing.assert_close(scaled(x), other(x))
    scaled(x).sum().backward()
    assert scaled.scale.shape[2:] == (1, 1)
    assert conv.weight.grad is None
    assert scaled.scale.grad.abs().sum() > 0


def test_two_branches_of_resnet32_have_as_many_parameters_as_published():
    plain = NETS["resnet32"](ImageShape())
    assert sum(p.numel() for p in plain.parameters()) == 466_256
    branched = TwoBranches(plain)
    named = dict(branched.named_parameters())
    scales = sum(p.numel() for name, p in named.items() if name.endswith(".scale"))
    count = sum(p.numel() for p in named.values())
    assert (scales, count, len(branched.aggregation)) == (53_808, 2 * 466_256 + 53_808 + 3, 3)
    assert round(count / 1e6, 3) == 0.986
    assert round((count - scales) / 1e6, 3) == 0.933  # multiplied into the filters


def test_a_second_split_changes_nothing():
    net = network()
    net.split()
    branches = net.backbone
    net.split()
    assert net.backbone is branches


def test_a_layout_says_whether_it_is_split():
    one, two = network(), network()
    assert layouts_of(one)[""] == {}
    two.split()
    with torch.no_grad():
        two.backbone.aggregation.copy_(STABLE_SHARE)
    lay_out(one, layouts_of(two))
    one.load_state_dict(two.state_dict())
    assert torch.equal(one.eval()(images()).logits, two.eval()(images()).logits)


def test_a_teacher_follows_when_its_network_is_split():
    net = network()
    teacher = Teacher(net)
    net.split()
    with torch.no_grad():
        net.backbone.stable.convs[1].scale.mul_(1.5)
        net.backbone.aggregation.copy_(STABLE_SHARE)
    assert not teacher.net.is_split
    assert not torch.equal(teacher(images()).logits, net.eval()(images()).logits)
    teacher.refill(net)
    assert torch.equal(teacher(images()).logits, net(images()).logits)
    assert not any(p.requires_grad for p in teacher.parameters())


# What moves


def moving(world, stage):
    """The gradients of a batch in a stage, by the name of their parameter."""
    set_moving(world.method, stage.train or world.awake)
    set_modes(world.method)
    objective = Objective(world.method, () if stage.train else world.plugins, world.phase, stage)
    found = losses_and_gradients(objective, world.batch(), compiled=False)
    return {name.removeprefix("net.") for name in found if name.startswith("net.")}, found


@pytest.fixture
def world():
    world = World("ucir", ("aanet", "bdr"), 1)
    world.begin(Stage())
    world.awake = [name for name, p in world.method.named_parameters() if p.requires_grad]
    with torch.no_grad():  # as long as the branches are equal, their shares do not matter
        for part in world.method.net.backbone.stable.modules():
            if isinstance(part, ScaledConv):
                part.scale.uniform_(0.5, 1.5)
    return world


def test_in_the_main_stage_all_moves_but_the_shares_and_the_stable_filters(world):
    slopes, found = moving(world, Stage())
    names = {name for name, _ in world.method.net.named_parameters()}
    resting = {name for name in names if name.endswith(".conv.weight")}
    assert all(name.startswith("backbone.stable.") for name in resting)
    assert names - slopes == resting | {"backbone.aggregation", "head.old"}
    assert len(resting) == sum(name.endswith(".scale") for name in slopes) == 6
    assert found.keys() >= {"ce", "less_forget", "margin"}


def aggregation(world):
    (stage,) = world.plugins[0].stages(world.phase, [Stage(epochs=7, drops=(2, 5), weight_decay=3e-4)])
    return stage.alternate


def test_in_its_turn_only_the_shares_move_by_the_classification_loss_alone(world):
    slopes, found = moving(world, aggregation(world))
    assert slopes == {"backbone.aggregation"}
    assert found["net.backbone.aggregation"].abs().min() > 0
    assert found.keys() == {"classification", "total", "ce_old", "net.backbone.aggregation"}
    batch, backbone = world.batch(), world.method.net.backbone
    torch.testing.assert_close(found["total"], F.cross_entropy(world.method.net(batch.x).logits, batch.y))
    assert not any(part.training for branch in (backbone.stable, backbone.plastic) for part in branch.modules())


@pytest.mark.parametrize("method", ["ucir", "icarl", "podnet"])
def test_in_their_turn_the_shares_learn_by_cross_entropy_over_all_seen_classes(method, tmp_path):
    """Also where the method's own loss is another, or of new classes alone: the draw is balanced for their sake."""
    learner = plan(tmp_path / "run", f"{method}+aanet").learner
    _, aside = fits_of(learner, 1)
    logits, y = torch.randn(6, learner.phases[1].seen), torch.arange(6)
    found = aside.objective.around(Outputs(logits, torch.zeros(6, 2)), y)
    torch.testing.assert_close(found, F.cross_entropy(logits, y, reduction="none"))


def test_its_turn_compiles_without_a_break_and_is_the_same(world):
    torch._dynamo.reset()
    stage = aggregation(world)
    set_moving(world.method, stage.train)
    set_modes(world.method)
    objective = Objective(world.method, (), world.phase, stage)
    eager = losses_and_gradients(objective, world.batch(), compiled=False)
    eager = {name: value.clone() for name, value in eager.items()}
    world.method.zero_grad()
    compiled = losses_and_gradients(objective, world.batch(), compiled=True)
    assert eager.keys() == compiled.keys()
    for name, value in eager.items():
        torch.testing.assert_close(compiled[name], value, rtol=1e-5, atol=1e-6, equal_nan=True, msg=name)


def test_the_turn_follows_the_schedule_of_its_stage_at_a_rate_of_its_own():
    main = Stage(epochs=7, drops=(2, 5), weight_decay=3e-4, batch=32)
    (stage,) = AANet(aggregation_lr=0.25).stages(LATER, [main])
    assert replace(stage, alternate=None) == main
    turn = stage.alternate
    assert (turn.name, turn.draw, turn.batch, turn.lr) == ("aggregation", "fresh", 100, 0.25)
    assert (turn.drops, turn.weight_decay, turn.momentum) == (main.drops, main.weight_decay, main.momentum)


def test_stages_that_do_not_train_on_everything_have_no_turns():
    stages = [Stage(), Stage(name="balanced", draw="memory"), Stage(name="correction", draw="held")]
    assert [stage.alternate is None for stage in AANet().stages(LATER, stages)] == [False, True, True]
    assert AANet().stages(FIRST, stages) == stages


def test_maps_are_mixed_for_a_method_that_distils_them():
    world = World("podnet", ("aanet",), 1)
    world.begin(Stage())
    found = losses_and_gradients(world.objective(Stage()), world.batch(), compiled=False)
    assert found["pod_spatial"] > 0
    assert found["net.backbone.stable.stem.scale"].abs().sum() > 0


def test_a_balanced_draw_changes_from_turn_to_turn():
    pool, turn = make_pool((9, 8, 12, 10), 2, 3), AANet().stages(LATER, [Stage()])[0].alternate
    rows = [pool.epoch(turn, "0.aggregation", epoch).rows.flatten() for epoch in (0, 1)]
    for drawn in rows:
        assert pool.counts(drawn).tolist() == [3, 3, 3, 3]
        assert set(pool.memory.tolist()) <= set(drawn.tolist())
    assert set(rows[0].tolist()) != set(rows[1].tolist())


# Runs


WHAT = "ucir+aanet+bdr"
MOVING = {"settings": [("aanet.aggregation_lr", 0.2)]}  # a rate that shows


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return train(tmp_path_factory.mktemp("aanet") / "run", WHAT, keep="all", **MOVING)


def shares(line):
    return list(line["plugins"]["aanet"].values())


def test_the_lines_of_the_turns_stand_between_those_of_the_main_stage(whole):
    found = lines(whole / "epochs.jsonl")
    names = [(line["phase"], line["epoch"], line["stage"]) for line in found]
    assert names == [(0, 0, "main"), (0, 1, "main")] + [
        (phase, epoch, stage) for phase in (1, 2) for epoch in (0, 1) for stage in ("main", "aggregation")
    ]
    assert "plugins" not in found[0]
    assert {line["lr"] for line in found if line["stage"] == "aggregation"} <= {0.2, 0.02, 0.002}
    assert set(found[3]["terms"]) == {"classification", "ce_old"}
    assert list(found[3]["plugins"]["aanet"]) == ["level_1", "level_2", "level_3"]


def test_the_shares_move_in_their_turns_alone_and_are_carried_from_phase_to_phase(whole):
    mains, turns = (
        [shares(line) for line in lines(whole / "epochs.jsonl") if line["stage"] == name and line["phase"]]
        for name in ("main", "aggregation")
    )
    assert mains[0] == [0.5, 0.5, 0.5]
    assert mains[1:] == turns[:-1]
    for before, after in zip(mains, turns, strict=True):
        assert all(one != other and math.isfinite(other) for one, other in zip(before, after, strict=True))
    last = read_state(whole / "phase-02" / "model").tensors["net.backbone.aggregation"]
    assert last.tolist() == pytest.approx(turns[-1], rel=1e-6)


def test_the_records_count_the_parameters_of_every_phase(whole):
    plain = sum(p.numel() for p in SmallNet(1).parameters())
    scales = 1 * 32 + 32 * 64 + 64 * 64
    heads = [64 * seen + 1 for seen in (4, 7, 10)]
    counts = [line["parameters"] for line in lines(whole / "phases.jsonl")]
    assert counts == [plain + heads[0], *(2 * plain + scales + 3 + head for head in heads[1:])]


def test_the_stable_filters_stay_where_the_first_phase_left_them(whole):
    first, second, last = (read_state(whole / f"phase-0{phase}" / "model").tensors for phase in (0, 1, 2))
    for place in range(3):
        name = f"convs.{place}.conv.weight"
        assert torch.equal(last[f"net.backbone.stable.{name}"], first[f"net.backbone.convs.{place}.weight"])
        assert not torch.equal(last[f"net.backbone.plastic.convs.{place}.weight"], last[f"net.backbone.stable.{name}"])
        scale = f"net.backbone.stable.convs.{place}.scale"
        assert not torch.equal(last[scale], second[scale])
        for branch in ("stable", "plastic"):
            statistics = f"net.backbone.{branch}.norms.{place}.running_mean"
            assert not torch.equal(last[statistics], second[statistics])


@pytest.mark.parametrize(
    "position", [Position(1), Position(1, 0, 0, 2), Position(1, 0, 1, 0), Position(1, 0, 1, 2), Position(2, 0, 0, 1)]
)
def test_a_run_stopped_anywhere_ends_where_the_whole_one_does(position, whole, tmp_path):
    path = train_until(position, tmp_path / "run", WHAT, keep="all", **MOVING)
    torch.rand(7)  # whatever else happened meanwhile
    api.resume(path)
    assert_equal(path, whole)


def test_the_turn_leaves_all_but_the_shares_as_it_is(tmp_path, monkeypatch):
    alternate, changes = Course.alternate, []

    def watched(self, main, aside, epoch):
        before = {name: value.clone() for name, value in self.method.state_dict().items()}
        alternate(self, main, aside, epoch)
        after = self.method.state_dict()
        changes.append([name for name in before if not torch.equal(before[name], after[name])])

    monkeypatch.setattr(Course, "alternate", watched)
    train(tmp_path / "run", WHAT, phases=2, **MOVING)
    assert changes == [["net.backbone.aggregation"]] * 2


@pytest.fixture(scope="module")
def as_published(tmp_path_factory):
    return train(tmp_path_factory.mktemp("published") / "run", WHAT, phases=2)


def test_at_the_published_rate_the_shares_hardly_move(as_published):
    turns = [line for line in lines(as_published / "epochs.jsonl") if line["stage"] == "aggregation"]
    assert turns[0]["lr"] == 1e-8
    assert shares(turns[-1]) == pytest.approx([0.5] * 3, abs=1e-6)


def test_the_rate_can_be_set_for_the_stage_on_the_command_line(tmp_path):
    begun = plan(tmp_path / "run", WHAT, settings=[("stage.aggregation.lr", 0.2)])
    (stage,) = begun.learner.stages[1]
    assert (stage.lr, stage.alternate.lr) == (0.1, 0.2)
    assert stage.alternate == plan(tmp_path / "run", WHAT, **MOVING).learner.stages[1][0].alternate


def test_the_first_phase_is_that_of_the_plain_method(as_published, tmp_path):
    plain = train(tmp_path / "run", "ucir+bdr", phases=1)
    ours, theirs = (lines(path / "phases.jsonl")[0] for path in (as_published, plain))
    assert {k: ours[k] for k in ("accuracy", "top5", "parameters")} == {
        k: theirs[k] for k in ("accuracy", "top5", "parameters")
    }
    mine, its = (lines(path / "epochs.jsonl")[1]["terms"] for path in (as_published, plain))
    assert mine == its


def test_a_kept_model_is_loaded_with_both_branches(whole):
    model = bdr.load(whole)
    assert isinstance(model.net.backbone, TwoBranches)
    recorded = shares(lines(whole / "epochs.jsonl")[-1])
    assert model.net.backbone.aggregation.tolist() == pytest.approx(recorded, rel=1e-6)


# What is refused


@pytest.mark.parametrize(
    ("what", "fields", "settings", "said"),
    [
        ("ucir+aanet", {"net": "runs:flat"}, (), r"'aanet' mixes two branches level by level, and Flat has no levels"),
        ("rpsnet+aanet", {"net": "rps-small"}, (), "PathNet has no levels: .* leave 'aanet' out"),
        ("ucir+aanet", {"memory": "0"}, (), "plug-in 'aanet' balances old classes against new ones"),
        ("rwalk+aanet", {}, (), "'rwalk' needs all parameters of its network from the start, and plug-in 'aanet' adds"),
        ("joint+aanet", {"memory": "all"}, (), "'joint' needs all parameters"),
        ("ucir+aanet", {}, [("stage.aggregation.epochs", 3)], r"follows each epoch of 'main'"),
        ("ucir+aanet", {}, [("stage.agregation.lr", 3)], "did you mean 'aggregation'"),
        ("ucir+aanet", {}, [("aanet.aggregation_lr", 0)], "aanet: aggregation_lr = 0.0 is not allowed"),
    ],
)
def test_what_cannot_be_is_refused_before_training(what, fields, settings, said, tmp_path):
    with pytest.raises(UsageError, match=said):
        plan(tmp_path / "run", what, settings=settings, **fields)


def test_a_network_that_another_made_is_named():
    with pytest.raises(AssertionError, match="built without"):
        AANet().begin(LATER, None, make_flat(LinearHead))


# The paper's rows


def rows(table):
    every = [one for one in load_cells() if one.table == table and one.dataset == "CIFAR-100"]
    return [one for one in every if one.base.startswith("AANet")]


@pytest.mark.parametrize(
    ("method", "plugins"), [("AANet", ""), ("AANet + BDR", "+bdr"), ("AANet+CwD + BDR", "+cwd+bdr")]
)
def test_the_recipe_is_what_its_row_asks_for(method, plugins):
    (cell,) = [one for one in rows("T4") if one.method == method and one.S == 10]
    ours, _ = api.configure(f"aanet-resnet18{plugins}")
    assert mapped(cell).config(1993) == ours
    assert changed(ours, {"net": "resnet32"}) == api.configure(f"aanet{plugins}")[0]
    assert (ours.net, ours.herding, ours.memory) == ("resnet18", "dot", "20/class")
    assert (ours.stage, ours.order, ours.settings["ucir"]) == (Stage(), "seed-1993", {"imprint": True})


def test_the_recipe_of_the_readme_differs_in_its_memory_alone():
    printed, readme = (api.configure(name)[0] for name in ("aanet", "aanet-readme"))
    assert changed(readme, {"memory": "20/class"}) == printed
    assert readme.memory == "2000"


@pytest.mark.parametrize("table", ["T4", "T6"])
def test_every_cifar_row_is_run_with_the_memory_that_is_printed(table):
    assert len(rows(table)) == {"T4": 12, "T6": 24}[table]
    for cell in rows(table):
        assert mapped(cell).config(0).memory == f"{cell.R}/class"
        assert mapped(cell).spec.split("+")[:2] == ["ucir", "aanet"]


def test_the_other_reading_of_the_memory_is_one_line_away(monkeypatch):
    monkeypatch.setattr(mapping, "AANET_MEMORY", "{total}")
    assert {mapped(cell).config(0).memory for cell in rows("T4")} == {"2000"}
    assert {mapped(cell).config(0).memory for cell in rows("T6")} == {"500", "4000"}
