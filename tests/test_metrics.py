"""Metrics agree with other people's code, with matrices worked out by hand, and with themselves."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bdr import metrics
from bdr.errors import UsageError

NAN = float("nan")
# after phase 0: 90; after phase 1: 60, 95; after phase 2: 70, 50, 80
HAND = metrics.matrix([[90.0], [60.0, 95.0], [70.0, 50.0, 80.0]])


def draw(seed=0, images=200, classes=10):
    rng = np.random.default_rng(seed)
    scores = rng.random((images, classes)).astype(np.float32)
    return rng.integers(0, classes, images), scores, np.argsort(-scores, axis=1)[:, :5]


@pytest.mark.parametrize("seed", range(3))
def test_accuracy_and_top_five_agree_with_torchmetrics(seed):
    torch = pytest.importorskip("torch")
    functional = pytest.importorskip("torchmetrics.functional.classification")
    labels, scores, ids = draw(seed)
    for k, ours in ((1, metrics.accuracy(labels, ids)), (5, metrics.top_k(labels, ids))):
        theirs = functional.multiclass_accuracy(
            torch.tensor(scores), torch.tensor(labels), num_classes=10, top_k=k, average="micro"
        )
        assert ours == pytest.approx(100 * float(theirs), abs=1e-4)


def test_accuracy_per_class_is_scikit_learns_recall():
    sklearn = pytest.importorskip("sklearn.metrics")
    labels, _, ids = draw()
    theirs = sklearn.recall_score(labels, ids[:, 0], average=None, labels=range(10))
    np.testing.assert_allclose(metrics.per_class(labels, ids, 10), 100 * theirs)
    assert metrics.accuracy(labels, ids) == pytest.approx(100 * sklearn.accuracy_score(labels, ids[:, 0]))


def test_a_class_without_images_has_no_accuracy():
    assert np.isnan(metrics.per_class(np.array([0, 2]), np.array([0, 1]), 3)).tolist() == [False, True, False]


def test_with_three_classes_top_five_is_top_three():
    assert metrics.top_k(np.array([2, 1]), np.array([[0, 1, 2], [0, 2, 1]])) == 100.0


def test_old_and_new_split_at_the_phase_boundary():
    labels, ids = np.array([0, 0, 1, 2, 2]), np.array([0, 2, 1, 2, 2])
    assert metrics.old_and_new(labels, ids, 2) == (pytest.approx(200 / 3), 100.0)
    assert metrics.old_and_new(labels, ids, 0) == (None, 80.0)
    assert metrics.by_phase(labels, ids, [[0, 1], [1, 3]]) == [50.0, 100.0]


def test_average_includes_phase_zero():
    assert metrics.average([90.0, 60.0, 30.0]) == 60.0
    assert metrics.last([90.0, 60.0, 30.0]) == 30.0


def test_forgetting_by_hand():
    # j = 0: max(90, 60) - 70 = 20; j = 1: 95 - 50 = 45
    assert metrics.forgetting_max(HAND) == 32.5
    assert metrics.forgetting_max_all(HAND) == 32.5
    assert metrics.forgetting_first(HAND) == 32.5


@pytest.mark.filterwarnings("error")
def test_forgetting_is_none_without_a_word_where_accuracies_are_missing():
    for a in (metrics.matrix([[], []]), metrics.matrix([[90.0], [None, 80.0]])):
        assert metrics.forgetting_max(a) is metrics.forgetting_max_all(a) is metrics.forgetting_first(a) is None


def test_the_three_kinds_of_forgetting_part_where_a_phase_recovers():
    a = metrics.matrix([[50.0], [60.0, 80.0], [70.0, 90.0, 99.0]])
    assert metrics.forgetting_max(a) == pytest.approx(((60 - 70) + (80 - 90)) / 2)
    assert metrics.forgetting_max_all(a) == 0.0
    assert metrics.forgetting_first(a) == pytest.approx(((50 - 70) + (80 - 90)) / 2)


def test_one_phase_forgets_nothing_that_could_be_named():
    one = metrics.matrix([[90.0]])
    assert metrics.forgetting_max(one) is metrics.forgetting_max_all(one) is metrics.forgetting_first(one) is None


percentages = st.floats(0, 100)
triangles = st.integers(2, 6).flatmap(
    lambda n: st.tuples(*(st.lists(percentages, min_size=i, max_size=i) for i in range(1, n + 1)))
)


@settings(max_examples=50, deadline=None)
@given(triangles)
def test_forgetting_over_all_phases_bounds_the_others(rows):
    a = metrics.matrix(rows)
    assert metrics.forgetting_max_all(a) >= max(0.0, metrics.forgetting_max(a)) - 1e-9
    assert metrics.forgetting_max(a) >= metrics.forgetting_first(a) - 1e-9


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=60))
def test_accuracy_is_the_mean_of_the_classes_weighted_by_their_images(pairs):
    labels, ids = np.array(pairs).T
    weights = np.bincount(labels, minlength=6)
    whole = np.nansum(metrics.per_class(labels, ids, 6) * weights) / weights.sum()
    assert metrics.accuracy(labels, ids) == pytest.approx(whole)
    assert metrics.top_k(labels, ids, 1) == metrics.accuracy(labels, ids)


def test_destruction_by_hand():
    series = np.array([1.0, 3.0, 5.0, 7.0, 2.0, 2.0])
    # trailing means of two: 2, 4, 6, 4.5, 2
    assert metrics.destruction(series, 2) == metrics.Destruction(peak=5.0, gap=1.0, step=3)


def test_destruction_leaves_out_steps_without_old_samples():
    series = np.array([NAN, 1.0, NAN, 5.0, NAN, NAN, 2.0])
    # trailing means of two: 1, 1, 5, 5, -, 2
    assert metrics.destruction(series, 2) == metrics.Destruction(peak=4.0, gap=1.0, step=3)


def test_destruction_of_nothing_is_none():
    assert metrics.destruction(np.array([]), 4) is None
    assert metrics.destruction(np.full(5, NAN), 4) is None


def test_a_series_shorter_than_an_epoch_is_one_window():
    assert metrics.destruction(np.array([1.0, 3.0]), 10) == metrics.Destruction(peak=1.0, gap=1.0, step=1)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-5, 5), min_size=1, max_size=40), st.integers(1, 12), st.floats(-3, 3))
def test_destruction_does_not_see_the_level_of_a_series(values, window, level):
    plain, lifted = metrics.destruction(np.array(values), window), metrics.destruction(np.array(values) + level, window)
    assert lifted.peak == pytest.approx(plain.peak, abs=1e-6)
    assert plain.peak >= plain.gap - 1e-9


@settings(max_examples=50, deadline=None)
@given(st.lists(st.one_of(st.floats(-5, 5), st.just(NAN)), max_size=40), st.integers(1, 50))
def test_a_smoothed_series_is_at_every_step_the_mean_of_the_last_ones_that_there_are(values, window):
    series = np.array(values, float)
    windows = [series[max(0, end - window) : end] for end in range(1, len(series) + 1)]
    wanted = [each[np.isfinite(each)].mean() if np.isfinite(each).any() else NAN for each in windows]
    found = metrics.smoothed(series, window)
    np.testing.assert_allclose(found, wanted, atol=1e-12)
    np.testing.assert_array_equal(found[min(window, len(series)) - 1 :], metrics.moving_mean(series, window))


def recorded_run(distillation=(NAN, NAN, NAN, NAN)):
    lines = [
        {"phase": 0, "seen": 2, "accuracy": {"cnn": 90.0}, "by_phase": {"cnn": [90.0]}, "parameters": 100},
        {
            "phase": 1,
            "seen": 4,
            "accuracy": {"cnn": 70.0},
            "accuracy_old": {"cnn": 60.0},
            "accuracy_new": {"cnn": 80.0},
            "by_phase": {"cnn": [60.0, 80.0]},
            "parameters": 300,
            "steps_per_epoch": 2,
        },
    ]
    series = {
        "stage": np.array([0, 0, 0, 1]),
        "ce_old": np.array([1.0, 3.0, 1.0, 99.0]),
        "distillation": np.array(distillation),
    }
    return SimpleNamespace(phases=lines, computed={}, steps=lambda phase: series)


def test_a_summary_gathers_every_number_of_a_run():
    found = metrics.summary(recorded_run())
    assert found["accuracies"] == [90.0, 70.0]
    assert found["matrix"] == [[90.0], [60.0, 80.0]]
    assert (found["average"], found["last"], found["old"], found["new"]) == (80.0, 70.0, 60.0, 80.0)
    assert found["forgetting_max"] == found["forgetting_max_all"] == found["forgetting_first"] == 30.0
    assert (found["parameters_final"], found["parameters_average"]) == (300, 200.0)


def test_destruction_is_read_from_the_first_stage_alone():
    found = metrics.summary(recorded_run())
    assert (found["destruction_peak"], found["reconstruction_gap"]) == (1.0, 1.0)
    assert found["destruction_peak_distillation"] is None
    assert found["reconstruction_gap_distillation"] is None


def test_the_distillation_term_has_a_peak_and_a_gap_of_its_own():
    found = metrics.summary(recorded_run((0.0, 4.0, 2.0, 99.0)))
    # trailing means of two in the first stage: 2, 3
    assert (found["destruction_peak_distillation"], found["reconstruction_gap_distillation"]) == (3.0, 3.0)
    falling = metrics.summary(recorded_run((1.0, 5.0, -1.0, 99.0)))
    assert (falling["destruction_peak_distillation"], falling["reconstruction_gap_distillation"]) == (2.0, 1.0)
    assert (found["destruction_peak"], found["reconstruction_gap"]) == (1.0, 1.0)


def test_every_scalar_is_a_number_of_the_summary():
    found = metrics.summary(recorded_run((0.0, 4.0, 2.0, 99.0)))
    assert all(isinstance(found[name], (int, float)) for name in metrics.SCALARS)
    assert {"destruction_peak_distillation", "reconstruction_gap_distillation"} <= set(metrics.SCALARS)


def test_an_unknown_readout_is_told_what_there_is():
    with pytest.raises(UsageError, match="no readout 'nmee'; there are cnn"):
        metrics.summary(recorded_run(), "nmee")


def test_seeds_have_a_mean_and_a_sample_deviation():
    several = metrics.over_seeds([{"average": 60.0, "old": None}, {"average": 64.0, "old": 5.0}])
    assert several["average"] == (62.0, pytest.approx(np.sqrt(8)), 2)
    assert several["old"] == (5.0, None, 1)
    assert several["new"] == (None, None, 0)
