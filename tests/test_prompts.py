"""L2P and DualPrompt: how prompts are chosen, where they stand, what learns; against loops."""

import contextlib
import copy
import math

import pytest
import torch
from references import cosine
from safetensors.torch import save_file
from small import make_batch, make_pool, make_vit
from test_cli import typed
from test_vit import slow_embed, slow_encode

from bdr import api
from bdr.bench.cases import Shape, configuration
from bdr.engine.fit import set_modes
from bdr.methods import METHODS
from bdr.nets import LinearHead
from bdr.nets.prompted import PrefixedBlocks, PromptedInput, PromptPool, majority, near, nearest
from bdr.types import Stage

COUNTS, OLD = (6, 7, 8, 9, 5), 3
BOTH = ("l2p", "dualprompt")


@pytest.fixture(scope="module", autouse=True)
def elsewhere(tmp_path_factory):
    with contextlib.chdir(tmp_path_factory.mktemp("elsewhere")):
        yield


def images(count=4, seed=0):
    return torch.randn(count, 1, 8, 8, generator=torch.Generator().manual_seed(seed))


def started(name, each=0, **settings):
    """A method at the start of its second phase, in training, and the pool, with so many exemplars a class."""
    torch.manual_seed(0)
    method = METHODS[name](make_vit, **settings)
    for pool in (make_pool(COUNTS[:OLD], side=8), make_pool(COUNTS, OLD, each, side=8)):
        method.begin(pool.phase, pool)
    set_modes(method)
    return method, pool


def all_of(pool):
    return make_batch(pool.store.plain(pool.rows), pool.store.labels[pool.rows])


def terms_of(method, pool):
    return method.loss(all_of(pool), pool.phase, method.criterion)


# Choosing


def slow_nearest(query, keys, count):
    order = sorted(range(len(keys)), key=lambda k: -cosine(query, keys[k]))
    return order[:count]


def slow_majority(chosen, pool):
    votes = [sum(row.count(k) for row in chosen) for k in range(pool)]
    return sorted(range(pool), key=lambda k: (-votes[k], k))[: len(chosen[0])]


@pytest.mark.parametrize("seed", range(5))
def test_an_image_chooses_the_prompts_of_the_nearest_keys(seed):
    torch.manual_seed(seed)
    pool, query = PromptPool(7, 2, 5), torch.randn(6, 5)
    chosen = nearest(pool.cosines(query), 3)
    assert chosen.tolist() == [slow_nearest(q, pool.keys.tolist(), 3) for q in query.tolist()]


@pytest.mark.parametrize("seed", range(20))
def test_a_batch_agrees_on_the_prompts_that_most_of_it_chose(seed):
    chance = torch.Generator().manual_seed(seed)
    chosen = torch.stack([torch.randperm(6, generator=chance)[:3] for _ in range(5)])
    assert majority(chosen, 6).tolist() == [slow_majority(chosen.tolist(), 6)]


def test_prompts_and_keys_start_between_minus_one_and_one():
    pool = PromptPool(10, 5, 64)
    for values in (pool.prompts, pool.keys):
        assert -1 <= values.min() < -0.9
        assert 0.9 < values.max() <= 1


def test_nearness_is_the_sum_of_the_cosines_with_the_chosen_keys():
    pool, query = PromptPool(6, 2, 5), torch.randn(3, 5)
    chosen = torch.tensor([[1, 4]])
    slow = [sum(cosine(q, pool.keys[k].tolist()) for k in (1, 4)) for q in query.tolist()]
    torch.testing.assert_close(near(pool.cosines(query), chosen), torch.tensor(slow))


def prompted_input(training, seed=0):
    torch.manual_seed(seed)
    return PromptedInput(make_vit(LinearHead).backbone, 6, 2, 3).train(training)


def prefixed(training, phase=0, seed=0):
    torch.manual_seed(seed)
    net = PrefixedBlocks(make_vit(LinearHead).backbone, (0, 1), (2, 4), 6, (3, 2)).train(training)
    net.enter(phase, False)
    return net


@pytest.mark.parametrize("make", [prompted_input, prefixed])
def test_what_is_said_of_an_image_does_not_depend_on_its_neighbours(make):
    net, x = make(False), images(5)
    alone = torch.cat([net(one[None]).pooled for one in x])
    torch.testing.assert_close(net(x).pooled, alone)


# Where prompts stand


@pytest.mark.parametrize("training", [True, False])
def test_l2p_reads_the_mean_of_what_becomes_of_its_prompts(training):
    net, x = prompted_input(training).double(), images(3).double()
    with torch.no_grad():
        found = net(x)
    tokens = [slow_embed(net.vit, image) for image in x]
    queries = [slow_encode(net.vit, each)[0] for each in tokens]
    chosen = [slow_nearest(q, net.pool.keys.tolist(), 3) for q in queries]
    if training:
        chosen = [slow_majority(chosen, 6)] * 3
    for b, (each, mine) in enumerate(zip(tokens, chosen, strict=True)):
        prompts = [row for k in mine for row in net.pool.prompts[k].tolist()]
        seen = slow_encode(net.vit, [each[0], *prompts, *each[1:]])[1 : 1 + len(prompts)]
        mean = torch.tensor(seen, dtype=torch.float64).mean(0)
        torch.testing.assert_close(found.pooled[b], mean)
        slow = sum(cosine(queries[b], net.pool.keys[k].tolist()) for k in mine)
        assert math.isclose(float(found.nearness[b]), slow, rel_tol=1e-9)


@pytest.mark.parametrize("training", [True, False])
def test_dualprompt_puts_keys_and_values_before_those_of_its_blocks(training):
    net, x = prefixed(training, phase=3).double(), images(3).double()
    with torch.no_grad():
        found = net(x)
    for b, image in enumerate(x):
        tokens = slow_embed(net.vit, image)
        query = slow_encode(net.vit, tokens)[0]
        mine = 3 if training else slow_nearest(query, net.pool.keys[:4].tolist(), 1)[0]
        general = [(g[:3].tolist(), g[3:].tolist()) for g in net.shared]
        own = [(e[:2].tolist(), e[2:].tolist()) for e in net.pool.prompts[mine].split(4)]
        prefixes = dict(zip((0, 1), general, strict=True)) | dict(zip((2, 4), own, strict=True))
        slow = slow_encode(net.vit, tokens, prefixes)[0]
        torch.testing.assert_close(found.pooled[b], torch.tensor(slow, dtype=torch.float64))
        assert math.isclose(float(found.nearness[b]), cosine(query, net.pool.keys[mine].tolist()), rel_tol=1e-9)


def test_an_expert_prompt_starts_as_the_one_before_if_it_may():
    net = prefixed(True)
    before = net.pool.prompts.detach().clone()
    net.enter(1, inherit=False)
    assert torch.equal(net.pool.prompts, before)
    net.enter(2, inherit=True)
    assert torch.equal(net.pool.prompts[2], before[1])
    assert torch.equal(net.pool.prompts[[0, 1, 3, 4, 5]], before[[0, 1, 3, 4, 5]])
    assert net.phase.tolist() == [2]


# What learns


@pytest.mark.parametrize("name", BOTH)
def test_the_terms_are_cross_entropy_over_present_classes_and_the_distance_of_the_keys(name):
    method, pool = started(name)
    batch = all_of(pool)
    out, terms = method.net(batch.x), terms_of(method, pool)
    losses = []
    for row, label in zip(out.logits.tolist(), batch.y.tolist(), strict=True):
        losses.append(math.log(sum(math.exp(z) for z in row[OLD:])) - row[label])
    assert math.isclose(terms["ce"].item(), sum(losses) / len(losses), rel_tol=1e-5)
    keys = {"l2p": 5, "dualprompt": 1}[name]
    assert math.isclose(terms["pull"].item(), keys - out.nearness.mean().item(), rel_tol=1e-5)
    assert method.weights(pool.phase, Stage()) == {"pull": {"l2p": 0.1, "dualprompt": 1.0}[name]}


@pytest.mark.parametrize("name", BOTH)
def test_with_exemplars_all_classes_are_told_apart(name):
    method, pool = started(name, each=2)
    terms_of(method, pool)["ce"].backward()
    assert (method.net.head.weight.grad.abs().sum(1) > 0).all()


def test_exemplars_do_not_pull_at_the_key_of_another_phase():
    method, pool = started("dualprompt", each=2)
    batch = all_of(pool)
    far = 1 - method.net(batch.x).nearness[batch.y >= OLD]
    torch.testing.assert_close(terms_of(method, pool)["pull"], far.mean())


@pytest.mark.parametrize("name", BOTH)
def test_gradients_reach_chosen_prompts_their_keys_and_the_classifier_alone(name):
    method, pool = started(name)
    net, batch = method.net.backbone, all_of(pool)
    sum(terms_of(method, pool).values()).backward()
    assert all(p.grad is None and not p.requires_grad for p in net.vit.parameters())
    cosines = net.pool.cosines(net.query(net.vit.embed(batch.x)))
    chosen = set(net.choose(cosines).flatten().tolist())
    assert chosen == ({1} if name == "dualprompt" else set(majority(nearest(cosines, 5), 10).flatten().tolist()))
    for values in (net.pool.prompts, net.pool.keys):
        moved = set(values.grad.flatten(1).abs().sum(1).nonzero().flatten().tolist())
        assert moved == chosen
    if name == "dualprompt":
        assert (net.shared.grad.flatten(1).abs().sum(1) > 0).all()
    slopes = method.net.head.weight.grad.abs().sum(1)
    assert (slopes[:OLD] == 0).all()
    assert (slopes[OLD:] > 0).all()


@pytest.mark.parametrize("name", BOTH)
def test_the_transformer_is_at_rest_and_in_eval_mode(name):
    method, _ = started(name)
    assert method.net.backbone.training
    assert not any(part.training for part in method.net.backbone.vit.modules())


@pytest.mark.parametrize(
    ("name", "own"), [("l2p", 10 * 5 * 16 + 10 * 16), ("dualprompt", 2 * 10 * 16 + 10 * 30 * 16 + 160)]
)
def test_transformer_prompts_and_classifier_are_counted(name, own):
    method, _ = started(name)
    vit = sum(p.numel() for p in method.net.backbone.vit.parameters())
    assert method.parameter_count() == vit + own + 5 * 17


@pytest.mark.parametrize("name", BOTH)
def test_a_copy_takes_over_the_state(name):
    method, _ = started(name)
    other = copy.deepcopy(method)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter += 1
    other.load_state_dict(method.state_dict())
    x = images()
    torch.testing.assert_close(other.eval().net(x), method.eval().net(x))


# Refusals


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["l2p", "--net", "vit-b16", "--set", "vit-b16.depth=1"], "needs weights that were trained before"),
        (["dualprompt", "--net", "small"], "not into a SmallNet: use --net vit-b16"),
        (["l2p", "--set", "l2p.top=11"], "top = 11 is not allowed: the pool has 10 prompts"),
        (["l2p", "--set", "l2p.length=0"], "length = 0 is not allowed"),
        (["l2p", "--set", "l2p.pull=-1"], "pull = -1.0 is not allowed"),
        (["dualprompt", "--set", "dualprompt.e_blocks=[2, 5]"], "the network has blocks 0 to 4"),
        (["dualprompt", "--set", "dualprompt.e_blocks=[1, 2]"], "a block has one prompt"),
        (["dualprompt", "--set", "dualprompt.pool=3"], "type --set dualprompt.pool=4 or more"),
        (["podnet", "--net", "vit-tiny"], "no feature maps"),
    ],
)
def test_what_cannot_be_is_refused(words, said):
    answer = typed("run", *words)
    assert answer.code == 2
    assert said in " ".join(answer.err.split())


# The frame


@pytest.mark.parametrize(("name", "batch", "lr"), [("l2p", 16, 0.03 / 16), ("dualprompt", 24, 0.03 * 24 / 256)])
def test_cifar100_comes_as_published(name, batch, lr):
    config, _ = api.configure(name, "cifar100")
    assert (config.net, config.statistics, config.memory, config.augment) == ("vit-b16", "half", "0", {})
    assert (config.order, config.base, config.step) == ("natural", 0, 10)
    stage = config.stage
    assert (stage.optimizer, stage.epochs, stage.batch, stage.clip, stage.weight_decay) == ("adamw", 5, batch, 1.0, 0.0)
    assert math.isclose(stage.lr, lr)


def test_benchmarks_time_the_large_network_without_its_weights():
    config = configuration("l2p", Shape(), {"device": "cpu", "net": "vit-b16"})
    assert config.settings == {"vit-b16": {"weights": "random"}}
    assert configuration("l2p", Shape(), {"device": "cpu"}).settings == {}


# Learning


@pytest.fixture(scope="module")
def trained_before(tmp_path_factory):
    """A small transformer that knows digits, in a file.

    It is trained until it knows them wherever it began: torch 2.13 draws truncated normals otherwise than 2.11.
    """
    folder = tmp_path_factory.mktemp("weights")
    given = {"net": "vit-tiny", "base": 10, "step": 10, "share": False, "out": folder / "run"}
    stage = {"stage.optimizer": "adamw", "stage.lr": 0.003, "stage.epochs": 20, "stage.schedule": "cosine"}
    api.run("finetune", data="digits", set=stage, **given)
    save_file(api.load(folder / "run", device="cpu").net.backbone.state_dict(), folder / "model.safetensors")
    return folder / "model.safetensors"


@pytest.mark.parametrize("name", BOTH)
def test_a_transformer_that_knows_its_images_learns_without_exemplars_and_forgets_little(
    name, trained_before, tmp_path
):
    settings = {"vit-tiny.weights": str(trained_before), "stage.epochs": 5}
    result = api.run(name, data="digits", base=5, step=5, share=False, keep="none", out=tmp_path / "run", set=settings)
    assert result.accuracies[0] > 90
    assert result.last > 75
