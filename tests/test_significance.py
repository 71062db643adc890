"""The t-test of the report agrees with scipy, and with tables in books."""

import numpy as np
import pytest

from bdr.metrics import OverSeeds
from bdr.report.significance import paired_p, told_p, two_sided_p


@pytest.mark.parametrize(("t", "freedom"), [(12.706, 1), (4.303, 2), (2.776, 4), (2.228, 10), (1.962, 1000)])
def test_the_critical_values_of_every_textbook_give_five_percent(t, freedom):
    assert two_sided_p(t, freedom) == pytest.approx(0.05, abs=5e-5)
    assert two_sided_p(-t, freedom) == two_sided_p(t, freedom)


def test_no_difference_is_certain_to_be_reached():
    assert two_sided_p(0.0, 4) == 1.0


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 9, 30, 400])
def test_p_is_that_of_scipy(freedom):
    stats = pytest.importorskip("scipy.stats")
    for t in (1e-6, 0.01, 0.3, 1.0, 2.5, 7.0, 60.0, 1e4):
        assert two_sided_p(t, freedom) == pytest.approx(2 * stats.t.sf(t, freedom), rel=1e-9, abs=1e-13)


def test_a_paired_test_is_that_of_scipy():
    stats = pytest.importorskip("scipy.stats")
    ours, theirs = np.array([68.1, 69.0, 68.4, 68.8]), np.array([66.9, 67.2, 67.5, 66.6])
    gains = ours - theirs
    found = paired_p(OverSeeds(gains.mean(), gains.std(ddof=1) / 2, 4))
    assert found == pytest.approx(stats.ttest_rel(ours, theirs).pvalue, rel=1e-9)


@pytest.mark.parametrize("difference", [(1.0, 0.5, 2), (1.0, None, 1), (None, None, 0), (1.0, 0.0, 3)])
def test_fewer_than_three_pairs_or_none_that_differ_have_no_p(difference):
    assert paired_p(OverSeeds(*difference)) is None


def test_p_is_told_briefly():
    assert [told_p(p) for p in (None, 0.0002, 0.0341, 0.5)] == ["", "< 0.001", "0.034", "0.50"]
