"""Residual networks at rest: folded, filled up, and the same."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from bdr.engine.step.resting import UNIT, Resting, resting_forms, running
from bdr.nets import LinearHead, Network, TwoBranches
from bdr.nets.base import BatchNorm, Follower, Frozen
from bdr.nets.prunable import above
from bdr.nets.resnet_cifar import ResNet


def lived_in(kept=1.0, **options):
    """A small network whose batch norms are anything but the identity; of its channels this share is left."""
    torch.manual_seed(0)
    net = ResNet((16, 24), 2, **options)
    for module in net.modules():
        if isinstance(module, BatchNorm):
            for tensor in (module.weight, module.bias, module.running_mean):
                nn.init.normal_(tensor)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
    if kept < 1:
        net.remove(above([torch.rand(width) for width in net.widths], 1 - kept))
    return net.double().eval()


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


def test_a_network_is_called_in_its_form_for_a_while():
    frozen, x = Frozen(lived_in()), torch.randn(2, 3, 8, 8, dtype=torch.float64)
    before, form = frozen(x), Resting(frozen.net, torch.float64)
    nn.init.ones_(frozen.net.stem.weight)
    with running([form]):
        torch.testing.assert_close(frozen(x), before)
    assert not torch.allclose(frozen(x).pooled, before.pooled)


def split():
    branches = TwoBranches(lived_in())
    branches.split()
    return branches


class Mine(ResNet):
    def level(self, index, x, gates=None):
        found = super().level(index, x, gates)
        return found._replace(x=found.x.tanh())


def derived():
    return Mine((16, 24), 2)


@pytest.mark.parametrize("held", [Frozen, Follower])
@pytest.mark.parametrize("precision", [None, torch.bfloat16])
@pytest.mark.parametrize("backbone", [lived_in, split, derived])
def test_only_residual_networks_that_rest_and_are_called_whole_have_a_form(held, precision, backbone):
    net = Network(backbone(), LinearHead(24))
    net.precision = precision
    part = held(net)
    forms = resting_forms(SimpleNamespace(objective=SimpleNamespace(parts=[net, part])))
    rests = held is Frozen and precision is torch.bfloat16 and backbone is lived_in
    assert [form.net for form in forms] == ([part.net.backbone] if rests else [])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kept", [1.0, 0.4])
@pytest.mark.parametrize("last_relu", [False, True])
def test_on_a_gpu_it_is_as_precise_as_the_network_itself(kept, last_relu):
    net = lived_in(kept, last_relu=last_relu).float().cuda().to(memory_format=torch.channels_last)
    x = torch.randn(64, 3, 32, 32, device="cuda")
    with torch.no_grad():
        wanted, found = net(x).pooled, Resting(net, torch.bfloat16)(x).pooled
        with torch.autocast("cuda", dtype=torch.bfloat16):
            usual = net(x).pooled
    assert (found - wanted).norm() < 2 * (usual - wanted).norm()
