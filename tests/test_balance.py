"""BDR on its own: against the equations as slow loops, against the dossier's numbers, and against itself."""

import math
import shutil
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from references import SlowBDR, one_hot

from bdr.balance import BDR, COMPONENTS, FORMULAS, compensation

COUNTS = (1, 2, 3, 5, 20, 40)
K, DIM = len(COUNTS), 4
SETTINGS = [
    {"m": 0.8, "m_prime": 0.8, "beta": 0.99, "tau": 1.0},
    {"m": 0.3, "m_prime": 0.6, "beta": 0.5, "tau": 2.0},
    {"m": 0.0, "m_prime": 0.0, "beta": 0.9, "tau": 0.5},
    {"m": 1.0, "m_prime": 0.2, "beta": 0.0, "tau": 1.5},
    {"m": 0.5, "m_prime": 1.0, "beta": 1.0, "tau": 1.0},
]
ROUTES = [(formula, values) for formula in FORMULAS for values in SETTINGS]
some_share = st.floats(0, 1)
gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def images(seed=0, counts=COUNTS, dtype=torch.float64):
    """Labels and features of a phase, every class with a centre and a width of its own."""
    chance = torch.Generator().manual_seed(seed)
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    centres = torch.randn(len(counts), DIM, generator=chance)
    widths = torch.rand(len(counts), 1, generator=chance) + 0.1
    noise = torch.randn(len(labels), DIM, generator=chance)
    return labels, (centres[labels] + widths[labels] * noise).to(dtype)


def batches(seed=1, steps=50, classes=K, dtype=torch.float64):
    """Batches in which classes are absent, single and several; features drift, as they do in training."""
    chance = torch.Generator().manual_seed(seed)
    for step in range(steps):
        size = int(torch.randint(1, 14, (), generator=chance))
        y = torch.randint(classes, (size,), generator=chance)
        yield (torch.randn(size, DIM, generator=chance) * (1 + step / 25) + 0.1 * y[:, None]).to(dtype), y


def begun(seed=0, counts=COUNTS, dtype=torch.float64, **values):
    balance = BDR(**values)
    balance.begin(*images(seed, counts, dtype))
    return balance


def observed(steps=10, seed=1, **values):
    balance = begun(**values)
    for features, y in batches(seed, steps):
        balance.observe(features, y)
    return balance


def loss_and_offset(balance, seed=3):
    logits = torch.randn(8, balance.classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    y = torch.arange(8) % balance.classes
    return F.cross_entropy(logits + balance.offset, y), F.cross_entropy(logits, y)


def near(ours, theirs):
    torch.testing.assert_close(ours, torch.tensor(theirs, dtype=ours.dtype), rtol=0, atol=1e-9)


def agree(balance, slow):
    near(balance.mean, slow.mean)
    near(balance.spread, slow.spread)
    near(balance.offset, slow.offset)


def test_the_random_batches_hold_absent_single_and_several():
    seen = {min(int((y == k).sum()), 2) for _, y in batches() for k in range(K)}
    assert seen == {0, 1, 2}


@pytest.mark.parametrize(("formula", "values"), ROUTES)
def test_fifty_steps_follow_the_equations(formula, values):
    labels, features = images()
    values = values | {"formula": formula}
    balance, slow = BDR(**values), SlowBDR(labels.tolist(), features.tolist(), K, **values)
    balance.begin(labels, features)
    agree(balance, slow)
    for features, y in batches():
        balance.observe(features, y)
        slow.step(features.tolist(), one_hot(y.tolist(), K))
        agree(balance, slow)


@pytest.mark.parametrize("formula", ["corrected", "anchored"])
def test_mixed_targets_count_in_parts(formula):
    labels, features = images()
    values = SETTINGS[0] | {"formula": formula}
    balance, slow = BDR(**values), SlowBDR(labels.tolist(), features.tolist(), K, **values)
    balance.begin(labels, features)
    for features, y in batches(steps=20):
        mixed = 0.7 * F.one_hot(y, K).double() + 0.3 * F.one_hot(y.roll(1), K).double()
        balance.observe(features, mixed)
        slow.step(features.tolist(), mixed.tolist())
        agree(balance, slow)


def worked_example(m):
    """50 old classes of 20 images and spread 1, 10 new ones of 500 and spread 2."""
    counts, spreads = [20] * 50 + [500] * 10, [1.0] * 50 + [2.0] * 10
    labels = torch.repeat_interleave(torch.arange(60), torch.tensor(counts))
    signs = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(len(labels) // 2)
    balance = BDR(m=m)
    balance.begin(labels, (signs * torch.tensor(spreads).double().sqrt()[labels])[:, None])
    return balance


@pytest.mark.parametrize(("m", "ratio"), [(1.0, 25.0), (0.8, 10.865), (0.5, 4.296), (0.0, 0.5)])
def test_the_worked_example_gives_the_printed_ratios(m, ratio):
    initial = worked_example(m).initial
    assert float(initial[-1] / initial[0]) == pytest.approx(ratio, abs=5e-4)


def test_the_worked_example_gives_the_printed_offsets():
    balance = worked_example(0.8)
    assert balance.initial[[0, -1]].tolist() == pytest.approx([0.006303, 0.068485], abs=5e-7)
    assert (balance.offset[[0, -1]] - math.log(60)).tolist() == pytest.approx([-5.0667, -2.6811], abs=5e-5)


@pytest.mark.parametrize("tau", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("formula", ["corrected", "anchored"])
def test_with_both_shares_one_it_is_logit_adjustment(formula, tau):
    balance = observed(m=1.0, m_prime=1.0, tau=tau, formula=formula)
    adjustment = tau * torch.log(torch.tensor(COUNTS, dtype=torch.float64) / sum(COUNTS))
    torch.testing.assert_close(balance.offset, adjustment + tau * math.log(K), rtol=0, atol=1e-12)
    logits, y = torch.randn(6, K, dtype=torch.float64), torch.arange(6) % K
    torch.testing.assert_close(F.cross_entropy(logits + balance.offset, y), F.cross_entropy(logits + adjustment, y))


@pytest.mark.parametrize("formula", FORMULAS)
def test_flat_prior_leaves_the_loss_alone(formula):
    labels = torch.arange(4).repeat_interleave(2)
    features = torch.tensor([[1.0], [-1.0]], dtype=torch.float64).repeat(4, 1) + labels[:, None]
    balance = BDR(formula=formula)
    balance.begin(labels, features)
    balance.observe(features, labels)
    shifted, plain = loss_and_offset(balance)
    torch.testing.assert_close(shifted, plain, rtol=0, atol=1e-10)
    assert float(balance.offset.abs().max()) < 1e-10


@pytest.mark.parametrize("formula", FORMULAS)
def test_the_gradient_is_softmax_of_shifted_logits_minus_one_hot(formula):
    balance, (features, y) = begun(formula=formula), list(batches(steps=8))[-1]
    logits = torch.randn(len(y), K, dtype=torch.float64, requires_grad=True)
    F.cross_entropy(balance(logits, features, y), y, reduction="sum").backward()
    expected = torch.softmax(logits.detach() + balance.offset, 1) - F.one_hot(y, K)
    torch.testing.assert_close(logits.grad, expected, rtol=0, atol=1e-12)


def test_the_batch_is_observed_before_it_is_classified():
    balance, other, (features, y) = begun(beta=0.5), begun(beta=0.5), next(batches())
    other.observe(features, y)
    torch.testing.assert_close(balance(torch.zeros(len(y), K), features, y)[0], other.offset.float())
    assert not torch.equal(other.offset, begun(beta=0.5).offset)


def test_no_gradient_reaches_the_features():
    balance, (features, y) = begun(), next(batches())
    features.requires_grad_()
    logits = torch.zeros(len(y), K, dtype=torch.float64, requires_grad=True)
    balance(logits, features, y).sum().backward()
    assert features.grad is None
    assert not balance.mean.requires_grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("formula", FORMULAS)
def test_one_exemplar_in_a_class_lets_no_infinity_through(formula, dtype):
    several = begun(counts=(1, 1, 30), formula=formula, dtype=dtype)
    assert several.spread[2] > 0
    assert several.spread[:2].tolist() == [float(several.spread[2])] * 2
    assert_stays_finite(several, dtype)
    none = begun(counts=(1, 1, 1), formula=formula, dtype=dtype)
    assert none.spread.tolist() == [0, 0, 0]
    assert none.initial.tolist() == pytest.approx([1 / 3] * 3)
    assert_stays_finite(none, dtype)


def assert_stays_finite(balance, dtype):
    assert balance.offset.isfinite().all()
    for features, y in batches(steps=20, classes=3, dtype=dtype):
        balance.observe(features, y)
        assert balance.offset.isfinite().all()
        assert balance.spread.isfinite().all()


@pytest.mark.parametrize("single", [0, 4, 11])
def test_a_single_image_gets_the_mean_spread_of_the_classes_that_have_several(single):
    """Nine classes of 20 images, one of 1 and two of 500, the single one at any place."""
    counts = [20] * 9 + [500] * 2
    counts.insert(single, 1)
    balance = begun(counts=counts, m=0.5)
    others = [k for k in range(len(counts)) if k != single]
    omega = compensation(balance.spread)
    assert balance.spread[single] == pytest.approx(float(balance.spread[others].mean()))
    assert omega[others].min() < omega[single] < omega[others].max()
    assert omega[others].sum() > 0.9  # it does not take all
    assert balance.initial.tolist() == pytest.approx((0.5 * balance.count / sum(counts) + 0.5 * omega).tolist())
    alone = begun(counts=counts, m=0.0)
    assert alone.offset[single] == pytest.approx(math.log(len(counts) * float(omega[single])))


@pytest.mark.parametrize("formula", FORMULAS)
def test_a_large_tau_keeps_the_offset_finite(formula):
    balance = begun(counts=(1, 10, 30), m=0.0, m_prime=0.0, tau=4.0, formula=formula, dtype=torch.float32)
    assert balance.offset.isfinite().all()


@pytest.mark.parametrize(
    ("components", "same_as"),
    [
        ("cr", {"m": 1.0, "m_prime": 1.0, "beta": 0.7}),
        ("cr+dc", {"m": 0.3, "m_prime": 0.4, "beta": 0.0}),
        ("cr+dc+momentum", {"m": 0.3, "m_prime": 0.4, "beta": 0.7}),
    ],
)
@pytest.mark.parametrize("formula", FORMULAS)
def test_components_are_the_right_shares_and_momentum(components, same_as, formula):
    short = observed(m=0.3, m_prime=0.4, beta=0.7, components=components, formula=formula)
    assert torch.equal(short.offset, observed(formula=formula, **same_as).offset)


def test_the_components_differ():
    offsets = [observed(components=components).offset for components in COMPONENTS]
    assert not any(torch.allclose(offsets[i], offsets[j]) for i, j in ((0, 1), (0, 2), (1, 2)))


@pytest.mark.parametrize("formula", FORMULAS)
def test_with_momentum_one_the_offset_stays_where_it_began(formula):
    assert torch.allclose(observed(beta=1.0, formula=formula).offset, begun(beta=1.0, formula=formula).offset)


def test_in_eval_mode_logits_stay_plain_and_nothing_moves():
    balance, (features, y) = begun().eval(), next(batches())
    before = {name: value.clone() for name, value in balance.state_dict().items()}
    logits = torch.randn(len(y), K)
    assert torch.equal(balance(logits, features, y), logits)
    assert all(torch.equal(before[name], value) for name, value in balance.state_dict().items())


def test_before_any_phase_logits_stay_plain():
    logits = torch.randn(3, 2)
    with pytest.warns(UserWarning, match="rests until begin"):
        assert torch.equal(BDR()(logits, torch.randn(3, DIM), torch.tensor([0, 1, 1])), logits)


@pytest.mark.parametrize(
    ("logits", "features", "y", "sentence"),
    [
        ((3, K - 1), (3, DIM), (3,), rf"logits are \(3, {K - 1}\) and begin\(\) saw {K} classes"),
        ((3, K), (3, DIM + 1), (3,), rf"features are \(3, {DIM + 1}\)"),
        ((3, K), (1, DIM), (3,), r"features are \(1, "),
        ((3, K), (3, DIM), (3, 1), r"targets are \(3, 1\)"),
        ((3, K), (3, DIM), (2,), r"targets are \(2,\)"),
    ],
)
def test_shapes_that_do_not_fit_are_refused_before_anything_moves(logits, features, y, sentence):
    balance = begun(dtype=torch.float32)
    before = {name: value.clone() for name, value in balance.state_dict().items()}
    with pytest.raises(ValueError, match=sentence):
        balance(torch.zeros(logits), torch.zeros(features), torch.zeros(y, dtype=torch.long))
    assert all(torch.equal(before[name], value) for name, value in balance.state_dict().items())


@pytest.mark.parametrize(
    ("features", "y", "sentence"),
    [
        (
            torch.zeros(3, DIM + 1),
            torch.zeros(3).long(),
            rf"features are \(3, {DIM + 1}\), and \(3, {DIM}\) is expected",
        ),
        (torch.zeros(3, DIM, 1), torch.zeros(3).long(), r"features are \(3, .*, 1\)"),
        (torch.zeros(3, DIM), torch.zeros(2).long(), r"targets are \(2,\): ids \(3,\)"),
        (torch.zeros(3, DIM), torch.zeros(3, 1).long(), r"targets are \(3, 1\): ids \(3,\)"),
        (torch.zeros(3, DIM), torch.tensor([0, 1, -1]), "targets are from -1 to 1"),
        (torch.zeros(3, DIM), torch.zeros(3), r"targets are torch.float32, and ids are integers: targets.long\(\)"),
    ],
)
def test_a_batch_that_does_not_fit_is_no_more_observed_than_balanced(features, y, sentence):
    balance = begun(dtype=torch.float32)
    for call in (balance.observe, lambda features, y: balance(torch.zeros(3, K), features, y)):
        with pytest.raises(ValueError, match=sentence):
            call(features, y)
    assert all(
        torch.equal(value, begun(dtype=torch.float32).state_dict()[name])
        for name, value in balance.state_dict().items()
    )


def test_nothing_is_observed_before_a_phase_begins():
    with pytest.raises(ValueError, match=r"before begin\(labels, features\); a first phase has nothing to balance"):
        BDR().observe(torch.zeros(3, DIM), torch.zeros(3).long())


def test_a_head_for_classes_to_come_is_told_what_to_give():
    with pytest.raises(ValueError, match=rf"give logits\[:, :{K}\] where a head is made for classes to come"):
        begun()(torch.zeros(3, 100), torch.zeros(3, DIM), torch.zeros(3).long())


@pytest.mark.parametrize("name", ["m", "m_prime", "beta"])
@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan")])
def test_shares_outside_zero_and_one_are_refused(name, value):
    with pytest.raises(ValueError, match=rf"{name} = .* is not in \[0, 1\]"):
        BDR(**{name: value})


def test_unknown_formulas_and_components_are_refused_with_the_list_of_known_ones():
    with pytest.raises(ValueError, match="no formula 'paper'; there are corrected, released, anchored"):
        BDR(formula="paper")
    with pytest.raises(ValueError, match=r"no components 'dc'; there are cr\+dc\+momentum, cr\+dc, cr"):
        BDR(components="dc")


@pytest.mark.parametrize("values", [{"m": "corrected"}, {"tau": "cr"}])
def test_names_in_the_place_of_numbers_are_refused_with_where_they_belong(values):
    with pytest.raises(TypeError, match=r"a number is expected.* BDR\(formula='corrected', components='cr'\)"):
        BDR(**values)


def test_a_negative_strength_is_refused():
    with pytest.raises(ValueError, match="tau = -1 is not allowed: it is 0 or more"):
        BDR(tau=-1)


IDS, ROWS = torch.tensor([0, 1, 1, 2]), torch.ones(4, DIM)


@pytest.mark.parametrize(
    ("labels", "features", "classes", "sentence"),
    [
        (IDS, torch.ones(4, DIM, 2, 2), None, r"features are \(4, .*, 2, 2\), and \(N, D\) is expected"),
        (ROWS, IDS, None, r"labels come first: begin\(labels, features\)"),
        (IDS[:3], ROWS, None, r"labels are \(3,\) and features \(4, .*as many of both are expected"),
        (IDS[:0], ROWS[:0], None, "at least one image of every class"),
        (IDS[:, None], ROWS, None, r"labels are \(4, 1\), and ids are \(4,\): labels.flatten\(\) makes them"),
        (IDS - 1, ROWS, None, "labels are from -1 to 1, and ids from 0 on are allowed"),
        (IDS, ROWS, 2, "labels are from 0 to 2, and ids from 0 to 1, since classes = 2, are allowed"),
        (IDS.float(), ROWS, None, "labels are torch.float32, and ids are integers"),
        (ROWS * math.nan, ROWS, None, "shares of 0 or more"),
        (ROWS, ROWS, DIM + 1, rf"mixtures \(N, {DIM + 1}\) have a column a class"),
        (IDS, ROWS * IDS[:, None].where(IDS[:, None] < 2, math.nan), None, "features of 1 of 4 images are not finite"),
    ],
)
def test_what_a_phase_cannot_begin_with_is_said_in_a_sentence(labels, features, classes, sentence):
    with pytest.raises(ValueError, match=sentence):
        BDR().begin(labels, features, classes)


@pytest.mark.parametrize(("target", "said"), [(-100, "from -100 to 4"), (K, f"from 0 to {K}"), (-1, "from -1 to 4")])
def test_targets_that_are_no_classes_are_refused_before_anything_moves(target, said):
    balance, y = begun(), torch.tensor([0, 4, target])
    before = {name: value.clone() for name, value in balance.state_dict().items()}
    with pytest.raises(ValueError, match=rf"targets are {said}, and ids from 0 to {K - 1} .*\(-100\) must be left out"):
        balance(torch.zeros(3, K), torch.randn(3, DIM), y)
    assert all(torch.equal(value, before[name]) for name, value in balance.state_dict().items())


def test_mixtures_with_negative_shares_are_refused_before_anything_moves():
    balance, rows = begun(), torch.full((3, K), 0.1)
    before = {name: value.clone() for name, value in balance.state_dict().items()}
    rows[1, 2] = -0.5
    with pytest.raises(ValueError, match=rf"targets are \(3, {K}\), from -0.5 on: .* shares of 0 or more"):
        balance(torch.zeros(3, K), torch.randn(3, DIM), rows)
    assert all(torch.equal(value, before[name]) for name, value in balance.state_dict().items())


@pytest.mark.parametrize("y", [[0, 4, 2], torch.tensor([0, 4, 2]).numpy()])
def test_targets_that_are_no_tensor_are_refused_in_a_sentence(y):
    with pytest.raises(TypeError, match=r"targets are a \w+, .* torch.as_tensor\(targets\) makes one"):
        begun()(torch.zeros(3, K), torch.randn(3, DIM), y)


def test_the_whole_module_compiles_in_one_graph():
    eager, whole = begun(), begun()
    compiled = torch.compile(whole, fullgraph=True, backend="eager", dynamic=False)
    logits, features, y = torch.zeros(3, K), torch.randn(3, DIM), torch.tensor([0, 4, 2])
    assert torch.equal(compiled(logits, features, y), eager(logits, features, y))


def test_arrays_are_no_tensors():
    with pytest.raises(TypeError, match=r"labels are a ndarray.* torch.as_tensor\(labels\) makes one"):
        BDR().begin(IDS.numpy(), ROWS)


@pytest.mark.parametrize("kind", [torch.uint8, torch.int8, torch.int32])
def test_short_ids_are_ids_like_any_others(kind):
    """As an index, bytes would be a mask: with as many images as classes, there is not even an error."""
    whole, short, features = BDR(), BDR(), torch.randn(3, DIM)
    for balance, ids in ((whole, IDS), (short, IDS.to(kind))):
        balance.begin(ids, torch.arange(4 * DIM).view(4, DIM) ** 0.5)
        balance(torch.zeros(3, 3), features, ids[1:])
    assert all(torch.equal(value, whole.state_dict()[name]) for name, value in short.state_dict().items())


@pytest.mark.parametrize(("labels", "classes", "missing"), [([0, 2], None, "[1]"), ([0, 1], 4, "[2, 3]")])
def test_a_class_without_any_image_is_refused(labels, classes, missing):
    with pytest.raises(ValueError, match="at least one image of every class") as error:
        BDR().begin(torch.tensor(labels), torch.randn(2, DIM), classes)
    assert missing in str(error.value)


def test_a_new_phase_starts_afresh():
    balance = observed()
    balance.begin(*images(7, (4, 4, 9, 9, 9, 9, 30)))
    assert balance.classes == 7
    assert torch.equal(balance.offset, begun(7, (4, 4, 9, 9, 9, 9, 30)).offset)


@settings(max_examples=30, deadline=None)
@given(
    counts=st.lists(st.integers(1, 30), min_size=2, max_size=6),
    seed=st.integers(0, 1000),
    scale=st.sampled_from([1e-3, 1.0, 50.0]),
    values=st.fixed_dictionaries(
        {"m": some_share, "m_prime": some_share, "beta": some_share, "tau": st.floats(0, 2)}
        | {"formula": st.sampled_from(FORMULAS)}
    ),
)
def test_the_offset_is_always_finite(counts, seed, scale, values):
    balance = BDR(**values)
    labels, features = images(seed, counts, torch.float32)
    balance.begin(labels, features * scale)
    for features, y in batches(seed, 3, len(counts), torch.float32):
        balance.observe(features * scale, y)
        assert balance.offset.isfinite().all()


@settings(max_examples=15, deadline=None)
@given(constant=st.floats(-50, 50), seed=st.integers(0, 1000), formula=st.sampled_from(FORMULAS))
def test_a_constant_on_all_logits_changes_nothing(constant, seed, formula):
    features, y = next(batches(seed))
    logits = torch.randn(len(y), K, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    plain = F.cross_entropy(begun(formula=formula)(logits, features, y), y)
    shifted = F.cross_entropy(begun(formula=formula)(logits + constant, features, y), y)
    torch.testing.assert_close(shifted, plain, rtol=0, atol=1e-9)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), formula=st.sampled_from(["corrected", "anchored"]), data=st.data())
def test_the_order_within_a_batch_does_not_count(seed, formula, data):
    features, y = next(batches(seed))
    order = torch.tensor(data.draw(st.permutations(range(len(y)))))
    one, other = begun(formula=formula, beta=0.5), begun(formula=formula, beta=0.5)
    one.observe(features, y)
    other.observe(features[order], y[order])
    for name, value in one.state_dict().items():
        torch.testing.assert_close(other.state_dict()[name], value, rtol=0, atol=1e-10)


def test_in_the_released_formula_the_last_class_to_appear_sets_the_pace():
    """Two samples of class 0 (n = 2, weight 1/2) and two of class 1 (n = 6, weight 3/4), in both orders."""
    labels, rows = torch.tensor([0] * 2 + [1] * 6), torch.tensor([[2.0], [-2.0]] * 4).double()
    paces = {}
    for order in ((0, 0, 1, 1), (1, 1, 0, 0)):
        balance = BDR(formula="released")
        balance.begin(labels, rows)
        balance.observe(torch.tensor([[1.0], [-1.0], [1.0], [-1.0]]).double(), torch.tensor(order))
        paces[order] = balance.spread.tolist()
    assert paces[0, 0, 1, 1] == pytest.approx([0.75 * 4 + 0.25] * 2)
    assert paces[1, 1, 0, 0] == pytest.approx([0.5 * 4 + 0.5] * 2)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), formula=st.sampled_from(["corrected", "anchored"]))
def test_one_hot_targets_do_what_ids_do(seed, formula):
    ids, soft = begun(formula=formula, beta=0.5), begun(formula=formula, beta=0.5)
    for features, y in batches(seed, 3):
        ids.observe(features, y)
        soft.observe(features, F.one_hot(y, K).double())
    for name, value in ids.state_dict().items():
        torch.testing.assert_close(soft.state_dict()[name], value, rtol=0, atol=1e-10)


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("formula", FORMULAS)
def test_autocast_changes_no_statistic(formula, half):
    """A class sum of 500 images is beyond float16; the spread is small beside the mean, and lost in bfloat16."""
    labels, features = images(counts=(20, 20, 500), dtype=torch.float32)
    plain, cast, compiled = (BDR(formula=formula) for _ in range(3))
    step = torch.compile(compiled, fullgraph=True, backend="eager", dynamic=False)
    plain.begin(labels, features + 150)
    plain(torch.zeros(60, 3), features[:60] + 149, labels[:60])
    for balance, call in ((cast, cast), (compiled, step)):
        with torch.autocast("cpu", half):
            balance.begin(labels, features + 150)
            call(torch.zeros(60, 3), features[:60] + 149, labels[:60])
        assert all(torch.equal(value, plain.state_dict()[name]) for name, value in balance.state_dict().items())


@pytest.mark.parametrize("cast", [torch.nn.Module.half, torch.nn.Module.bfloat16, lambda model: model.to(torch.half)])
def test_a_model_that_is_cast_leaves_the_statistics_as_precise_as_they_are(cast):
    balance, alone = begun(dtype=torch.float32), begun(dtype=torch.float32)
    model = cast(torch.nn.Sequential(torch.nn.Linear(3, DIM), balance))
    assert model[0].weight.dtype in (torch.float16, torch.bfloat16)
    features, y = next(batches(dtype=torch.float16))
    balance.observe(features, y)
    alone.observe(features, y)
    assert all(torch.equal(value, alone.state_dict()[name]) for name, value in balance.state_dict().items())


@pytest.mark.parametrize(("given", "loaded"), [(torch.float64, torch.float64), (torch.float16, torch.float32)])
def test_a_state_is_loaded_in_the_precision_that_the_module_would_have(given, loaded):
    state = {name: value.to(given) for name, value in begun().state_dict().items()}
    balance = BDR()
    balance.load_state_dict(state)
    assert {value.dtype for value in balance.buffers()} == {loaded}
    assert all(torch.equal(value, state[name].to(loaded)) for name, value in balance.state_dict().items())


def test_the_statistics_move_with_a_model():
    balance = torch.nn.Sequential(begun(dtype=torch.float32)).to("meta", torch.half)[0]
    assert {(value.device.type, value.dtype) for value in balance.buffers()} == {("meta", torch.float32)}


def test_a_phase_that_begins_in_inference_mode_trains_like_any_other():
    labels, features = images()
    plain, balance, (seen, y) = begun(), BDR(), next(batches())
    with torch.inference_mode():
        balance.begin(labels, features * 1)
    logits = torch.zeros(len(y), K, requires_grad=True)
    F.cross_entropy(balance(logits, seen, y), y).backward()
    plain.observe(seen, y)
    assert all(torch.equal(value, plain.state_dict()[name]) for name, value in balance.state_dict().items())


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("formula", FORMULAS)
def test_beside_a_cpu_a_step_never_reads_a_value_on_the_host(formula, soft, monkeypatch):
    """Tensors without values are on a device of their own, and every reading of one is an error."""
    monkeypatch.setattr("bdr.balance.module.precisely", lambda features: nullcontext())  # autocast knows no such device
    balance = begun(formula=formula).to("meta")
    for features, y in batches(steps=3):
        y = F.one_hot(y, K) if soft else y
        balance(torch.zeros(len(y), K, device="meta"), features.to("meta"), y.to("meta"))


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("formula", FORMULAS)
def test_a_step_compiles_in_one_graph_and_is_the_same(formula, soft):
    eager, whole = begun(formula=formula, beta=0.5), begun(formula=formula, beta=0.5)
    compiled = torch.compile(whole.observe, fullgraph=True, backend="eager", dynamic=False)
    for features, y in [(f[:4], y[:4]) for f, y in batches(steps=20) if len(y) >= 4][:5]:
        y = F.one_hot(y, K).double() if soft else y
        eager.observe(features, y)
        compiled(features, y)
    for name, value in eager.state_dict().items():
        assert torch.equal(whole.state_dict()[name], value)


@pytest.mark.skipif(shutil.which("c++") is None and shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=gpu)])
def test_the_real_compiler_moves_the_statistics_as_they_move_without_it(device):
    """Its kernels may overwrite a statistic before another is computed from it, which no other backend shows."""
    labels, features = (each.to(device) for each in images(counts=(5,) * 8, dtype=torch.float32))
    eager, whole = BDR().to(device), BDR().to(device)
    compiled, chance = torch.compile(whole, fullgraph=True, dynamic=False), torch.Generator().manual_seed(0)
    for balance in (eager, whole):
        balance.begin(labels, features)
    for _ in range(5):
        rows = torch.randint(len(labels), (32,), generator=chance).to(device)
        batch = torch.zeros(32, 8, device=device), 1.5 * features[rows], labels[rows]
        torch.testing.assert_close(compiled(*batch), eager(*batch), rtol=0, atol=1e-5)
    for name, value in eager.state_dict().items():
        torch.testing.assert_close(whole.state_dict()[name], value, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("formula", FORMULAS)
def test_a_batch_without_any_image_moves_neither_means_nor_spreads(formula):
    balance, before = begun(formula=formula), begun(formula=formula)
    balance.observe(torch.zeros(0, DIM), torch.zeros(0).long())
    assert torch.equal(balance.mean, before.mean)
    assert torch.equal(balance.spread, before.spread)


@pytest.mark.parametrize("bad", [math.inf, math.nan])
@pytest.mark.parametrize("formula", ["corrected", "released", "anchored"])
def test_a_batch_that_is_not_finite_moves_nothing(bad, formula):
    torch.manual_seed(0)
    labels = torch.arange(3).repeat(5)
    balance = BDR(formula=formula)
    balance.begin(labels, torch.randn(15, 4))
    before = {name: value.clone() for name, value in balance.state_dict().items()}
    features = torch.randn(6, 4)
    features[2, 1] = bad
    balance.observe(features, labels[:6])
    assert all(torch.equal(value, before[name]) for name, value in balance.state_dict().items())
    balance.observe(torch.randn(6, 4), labels[:6])
    assert balance.offset.isfinite().all()
    assert not torch.equal(balance.mean, before["mean"])


def test_labels_that_count_from_one_are_told_so():
    labels, features = torch.arange(1, 5).repeat(3), torch.randn(12, 2)
    with pytest.raises(ValueError, match=r"none of \[0\], and labels are from 1 to 4: ids count from 0 \(labels - 1\)"):
        BDR().begin(labels, features)
    with pytest.raises(ValueError, match=r"none of \[2\]: number the classes without gaps"):
        BDR().begin(torch.tensor([0, 1, 3]), torch.randn(3, 2))
