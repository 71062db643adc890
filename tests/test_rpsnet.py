"""RPSNet: paths through parallel modules, what rests and what learns, its distillation as a loop, and its size."""

import copy
import math
from itertools import pairwise

import pytest
import torch
from runs import Position, assert_equal, read_state, train, train_until
from small import make_batch, make_flat, make_paths, make_pool
from torch import nn

from bdr import api
from bdr.configuration.recipes import RECIPES
from bdr.engine.fit import Fit, set_modes
from bdr.engine.objective import Objective
from bdr.methods.rpsnet import RPSNet, held_to
from bdr.nets import NETS, LinearHead, Network, PathNet, Teacher
from bdr.nets.base import lay_out, layouts_of
from bdr.nets.rps import Simple
from bdr.paper.mapping import mapped
from bdr.paper.reproduce import chosen
from bdr.planning.assemble import plan_run
from bdr.types import ImageShape, Phase, Stage

NOTHING = torch.zeros(0, dtype=torch.long)
TINY = ImageShape(1, 8, 8)


def net_of(*paths, modules=4, layers=4, widths=(4, 6, 8), **options):
    torch.manual_seed(0)
    net = NETS["rps-small"](TINY, modules=modules, layers=layers, widths=widths, **options)
    for path in paths:
        net.take(path)
    return net


def count(module):
    return sum(p.numel() for p in module.parameters())


def images(number=5, seed=0):
    return torch.randn(number, 1, 8, 8, generator=torch.Generator().manual_seed(seed))


def reached(phases, **settings):
    """The method at the start of the last of so many phases of two classes each; nothing is trained."""
    torch.manual_seed(0)
    method = RPSNet(make_paths, **settings)
    for index in range(phases):
        pool = make_pool([6] * 2 * (index + 1), 2 * index, side=8)
        pool.phase = Phase(index, 2 * index, 2 * index + 2)
        method.begin(pool.phase, pool)
        if index + 1 < phases:
            method.end(pool.phase, pool, NOTHING)
    return method, pool


def all_of(pool):
    return make_batch(pool.store.plain(pool.rows), pool.store.labels[pool.rows])


# The network


def slow_forward(net, x):
    """Layer by layer: the skip module and one module after the other, numbers added up in plain tensors."""
    for place, layer in enumerate(net.layers):
        x = nn.functional.max_pool2d(x, 2) if layer.halves else x
        used = sorted({path[place] for path in net.paths})
        outputs = [layer.skip(x)] + [layer.chosen[str(number)](x) for number in used]
        x = torch.stack(outputs).sum(0).clamp(min=0)
    return x.mean((2, 3))


def test_a_layer_adds_up_the_modules_of_all_paths_and_its_skip_module():
    net, x = net_of([1, 2, 3, 1], [3, 2, 0, 2]).eval().double(), images().double()
    assert [set(layer.chosen) for layer in net.layers] == [{"0", "1", "3"}, {"0", "2"}, {"0", "3"}, {"0", "1", "2"}]
    torch.testing.assert_close(net(x).pooled, slow_forward(net, x))


def test_a_module_that_two_paths_name_is_added_once():
    once, twice = net_of([1, 1, 1, 1]).eval(), net_of([1, 1, 1, 1], [1, 0, 1, 0]).eval()
    twice.load_state_dict(once.state_dict())
    assert torch.equal(once(images()).pooled, twice(images()).pooled)


def test_a_skip_module_is_the_identity_unless_the_width_changes():
    kinds = [type(layer.skip) for layer in net_of().layers]
    assert kinds == [Simple, nn.Identity, Simple, Simple]
    assert [layer.outputs for layer in net_of().layers] == [4, 4, 6, 8]


def test_the_resolution_is_halved_with_every_width_after_the_second():
    maps = net_of(maps=True)(images()).maps
    assert [tuple(m.shape[1:]) for m in maps] == [(4, 8, 8), (6, 8, 8), (8, 4, 4)]


@pytest.mark.parametrize("last_relu", [True, False])
def test_features_are_the_mean_over_the_last_map(last_relu):
    seen = net_of([1, 1, 1, 1], last_relu=last_relu, maps=True)(images())
    last = seen.maps[-1].relu() if last_relu else seen.maps[-1]
    torch.testing.assert_close(seen.pooled, last.mean((2, 3)))
    assert bool((seen.pooled < 0).any()) != last_relu


def test_the_published_network_has_nine_layers_and_its_published_size_after_five_paths():
    with torch.device("meta"):
        net = NETS["rps"](ImageShape())
    assert [layer.outputs for layer in net.layers] == [64, 64, 64, 128, 128, 256, 256, 512, 512]
    assert [place for place, layer in enumerate(net.layers) if layer.halves] == [5, 7]
    one = count(net)
    with torch.device("meta"):
        for path in range(1, 5):
            net.take([path] * 9)
    head = LinearHead(net.dim)
    head.grow(100)
    assert count(net) + count(head) == 56_578_276
    assert round(one / 1e6, 2) == 12.55
    assert round((count(net) - one) / 4e6, 2) == 11.00


def test_the_small_network_is_as_small_as_it_says():
    net = NETS["rps-small"](TINY)
    before = count(net)
    net.take([1] * 4)
    assert (net.dim, round(before / 1e6, 2), round((count(net) - before) / 1e6, 2)) == (64, 0.10, 0.07)


def test_what_no_path_has_named_is_not_there():
    net = net_of()
    sizes = [count(net)]
    for path in ([1, 1, 1, 1], [1, 2, 1, 1], [1, 2, 1, 1]):
        net.take(path)
        sizes.append(count(net))
    whole, one, none = (after - before for before, after in pairwise(sizes))
    assert (one, none) == (count(net.layers[1].chosen["2"]), 0)
    assert whole == sum(count(layer.chosen["1"]) for layer in net.layers)


def test_unused_modules_are_those_of_no_path():
    assert net_of([1, 2, 3, 1], [3, 2, 0, 2]).unused() == [[2], [1, 3], [1, 2], [3]]


def test_a_net_laid_out_and_loaded_again_is_the_same():
    net, other = net_of([1, 2, 3, 1], [3, 2, 0, 2]).eval(), net_of([2, 2, 2, 2])
    lay_out(other, layouts_of(net))
    other.load_state_dict(net.state_dict())
    assert torch.equal(other.eval()(images()).pooled, net(images()).pooled)
    assert [name for name, _ in other.named_parameters()] == [name for name, _ in net.named_parameters()]
    assert [p.requires_grad for p in other.parameters()] == [p.requires_grad for p in net.parameters()]


def test_a_teacher_follows_onto_new_paths():
    net = Network(net_of(), LinearHead(8))
    net.head.grow(3)
    teacher = Teacher(net)
    net.backbone.take([1, 2, 3, 1])
    teacher.refill(net.eval())
    assert torch.equal(teacher(images()).logits, net(images()).logits)
    assert not any(p.requires_grad for p in teacher.parameters())


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"modules": 0}, "modules = 0"), ({"layers": 3}, "layers = 3"), ({"widths": ()}, "every width has one or more")],
)
def test_a_network_that_cannot_be_is_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        net_of(**settings)


# Paths


def test_a_path_is_drawn_every_second_phase_and_never_before_the_first():
    drawn = [len(reached(phases)[0].layers.paths) for phases in range(1, 7)]
    assert drawn == [1, 1, 2, 2, 3, 3]


def test_jump_says_how_many_phases_a_path_lasts():
    assert [len(reached(phases, jump=1)[0].layers.paths) for phases in range(1, 4)] == [1, 2, 3]
    assert [len(reached(phases, jump=3)[0].layers.paths) for phases in range(2, 5)] == [1, 1, 2]


def test_paths_name_unused_modules_while_there_are_any():
    paths = reached(7)[0].layers.paths
    assert len(paths) == 4
    for of_layer in zip(*paths[:3], strict=True):
        assert sorted(of_layer) == [0, 1, 2]
    assert all(number in range(3) for number in paths[3])


def test_with_reuse_paths_may_name_any():
    paths = [tuple(path) for path in reached(40, jump=1, reuse=True)[0].layers.paths[1:]]
    assert {number for path in paths for number in path} == {0, 1, 2}
    assert any(0 in path for path in paths[:3])


def test_paths_follow_from_the_seed_and_the_phase():
    method, pool = reached(3)
    assert method.draw(pool.phase, pool) == method.draw(pool.phase, pool)
    method.layers.parallel = 1000
    drawn = [method.draw(Phase(index, 2, 4), pool) for index in range(4)]
    pool.seed = 7
    drawn.append(method.draw(Phase(0, 2, 4), pool))
    assert len({tuple(path) for path in drawn}) == 5


def test_parameters_grow_with_the_paths_and_the_teacher_is_not_counted():
    counts = [reached(phases)[0].parameter_count() for phases in range(1, 6)]
    head, (first, second, third, fourth, fifth) = 2 * (8 + 1), counts
    of_path = sum(count(layer.chosen["0"]) for layer in reached(1)[0].layers.layers)
    assert (second - first, fourth - third) == (head, head)
    assert (third - second, fifth - fourth) == (of_path + head, of_path + head)


# What rests and what learns


def test_gradients_reach_the_newest_path_the_skip_modules_and_the_head_alone():
    method, pool = reached(4)
    newest = method.layers.paths[-1]
    set_modes(method)
    sum(method.loss(all_of(pool), pool.phase, method.criterion).values()).backward()
    moved = {name for name, p in method.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}
    assert "net.head.weight" in moved
    for place, (layer, number) in enumerate(zip(method.layers.layers, newest, strict=True)):
        start = f"net.backbone.layers.{place}"
        assert {f"{start}.chosen.{number}.{name}" for name, _ in layer.chosen[str(number)].named_parameters()} <= moved
        assert {f"{start}.skip.{name}" for name, _ in layer.skip.named_parameters()} <= moved
        resting = [f"{start}.chosen.{other}." for other in layer.chosen if other != str(number)]
        assert len(resting) == 1
        assert not [name for name in moved if name.startswith(tuple(resting))]
    assert not [name for name in moved if name.startswith("teacher")]


def test_modules_at_rest_keep_their_statistics_and_weights_while_others_learn():
    method, pool = reached(3)
    before = copy.deepcopy(method.state_dict())
    stage = Stage(epochs=1, batch=8, optimizer="adamw", lr=0.01, weight_decay=0.0)
    set_modes(method)
    fit = Fit(Objective(method, [], pool.phase, stage), pool, "eager", 0)
    fit.epoch(0, 0, None, lambda step, log: None)
    after, newest = method.state_dict(), method.layers.paths[-1]
    learns = tuple(
        f"net.backbone.layers.{place}.{part}." for place in range(4) for part in ("skip", f"chosen.{newest[place]}")
    )
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    for name in (name for name in before if name.startswith("net.backbone")):
        assert (name in changed) == name.startswith(learns), name
    assert any(name.endswith("running_mean") for name in changed)


def test_a_path_goes_on_learning_in_its_second_phase():
    method, _ = reached(4)
    newest = method.layers.paths[-1]
    assert len(method.layers.paths) == 2
    assert all(
        p.requires_grad
        for layer, n in zip(method.layers.layers, newest, strict=True)
        for p in layer.chosen[str(n)].parameters()
    )


# Distillation


def slow_distillation(logits, old, y, temperature):
    losses = []
    for row, teacher, label in zip(logits.tolist(), old.tolist(), y.tolist(), strict=True):
        target = [teacher[k] if k < len(teacher) else float(k == label) for k in range(len(row))]
        p, q = ([math.exp(v / temperature) for v in values] for values in (target, row))
        p, q = [v / sum(p) for v in p], [v / sum(q) for v in q]
        losses.append(sum(max(0.0, a * math.log(a / b)) for a, b in zip(p, q, strict=True)))
    return losses


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_the_distillation_is_its_loop(temperature):
    chance = torch.Generator().manual_seed(0)
    logits, old = (4 * torch.randn(20, k, generator=chance, dtype=torch.float64) for k in (7, 4))
    y = torch.randint(7, (20,), generator=chance)
    found = held_to(logits, old, y, temperature)
    assert found.tolist() == pytest.approx(slow_distillation(logits, old, y, temperature), abs=1e-12)
    mixed = nn.functional.one_hot(y, 7).double()
    torch.testing.assert_close(held_to(logits, old, mixed, temperature), found)


def test_who_says_what_the_target_says_pays_nothing():
    old, y = torch.randn(6, 3), torch.tensor([0, 1, 3, 4, 2, 3])
    wanted = torch.cat([old, nn.functional.one_hot(y, 5)[:, 3:]], 1)
    torch.testing.assert_close(held_to(wanted, old, y, 2.0), torch.zeros(6), rtol=0, atol=1e-6)
    assert (held_to(torch.randn(6, 5), old, y, 2.0) > 0).all()


def test_the_controller_is_one_up_to_the_jump_and_then_grows():
    method, _ = reached(1)
    assert [method.weights(Phase(t, 2, 4), Stage())["distillation"] for t in range(1, 6)] == [1, 1, 2.5, 5, 7.5]
    other, _ = reached(1, jump=1, rigidity=3.0)
    assert [other.weights(Phase(t, 2, 4), Stage())["distillation"] for t in range(1, 5)] == [1, 3, 6, 9]


def test_the_terms_are_cross_entropy_and_the_divergence_from_the_previous_network():
    method, pool = reached(3)
    batch = all_of(pool)
    method.eval()
    terms, _ = Objective(method, [], pool.phase, Stage()).terms(batch)
    logits, old = method.net(batch.x).logits, method.teacher(batch.x).logits
    assert old.shape[1] == pool.phase.old
    torch.testing.assert_close(terms["ce"], nn.functional.cross_entropy(logits, batch.y))
    slow = slow_distillation(logits, old, batch.y, 2.0)
    assert terms["distillation"].item() == pytest.approx(sum(slow) / len(slow), rel=1e-4)
    assert list(terms) == ["ce", "distillation"]


# In the house


def test_after_a_new_path_it_compiles_without_a_break_and_is_the_same():
    torch._dynamo.reset()
    method, pool = reached(3)
    set_modes(method)

    def values_of(method, batch):
        terms, _ = Objective(method, [], pool.phase, Stage()).terms(batch)
        return torch.stack(list(terms.values()))

    eager, other = values_of(method, all_of(pool)), copy.deepcopy(method)
    compiled = torch.compile(values_of, fullgraph=True, backend="eager")(other, all_of(pool))
    torch.testing.assert_close(compiled, eager)


def test_what_is_compiled_are_single_modules_and_their_code_serves_all_paths():
    """Versions differ by shape, by mode and by whether the input moves: a further path needs none."""
    torch._dynamo.reset()
    net, x = net_of(modules=8), images()
    made = []

    def forward():
        for part in net.to_compile():
            if part._compiled_call_impl is None:
                part.compile(dynamic=False, backend="eager", fullgraph=True)
        set_modes(net)
        net(x).pooled.sum().backward()
        made.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])

    torch._dynamo.utils.counters.clear()
    forward()
    for path in range(1, 8):
        net.take([path] * 4)
        forward()
    assert made[1] <= 14
    assert len(set(made[1:])) == 1, made


def test_a_network_without_paths_is_refused():
    with pytest.raises(ValueError, match="use --net rps, or rps-small"):
        RPSNet(make_flat)


@pytest.mark.parametrize(("name", "value"), [("jump", 0), ("temperature", 0.0)])
def test_settings_that_cannot_be_are_refused(name, value):
    with pytest.raises(ValueError, match=f"{name} = {value}"):
        RPSNet(make_paths, **{name: value})


def test_any_method_can_train_the_network_on_its_first_path(tmp_path):
    settings = {"stage.epochs": 1, "stage.batch": 64, "rps-small.layers": 4}
    fields = {"net": "rps-small", "phases": 2, "val": 0.8, "share": False, "keep": "none"}
    assert len(api.run("ucir", out=tmp_path / "run", set=settings, **fields).accuracies) == 2


RUN = {"settings": [("rps-small.widths", [4, 6, 8]), ("stage.epochs", 2)], "base": 2, "step": 2, "phases": 4}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return train(tmp_path_factory.mktemp("whole") / "run", "rpsnet+bdr", **RUN)


@pytest.mark.parametrize("position", [Position(2, 0, 1, 1), Position(3)])
def test_a_stopped_run_goes_on_with_its_paths(position, whole, tmp_path):
    path = train_until(position, tmp_path / "run", "rpsnet+bdr", **RUN)
    api.resume(path)
    assert_equal(path, whole)
    paths = read_state(path / "phase-03" / "model").info["layouts"]["net.backbone"]["paths"]
    assert (len(paths), paths[0]) == (2, [0, 0, 0, 0])
    assert 0 not in paths[1]


def test_the_cell_of_table_2_is_the_recipe():
    wanted = chosen(["T2"], "rpsnet & B=0 & S=10 & avg_acc_top1")
    assert [cell.value for cell in wanted] == [68.6]
    assert mapped(wanted[0]).config(1993) == RECIPES["rpsnet-original"]()


def test_the_recipe_has_adam_and_turned_images(tmp_path):
    config = RECIPES["rpsnet-original"]()
    assert (config.stage.optimizer, config.stage.weight_decay, config.augment["rotation"]) == ("adamw", 0.0, 10.0)
    digits, _ = api.configure("rpsnet", "digits", [], {})
    assert isinstance(plan_run(digits, tmp_path / "run", tmp_path).experiment.method.net.backbone, PathNet)
