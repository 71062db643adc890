"""E2E: distillation head by head as a loop, the balanced stage, the noise, and its augmentation."""

import math

import pytest
import torch
from references import slow_cross_entropy
from runs import assert_equal, train, train_until
from small import make_batch, make_flat, make_pool

from bdr import api
from bdr.configuration.frames import cifar10, cifar100, imagefolder
from bdr.configuration.recipes import e2e_original
from bdr.engine.checkpoint import Position
from bdr.engine.fit import Fit
from bdr.engine.objective import Objective
from bdr.losses import cross_entropy, distillation
from bdr.methods.e2e import E2E, Heads, headwise_distillation
from bdr.nets import NETS, Network
from bdr.types import Clock, ImageShape, Phase, Stage

COUNTS = (6, 7, 8, 9, 5, 7, 6)
PHASES = (3, 5, 7)  # classes seen after each
NOTHING = torch.zeros(0, dtype=torch.long)


def small_net(head, last_relu=True):
    return Network(NETS["small"](ImageShape(1, 8, 8), last_relu), head(64))


def third_phase(make=make_flat, **settings):
    """A method in its third phase, away from where the second one left it."""
    torch.manual_seed(0)
    method, old = E2E(make, **settings), 0
    for index, seen in enumerate(PHASES):
        pool = make_pool(COUNTS[:seen], old, side=8 if make is small_net else 4)
        pool.phase = Phase(index, old, seen)
        method.begin(pool.phase, pool)
        if seen < PHASES[-1]:
            method.end(pool.phase, pool, NOTHING)
        old = seen
        with torch.no_grad():
            for parameter in method.net.parameters():
                parameter += 0.3 * torch.randn_like(parameter)
    return method, pool


def all_of(pool):
    return make_batch(pool.store.plain(pool.rows), pool.store.labels[pool.rows])


def softened(row, temperature):
    powers = [math.exp(z / temperature) for z in row]
    return [power / sum(powers) for power in powers]


def slow_distillation(rows, references, bounds, temperature):
    """The mean over the images of the sum over the heads of KL(teacher || student)."""
    total = 0.0
    for row, reference in zip(rows, references, strict=True):
        for start, end in bounds:
            student, teacher = softened(row[start:end], temperature), softened(reference[start:end], temperature)
            total += sum(p * math.log(p / q) for p, q in zip(teacher, student, strict=True))
    return total / len(rows)


@pytest.mark.parametrize("bounds", [[(0, 3), (3, 5), (5, 9)], [(0, 1), (1, 9)], [(0, 9)]])
@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_distillation_head_by_head_is_its_loop(bounds, temperature):
    chance, heads = torch.Generator().manual_seed(len(bounds)), Heads()
    for start, end in bounds:
        heads.grow(end - start)
    logits, reference = 6 * torch.randn(2, 7, 9, generator=chance, dtype=torch.float64)
    ours = headwise_distillation(logits, reference, heads.members, temperature).mean()
    slow = slow_distillation(logits.tolist(), reference.tolist(), bounds, temperature)
    assert ours.item() == pytest.approx(slow, rel=1e-9)


def test_one_head_is_plain_distillation():
    heads, (logits, reference) = Heads(), torch.randn(2, 4, 6)
    heads.grow(6)
    ours = headwise_distillation(logits, reference, heads.members, 2.0)
    torch.testing.assert_close(ours, distillation(logits, reference, 2.0))


def test_heads_far_below_the_others_are_distilled_as_exactly():
    chance, heads = torch.Generator().manual_seed(0), Heads()
    logits, reference = torch.randn(2, 4, 6, generator=chance, dtype=torch.float64)
    for _ in range(2):
        heads.grow(3)
    far = torch.tensor([0.0] * 3 + [-500.0] * 3)
    logits.requires_grad_()
    one = headwise_distillation(logits, reference, heads.members, 2.0).sum()
    other = headwise_distillation(logits + far, reference - far, heads.members, 2.0).sum()
    torch.testing.assert_close(other, one)
    torch.testing.assert_close(torch.autograd.grad(other, [logits]), torch.autograd.grad(one, [logits]))


def test_the_terms_of_both_stages_are_their_loops():
    method, pool = third_phase()
    method.begin_stage(Stage(loss="balanced"), pool.phase, pool)
    with torch.no_grad():
        method.net.backbone.matrix.weight += 0.2
    method.double()
    batch = all_of(pool)
    batch = batch._replace(x=batch.x.double())
    plain, balanced = (loss(batch, pool.phase, cross_entropy) for loss in (method.loss, method.balanced))
    logits = method.net(batch.x).logits.tolist()
    before, unbalanced = method.teacher(batch.x).logits.tolist(), method.unbalanced(batch.x).logits.tolist()
    old = slow_distillation(logits, before, [(0, 3), (3, 5)], 2.0)
    assert (list(plain), list(balanced)) == (["ce", "distillation"], ["ce", "distillation", "newest"])
    assert plain["ce"].item() == pytest.approx(slow_cross_entropy(logits, batch.y.tolist()), rel=1e-9)
    assert plain["distillation"].item() == balanced["distillation"].item() == pytest.approx(old, rel=1e-9)
    assert balanced["newest"].item() == pytest.approx(slow_distillation(logits, unbalanced, [(5, 7)], 2.0), rel=1e-9)
    assert balanced["newest"].item() > 0


def test_the_balanced_stage_begins_with_the_newest_head_as_it_is():
    method, pool = third_phase()
    method.begin_stage(Stage(loss="balanced"), pool.phase, pool)
    assert method.balanced(all_of(pool), pool.phase, cross_entropy)["newest"].item() == pytest.approx(0, abs=1e-6)


def test_the_first_phase_is_plain_cross_entropy_in_one_stage():
    method, pool = E2E(make_flat), make_pool(COUNTS[:3])
    method.begin(pool.phase, pool)
    assert list(method.loss(all_of(pool), pool.phase, cross_entropy)) == ["ce"]
    assert method.stages(pool.phase, Stage()) == [Stage()]


@pytest.mark.parametrize(("epochs", "balanced", "drops"), [(40, 30, (10, 20)), (20, 15, (5, 10)), (1, 1, (0, 1))])
def test_the_balanced_stage_is_three_quarters_as_long_at_a_tenth_of_the_rate(epochs, balanced, drops):
    base = Stage(epochs=epochs, lr=0.1, warmup=5, drops=(1, 2))
    first, second = E2E(make_flat).stages(Phase(1, 3, 5), base)
    assert first == base
    assert (second.name, second.draw, second.loss) == ("balanced", "memory", "balanced")
    assert (second.epochs, second.lr, second.drops, second.warmup) == (balanced, pytest.approx(0.01), drops, 0)


# Noise


def noise_of(method, pool, epoch):
    """All that is added to the gradients, a part a parameter."""
    method.loss(all_of(pool), pool.phase, cross_entropy)["ce"].backward()
    before = [p.grad.clone() for p in method.net.parameters()]
    now = torch.tensor(epoch)
    method.graded(Clock(now, now, now))
    return [p.grad - slope for p, slope in zip(method.net.parameters(), before, strict=True)]


@pytest.mark.parametrize("epoch", [0, 9])
def test_noise_is_that_of_a_summed_gradient_and_fades_with_the_epochs(epoch):
    method, pool = third_phase(small_net)
    method.net.to(memory_format=torch.channels_last)
    method.begin_stage(Stage(batch=8), pool.phase, pool)
    added = noise_of(method, pool, epoch)
    wanted = 0.3 / 8 / (1 + epoch) ** 0.55
    for part in added:
        if part.numel() > 100:
            assert part.std().item() == pytest.approx(wanted, rel=0.25)
            assert abs(part.mean().item()) < wanted
    together = torch.cat([part.flatten() for part in added])
    assert together.std().item() == pytest.approx(wanted, rel=0.05)
    assert len(together.unique()) > 0.9 * len(together)


def test_there_is_no_noise_in_the_balanced_stage_nor_where_it_is_set_to_nothing():
    method, pool = third_phase()
    method.begin_stage(Stage(loss="balanced"), pool.phase, pool)
    assert all(part.abs().max() == 0 for part in noise_of(method, pool, 0))
    method, pool = third_phase(noise=0.0)
    method.begin_stage(Stage(), pool.phase, pool)
    state = torch.get_rng_state()
    assert all(part.abs().max() == 0 for part in noise_of(method, pool, 0))
    assert torch.equal(state, torch.get_rng_state())


def test_a_stage_is_known_by_what_it_minimises_and_may_have_any_name():
    method, pool = third_phase()
    method.begin_stage(Stage(name="balanced"), pool.phase, pool)
    assert all(part.abs().max() > 0 for part in noise_of(method, pool, 0))
    method.begin_stage(Stage(name="second", loss="balanced"), pool.phase, pool)
    assert all(part.abs().max() == 0 for part in noise_of(method, pool, 0))


def test_a_stage_trains_with_noise():
    method, pool = third_phase()
    stage = Stage(epochs=1, batch=8, lr=0.01)
    method.begin_stage(stage, pool.phase, pool)
    log = Fit(Objective(method, [], pool.phase, stage), pool, "eager", 0).epoch(0, 0, None, lambda *_: None)
    assert log.names == ("ce", "distillation", "ce_old")


# A run


@pytest.mark.parametrize("setting", [("temperature", 0.0, "more than 0"), ("noise", -0.1, "0 or more")])
def test_settings_that_cannot_be_are_refused(setting):
    name, value, allowed = setting
    with pytest.raises(ValueError, match=f"{name} = {value} is not allowed: it is {allowed}"):
        E2E(make_flat, **{name: value})


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return train(tmp_path_factory.mktemp("whole") / "run", "e2e", net="runs:flat")


@pytest.mark.parametrize("position", [Position(1, 0, 1, 2), Position(2, 1, 1, 0)], ids=["noise", "balanced"])
def test_a_run_stopped_in_either_stage_ends_where_the_whole_one_does(position, whole, tmp_path):
    path = train_until(position, tmp_path / "run", "e2e", net="runs:flat")
    torch.rand(7)  # whatever else happened meanwhile
    api.resume(path)
    assert_equal(path, whole)


def test_its_twelve_kinds_of_images_are_part_of_its_recipes():
    assert cifar100("e2e").augment == {"additive": 63 / 255, "contrast": 0.8, "uncropped": 0.5}
    assert e2e_original().augment == cifar100("e2e").augment
    assert (e2e_original().net, e2e_original().stage.weight_decay) == ("resnet32", 1e-4)


def test_its_own_recipe_is_as_long_as_the_papers_epochs_of_twelve_images_for_one():
    original = e2e_original()
    assert (original.stage.epochs, original.stage.drops) == (12 * 40, (120, 240, 360))
    assert original.settings["e2e"] == {"noise_epoch": 12}


def test_on_resnet_18_its_noise_is_as_long_as_on_resnet_32():
    from bdr.nets import NETS
    from bdr.types import ImageShape

    def length(config):
        net = NETS[config.net](ImageShape(3, 32, 32))
        return config.settings.get("e2e", {}).get("noise", 0.3) * sum(p.numel() for p in net.parameters()) ** 0.5

    assert length(e2e_original()) == length(cifar100("e2e", "aanet"))  # both are ResNet-32
    for large in (cifar100("e2e"), cifar10("e2e"), imagefolder("e2e")):
        assert length(large) == pytest.approx(length(e2e_original()), rel=0.01)
