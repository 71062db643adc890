"""Two narrow branches as one network: the same, forwards, backwards and in what their batch norms keep."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from bdr.engine.step.paired import Paired, can_be_paired, is_narrow, paired_forms, paired_forward
from bdr.engine.step.resting import running
from bdr.nets import LinearHead, Network, TwoBranches
from bdr.nets.aanet import ScaledConv
from bdr.nets.base import BatchNorm, Frozen
from bdr.nets.resnet_cifar import ResNet, resnet18, resnet32
from bdr.types import ImageShape


def branches(widths=(8, 40, 16), **options):
    """Two branches that have gone different ways; of the three levels the second is too wide to be paired."""
    torch.manual_seed(0)
    net = TwoBranches(ResNet(widths, 2, **options))
    for module in net.modules():
        if isinstance(module, ScaledConv):
            nn.init.normal_(module.scale, 1.0, 0.1)
        if isinstance(module, BatchNorm):
            for tensor in (module.weight, module.bias, module.running_mean):
                nn.init.normal_(tensor)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
    for parameter in net.plastic.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    net.aggregation.data = torch.tensor([0.3, 0.6, 0.45])[: net.depth]
    net.aggregation.requires_grad_(True)
    return net.double()


def some_images():
    return torch.randn(4, 3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("maps", [True, False])
@pytest.mark.parametrize("last_relu", [True, False])
@pytest.mark.parametrize("widths", [(8, 40, 16), (8, 16, 48)])
def test_they_say_learn_and_keep_the_same(training, maps, last_relu, widths):
    net = branches(widths, maps=maps, last_relu=last_relu).train(training)
    twin, x = copy.deepcopy(net), some_images()
    said, wanted = paired_forward(twin, x), net(x)
    torch.testing.assert_close(said, wanted)
    for each in (said, wanted):
        (each.pooled.square().sum() + sum(seen.sin().sum() for seen in each.maps)).backward()
    for (name, mine), theirs in zip(twin.named_parameters(), net.parameters(), strict=True):
        assert (mine.grad is None) == (theirs.grad is None), name
        if theirs.grad is not None:
            torch.testing.assert_close(mine.grad, theirs.grad, msg=name)
    for mine, theirs in zip(twin.buffers(), net.buffers(), strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize(("resnet", "narrow"), [(resnet32, True), (resnet18, False)])
def test_resnet_32_is_narrow_throughout_and_resnet_18_nowhere(resnet, narrow):
    net = TwoBranches(resnet(ImageShape(3, 32, 32)))
    assert [is_narrow(net, index) for index in range(net.depth)] == [narrow] * net.depth


def test_they_are_compiled_without_a_break():
    net, x = branches().train(), some_images()
    twin = copy.deepcopy(net)
    said = torch.compile(paired_forward, fullgraph=True, backend="eager", dynamic=False)(twin, x)
    torch.testing.assert_close(said, net(x))
    for mine, theirs in zip(twin.buffers(), net.buffers(), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_a_network_is_called_in_its_form_for_a_while(monkeypatch):
    net, x = branches().eval(), some_images()
    called = []
    form = Paired(net)
    monkeypatch.setattr(form, "run", lambda *given: called.append(given) or paired_forward(*given))
    with running([form]):
        inside = net(x)
    torch.testing.assert_close(net(x), inside)
    assert len(called) == 1


def one_in_eval_mode():
    net = branches()
    net.stable.eval()
    return net


class Mine(TwoBranches):
    pass


@pytest.mark.parametrize(
    ("backbone", "paired"),
    [
        (branches, True),
        (lambda: branches((48, 64)), False),
        (one_in_eval_mode, False),
        (lambda: Mine(ResNet((8, 16), 2)), False),
        (lambda: ResNet((8, 16), 2), False),
    ],
)
def test_only_two_narrow_branches_in_the_same_mode_have_a_form(backbone, paired):
    net = Network(backbone(), LinearHead(16))
    frozen = Frozen(net)
    forms = paired_forms(SimpleNamespace(objective=SimpleNamespace(parts=[net, frozen])))
    resting = type(frozen.net.backbone) is TwoBranches and can_be_paired(frozen.net.backbone)
    wanted = ([net.backbone] if paired else []) + ([frozen.net.backbone] if resting else [])
    assert [form.net for form in forms] == wanted


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("training", [True, False])
def test_on_a_gpu_it_is_as_precise_as_the_network_itself(training):
    net = branches((16, 32, 64)).float().cuda().to(memory_format=torch.channels_last).train(training)
    usual, compiled = copy.deepcopy(net), copy.deepcopy(net)
    compiled.compile(dynamic=False)
    x = torch.randn(64, 3, 32, 32, device="cuda")
    wanted = net(x).pooled
    with torch.autocast("cuda", dtype=torch.bfloat16):
        plain, found = usual(x).pooled, Paired(compiled)(x).pooled
    assert (found - wanted).norm() < 2 * (plain - wanted).norm()
    for each in (wanted, found):
        each.square().sum().backward()
    mine, theirs = (torch.cat([p.grad.flatten() for p in each.plastic.parameters()]) for each in (compiled, net))
    assert torch.cosine_similarity(mine, theirs, 0) > 0.98
