"""DyTox: the transformer and its tokens as loops, sizes as published, the losses as loops, what moves and when."""

import copy
import math
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from peers import timm
from runs import Position, assert_equal, plan, train, train_until
from small import make_batch, make_pool, make_tokens
from test_engine import World
from torch import nn
from torch._dynamo.utils import counters

from bdr import api
from bdr.configuration.frames import cifar100
from bdr.configuration.recipes import RECIPES
from bdr.data.augment import Augment
from bdr.engine.fit import Fit, set_modes, set_moving
from bdr.engine.objective import Objective
from bdr.engine.step import eager_between_steps
from bdr.errors import UsageError
from bdr.fusing import fusing
from bdr.losses import old_as_one
from bdr.methods.dytox import DyTox
from bdr.nets import NETS, LinearHead, Network, Teacher, TokenHeads
from bdr.nets.base import lay_out, layouts_of
from bdr.nets.convit import GatedAttention, relative_places
from bdr.nets.dytox import TokenTransformer
from bdr.plugins.bdr import BDRPlugin
from bdr.schedules import learning_rate
from bdr.types import ImageShape, Outputs, Phase, Stage

COUNTS, OLD = (6, 7, 8, 9, 5), 3
NOTHING = torch.zeros(0, dtype=torch.long)
TINY = {"patch": 2, "embed": 12, "blocks": 3, "heads": 4, "mlp_ratio": 2.0}
DIGITS = ImageShape(1, 8, 8)


def tiny(tokens=1, **settings):
    """A transformer in eval mode, in double precision, with so many tokens."""
    torch.manual_seed(0)
    net = NETS["convit"](DIGITS, **TINY | {"spread": 0.3} | settings)
    for _ in range(tokens - 1):
        net.grow()
    return net.double().eval()


def images(count=3, seed=0):
    return torch.randn(count, 1, 8, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# Sizes


@pytest.mark.parametrize(
    ("phases", "classes", "count"), [(10, 10, 10_733_584), (20, 5, 10_745_104), (50, 2, 10_779_664)]
)
def test_the_network_has_its_published_size(phases, classes, count):
    """10.73, 10.74 and 10.77 M are printed, and the last two are cut off rather than rounded."""
    torch.manual_seed(0)
    method = DyTox(lambda head: Network(NETS["convit"](ImageShape()), head(384)))
    for index in range(phases):
        phase = Phase(index, index * classes, (index + 1) * classes)
        method.begin(phase, None)
    assert method.parameter_count() == count
    assert method.net.head.classes == 100
    assert method.net.backbone.tokens().shape == (phases, 384)


def test_weight_decay_leaves_biases_norms_and_the_gates_of_heads_alone():
    method = DyTox(make_tokens)
    method.begin(Phase(0, 0, 2), None)
    method.begin(Phase(1, 2, 4), None)
    spared = {name for name, parameter in method.named_parameters() if not method.decays(name, parameter)}
    norms = {f"{name}.weight" for name, part in method.named_modules() if isinstance(part, nn.LayerNorm)}
    assert norms <= spared
    assert {name.rpartition(".")[2] for name in spared - norms} == {"bias", "gate", "scale", "shift"}


# Attention


def test_places_are_the_ways_from_patch_to_patch():
    dx, dy, square = relative_places(2, 3)
    for i in range(6):
        for j in range(6):
            right, down = j % 3 - i % 3, j // 3 - i // 3
            assert (dx[i, j], dy[i, j], square[i, j]) == (right, down, right**2 + down**2)


def test_each_local_head_looks_most_at_its_own_neighbour():
    attention = NETS["convit"](ImageShape(3, 20, 20), embed=24).encoder.blocks[0].attention
    middle, side = 12, 5  # of 5 x 5 patches
    ways = set()
    for head in range(9):
        best = int(attention.positional()[head, middle].argmax())
        right, down = best % side - 2, best // side - 2
        assert (right, down) == (head // 3 - 1, head % 3 - 1)
        ways.add((right, down))
    assert len(ways) == 9
    assert torch.equal(attention.v.weight, torch.eye(24))
    assert torch.equal(attention.gate, torch.ones(12))


def test_the_other_heads_begin_nearly_blind_to_places():
    attention = NETS["convit"](ImageShape(3, 20, 20), embed=24).encoder.blocks[0].attention
    assert attention.place.weight[9:].abs().max() < 0.1
    assert attention.positional()[:9].amax() > 0.5


def slow_attention(module, x):
    """One image, head by head: both softmaxes, the gate, and the sum made one again."""
    heads, width = module.heads, x.shape[1] // module.heads
    q, k = (x @ part.T for part in module.qk.weight.chunk(2))
    v, found = x @ module.v.weight.T, []
    for h in range(heads):
        mine = slice(h * width, (h + 1) * width)
        gate = 1 / (1 + math.exp(-module.gate[h].item()))
        rows = []
        for i in range(len(x)):
            content = torch.stack([q[i, mine] @ k[j, mine] / math.sqrt(width) for j in range(len(x))]).softmax(0)
            scores = [module.place.weight[h] @ module.places[:, i, j] + module.place.bias[h] for j in range(len(x))]
            attention = (1 - gate) * content + gate * torch.stack(scores).softmax(0)
            rows.append(attention / attention.sum() @ v[:, mine])
        found.append(torch.stack(rows))
    return module.project(torch.cat(found, 1))


def shaken(module):
    """All weights of chance: what begins as the identity or at one hides mistakes."""
    chance = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=chance, dtype=parameter.dtype)
    return module


def test_gated_attention_is_its_loop():
    module, x = shaken(GatedAttention(12, 3, 2, 3).double()), torch.randn(2, 6, 12, dtype=torch.float64)
    torch.testing.assert_close(module(x), torch.stack([slow_attention(module, each) for each in x]))


NAMES_IN_TIMM = {
    "norm1": "before_attention",
    "norm2": "before_mlp",
    "mlp.fc1": "mlp.0",
    "mlp.fc2": "mlp.2",
    "attn.qk": "attention.qk",
    "attn.v": "attention.v",
    "attn.proj": "attention.project",
    "attn.pos_proj": "attention.place",
}  # and the gates


def become(theirs, mine):
    """A block of timm with our weights."""
    ours, renamed = mine.state_dict(), {}
    for name in theirs.state_dict():
        part, _, rest = name.rpartition(".")
        renamed[name] = ours[f"{NAMES_IN_TIMM[part]}.{rest}" if part in NAMES_IN_TIMM else "attention.gate"]
    theirs.load_state_dict(renamed)
    theirs.norm1.eps = theirs.norm2.eps = 1e-5  # as torch's, which DyTox uses
    return theirs.eval()


def test_a_block_is_that_of_timm():
    mine = shaken(NETS["convit"](ImageShape(3, 16, 16), embed=24, stochastic_depth=0.0).encoder.blocks[0])
    theirs = become(timm("models.convit").Block(24, 12, use_gpsa=True), mine)
    x = torch.randn(2, 16, 24)
    torch.testing.assert_close(mine(x), theirs(x), rtol=1e-5, atol=1e-5)


def test_the_encoder_is_that_of_timm_up_to_where_its_class_token_comes_in():
    mine = shaken(NETS["convit"](ImageShape(3, 16, 16), embed=24, stochastic_depth=0.0).encoder).eval()
    sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 24 // 12, "num_heads": 12, "depth": 5}
    theirs = timm("models.convit").ConVit(**sizes, local_up_to_layer=5).eval()
    theirs.patch_embed.proj.load_state_dict(mine.patches.state_dict())
    theirs.pos_embed.data.copy_(mine.positions)
    theirs.norm = torch.nn.Identity()  # DyTox has none
    for their_block, block in zip(theirs.blocks, mine.blocks, strict=True):
        become(their_block, block)
    x = torch.randn(2, 3, 16, 16)
    torch.testing.assert_close(mine(x), theirs.forward_features(x), rtol=1e-5, atol=1e-5)


# Tokens


def slow_decoder(net, token, patches):
    """One token of one image beside the patches, in a run of its own: (C,)."""
    block, rows = net.decoder, torch.cat([token[None], patches])
    inside, attention = block.before_attention(rows), block.attention
    q, k, v = attention.q(inside[0]), attention.k(inside), attention.v(inside)
    found, width = [], len(q) // attention.heads
    for h in range(attention.heads):
        mine = slice(h * width, (h + 1) * width)
        found.append((k[:, mine] @ q[mine] / math.sqrt(width)).softmax(0) @ v[:, mine])
    x = token + attention.project(torch.cat(found))
    return x + block.mlp(block.before_mlp(x))


def test_all_tokens_at_once_are_a_run_for_each():
    net, x = shaken(tiny(tokens=3)), images()
    patches = net.encoder(x)
    slow = [torch.cat([slow_decoder(net, token, each) for token in net.tokens()]) for each in patches]
    torch.testing.assert_close(net(x).pooled, torch.stack(slow))


def test_a_new_token_leaves_what_the_others_say_alone():
    net, x = tiny(tokens=2), images()
    before, tokens = net(x).pooled, net.tokens().clone()
    net.grow()
    after = net(x).pooled
    assert after.shape == (3, 3 * 12)
    torch.testing.assert_close(after[:, :24], before)
    assert torch.equal(net.tokens.old, tokens)
    assert (net.tokens.old.requires_grad, net.tokens.new.requires_grad) == (False, True)
    assert net.tokens.new.abs().max() > 0


def test_new_tokens_are_drawn_like_the_first():
    torch.manual_seed(0)
    net = NETS["convit"](ImageShape())
    net.grow()
    assert net.tokens.new.std().item() == pytest.approx(0.02, rel=0.1)
    assert net.encoder.positions.std().item() == pytest.approx(0.02, rel=0.1)
    assert net.decoder.attention.q.weight.std().item() == pytest.approx(0.02, rel=0.1)


def test_a_grown_network_is_laid_out_again_and_loaded():
    net, x = Network(tiny(tokens=3), TokenHeads(12).double()), images()
    for count in (2, 1, 4):
        net.head.grow(count)
    other = Network(tiny(), TokenHeads(12).double())
    lay_out(other, layouts_of(net))
    other.load_state_dict(net.state_dict())
    assert torch.equal(other(x).logits, net(x).logits)
    assert [p.requires_grad for p in other.parameters()] == [p.requires_grad for p in net.parameters()]


def test_a_teacher_takes_over_a_grown_network():
    net, x = Network(tiny(), TokenHeads(12).double()), images()
    teacher = Teacher(net)
    net.head.grow(2)
    net.backbone.grow()
    net.head.grow(3)
    teacher.refill(net)
    assert torch.equal(teacher(x).logits, net(x).logits)
    net.backbone.grow()
    assert teacher(x).features.shape == (3, 24)


def test_growth_does_not_compile_the_encoder_again():
    net, x, compiled = tiny(), images(), []

    def count(graph, inputs):
        compiled.append(graph)
        return graph.forward

    torch._dynamo.reset()
    (part,) = net.to_compile()
    part.compile(backend=count, fullgraph=True)
    for _ in range(3):
        net(x)
        net.grow()
    assert part is net.encoder
    assert len(compiled) == 1


def test_it_serves_other_methods_as_one_token():
    backbone = tiny()
    head = LinearHead(backbone.dim).double()
    head.grow(3)
    assert Network(backbone, head)(images()).logits.shape == (3, 3)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"patch": 3}, "patch = 3 does not divide images of 8 x 8"),
        ({"embed": 10}, "embed = 10 does not split into 4 heads"),
        ({"maps": True}, "no feature maps"),
        ({"stochastic_depth": 1.0}, r"stochastic_depth = 1\.0 is not allowed"),
        ({"blocks": 0}, "1 or more"),
    ],
)
def test_networks_that_cannot_be_are_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        NETS["convit"](DIGITS, **TINY | settings)


# Stochastic depth


def test_later_blocks_are_left_out_more_often_and_the_decoder_most():
    net = NETS["convit"](ImageShape())
    torch.testing.assert_close(net.rates, torch.tensor([0.0, 0.02, 0.04, 0.06, 0.08, 0.10]))
    kept = net.train().kept(net.encoder, net.rates[:-1], 20000)
    assert kept.shape == (5, 2, 20000)
    torch.testing.assert_close((kept == 0).float().mean((1, 2)), net.rates[:-1], rtol=0, atol=0.005)
    torch.testing.assert_close(kept.mean((1, 2)), torch.ones(5), rtol=0, atol=0.01)


def test_what_is_left_out_leaves_an_image_as_it_came():
    block, x = tiny().encoder.blocks[1], torch.randn(2, 16, 12, dtype=torch.float64)
    kept = torch.tensor([[0.0, 2.0], [0.0, 2.0]])
    out = block(x, kept)
    assert torch.equal(out[0], x[0])
    once = x[1:] + 2 * block.attention(block.before_attention(x[1:]))
    torch.testing.assert_close(out[1:], once + 2 * block.mlp(block.before_mlp(once)))


def test_every_token_of_an_image_is_left_out_by_itself():
    net, x = tiny(tokens=4, stochastic_depth=0.9).train(), images(50)
    said, tokens = net(x).pooled.unflatten(1, (4, 12)), net.tokens()
    left = (said == tokens).all(2)
    assert 0 < left.float().mean() < 1
    assert not torch.equal(left.any(1), left.all(1))


def test_it_is_drawn_from_torchs_own_state_and_not_at_all_in_eval_mode():
    net, x = tiny(stochastic_depth=0.5), images()
    before = torch.get_rng_state()
    plain = net(x).pooled
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(tiny(stochastic_depth=0.0).train()(x).pooled, plain)
    net.train()
    torch.manual_seed(5)
    first = net(x).pooled
    assert not torch.allclose(first, plain)
    torch.manual_seed(5)
    assert torch.equal(net(x).pooled, first)


def test_an_encoder_at_rest_leaves_nothing_out():
    net, x = tiny(stochastic_depth=0.5), images()
    set_moving(net, ["tokens", "decoder"])
    set_modes(net)
    assert net.kept(net.encoder, net.rates[:-1], 3) is None
    assert net.kept(net.decoder, net.rates[-1:], 3, 1) is not None
    assert torch.equal(net.encoder(x), tiny(stochastic_depth=0.5).encoder(x))


# Classifiers


def grown(*counts, dim=5):
    torch.manual_seed(0)
    head = TokenHeads(dim)
    for count in counts:
        head.grow(count)
    return head


def test_each_classifier_is_a_layer_norm_and_a_linear_layer_on_its_own_token():
    head, features = shaken(grown(3, 1, 4).double()), torch.randn(6, 15, dtype=torch.float64)
    slow, first = [], 0
    weights = [torch.cat(pair) for pair in zip(head.old.parameters(), head.new.parameters(), strict=True)]
    for place, count in enumerate((3, 1, 4)):
        norm, linear = nn.LayerNorm(5).double(), nn.Linear(5, count).double()
        classes = slice(first, first := first + count)
        norm.load_state_dict({"weight": weights[0][place], "bias": weights[1][place]})
        linear.load_state_dict({"weight": weights[2][classes], "bias": weights[3][classes]})
        slow.append(linear(norm(features[:, 5 * place : 5 * place + 5])))
    logits, scale = head(features)
    torch.testing.assert_close(logits, torch.cat(slow, 1))
    assert (scale, head.classes) == (1.0, 8)


def test_a_class_feels_its_own_token_alone():
    head, features = grown(2, 3), torch.randn(4, 10, requires_grad=True)
    head(features)[0][:, 2:].square().sum().backward()
    assert features.grad[:, :5].abs().max() == 0
    assert features.grad[:, 5:].abs().max() > 0


def test_growth_keeps_old_classifiers_and_puts_them_to_rest():
    head, features = grown(2, 3), torch.randn(4, 15)
    before = head(features[:, :10])[0]
    head.grow(2)
    torch.testing.assert_close(head(features)[0][:, :5], before)
    assert not any(p.requires_grad for p in head.old.parameters())
    assert all(p.requires_grad for p in head.new.parameters())
    assert head.owner.tolist() == [0, 0, 1, 1, 1, 2, 2]


def test_a_restarted_classifier_knows_a_single_token():
    head = grown(2, 3)
    head.restart(4)
    assert (head.classes, head.counts) == (4, [4])
    assert head(torch.randn(3, 5))[0].shape == (3, 4)


# Losses


def started(**settings):
    """A method at the start of its second phase, with a teacher that differs from the network by now, and the pool."""
    torch.manual_seed(0)
    method, first = DyTox(make_tokens, **settings), make_pool(COUNTS[:OLD], side=8)
    pool = make_pool(COUNTS, OLD, side=8)
    method.begin(first.phase, first)
    method.end(first.phase, first, NOTHING)
    method.begin(pool.phase, pool)
    shaken(method.net.backbone)
    return method.eval(), pool


def all_of(pool):
    return make_batch(pool.store.plain(pool.rows), pool.store.labels[pool.rows])


def mixture_of(y, classes=5):
    one = F.one_hot(y, classes).double()
    return 0.3 * one + 0.7 * one.flip(0)


def slow_bce(logits, targets):
    """The mean over images and classes."""
    losses = []
    for row, target in zip(logits.tolist(), targets.tolist(), strict=True):
        for z, t in zip(row, target, strict=True):
            p = 1 / (1 + math.exp(-z))
            losses.append(-t * math.log(p) - (1 - t) * math.log(1 - p))
    return sum(losses) / len(losses)


def slow_softce(logits, targets):
    """The mean over images of what the softmax over all classes costs."""
    losses = []
    for row, target in zip(logits.tolist(), targets.tolist(), strict=True):
        whole = math.log(sum(math.exp(z) for z in row))
        losses.append(sum(t * (whole - z) for z, t in zip(row, target, strict=True)))
    return sum(losses) / len(losses)


def slow_kd(logits, old):
    """The divergence of softmaxes, averaged over images and classes."""
    losses = []
    for mine, theirs in zip(logits.tolist(), old.tolist(), strict=True):
        p, q = ([math.exp(z) / sum(math.exp(o) for o in row) for z in row] for row in (theirs, mine))
        losses += [a * math.log(a / b) for a, b in zip(p, q, strict=True)]
    return sum(losses) / len(losses)


def slow_old_as_one(targets, old):
    return torch.tensor([[sum(row[:old]), *row[old:]] for row in targets.tolist()], dtype=torch.float64)


def smoothed(targets, smoothing=0.1):
    return (1 - smoothing) * targets + smoothing / targets.shape[1]


@pytest.mark.parametrize(("loss", "slow"), [("bce", slow_bce), ("softce", slow_softce)])
@pytest.mark.parametrize("mixed", [False, True], ids=["ids", "mixtures"])
def test_the_terms_are_their_loops(mixed, loss, slow):
    method, pool = started(loss=loss)
    batch = all_of(pool)
    targets = F.one_hot(batch.y, 5).double()
    if mixed:
        batch = batch._replace(y=mixture_of(batch.y).float())
        targets = smoothed(batch.y.double())
    terms = method.loss(batch, pool.phase, method.criterion)
    out, old = method.net(batch.x), method.teacher(batch.x).logits
    wanted = {
        loss: slow(out.logits, targets),
        "distillation": slow_kd(out.logits[:, :OLD], old),
        "divergence": slow_bce(method.divergence(out.features[:, -16:])[0], slow_old_as_one(targets, OLD)),
    }
    assert {name: float(value.detach()) for name, value in terms.items()} == pytest.approx(wanted, rel=1e-4)


def test_old_classes_are_one_for_the_further_classifier():
    ids = F.one_hot(torch.tensor([0, 2, 3, 4]), 5).float()
    assert old_as_one(ids, OLD).argmax(1).tolist() == [0, 0, 1, 2]
    mixed = torch.tensor([[0.2, 0.3, 0.0, 0.5, 0.0]])
    torch.testing.assert_close(old_as_one(mixed, OLD), torch.tensor([[0.5, 0.5, 0.0]]))


def test_ids_are_not_smoothed_and_mixtures_are_over_all_known_classes():
    method, like = DyTox(make_tokens, smoothing=0.2), torch.zeros(1, 4)
    assert method.target(torch.tensor([1]), like).tolist() == [[0, 1, 0, 0]]
    mixed = method.target(torch.tensor([[0.0, 0.5, 0.0, 0.5]]), like)
    torch.testing.assert_close(mixed, torch.tensor([[0.05, 0.45, 0.05, 0.45]]))


def test_terms_are_weighed_by_the_share_of_old_classes():
    method, pool = started(divergence_weight=0.3)
    first = Phase(0, 0, OLD)
    main, tuning = method.stages(pool.phase, Stage())
    assert method.weights(pool.phase, main) == pytest.approx({"bce": 2 / 5, "distillation": 3 / 5, "divergence": 0.3})
    assert method.weights(pool.phase, tuning) == method.weights(first, Stage()) == {}


def test_a_softmax_takes_the_place_of_the_binary_loss_and_leaves_the_other_terms_their_weight():
    """A sum over classes where the others are means: as much less as there are classes."""
    method, pool = started(loss="softce")
    main, tuning = method.stages(pool.phase, Stage())
    wanted = {"softce": 2 / 5 / 5, "distillation": 3 / 5, "divergence": 0.1}
    assert method.weights(pool.phase, main) == pytest.approx(wanted)
    assert set(method.balanced(all_of(pool), pool.phase, method.criterion)) == {"softce"}
    assert method.weights(pool.phase, tuning) == {}


@pytest.mark.parametrize(("loss", "slow"), [("bce", slow_bce), ("softce", slow_softce)])
@pytest.mark.parametrize("mixed", [False, True], ids=["ids", "mixtures"])
def test_an_offset_stands_inside_the_loss(mixed, loss, slow):
    method, y = DyTox(make_tokens, loss=loss), torch.tensor([0, 3, 2, 4, 1, 3])
    targets, y = (smoothed(mixture_of(y)), mixture_of(y)) if mixed else (F.one_hot(y, 5).double(), y)
    generator = torch.Generator().manual_seed(3)
    logits, offset = (torch.randn(*size, 5, generator=generator, dtype=torch.float64) for size in ((6,), ()))
    found = method.criterion(Outputs(logits, logits).shift(offset), y).mean()
    assert float(found) == pytest.approx(slow(logits + offset, targets), rel=1e-12)


@pytest.mark.parametrize(("loss", "apart"), [("bce", 2 * math.log(9)), ("softce", math.log(9))])
def test_where_two_classes_compete_an_offset_counts_half_as_much_in_a_binary_loss(loss, apart):
    """It is taken from logits that are twice as far apart where they learn 0.9 against 0.1."""
    method, y = DyTox(make_tokens, loss=loss, smoothing=0), torch.tensor([[0.9, 0.1]], dtype=torch.float64)
    for offset in (torch.zeros(2), torch.tensor([1.0, -1.0])):
        learnt = torch.tensor([[apart / 2, -apart / 2]], dtype=torch.float64) - offset
        learnt.requires_grad_()
        method.criterion(Outputs(learnt, learnt).shift(offset), y).sum().backward()
        assert learnt.grad.abs().max() < 1e-12


def test_the_first_phase_is_binary_cross_entropy_alone():
    torch.manual_seed(0)
    method, pool = DyTox(make_tokens), make_pool(COUNTS[:OLD], side=8)
    method.begin(pool.phase, pool)
    batch = all_of(pool)
    terms = method.loss(batch, pool.phase, method.criterion)
    assert set(terms) == {"bce"}
    assert method.stages(pool.phase, Stage()) == [Stage()]


@pytest.mark.parametrize(("loss", "slow"), [("bce", slow_bce), ("softce", slow_softce)])
def test_a_flat_prior_leaves_the_loss_alone_and_bdr_touches_no_other_term(loss, slow):
    method, pool = started(loss=loss)
    batch, bdr = all_of(pool), BDRPlugin()
    plain = method.loss(batch, pool.phase, method.criterion)
    flat = method.loss(batch, pool.phase, lambda out, y: method.criterion(out.shift(torch.zeros(5)), y))
    assert torch.equal(flat[loss], plain[loss])
    bdr.begin(pool.phase, pool.census("all", 0), method.net)
    assert bdr.balance.mean.shape == (5, 32)  # both tokens
    shifted = method.loss(batch, pool.phase, lambda out, y: bdr.classify(method.criterion, out, y))
    assert {name for name in plain if not torch.equal(plain[name], shifted[name])} == {loss}
    out = method.net(batch.x)
    wanted = slow(out.logits + bdr.balance.offset, F.one_hot(batch.y, 5).double())
    assert float(shifted[loss]) == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize("loss", ["bce", "softce"])
def test_a_compiled_criterion_takes_mixtures(loss):
    method, logits = DyTox(make_tokens, loss=loss), torch.randn(6, 5)
    y = mixture_of(torch.arange(6) % 5).float()
    out = Outputs(logits, None)
    compiled = torch.compile(method.criterion, fullgraph=True, backend="eager")(out, y)
    torch.testing.assert_close(compiled, method.criterion(out, y))


# What moves


def slopes(method, pool, stage):
    """The parameters that a step of a stage reaches."""
    method = copy.deepcopy(method)
    if stage.train:
        set_moving(method, stage.train)
    set_modes(method)
    objective = Objective(method, [], pool.phase, stage)
    terms, _ = objective.terms(all_of(pool))
    objective.total(terms).backward()
    return {name for name, p in method.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}, terms


def test_old_tokens_and_classifiers_rest_in_the_main_stage():
    method, pool = started()
    moved, terms = slopes(method, pool, Stage())
    assert set(terms) == {"bce", "distillation", "divergence"}
    assert {"net.backbone.tokens.new", "net.head.new.weight", "net.head.new.scale", "divergence.new.weight"} <= moved
    assert {"net.backbone.encoder.positions", "net.backbone.decoder.attention.q.weight"} <= moved
    assert not any(".old" in name or name.startswith("teacher") for name in moved)


def test_the_second_stage_moves_all_but_the_encoder_without_a_teacher():
    method, pool = started()
    _, tuning = method.stages(pool.phase, Stage())
    moved, terms = slopes(method, pool, tuning)
    assert set(terms) == {"bce"}
    assert {"net.backbone.tokens.old", "net.backbone.tokens.new", "net.head.old.weight", "net.head.new.bias"} <= moved
    assert {"net.backbone.decoder.attention.k.weight", "net.backbone.decoder.mlp.0.weight"} <= moved
    assert not any("encoder" in name or name.startswith(("teacher", "divergence")) for name in moved)


def test_the_second_stage_follows_the_first():
    method, base = DyTox(make_tokens), cifar100("dytox").stage
    main, tuning = method.stages(Phase(1, 50, 60), base)
    assert main == base
    assert (tuning.epochs, tuning.lr, tuning.schedule, tuning.warmup) == (20, pytest.approx(2.5e-5), "constant", 0)
    assert (tuning.draw, tuning.name, tuning.optimizer, tuning.repeat) == ("memory", "balanced", "adamw", 3)
    assert method.stages(Phase(1, 50, 60), Stage(epochs=2))[1].epochs == 1


def test_the_further_classifier_is_for_training_alone_and_new_in_every_phase():
    method, pool = started()
    kept = sum(p.numel() for p in method.net.parameters())
    assert method.parameter_count() == kept
    assert sum(p.numel() for p in method.divergence.parameters()) == 2 * 16 + 3 * 16 + 3
    before = method.divergence.new.weight.clone()
    method.begin(Phase(2, 5, 9), pool)
    assert method.divergence.classes == 5
    assert not torch.equal(method.divergence.new.weight[:3], before)


# Compiled code


def said_and_slopes(net, compiled):
    """What the tokens become, and every gradient; the same numbers of chance each time."""
    net.zero_grad()
    torch.manual_seed(1)
    with fusing() if compiled else nullcontext():
        said = net(images().float()).pooled
    if said.requires_grad:
        said.square().mean().backward()
    return {"said": said.detach()} | {name: p.grad for name, p in net.named_parameters() if p.grad is not None}


def test_more_tokens_need_no_more_compiled_code_and_say_the_same():
    """Versions are those of one token and of several, each that learns whole, is tuned, and rests as a teacher."""
    torch._dynamo.reset()
    counters.clear()
    net, made = tiny(stochastic_depth=0.3).float().train(), []
    with torch.compiler.set_stance("default", force_backend="eager"):
        for tokens in range(1, 7):
            if tokens > 1:
                net.grow()
            for learner in (net, resting_encoder(net), Teacher(net).net):
                eager, compiled = said_and_slopes(copy.deepcopy(learner), False), said_and_slopes(learner, True)
                torch.testing.assert_close(compiled, eager, rtol=1e-4, atol=1e-6)
            made.append(counters["stats"]["unique_graphs"])
    torch._dynamo.reset()
    assert made == [3, 6, 6, 6, 6, 6]


def resting_encoder(net):
    net = copy.deepcopy(net)
    net.encoder.requires_grad_(False)
    set_modes(net)
    return net


# Runs


def test_a_network_without_tokens_is_refused(tmp_path):
    with pytest.raises(UsageError, match="dytox: needs a network with task tokens: use --net convit"):
        plan(tmp_path / "run", "dytox", net="small")


def test_the_loss_is_a_setting_and_lets_in_what_needs_a_softmax(tmp_path):
    fields, softce = {"net": "convit-small"}, [("dytox.loss", "softce")]
    with pytest.raises(UsageError, match="plug-in 'paco' lets images compete with the classes of a softmax"):
        plan(tmp_path / "binary", "dytox+paco", **fields)
    assert plan(tmp_path / "softmax", "dytox+paco", settings=softce, **fields).experiment.method.softmax
    with pytest.raises(UsageError, match=r"dytox\.loss = 'ce' is not allowed"):
        plan(tmp_path / "run", "dytox", settings=[("dytox.loss", "ce")], **fields)
    with pytest.raises(ValueError, match="no loss 'ce'; there are bce, softce"):
        DyTox(make_tokens, loss="ce")


def test_a_loss_that_is_the_default_leaves_the_fingerprint_as_it_was(tmp_path):
    found = [
        plan(tmp_path / name, "dytox", net="convit-small", settings=settings).info["fingerprint"]
        for name, settings in {
            "plain": [],
            "told": [("dytox.loss", "bce")],
            "other": [("dytox.loss", "softce")],
        }.items()
    ]
    assert found[0] == found[1] != found[2]


def test_settings_of_the_network_are_settings_of_the_run(tmp_path):
    begun = plan(tmp_path / "run", "dytox", net="convit-small", settings=[("convit-small.embed", 32)])
    assert begun.experiment.method.net.backbone.dim == 32
    assert isinstance(begun.experiment.method.net.backbone, TokenTransformer)


def test_recipes_have_the_papers_training():
    plain, plus = RECIPES["dytox-original"](), RECIPES["dytox-plus"]()
    assert (plain.net, plain.memory, plain.base, plain.step, plain.augment) == (
        "convit",
        "2000",
        0,
        10,
        {"randaugment": 9.0},
    )
    assert plain.stage.lr == pytest.approx(5e-4 * plain.stage.batch / 512)
    assert (plain.plugins, plus.plugins) == ((), ("mixup",))


def losses_of(engine, device):
    """The terms of the first steps of a later phase, with all that draws."""
    world = World("dytox", ("bdr", "mixup"), 1, device)
    # Whether a replayed graph draws the same numbers is torch's affair.
    world.method.net.backbone.stochastic_depth = 0.0
    world.store.augment = Augment(pad=1, flip=False, randaugment=9.0)
    stage = Stage(epochs=1, batch=8, optimizer="adamw", lr=1e-4, repeat=3)
    world.begin(stage)
    fit = Fit(world.objective(stage), world.pool, engine, 0)
    with eager_between_steps(engine):
        return torch.from_numpy(fit.epoch(0, 0, None, lambda step, log: None).values), fit.eager.names


def test_a_later_phase_trains_with_mixtures_and_bdr():
    values, names = losses_of("eager", "cpu")
    assert names == ("bce", "distillation", "divergence", "ce_old")
    assert values[:, :3].isfinite().all()


def test_the_rate_of_cifar_rises_from_a_millionth_in_five_epochs():
    stage = cifar100("dytox").stage
    found = [learning_rate(stage, epoch) for epoch in range(6)]
    assert found == pytest.approx([1e-6 + (2.5e-4 - 1e-6) * epoch / 5 for epoch in range(6)])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_three_engines_agree():
    torch._dynamo.reset()
    eager, names = losses_of("eager", "cuda")
    for engine in ("compile", "graph"):
        values, same = losses_of(engine, "cuda")
        assert same == names
        torch.testing.assert_close(values, eager, rtol=0.01, atol=0.01, equal_nan=True, msg=engine)


PLUS = "dytox+mixup+bdr"
SMALL = {
    "net": "convit-small",
    "phases": 2,
    "settings": [
        ("convit-small.embed", 16),
        ("convit-small.stochastic_depth", 0.3),
        ("augment.randaugment", 9.0),
        ("stage.balanced.epochs", 2),
        ("stage.balanced.batch", 8),
    ],
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return train(tmp_path_factory.mktemp("whole") / "run", PLUS, **SMALL)


@pytest.mark.parametrize("position", [Position(1, 0, 1, 2), Position(1, 1, 1, 1)])
def test_a_run_with_mix_up_and_stochastic_depth_ends_where_the_whole_one_does(position, whole, tmp_path):
    path = train_until(position, tmp_path / "run", PLUS, **SMALL)
    torch.rand(7)  # whatever else happened meanwhile
    api.resume(path)
    assert_equal(path, whole)
