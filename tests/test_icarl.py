"""iCaRL and LwF: their terms as loops over plain numbers, and what plug-ins can move in them."""

from __future__ import annotations

import math

import pytest
import torch
from small import make_batch, make_flat, make_pool

from bdr.configuration.recipes import RECIPES
from bdr.losses import binary, distillation, one_hot
from bdr.methods import ICaRL, LwF
from bdr.types import Stage

COUNTS, OLD = (6, 7, 8, 9, 5), 3
NOTHING = torch.zeros(0, dtype=torch.long)


def started(kind, exemplars=3, **settings):
    """A method at the start of its second phase, with a teacher that differs from the network by now."""
    torch.manual_seed(0)
    method, first, pool = kind(make_flat, **settings), make_pool(COUNTS[:OLD]), make_pool(COUNTS, OLD, exemplars)
    method.begin(first.phase, first)
    method.end(first.phase, first, NOTHING)
    with torch.no_grad():
        for parameter in method.net.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    method.begin(pool.phase, pool)
    return method.double(), pool


def all_of(pool):
    return make_batch(pool.store.plain(pool.rows).double(), pool.store.labels[pool.rows])


def log_sigmoid(value):
    return -math.log1p(math.exp(-value))


def slow_binary(logit, target):
    return -(target * log_sigmoid(logit) + (1 - target) * log_sigmoid(-logit))


def slow_softmax(row, temperature):
    exponentials = [math.exp(value / temperature) for value in row]
    return [value / sum(exponentials) for value in exponentials]


def slow_divergence(row, reference, temperature):
    ours, theirs = slow_softmax(row, temperature), slow_softmax(reference, temperature)
    return sum(q * math.log(q / p) for p, q in zip(ours, theirs, strict=True))


def test_icarl_asks_every_output_a_question_and_answers_old_ones_as_the_teacher_does():
    method, pool = started(ICaRL)
    batch = all_of(pool)
    terms = method.loss(batch, pool.phase, method.criterion)
    logits, teacher = method.net(batch.x).logits.tolist(), method.teacher(batch.x).logits.tolist()
    new = old = 0.0
    for row, said, label in zip(logits, teacher, batch.y.tolist(), strict=True):
        new += sum(slow_binary(row[k], float(k == label)) for k in range(OLD, len(COUNTS)))
        old += sum(slow_binary(row[k], 1 / (1 + math.exp(-said[k]))) for k in range(OLD))
    outputs = len(batch.y) * len(COUNTS)
    assert list(terms) == ["bce", "distillation"]
    assert terms["bce"].item() == pytest.approx(new / outputs, abs=1e-9)
    assert terms["distillation"].item() == pytest.approx(old / outputs, abs=1e-9)


def test_the_first_phase_of_icarl_is_binary_cross_entropy_over_all_classes():
    torch.manual_seed(0)
    method, pool = ICaRL(make_flat), make_pool(COUNTS)
    method.begin(pool.phase, pool)
    batch = all_of(pool)
    terms = method.double().loss(batch, pool.phase, method.criterion)
    logits = method.net(batch.x).logits
    target = torch.nn.functional.one_hot(batch.y, len(COUNTS)).double()
    expected = torch.nn.functional.binary_cross_entropy_with_logits(logits, target)
    assert list(terms) == ["bce"]
    torch.testing.assert_close(terms["bce"], expected)


def test_an_offset_moves_new_columns_of_icarl_only():
    method, pool = started(ICaRL)
    out, y = method.net(all_of(pool).x), all_of(pool).y
    on_old, on_new = (
        torch.tensor([3.0, -2.0, 1.0, 0.0, 0.0]).double(),
        torch.tensor([0.0, 0.0, 0.0, 2.0, -1.0]).double(),
    )
    plain = method.criterion(out, y)
    assert torch.equal(method.criterion(out.shift(on_old), y), plain)
    assert not torch.allclose(method.criterion(out.shift(on_new), y), plain)


def test_icarl_is_told_by_the_nearest_mean_once_there_are_exemplars():
    method, pool = started(ICaRL)
    x = all_of(pool).x.float()
    torch.testing.assert_close(method.float()(x), method.net(x).logits)
    method.remember(pool.phase, pool, pool.rows)
    torch.testing.assert_close(method(x), method.readouts(x)["nme"])


def test_lwf_holds_the_old_logits_softly():
    method, pool = started(LwF, weight=3.0, temperature=2.0)
    batch = all_of(pool)
    terms = method.loss(batch, pool.phase, method.criterion)
    logits, teacher = method.net(batch.x).logits.tolist(), method.teacher(batch.x).logits.tolist()
    pairs = zip(logits, teacher, strict=True)
    expected = sum(slow_divergence(row[:OLD], said, 2.0) for row, said in pairs) / len(batch.y)
    assert terms["distillation"].item() == pytest.approx(expected, abs=1e-9)
    assert method.weights(pool.phase, Stage()) == {"distillation": 3.0}


def test_without_exemplars_old_classes_take_no_part_in_the_cross_entropy_of_lwf():
    method, pool = started(LwF, exemplars=0)
    batch = all_of(pool)
    out = method.net(batch.x)
    expected = torch.nn.functional.cross_entropy(out.logits[:, OLD:], batch.y - OLD, reduction="none")
    torch.testing.assert_close(method.criterion(out, batch.y), expected)


def test_with_exemplars_all_classes_do():
    method, pool = started(LwF)
    batch = all_of(pool)
    out = method.net(batch.x)
    expected = torch.nn.functional.cross_entropy(out.logits, batch.y, reduction="none")
    torch.testing.assert_close(method.criterion(out, batch.y), expected)


def test_a_student_that_says_the_same_loses_nothing():
    logits = torch.randn(7, 4, dtype=torch.float64)
    torch.testing.assert_close(distillation(logits, logits + 3.0, 2.0), torch.zeros(7, dtype=torch.float64))


def test_mixed_targets_are_mixtures_of_questions():
    logits, mixed = torch.randn(2, 3), torch.tensor([[0.3, 0.7, 0.0], [0.0, 0.0, 1.0]])
    parts = [
        0.3 * binary(logits[:1], one_hot(torch.tensor([0]), logits)),
        0.7 * binary(logits[:1], one_hot(torch.tensor([1]), logits)),
    ]
    torch.testing.assert_close(binary(logits, one_hot(mixed, logits))[:1], sum(parts))


@pytest.mark.parametrize(("outputs", "divisor"), [(0, 5), (3, 5), (100, 100)])
def test_icarl_may_be_a_mean_over_all_outputs_that_there_will_be(outputs, divisor):
    (plain, pool), (ours, _) = started(ICaRL), started(ICaRL, outputs=outputs)
    whole, part = (each.loss(all_of(pool), pool.phase, each.criterion) for each in (plain, ours))
    for name, value in whole.items():
        torch.testing.assert_close(part[name], value * len(COUNTS) / divisor)


def test_the_original_icarl_divides_by_its_hundred_outputs():
    assert RECIPES["icarl-original"]().settings == {"icarl": {"outputs": 100}}
    with pytest.raises(ValueError, match="outputs = -1 is not allowed"):
        ICaRL(make_flat, outputs=-1)


@pytest.mark.parametrize("temperature", [0.0, -1.0])
def test_a_temperature_that_is_none_is_refused(temperature):
    with pytest.raises(ValueError, match=f"temperature = {temperature} is not allowed"):
        LwF(make_flat, temperature=temperature)


def test_the_classes_that_are_present_are_part_of_the_state():
    method, _ = started(LwF, exemplars=0)
    assert method.present.mask.tolist() == [False] * OLD + [True] * (len(COUNTS) - OLD)
    other = LwF(make_flat)
    other.present.lay_out(method.present.layout())
    other.present.load_state_dict(method.present.state_dict())
    assert torch.equal(other.present.mask, method.present.mask)
