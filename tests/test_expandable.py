"""Networks of many extractors: what grows and what rests, gates on channels, and channels that are gone for good."""

import copy
import math

import pytest
import torch
from small import Flat
from torch import nn
from torch._dynamo.utils import counters

from bdr.engine.fit import set_modes
from bdr.nets import NETS, Expandable
from bdr.nets.base import lay_out, layouts_of
from bdr.nets.gates import Gates, steep_sigmoid, steepness
from bdr.nets.prunable import above, best_channels, threshold_for
from bdr.nets.resnet_cifar import ResNet
from bdr.nets.small import SmallNet
from bdr.types import Clock, ImageShape

MAKERS = {"resnet": lambda: ResNet((6, 8, 10), 2, channels=1), "small": lambda: SmallNet(1)}


def chance(seed=0):
    return torch.Generator().manual_seed(seed)


def used(net, seed=0):
    """The same network with nothing at the values that it begins with, in double precision."""
    for name, tensor in net.double().state_dict().items():
        tensor.copy_(torch.rand(tensor.shape, generator=chance(seed + len(name))) + 0.1)
        if tensor.dim() == 4 or name.endswith("bias"):
            tensor.sub_(0.6)
    return net


def some(widths, seed=0):
    """Masks with some channels of each group, at least one."""
    masks = [torch.rand(width, generator=chance(seed + i)) < 0.5 for i, width in enumerate(widths)]
    return [mask | (torch.arange(len(mask)) == 0) for mask in masks]


def images(count=4, seed=0):
    return torch.randn(count, 1, 8, 8, generator=chance(seed), dtype=torch.float64)


def clock(step, steps):
    return Clock(torch.tensor(0), torch.tensor(step), torch.tensor(steps))


def counted(net):
    return sum(p.numel() for p in net.parameters())


# Growing


def test_an_extractor_of_resnet18_has_11_168_832_parameters_and_so_has_each_that_is_added():
    net = Expandable(NETS["resnet18-der"](ImageShape(3, 32, 32)))
    for phase in range(3):
        assert (counted(net), net.dim) == ((phase + 1) * 11_168_832, (phase + 1) * 512)
        net.grow()


def test_the_new_extractor_is_a_copy_that_learns_and_the_old_one_rests_as_it_was():
    torch.manual_seed(0)
    net = Expandable(used(MAKERS["resnet"]()))
    before = copy.deepcopy(net.newest)
    net.grow()
    net.train()
    assert all(p.requires_grad for p in net.newest.parameters())
    assert not any(p.requires_grad for p in net.old.parameters())
    for name, value in before.state_dict().items():
        assert torch.equal(net.newest.state_dict()[name], value)
    for _ in range(3):
        net(images())
    for name, value in before.state_dict().items():
        assert torch.equal(net.old[0].net.state_dict()[name], value)
    assert not torch.equal(net.newest.bn.running_mean, before.bn.running_mean)


@pytest.mark.parametrize("maker", MAKERS)
def test_after_pruning_the_new_extractor_is_as_wide_as_they_are_made_and_what_was_kept_says_the_same(maker):
    net = Expandable(used(MAKERS[maker]()))
    net.prune(some(net.newest.widths, 1))
    pruned = copy.deepcopy(net.newest).eval()
    assert net.grow()
    assert net.newest.whole
    said = net.newest.eval()(images()).pooled
    torch.testing.assert_close(said[:, : pruned.dim], pruned(images()).pooled)
    net.newest.train()(images()).pooled.square().sum().backward()
    for now, was in zip(net.newest.layers(), pruned.layers(), strict=True):  # and yet it will learn to look
        blank = slice(len(was.conv.weight)), slice(was.conv.in_channels, None)
        assert not now.conv.weight[blank].any()
        assert now.conv.weight.grad[blank].any() or not now.conv.weight[blank].numel()


def test_features_stand_in_order_of_age():
    net = Expandable(used(MAKERS["small"]()))
    for seed in (1, 2):
        net.grow()
        used(net.newest, seed)
    net.eval()
    expected = torch.cat([part(images()).pooled for part in net.extractors()], 1)
    assert torch.equal(net(images()).pooled, expected)
    assert [part.norms[0].weight[0] for part in net.extractors()][-1] == net.newest.norms[0].weight[0]


def test_gradients_reach_the_newest_extractor_alone():
    net = Expandable(used(MAKERS["resnet"]()))
    net.grow()
    net.grow()
    net(images()).pooled.square().sum().backward()
    assert all(p.grad is not None for p in net.newest.parameters())
    assert all(p.grad is None for p in net.old.parameters())


def test_a_grown_and_pruned_shape_is_laid_out_again_and_says_the_same():
    net = Expandable(used(MAKERS["resnet"]()))
    for seed in range(3):
        net.prune(some(net.newest.widths, seed))
        if seed < 2:
            net.grow()
            used(net.newest, seed)
    net.gates.begin(net.newest)
    other = Expandable(MAKERS["resnet"]()).double()
    lay_out(other, layouts_of(net))
    other.load_state_dict(net.state_dict())
    assert layouts_of(other) == layouts_of(net)
    assert torch.equal(other.eval()(images()).pooled, net.eval()(images()).pooled)
    assert other.dim == net.dim == sum(part.widths[2] for part in net.extractors())


def test_more_extractors_need_no_more_compiled_code():
    torch._dynamo.reset()
    counters.clear()
    net, made = Expandable(ResNet((4, 8), 1, 1)), []
    for phase in range(5):
        if phase:
            net.grow()
        set_modes(net)
        for part in net.to_compile():
            if part._compiled_call_impl is None:
                part.compile(dynamic=False, backend="eager", fullgraph=True)
        net(images().float()).pooled.sum().backward()
        made.append(counters["stats"]["unique_graphs"])
    assert made == [1, 2, 2, 2, 2]  # one that learns, one that rests


def test_those_that_lost_channels_are_not_compiled():
    net = Expandable(ResNet((4, 8), 1, 1))
    net.prune(some(net.newest.full))
    net.grow()
    assert list(net.to_compile()) == [net.newest]


# Removing channels


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("seed", range(3))
def test_a_network_without_its_shut_channels_says_what_the_gated_one_says(kind, seed):
    net = used(MAKERS[kind]()).eval()
    kept = some(net.full, seed)
    gated = net(images(), [mask.double() for mask in kept])
    net.remove(kept)
    assert net.widths == [int(mask.sum()) for mask in kept]
    assert net.dim == net.widths[net.pooled]
    torch.testing.assert_close(net(images()).pooled, gated.pooled[:, kept[net.pooled]], rtol=1e-12, atol=1e-12)
    assert (gated.pooled[:, ~kept[net.pooled]] == 0).all()


@pytest.mark.parametrize("name", ["resnet18", "resnet32", "small"])
def test_sizes_are_counted_as_they_are(name):
    net = NETS[name](ImageShape(3, 32, 32))
    assert net.size(net.full) == counted(net)
    if name != "resnet18":
        kept = some(net.full)
        net.remove(kept)
        assert net.size([int(mask.sum()) for mask in kept]) == counted(net)


def test_a_gate_inside_a_network_scales_its_channel():
    """In training mode too, and once on each summand, so that a stage's channel is scaled as a whole."""
    net, gates = used(MAKERS["resnet"]()).train(), [torch.ones(w, dtype=torch.float64) for w in MAKERS["resnet"]().full]
    plain = net(images()).pooled
    gates[2] = torch.full_like(gates[2], 0.5)
    torch.testing.assert_close(net(images(), gates).pooled, 0.5 * plain, rtol=1e-3, atol=1e-5)  # but for eps


def test_without_gates_nothing_changes_and_names_are_the_usual_ones():
    net = MAKERS["resnet"]()
    kinds = {name.rpartition(".")[2] for name in net.state_dict()}
    assert kinds == {"weight", "bias", "running_mean", "running_var"}
    assert {"stem.weight", "bn.weight", "stages.1.0.conv1.weight", "stages.1.0.shortcut.1.bias"} <= set(
        net.state_dict()
    )


def test_what_was_removed_comes_back_as_new_beside_what_was_kept():
    torch.manual_seed(0)
    net = Expandable(used(MAKERS["resnet"]()))
    net.prune(some(net.newest.full))
    pruned = net.newest
    net.grow()
    assert net.newest.whole
    assert net.extractors()[0].widths == pruned.widths
    for wide, narrow in zip(net.newest.layers(), pruned.layers(), strict=True):
        rows, columns = narrow.conv.weight.shape[:2]
        assert torch.equal(wide.conv.weight[:rows, :columns], narrow.conv.weight)
        assert torch.equal(wide.norm.weight[:rows], narrow.norm.weight)
        assert (wide.norm.weight[rows:] == 1).all()
        assert (wide.norm.running_var[rows:] == 1).all()
        assert (wide.conv.weight[rows:] != 0).all()
    assert all(p.requires_grad for p in net.newest.parameters())


def test_a_network_that_cannot_be_pruned_says_so():
    with pytest.raises(ValueError, match=r"a Flat cannot be pruned: set keep = 1, or use"):
        Expandable(Flat()).prunable()


# Thresholds


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("share", [0.05, 0.3, 0.77, 1.0, 2.0])
def test_the_threshold_is_the_lowest_that_is_small_enough(kind, share):
    net = MAKERS[kind]()
    scores = [torch.randn(width, generator=chance(i)) for i, width in enumerate(net.full)]
    wanted = share * net.size(net.full)

    def size(threshold):
        return net.size([int(mask.sum()) for mask in above(scores, threshold)])

    found, every = threshold_for(net, scores, wanted), sorted(torch.cat(scores).tolist())
    assert size(found) <= wanted
    assert all(size(value) > wanted for value in every if value < found)


def test_some_channel_is_always_left():
    net = MAKERS["small"]()
    masks = above([torch.zeros(width) for width in net.full], threshold_for(net, [torch.arange(4.0)] * 3, 0.0))
    assert all(mask.any() for mask in masks)


# Gates


@pytest.mark.parametrize("steps", [2, 7, 40])
def test_gates_get_steeper_from_the_first_batch_of_an_epoch_to_the_last(steps):
    s_max, found = 50.0, [steepness(clock(b, steps), 50.0).item() for b in range(steps)]
    expected = [1 / s_max + (s_max - 1 / s_max) * b / (steps - 1) for b in range(steps)]
    assert found == pytest.approx(expected, rel=1e-5)
    assert steepness(clock(0, 1), s_max).item() == pytest.approx(s_max)


def test_gates_are_half_open_at_first_and_binary_at_last():
    torch.manual_seed(0)
    gates = Gates()
    gates.begin(MAKERS["small"]())
    gates.anneal(clock(0, 10), 100.0)
    assert all(((m - 0.5).abs() < 0.02).all() for m in gates())
    gates.anneal(clock(9, 10), 1e4)
    for m, mask in zip(gates(), gates.kept(), strict=True):
        torch.testing.assert_close(m, mask.float(), atol=1e-2, rtol=0)
    gates.eval()
    assert all(torch.equal(m, mask.float()) for m, mask in zip(gates(), gates.kept(), strict=True))


def test_a_group_whose_gates_are_all_shut_keeps_its_widest():
    gates = Gates()
    gates.begin(MAKERS["small"]())
    gates.e.data.copy_(-1 - torch.rand(len(gates.e)))
    assert [int(mask.sum()) for mask in gates.kept()] == [1, 1, 1]


@pytest.mark.parametrize("s", [0.02, 1.0, 3.0, 9.0])
def test_the_slope_of_a_gate_is_compensated_as_the_formula_says(s):
    e = torch.linspace(-2, 2, 9, dtype=torch.float64).requires_grad_()
    pull = torch.randn(9, generator=chance(), dtype=torch.float64)
    (ours,) = torch.autograd.grad((steep_sigmoid(e, torch.tensor(s)) * pull).sum(), e)
    (plain,) = torch.autograd.grad(((s * e).sigmoid() * pull).sum(), e)

    def sigmoid(x):
        return 1 / (1 + math.exp(-x))

    for mine, g, x in zip(ours.tolist(), plain.tolist(), e.tolist(), strict=True):
        factor = sigmoid(x) * (1 - sigmoid(x)) / (s * sigmoid(s * x) * (1 - sigmoid(s * x)))
        assert mine == pytest.approx(g * factor, rel=1e-9)
    torch.testing.assert_close(steep_sigmoid(e, torch.tensor(s)), (s * e).sigmoid())


def test_a_saturated_gate_still_has_a_slope():
    e = torch.tensor([-1.0, 1.0], requires_grad=True)
    (slope,) = torch.autograd.grad(steep_sigmoid(e, torch.tensor(400.0)).sum(), e)
    assert slope.tolist() == pytest.approx([0.19661] * 2, rel=1e-4)


def test_sparsity_is_its_loop():
    """Over every convolution: its area times the open part of what it reads and of what it writes."""
    torch.manual_seed(0)
    net, gates = MAKERS["resnet"](), Gates()
    gates.begin(net)
    gates.anneal(clock(3, 10), 5.0)
    wide = [sum(1 / (1 + math.exp(-float(gates.s) * x)) for x in group.tolist()) for group in gates.groups()]
    # stem, then per block: conv1, conv2 and, where a stage begins, the shortcut; groups 0 to 2 are the stages
    links = [(9, None, 0)]
    for block in range(6):
        stage, inner = block // 2, 3 + block
        reads = stage - 1 if stage and block % 2 == 0 else stage
        links += [(9, reads, inner), (9, inner, stage)] + ([(1, reads, stage)] if reads != stage else [])
    full = [6, 8, 10, 6, 6, 8, 8, 10, 10]
    assert net.full == full
    left = sum(area * (1 if i is None else wide[i]) * wide[o] for area, i, o in links)
    whole = sum(area * (1 if i is None else full[i]) * full[o] for area, i, o in links)
    assert gates.sparsity().item() == pytest.approx(left / whole, rel=1e-5)
    assert whole == sum(part.weight.numel() for part in net.modules() if isinstance(part, nn.Conv2d))


def test_the_least_open_gates_are_shut_down_to_a_wanted_size():
    torch.manual_seed(0)
    net, gates = MAKERS["small"](), Gates()
    gates.begin(net)
    before, wanted = gates.e.detach().clone(), 0.3 * net.size(net.full)
    gates.settle(best_channels(net, gates.groups(), wanted))
    is_open = torch.cat(gates.kept())
    assert before[is_open].min() > before[~is_open].max()
    assert net.size([int(mask.sum()) for mask in gates.kept()]) <= wanted
    next_best = above(before.split(gates.widths), before[~is_open].topk(2).values[1])
    assert net.size([int(mask.sum()) for mask in next_best]) > wanted
    gates.settle(best_channels(net, gates.groups(), wanted))
    assert torch.equal(torch.cat(gates.kept()), is_open)


@pytest.mark.parametrize("step", [0, 4, 9])
def test_settled_gates_are_open_or_shut_at_any_steepness_and_stay_so(step):
    torch.manual_seed(0)
    net, gates = MAKERS["small"](), Gates()
    gates.begin(net)
    gates.settle(best_channels(net, gates.groups(), 0.3 * net.size(net.full)))
    gates.anneal(clock(step, 10), 100.0)
    assert all(torch.equal(m, mask.float()) for m, mask in zip(gates(), gates.kept(), strict=True))
    pulled = gates.sparsity() + sum(m.square().sum() for m in gates())
    assert not torch.autograd.grad(pulled, gates.e)[0].any()


def test_open_gates_leave_everything_and_none_are_there_after_clearing():
    net, gates = MAKERS["small"](), Gates()
    gates.begin(net)
    gates.e.data.fill_(100.0)
    assert gates.sparsity().item() == pytest.approx(1.0)
    gates.clear()
    assert gates() is None
    assert counted(gates) == 0
