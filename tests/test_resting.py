"""Residual networks at rest, alone, as two branches and as experts: folded, filled up, and the same."""

from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from bdr.engine.step.captured import GraphStep, forms_of
from bdr.engine.step.paired import Paired
from bdr.engine.step.resting import UNIT, Resting, resting_forms, running
from bdr.nets import Experts, LinearHead, Network, TwoBranches
from bdr.nets.aanet import ScaledConv
from bdr.nets.base import BatchNorm, Follower, Frozen, Teacher
from bdr.nets.prunable import above
from bdr.nets.resnet_cifar import ResNet


def aged(net):
    """Its batch norms are anything but the identity, and its parts have gone ways of their own."""
    for module in net.modules():
        if isinstance(module, BatchNorm):
            for tensor in (module.weight, module.bias, module.running_mean):
                nn.init.normal_(tensor)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
        if isinstance(module, ScaledConv):
            nn.init.normal_(module.scale, 1.0, 0.1)
    return net.double().eval()


def lived_in(kept=1.0, **options):
    """A small network; of its channels this share is left."""
    torch.manual_seed(0)
    net = aged(ResNet((16, 24), 2, **options))
    if kept < 1:
        net.remove(above([torch.rand(width) for width in net.widths], 1 - kept))
    return net


def branches(widths=(16, 24), **options):
    """Of the widths (8, 40, 16) the second is too wide to be one network with that of the other branch."""
    torch.manual_seed(0)
    net = TwoBranches(ResNet(widths, 2, **options))
    net.aggregation.data = torch.tensor([0.3, 0.6, 0.45])[: net.depth]
    return aged(net)


def experts(widths=(16, 24), **options):
    torch.manual_seed(0)
    return aged(Experts(ResNet(widths, 2, **options), 3))


@pytest.mark.parametrize("kept", [1.0, 0.6, 0.05])
@pytest.mark.parametrize("maps", [False, True])
@pytest.mark.parametrize("last_relu", [False, True])
def test_a_network_at_rest_says_the_same(kept, maps, last_relu):
    net = lived_in(kept, maps=maps, last_relu=last_relu)
    x = torch.randn(3, 3, 8, 8, dtype=torch.float64)
    form = Resting(net, torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(form(x), net(x))
    inputs = {folded.weight.shape[1] for conv, folded in form.folded.items() if conv is not net.stem}
    assert all(width % UNIT == 0 for width in inputs)
    assert all(len(folded.weight) % UNIT == 0 for folded in form.folded.values())


@pytest.mark.parametrize("maps", [False, True])
@pytest.mark.parametrize("last_relu", [False, True])
@pytest.mark.parametrize("widths", [(16, 32), (8, 40, 16), (48, 64)])
def test_two_branches_at_rest_say_the_same(maps, last_relu, widths):
    net = branches(widths, maps=maps, last_relu=last_relu)
    x = torch.randn(3, 3, 8, 8, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(Resting(net, torch.float64)(x), net(x))


@pytest.mark.parametrize("maps", [False, True])
@pytest.mark.parametrize("last_relu", [False, True])
def test_experts_at_rest_say_the_same(maps, last_relu):
    net = experts(maps=maps, last_relu=last_relu)
    x = torch.randn(3, 3, 8, 8, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(Resting(net, torch.float64)(x), net(x))


def test_narrow_branches_at_rest_are_one_convolution_a_layer():
    net = branches((16, 32))
    form = Resting(net, torch.float64)
    assert set(form.folded) == {layer.conv for layer in net.plastic.layers()}
    widths = [layer.norm.num_features for layer in net.plastic.layers()]
    assert [len(form.folded[layer.conv].weight) for layer in net.plastic.layers()] == [2 * width for width in widths]


def test_a_network_is_called_in_its_form_for_a_while():
    frozen, x = Frozen(lived_in()), torch.randn(2, 3, 8, 8, dtype=torch.float64)
    before, form = frozen(x), Resting(frozen.net, torch.float64)
    nn.init.ones_(frozen.net.stem.weight)
    with running([form]):
        torch.testing.assert_close(frozen(x), before)
    assert not torch.allclose(frozen(x).pooled, before.pooled)


class Mine(ResNet):
    def level(self, index, x, gates=None):
        found = super().level(index, x, gates)
        return found._replace(x=found.x.tanh())


def derived():
    return Mine((16, 24), 2)


def branches_of_a_derived_one():
    return TwoBranches(derived())


def experts_of_a_derived_one():
    return Experts(derived(), 3)


CAN_REST = [lived_in, branches, experts]


@pytest.mark.parametrize("held", [Frozen, Follower])
@pytest.mark.parametrize("precision", [None, torch.bfloat16])
@pytest.mark.parametrize("backbone", [*CAN_REST, derived, branches_of_a_derived_one, experts_of_a_derived_one])
def test_only_residual_networks_that_rest_have_a_form_and_none_inside_another(held, precision, backbone):
    net = Network(backbone(), LinearHead(24))
    net.precision = precision
    part = held(net)
    forms = resting_forms(SimpleNamespace(objective=SimpleNamespace(parts=[net, part])))
    rests = held is Frozen and precision is torch.bfloat16 and backbone in CAN_REST
    assert [form.net for form in forms] == ([part.net.backbone] if rests else [])


@pytest.mark.parametrize(("precision", "at_rest"), [(torch.bfloat16, Resting), (None, Paired)])
def test_of_two_branches_what_learns_is_paired_and_what_rests_has_one_form(precision, at_rest):
    net = Network(branches(), LinearHead(24))
    net.precision = precision
    frozen = Frozen(net)
    forms = forms_of(SimpleNamespace(objective=SimpleNamespace(parts=[net, frozen])))
    assert {form.net: type(form) for form in forms} == {net.backbone: Paired, frozen.net.backbone: at_rest}
    assert len(forms) == 2


def test_a_teacher_that_is_refilled_between_epochs_is_folded_anew(monkeypatch):
    captured, said = [], SimpleNamespace(replay=lambda: None)
    monkeypatch.setattr(GraphStep, "capture", lambda step: captured.append(step.forms) or said)
    monkeypatch.setattr("bdr.engine.step.captured.frozen_aside", lambda step: nullcontext())
    net = Network(lived_in(), LinearHead(24))
    net.precision = torch.bfloat16
    teacher = Teacher(net)
    eager = SimpleNamespace(objective=SimpleNamespace(parts=[net, teacher]), clock=(), optimizer=None)
    step = GraphStep(SimpleNamespace(open=lambda epoch, log: None), eager)

    def epoch():
        step.open(None, None)
        step()

    epoch()
    epoch()
    assert len(captured) == 1
    nn.init.ones_(net.backbone.stem.weight)
    teacher.refill(net)
    epoch()
    before, now = ([form.folded[teacher.net.backbone.stem].weight for form in forms] for forms in captured)
    assert not torch.equal(before[0], now[0])


PRUNED = [partial(lived_in, 0.4), partial(lived_in, 0.4, last_relu=False)]
MORE = [*PRUNED, partial(lived_in, last_relu=False), partial(branches, (48, 64)), partial(experts, last_relu=False)]
gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=gpu)])
@pytest.mark.parametrize("backbone", [*CAN_REST, *MORE])
def test_in_bfloat16_it_is_as_precise_as_the_network_itself(backbone, device):
    net = backbone().float().to(device).to(memory_format=torch.channels_last)
    x = torch.randn(64, 3, 32, 32, device=device)
    with torch.no_grad():
        wanted, found = net(x).pooled, Resting(net, torch.bfloat16)(x).pooled
        with torch.autocast(device, dtype=torch.bfloat16):
            usual = net(x).pooled
    assert (found - wanted).norm() < 2 * (usual - wanted).norm()
