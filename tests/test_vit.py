"""The vision transformer: as loops over heads and tokens, as timm has it, and its weights from a file of one's own."""

import contextlib
import copy
import json
import math

import pytest
import torch
from peers import timm
from PIL import Image
from runs import Position, assert_equal, newest, plan, train, train_until
from safetensors.torch import save_file
from test_cli import typed
from torch import nn

import bdr
from bdr import api
from bdr.commands.looking import evaluate_run, predict_pictures
from bdr.engine.checkpoint import read_state
from bdr.engine.step import set_precision
from bdr.errors import BdrError, UsageError
from bdr.nets import NETS, CosineHead, LinearHead, Network, VisionTransformer
from bdr.nets.base import lay_out
from bdr.nets.prompted import PrefixedBlocks, PromptedInput
from bdr.nets.vit import MODEL
from bdr.planning.loading import load_data
from bdr.records import Run
from bdr.report.protocols import settings_of
from bdr.types import ImageShape

GREY, SIZES = ImageShape(1, 8, 8), {"size": 8, "patch": 4, "embed": 6, "depth": 2, "heads": 2}
RUN = {"net": "vit-tiny", "memory": "0", "phases": 2}
SMALL = [("vit-tiny.embed", 8), ("vit-tiny.heads", 2)]


def tiny(seed=0, **changes):
    torch.manual_seed(seed)
    return VisionTransformer(**{"channels": 1, "weights": "random"} | SIZES | changes)


@pytest.fixture(scope="module", autouse=True)
def elsewhere(tmp_path_factory):
    with contextlib.chdir(tmp_path_factory.mktemp("elsewhere")):
        yield


# As loops


def slow_linear(layer, token):
    return [b + sum(w * t for w, t in zip(row, token, strict=True)) for row, b in zip(*layer, strict=True)]


def slow_norm(norm, token):
    mean = sum(token) / len(token)
    spread = math.sqrt(sum((t - mean) ** 2 for t in token) / len(token) + 1e-6)
    return [(t - mean) / spread * w + b for t, w, b in zip(token, *weights_of(norm), strict=True)]


def weights_of(layer):
    return layer.weight.tolist(), layer.bias.tolist()


def slow_attention(attention, tokens, prefix=((), ())):
    """Head by head and token by token; a prefix is keys and values that nobody projected."""
    dim, heads = len(tokens[0]), attention.heads
    each = dim // heads
    qkv = [slow_linear(weights_of(attention.qkv), token) for token in tokens]
    keys = [*prefix[0], *(row[dim : 2 * dim] for row in qkv)]
    values = [*prefix[1], *(row[2 * dim :] for row in qkv)]
    joined = [[] for _ in tokens]
    for head in range(heads):
        mine = slice(head * each, (head + 1) * each)
        for row, out in zip(qkv, joined, strict=True):
            scores = [sum(a * b for a, b in zip(row[mine], key[mine], strict=True)) / math.sqrt(each) for key in keys]
            shares = [math.exp(s) / sum(math.exp(t) for t in scores) for s in scores]
            out += [sum(p * v[mine][d] for p, v in zip(shares, values, strict=True)) for d in range(each)]
    return [slow_linear(weights_of(attention.proj), out) for out in joined]


def slow_gelu(x):
    return x * (1 + math.erf(x / math.sqrt(2))) / 2


def slow_encode(vit, tokens, prefixes=None):
    for place, block in enumerate(vit.blocks):
        seen = slow_attention(
            block.attn, [slow_norm(block.norm1, t) for t in tokens], (prefixes or {}).get(place, ((), ()))
        )
        tokens = [[a + b for a, b in zip(*pair, strict=True)] for pair in zip(tokens, seen, strict=True)]
        hidden = [slow_linear(weights_of(block.mlp.fc1), slow_norm(block.norm2, t)) for t in tokens]
        added = [slow_linear(weights_of(block.mlp.fc2), [slow_gelu(h) for h in row]) for row in hidden]
        tokens = [[a + b for a, b in zip(*pair, strict=True)] for pair in zip(tokens, added, strict=True)]
    return [slow_norm(vit.norm, t) for t in tokens]


def slow_embed(vit, image):
    """The class token, then patch after patch in reading order, each with its position."""
    patch = vit.patch_embed.proj.kernel_size[0]
    weight, bias = vit.patch_embed.proj.weight.flatten(1).tolist(), vit.patch_embed.proj.bias.tolist()
    tokens = [vit.cls_token[0, 0].tolist()]
    for top in range(0, image.shape[1], patch):
        for left in range(0, image.shape[2], patch):
            pixels = image[:, top : top + patch, left : left + patch].flatten().tolist()
            tokens.append(slow_linear((weight, bias), pixels))
    return [[a + b for a, b in zip(*pair, strict=True)] for pair in zip(tokens, vit.pos_embed[0].tolist(), strict=True)]


def test_the_features_are_those_of_the_loop():
    vit, x = tiny(channels=2).double(), torch.randn(3, 2, 8, 8, dtype=torch.float64)
    with torch.no_grad():
        for parameter in vit.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
        found = vit(x).pooled
    slow = [slow_encode(vit, slow_embed(vit, image))[0] for image in x]
    torch.testing.assert_close(found, torch.tensor(slow, dtype=torch.float64))


def test_a_prefix_is_keys_and_values_before_the_own_ones():
    vit, tokens = tiny().double(), torch.randn(2, 5, 6, dtype=torch.float64)
    prefix = torch.randn(2, 2, 3, 6, dtype=torch.float64)
    with torch.no_grad():
        found = vit.encode(tokens, {1: prefix})
    slow = [slow_encode(vit, tokens[b].tolist(), {1: (prefix[0, b].tolist(), prefix[1, b].tolist())}) for b in range(2)]
    torch.testing.assert_close(found, torch.tensor(slow, dtype=torch.float64))


def test_it_is_what_timm_computes_from_the_same_weights():
    theirs = (
        timm("models.vision_transformer")
        .VisionTransformer(img_size=32, patch_size=8, embed_dim=48, depth=3, num_heads=4, num_classes=7)
        .eval()
    )
    ours = tiny(channels=3, size=32, patch=8, embed=48, depth=3, heads=4)
    ours.load_state_dict({k: v for k, v in theirs.state_dict().items() if not k.startswith("head.")})
    x = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(ours(x).pooled, theirs.forward_features(x)[:, 0], rtol=1e-5, atol=1e-5)


def test_vit_b16_has_its_published_size():
    with torch.device("meta"):
        vit = NETS["vit-b16"](ImageShape())
    assert (vit.dim, sum(p.numel() for p in vit.parameters())) == (768, 85_798_656)
    assert vit.pos_embed.shape == (1, 197, 768)
    assert {"blocks.11.attn.qkv.bias", "blocks.0.mlp.fc1.weight", "patch_embed.proj.weight"} <= set(vit.state_dict())


def test_images_of_another_size_are_resized_and_grey_ones_repeated():
    vit, small = tiny(channels=3, size=16), torch.randn(2, 1, 8, 8)
    large = torch.nn.functional.interpolate(small, (16, 16), mode="bicubic").repeat(1, 3, 1, 1)
    torch.testing.assert_close(vit(small).pooled, vit(large).pooled)


def test_features_are_float32_under_autocast():
    net = Network(tiny(), CosineHead(6))
    net.head.grow(2)
    net.precision = torch.bfloat16
    out = net(torch.randn(2, 1, 8, 8))
    assert (out.features.dtype, out.logits.dtype) == (torch.float32, torch.float32)


@pytest.mark.parametrize(("change", "said"), [({"size": 9}, "multiple of patch"), ({"heads": 4}, "multiple of heads")])
def test_sizes_that_do_not_fit_are_refused(change, said):
    with pytest.raises(ValueError, match=said):
        tiny(**change)


def test_half_statistics_put_images_between_minus_one_and_one():
    config, _ = api.configure("l2p", "digits", [("statistics", "half")])
    data = load_data(config)
    assert (data.mean, data.std) == ((0.5,), (0.5,))


# Weights from a file


@pytest.fixture
def kept(tmp_path):
    """Writes the weights of a small transformer, with some changes, and returns where they are."""

    def write(name="model.safetensors", seed=1, drop=(), **more):
        vit = NETS["vit-tiny"](GREY, embed=8, heads=2)
        torch.manual_seed(seed)
        state = {k: torch.randn_like(v) for k, v in vit.state_dict().items() if k not in drop}
        save_file(state | more, tmp_path / name)
        return tmp_path / name

    return write


def read(path):
    return NETS["vit-tiny"](GREY, weights=str(path), embed=8, heads=2)


def test_weights_are_read_by_name_and_a_classifier_among_them_is_ignored(kept):
    vit, plain = read(kept(**{"head.weight": torch.ones(3, 8), "head.bias": torch.ones(3)})), read(kept("plain"))
    assert all(torch.equal(a, b) for a, b in zip(vit.state_dict().values(), plain.state_dict().values(), strict=True))
    assert vit.source != plain.source
    assert len(vit.source) == 64


def refusal(path, net="vit-tiny"):
    said = typed(
        "run",
        "l2p",
        "--net",
        net,
        "--set",
        f"{net}.weights={path}",
        "--set",
        f"{net}.embed=8",
        "--set",
        f"{net}.heads=2",
    )
    assert said.code in (1, 2)
    assert "Traceback" not in said.err
    return said.code, " ".join(said.err.split())


def test_a_missing_file_is_told_with_where_to_get_it(tmp_path):
    code, said = refusal(tmp_path / "nowhere.safetensors", "vit-b16")
    assert code == 2
    assert "nowhere.safetensors' do not exist" in said
    assert MODEL in said
    assert "--set vit-b16.weights=FOLDER/model.safetensors" in said


def test_weights_of_another_network_are_refused_by_name(kept, tmp_path):
    shape = {"pos_embed": torch.zeros(1, 17, 8)}
    assert "pos_embed is (1, 17, 8), and (1, 5, 8) here" in refusal(kept(**shape))[1]
    assert "norm.bias missing in it" in refusal(kept(drop=["norm.bias"]))[1]
    assert (
        "it has blocks.0.ls1.gamma, which this one has not" in refusal(kept(**{"blocks.0.ls1.gamma": torch.ones(8)}))[1]
    )
    assert "is a folder" in refusal(tmp_path)[1]


def test_whole_numbers_are_no_weights(kept):
    counts = {"norm.bias": torch.zeros(8, dtype=torch.int64)}
    assert "norm.bias is torch.int64; use a file in float32 or half" in refusal(kept(**counts))[1]


def test_a_file_that_is_no_safetensors_is_refused(tmp_path):
    (tmp_path / "broken").write_bytes(b"no tensors")
    code, said = refusal(tmp_path / "broken")
    assert code == 1
    assert "is it a safetensors file, and whole?" in said


def test_a_transformer_that_moves_is_kept_and_one_that_rests_in_a_file_is_not(kept):
    moving, resting, random = read(kept()), read(kept()), tiny()
    resting.rest()
    random.rest()
    assert len(moving.state_dict()) == len(dict(moving.named_parameters()))
    assert resting.state_dict() == {}
    assert len(random.state_dict()) == len(dict(random.named_parameters()))
    resting.load_state_dict({})
    assert all(torch.equal(a, b) for a, b in zip(moving.parameters(), resting.parameters(), strict=True))


PROMPTED = [lambda vit: PromptedInput(vit, 4, 2, 2), lambda vit: PrefixedBlocks(vit, [0], [1], 3, (2, 2))]


@pytest.mark.parametrize("make", PROMPTED)
@pytest.mark.parametrize("training", [True, False])
def test_layers_that_rest_in_a_file_are_cast_once_and_say_the_same(kept, make, training):
    torch.manual_seed(0)
    net = Network(make(read(kept())), LinearHead(8))
    net.head.grow(3)
    cast, x = copy.deepcopy(net), torch.randn(5, 1, 8, 8)
    net.precision = torch.bfloat16
    for _ in range(2):  # a phase settles more than once
        set_precision(cast, "bf16", torch.device("cpu"))
    slopes = []
    for each in (net, cast):
        out = each.train(training)(x)
        (out.logits.square().mean() + out.nearness.mean()).backward()
        slopes.append((out.logits, [p.grad for p in each.parameters() if p.grad is not None]))
    torch.testing.assert_close(slopes[1], slopes[0], rtol=0, atol=0)
    low = {name for name, p in cast.named_parameters() if p.dtype == torch.bfloat16}
    linear = {name for name, part in cast.backbone.vit.named_modules() if isinstance(part, nn.Linear)}
    assert low == {f"backbone.vit.{name}.{kind}" for name in linear for kind in ("weight", "bias")}
    assert not [name for name in cast.state_dict() if ".vit." in name]


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_what_moves_is_random_or_is_to_be_precise_stays_in_float32(kept, precision):
    moving, random, precise = read(kept()), tiny(), read(kept())
    random.rest()
    precise.rest()
    for vit, chosen in (moving, "bf16"), (random, "bf16"), (precise, precision):
        set_precision(vit, chosen, torch.device("cpu"))
        assert {p.dtype for p in vit.parameters()} == {torch.get_default_dtype()}


def test_a_run_in_half_precision_on_weights_of_a_file_goes_on_where_it_stopped(kept, tmp_path):
    given = RUN | {"settings": [*SMALL, ("vit-tiny.weights", str(kept()))], "precision": "bf16"}
    whole = train(tmp_path / "whole" / "run", "l2p", **given)
    path = train_until(Position(1, 0, 0, 2), tmp_path / "stopped" / "run", "l2p", **given)
    api.resume(path)
    assert_equal(path, whole)


def test_another_file_in_its_place_is_refused(kept):
    vit, other = read(kept()), read(kept("other", seed=2))
    with pytest.raises(BdrError, match="put the file of that time in its place"):
        lay_out(other, {"": vit.layout()})


def test_a_run_records_the_checksum_writes_no_weights_of_the_file_and_goes_on(kept, tmp_path):
    file = kept()
    given = RUN | {"settings": [*SMALL, ("vit-tiny.weights", str(file))]}
    whole = train(tmp_path / "whole" / "run", "l2p", **given)
    path = train_until(Position(1, 0, 0, 2), tmp_path / "stopped" / "run", "l2p", **given)
    api.resume(path)
    assert_equal(path, whole)
    run = Run.open(path)
    assert run.info["weights"] == read(file).source
    assert run.protocol["weights"] == read(file).source[:12]
    for folder in (path / "checkpoint" / f"{newest(path):06d}", path / "phase-01" / "model"):
        assert not [name for name in read_state(folder).tensors if ".vit." in name]
    model = bdr.load(path, device="cpu")
    assert model.parameter_count() > sum(p.numel() for p in read(file).parameters())
    assert torch.equal(model.net.backbone.vit.cls_token, read(file).cls_token)


def test_a_run_goes_on_with_its_weights_in_another_place(kept, tmp_path):
    file = kept()
    given = RUN | {"settings": [*SMALL, ("vit-tiny.weights", str(file))]}
    path = train_until(Position(1, 0, 0, 2), tmp_path / "stopped" / "run", "l2p", **given)
    moved = file.rename(tmp_path / "moved.safetensors")
    with pytest.raises(UsageError, match="do not exist"):
        api.resume(path)
    assert len(api.resume(path, weights=moved).accuracies) == 2
    assert "vit-tiny.weights" not in settings_of(Run.open(path))


def test_a_file_with_another_sum_than_was_asked_for_is_refused(kept):
    file = kept()
    right = read(file).source
    assert NETS["vit-tiny"](GREY, weights=str(file), embed=8, heads=2, sha256=right.upper()).source == right
    with pytest.raises(ValueError, match=f"have sha256 {right}, and sha256 = abc is asked for: download"):
        NETS["vit-tiny"](GREY, weights=str(file), embed=8, heads=2, sha256="abc")
    with pytest.raises(ValueError, match="set weights too"):
        NETS["vit-tiny"](GREY, sha256=right)


def test_asking_for_a_sum_makes_no_other_run(kept, tmp_path):
    file = kept()
    given = [*SMALL, ("vit-tiny.weights", str(file))]
    plain, asked = (
        plan(tmp_path / "run", "l2p", **RUN | {"settings": settings}).info["fingerprint"]
        for settings in (given, [*given, ("vit-tiny.sha256", read(file).source)])
    )
    assert plain == asked


def test_commands_read_weights_that_were_moved(learned, kept, tmp_path, capsys):
    path, file = learned
    moved = file.rename(tmp_path / "moved.safetensors")
    evaluate_run(path, None, None, "cpu", as_json=True, weights=moved)
    assert json.loads(capsys.readouterr().out)["phase"] == 0
    picture = tmp_path / "one.png"
    Image.new("L", (8, 8)).save(picture)
    predict_pictures(path, [picture], 1, None, None, "cpu", form="json", weights=moved)
    assert len(json.loads(capsys.readouterr().out)[0]["classes"]) == 1
    with pytest.raises(UsageError, match="do not exist"):
        bdr.load(path, device="cpu")
    with pytest.raises(BdrError, match="put the file of that time in its place"):
        bdr.load(path, device="cpu", weights=kept("other", seed=2))


def test_weights_of_a_run_that_has_none_in_a_file_are_refused(tmp_path):
    path = train(tmp_path / "run", "l2p", **RUN | {"phases": 1, "settings": SMALL})
    with pytest.raises(UsageError, match="no file of weights that could have moved"):
        bdr.load(path, device="cpu", weights=tmp_path / "moved.safetensors")


def test_a_run_does_not_go_on_with_other_weights(kept, tmp_path):
    given = RUN | {"settings": [*SMALL, ("vit-tiny.weights", str(kept()))]}
    path = train_until(Position(1, 0, 0, 2), tmp_path / "stopped" / "run", "l2p", **given)
    kept(seed=2)
    with pytest.raises(UsageError, match="weights would differ"):
        api.resume(path)


@pytest.fixture
def learned(kept, tmp_path):
    """A run of one phase whose network rests in a file, and that file."""
    file = kept()
    settings = [*SMALL, ("vit-tiny.weights", str(file))]
    return train(tmp_path / "run", "l2p", **RUN | {"phases": 1, "settings": settings}), file


def test_a_run_is_extended_with_its_weights_in_another_place(learned, tmp_path):
    path, file = learned
    moved = file.rename(tmp_path / "moved.safetensors")
    extended = api.extend(path, out=tmp_path / "extended", set={"vit-tiny.weights": str(moved)})
    assert len(extended.accuracies) == 2


def test_a_run_is_not_extended_with_other_weights_or_another_network(learned, kept, tmp_path):
    path, _ = learned
    with pytest.raises(BdrError, match="put the file of that time in its place"):
        api.extend(path, out=tmp_path / "extended", set={"vit-tiny.weights": str(kept("other", seed=2))})
    with pytest.raises(UsageError, match="no part with settings that can change when a run is extended 'vit-tiny'"):
        api.extend(path, out=tmp_path / "extended", set={"vit-tiny.depth": 3})
