"""Networks: published sizes, signed features, heads that grow, and copies that stand still."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small import Flat
from torch import nn

from bdr.engine.step import set_precision
from bdr.errors import BdrError
from bdr.nets import NETS, CosineHead, LinearHead, Network, Resumable, Teacher
from bdr.nets.base import lay_out, layouts_of
from bdr.types import ImageShape

TINY = ImageShape(1, 8, 8)
HEADS = [LinearHead, lambda dim: LinearHead(dim, bias=False), CosineHead]


def parameters(module):
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(("name", "dim", "count"), [("resnet32", 64, 466_256), ("resnet18", 512, 11_168_832)])
def test_backbones_have_their_published_size(name, dim, count):
    backbone = NETS[name](ImageShape(3))
    assert (backbone.dim, parameters(backbone)) == (dim, count)


def test_the_small_backbone_is_small():
    assert (NETS["small"](TINY).dim, parameters(NETS["small"](TINY))) == (64, 55_904)
    assert round(parameters(NETS["small"](TINY)) / 1e6, 2) == 0.06


@pytest.mark.parametrize("last_relu", [True, False])
def test_features_are_signed_without_the_last_relu_alone(last_relu):
    torch.manual_seed(0)
    pooled = NETS["small"](TINY, last_relu)(torch.randn(4, 1, 8, 8)).pooled
    assert pooled.shape == (4, 64)
    assert bool((pooled < 0).any()) != last_relu


@pytest.mark.parametrize(("name", "widths"), [("small", (32, 64, 64)), ("resnet32", (16, 32, 64))])
def test_maps_are_taken_before_the_relu_of_their_stage(name, widths):
    torch.manual_seed(0)
    maps = NETS[name](TINY, False, maps=True)(torch.randn(4, 1, 8, 8)).maps
    assert all(bool((m < 0).any()) for m in maps)
    assert [tuple(m.shape[1:]) for m in maps] == [(w, s, s) for w, s in zip(widths, (8, 4, 2), strict=True)]


def test_without_asking_no_maps_are_kept():
    assert NETS["small"](TINY)(torch.randn(2, 1, 8, 8)).maps == ()


@pytest.mark.parametrize("last_relu", [True, False])
@pytest.mark.parametrize("name", ["small", "resnet32"])
def test_features_are_the_mean_over_the_last_map(name, last_relu):
    seen = NETS[name](TINY, last_relu, maps=True)(torch.randn(2, 1, 8, 8))
    last = seen.maps[-1].relu() if last_relu else seen.maps[-1]
    torch.testing.assert_close(seen.pooled, last.mean((2, 3)))


def test_every_stage_but_the_first_reads_the_positive_part_of_the_map_before_it():
    net = NETS["resnet32"](TINY, False, maps=True)
    maps = net(torch.randn(2, 1, 8, 8)).maps
    for stage, before, after in zip(net.stages[1:], maps, maps[1:], strict=False):
        torch.testing.assert_close(stage(before.relu()), after)


def grown(head, *counts, dim=5):
    torch.manual_seed(0)
    head = head(dim)
    for count in counts:
        head.grow(count)
    return head


@pytest.mark.parametrize("make", HEADS)
def test_a_head_keeps_its_old_rows_when_it_grows(make):
    head, features = grown(make, 3), torch.randn(6, 5)
    before = head(features)[0]
    for seen in (5, 9):
        head.grow(seen - before.shape[1])
        after = head(features)[0]
        assert after.shape == (6, seen)
        torch.testing.assert_close(after[:, : before.shape[1]], before)
        before = after


@pytest.mark.parametrize("make", HEADS)
def test_fresh_rows_are_drawn_within_one_over_the_root_of_the_dimension(make):
    head = grown(make, 400, dim=16)
    weight = head.new if isinstance(head, CosineHead) else head.weight
    assert weight.abs().max() <= 0.25
    assert weight.abs().max() > 0.24


def test_a_linear_head_is_a_matrix_and_a_bias():
    head, features = grown(LinearHead, 3), torch.randn(6, 5)
    logits, scale = head(features)
    torch.testing.assert_close(logits, features @ head.weight.T + head.bias)
    assert scale == 1


def test_all_rows_of_a_linear_head_move_and_those_of_a_cosine_head_rest():
    assert grown(LinearHead, 3, 2).weight.requires_grad
    head = grown(CosineHead, 3, 2)
    assert (len(head.old), len(head.new)) == (3, 2)
    assert (head.old.requires_grad, head.new.requires_grad, head.eta.requires_grad) == (False, True, True)


@settings(max_examples=30, deadline=None)
@given(eta=st.floats(0.1, 60), size=st.floats(1e-3, 1e3), seed=st.integers(0, 999))
def test_cosine_logits_lie_between_minus_eta_and_eta(eta, size, seed):
    head = CosineHead(5, eta)
    head.grow(3)
    head.grow(4)
    features = size * torch.randn(8, 5, generator=torch.Generator().manual_seed(seed))
    logits, scale = head(features)
    assert logits.abs().max() <= eta * (1 + 1e-5)
    assert float(scale.detach()) == pytest.approx(eta)


def test_a_feature_along_an_embedding_scores_eta():
    head = CosineHead(5, 9.0)
    head.grow(3)
    logits = head(7 * head.new.detach())[0]
    torch.testing.assert_close(logits.diagonal(), torch.full((3,), 9.0))


def test_imprinted_embeddings_are_as_long_as_the_old_ones_on_average():
    head, directions = grown(CosineHead, 3, 2), torch.nn.functional.normalize(torch.randn(2, 5))
    head.imprint(directions)
    torch.testing.assert_close(head.new.detach(), directions * head.old.norm(dim=1).mean())


@pytest.mark.parametrize("make", HEADS)
def test_a_head_laid_out_and_loaded_again_is_the_same(make):
    head, fresh, features = grown(make, 3, 2), make(5), torch.randn(4, 5)
    fresh.lay_out(head.layout())
    fresh.load_state_dict(head.state_dict())
    assert torch.equal(fresh(features)[0], head(features)[0])
    assert [p.requires_grad for p in fresh.parameters()] == [p.requires_grad for p in head.parameters()]


@pytest.mark.parametrize("make", HEADS)
def test_a_layout_says_how_wide_the_features_are(make):
    head, fresh, features = grown(make, 3, 2, dim=7), make(5), torch.randn(4, 7)
    assert head.layout()["dim"] == 7
    fresh.lay_out(head.layout())
    fresh.load_state_dict(head.state_dict())
    assert torch.equal(fresh(features)[0], head(features)[0])


class Branches(Resumable):
    """A part that creates its parts: heads, and branches of its own."""

    def __init__(self):
        super().__init__()
        self.heads, self.inner = nn.ModuleList(), nn.ModuleDict()

    def layout(self):
        return {"heads": len(self.heads), "inner": list(self.inner)}

    def lay_out(self, layout):
        self.heads = nn.ModuleList(CosineHead(2) for _ in range(layout["heads"]))
        self.inner = nn.ModuleDict({name: Branches() for name in layout["inner"]})


class ByClass(Resumable):
    """A number a class, and whether it is there."""

    by_class = ("offset", "present")

    def __init__(self, classes=0):
        super().__init__()
        self.register_buffer("offset", torch.arange(classes, dtype=torch.float64))
        self.register_buffer("present", torch.ones(classes, dtype=torch.bool))


def test_buffers_by_class_are_laid_out_by_their_names_alone():
    grew, fresh = ByClass(3), ByClass()
    assert (grew.layout(), fresh.layout()) == ({"classes": 3}, {"classes": 0})
    fresh.lay_out(grew.layout())
    fresh.load_state_dict(grew.state_dict())
    assert (fresh.offset.dtype, fresh.present.dtype) == (torch.float64, torch.bool)
    assert torch.equal(fresh.offset, grew.offset)
    assert torch.equal(fresh.present, grew.present)
    grew.lay_out({"classes": 2})
    assert (len(grew.offset), len(grew.present)) == (2, 2)


def branched():
    whole = nn.Sequential(nn.Linear(2, 2), Branches())
    whole[1].heads.extend([grown(CosineHead, 3), grown(CosineHead, 2, 4)])
    whole[1].inner["deeper"] = Branches()
    whole[1].inner["deeper"].heads.append(grown(CosineHead, 6, 1, dim=3))
    return whole


def test_parts_that_an_outer_part_creates_are_laid_out_too():
    grew, fresh = branched(), nn.Sequential(nn.Linear(2, 2), Branches())
    layouts = layouts_of(grew)
    assert set(layouts) == {"1", "1.heads.0", "1.heads.1", "1.inner.deeper", "1.inner.deeper.heads.0"}
    lay_out(fresh, layouts)
    assert layouts_of(fresh) == layouts
    fresh.load_state_dict(grew.state_dict())
    assert all(torch.equal(value, grew.state_dict()[name]) for name, value in fresh.state_dict().items())


def test_a_frozen_copy_of_parts_that_create_parts_is_refilled():
    frozen = Teacher(nn.Sequential(nn.Linear(2, 2), Branches()))
    grew = branched()
    frozen.refill(grew)
    assert layouts_of(frozen.net) == layouts_of(grew)
    assert all(torch.equal(value, grew.state_dict()[name]) for name, value in frozen.net.state_dict().items())
    assert not any(p.requires_grad for p in frozen.parameters())


def test_a_layout_of_a_part_that_is_not_there_is_refused_by_name():
    with pytest.raises(BdrError, match=r"'1\.heads\.7' is to be laid out"):
        lay_out(branched(), {"1.heads.7": {}})
    with pytest.raises(BdrError, match="'0' is to be laid out"):
        lay_out(branched(), {"0": {}})


@pytest.mark.parametrize("make", HEADS)
def test_double_precision_passes_through(make):
    net = Network(NETS["small"](TINY), make(64))
    net.head.grow(3)
    net.double()
    out = net(torch.randn(2, 1, 8, 8, dtype=torch.float64))
    assert (out.logits.dtype, out.features.dtype) == (torch.float64, torch.float64)


@pytest.mark.parametrize("make", HEADS)
def test_a_head_in_double_precision_grows_in_double_precision(make):
    head = grown(make, 3).double()
    head.grow(2)
    assert {p.dtype for p in head.parameters()} == {torch.float64}


def test_in_low_precision_features_and_logits_stay_in_single():
    net = Network(NETS["small"](TINY), CosineHead(64))
    net.head.grow(3)
    net.precision = torch.bfloat16
    out = net(torch.randn(2, 1, 8, 8))
    assert (out.logits.dtype, out.features.dtype) == (torch.float32, torch.float32)


def test_a_frozen_copy_follows_only_when_it_is_refilled():
    net, x = Network(Flat(), CosineHead(5)), torch.randn(3, 1, 4, 4)
    net.head.grow(2)
    frozen = Teacher(net)
    before = frozen(x).logits
    with torch.no_grad():
        net.backbone.matrix.weight.add_(1.0)
    net.head.grow(2)
    assert torch.equal(frozen(x).logits, before)
    net.precision = torch.bfloat16
    frozen.refill(net)
    assert frozen.net.precision is None  # that is the engine's to say, of all networks alike
    set_precision(nn.ModuleList([net, frozen]), "bf16", torch.device("cpu"))
    assert torch.equal(frozen(x).logits, net(x).logits)
    assert not frozen(x).logits.requires_grad
    assert not any(p.requires_grad for p in frozen.parameters())


def test_a_refill_that_keeps_shapes_keeps_the_tensors_in_place():
    net = Network(Flat(), CosineHead(5))
    net.head.grow(2)
    frozen = Teacher(net)
    places = [p.data_ptr() for p in frozen.parameters()]
    frozen.refill(net)
    assert [p.data_ptr() for p in frozen.parameters()] == places


def test_a_block_that_starts_at_zero_is_its_shortcut():
    torch.manual_seed(0)
    net = NETS["resnet18-der"](ImageShape()).eval()
    block, x = net.stages[0][0], torch.randn(2, 64, 8, 8)
    torch.testing.assert_close(block(x), torch.relu(x))
    assert all(not block.bn2.weight.any() for stage in net.stages for block in stage)
    assert all(block.bn2.weight.all() for stage in NETS["resnet18"](ImageShape()).stages for block in stage)
