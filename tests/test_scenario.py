"""The protocol: published class orders, and phases that cover every class once."""

import re
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bdr.errors import UsageError
from bdr.scenario import NAMED_ORDERS, Protocol, class_order
from bdr.types import Phase

NATURAL = tuple(range(100))


def test_the_seed_1993_order_is_the_published_one():
    order = class_order("seed-1993", 100)
    assert order[:10] == (68, 56, 78, 8, 23, 84, 90, 65, 74, 76)
    assert order[-10:] == (51, 48, 73, 93, 39, 67, 29, 49, 57, 33)
    assert sorted(order) == list(NATURAL)


def test_the_seed_1993_order_of_a_thousand_classes_is_the_published_one():
    order = class_order("seed-1993", 1000)
    assert order[:10] == (54, 7, 894, 512, 126, 337, 988, 11, 284, 493)
    assert order[-5:] == (285, 225, 945, 697, 417)


def test_a_seeded_order_is_a_shuffle_under_that_seed():
    shuffled = np.arange(10)
    np.random.RandomState(7).shuffle(shuffled)
    assert class_order("seed-7", 10) == tuple(shuffled)


@pytest.mark.parametrize("name", [*NAMED_ORDERS, "der-1"])
def test_every_named_order_names_each_class_once(name):
    assert sorted(class_order(name, 100)) == list(NATURAL)


@pytest.mark.parametrize(
    ("name", "head", "tail"),
    [
        ("der-0", (62, 54, 84, 20, 94), (85, 41, 96, 59, 52)),
        ("podnet-1", (87, 0, 52, 58, 44), (55, 54, 26, 35, 39)),
        ("podnet-2", (58, 30, 93, 69, 21), (92, 87, 23, 64, 61)),
        ("podnet-3", (71, 54, 45, 32, 4), (44, 59, 85, 43, 11)),
    ],
)
def test_named_orders_begin_and_end_as_published(name, head, tail):
    order = class_order(name, 100)
    assert (order[:5], order[-5:]) == (head, tail)


@pytest.mark.parametrize(
    ("der", "same"), [("der-1", "seed-1993"), ("der-2", "podnet-1"), ("der-3", "podnet-2"), ("der-4", "podnet-3")]
)
def test_ders_trials_are_the_orders_of_others(der, same):
    assert class_order(der, 100) == class_order(same, 100)


def test_an_order_can_be_natural_or_a_list():
    assert class_order("natural", 3) == (0, 1, 2)
    assert class_order("3,0, 1 2", 4) == (3, 0, 1, 2)


@pytest.mark.parametrize("name", ["seed", "seed-x", "alphabetical", "", "1;2", "-1,0"])
def test_an_unknown_order_is_refused_with_the_list_of_known_ones(name):
    with pytest.raises(UsageError, match=r"no class order .* there are .*seed-1993.*natural.*podnet-1"):
        class_order(name, 100)


@pytest.mark.parametrize(("name", "classes"), [("0,1,1", 3), ("0,1", 3), ("1,2,3", 3), ("podnet-1", 10)])
def test_an_order_that_is_no_permutation_is_refused(name, classes):
    with pytest.raises(UsageError, match=f"must name each of the {classes} classes 0 to {classes - 1} once"):
        class_order(name, classes)


def test_a_seed_too_large_for_numpy_is_refused_as_a_usage_error():
    with pytest.raises(UsageError):
        class_order("seed-99999999999", 10)


@pytest.mark.parametrize(
    ("base", "step", "points"),
    [(0, 10, 10), (0, 5, 20), (0, 2, 50), (50, 25, 3), (50, 10, 6), (50, 5, 11), (50, 2, 26), (100, 1, 1)],
)
def test_the_published_protocols_have_their_number_of_phases(base, step, points):
    assert len(Protocol(NATURAL, base, step)) == points


def test_phases_follow_one_another():
    phases = list(Protocol(tuple(range(10)), 4, 3))
    assert phases == [Phase(0, 0, 4), Phase(1, 4, 7), Phase(2, 7, 10)]
    assert [(p.new, p.first) for p in phases] == [(4, True), (3, False), (3, False)]


def covers(protocol):
    phases = list(protocol)
    arrived = [k for phase in phases for k in range(phase.old, phase.seen)]
    assert arrived == list(range(len(protocol.order)))
    assert [phase.index for phase in phases] == list(range(len(protocol)))
    assert phases[0].new == min(protocol.base or protocol.step, len(protocol.order))
    return phases


@given(first=st.integers(1, 30), step=st.integers(1, 20), later=st.integers(0, 10))
def test_phases_cover_all_classes_without_overlap(first, step, later):
    phases = covers(Protocol(tuple(range(first + step * later)), first, step))
    assert [phase.new for phase in phases[1:]] == [step] * later


@given(classes=st.integers(1, 60), base=st.integers(0, 60), step=st.integers(1, 60))
def test_an_uneven_protocol_covers_all_classes_too(classes, base, step):
    if (base or step) > classes:
        with pytest.raises(UsageError):
            Protocol(tuple(range(classes)), base, step, uneven=True)
        return
    phases = covers(Protocol(tuple(range(classes)), base, step, uneven=True))
    assert all(phase.new == step for phase in phases[1:-1])
    assert all(1 <= phase.new <= step for phase in phases[1:])


def refusal(classes, base, step):
    with pytest.raises(UsageError) as error:
        Protocol(tuple(range(classes)), base, step)
    return str(error.value)


def test_steps_of_fifteen_after_fifty_of_a_hundred_are_refused_with_what_to_type_instead():
    text = refusal(100, 50, 15)
    assert text.startswith("100 classes do not split into a base of 50 and steps of 15: 5 would be left over; use ")
    assert "5, 10, 25 or 50" in text
    assert "--uneven" in text


@given(classes=st.integers(2, 120), base=st.integers(0, 60), step=st.integers(2, 60))
def test_every_step_that_a_refusal_proposes_is_accepted(classes, base, step):
    try:
        Protocol(tuple(range(classes)), base, step)
    except UsageError as error:
        proposed = re.search(r"use a step of (.*), or --uneven", str(error))
        for fitting in re.findall(r"\d+", proposed[1]) if proposed else ():
            Protocol(tuple(range(classes)), base, int(fitting))


@given(classes=st.integers(2, 60), base=st.integers(0, 120), step=st.integers(1, 60))
def test_the_base_that_a_refusal_proposes_is_accepted(classes, base, step):
    try:
        Protocol(tuple(range(classes)), base, step, uneven=True)
    except UsageError as error:
        proposed = re.search(r"use --base (\d+)(?: --step (\d+))?", str(error))
        Protocol(tuple(range(classes)), int(proposed[1]), int(proposed[2] or step))


@pytest.mark.parametrize(("base", "step"), [(-1, 5), (5, 0), (0, 0), (5, -5)])
def test_negative_bases_and_empty_steps_are_refused(base, step):
    assert f"a base of {base} and steps of {step}" in refusal(10, base, step)


def test_a_base_larger_than_all_classes_is_refused():
    assert "wants 20 classes and there are 10" in refusal(10, 20, 5)


FOLDERS = ("Bär", "cat", "ice cream", "owl")


def test_an_order_may_list_classes_by_their_names():
    assert class_order("owl, ice cream,cat,Bär", 4, FOLDERS) == (3, 2, 1, 0)
    assert class_order(unicodedata.normalize("NFD", "Bär,cat,owl,ice cream"), 4, FOLDERS) == (0, 1, 3, 2)
    assert class_order("3,0,1,2", 4, FOLDERS) == (3, 0, 1, 2)


def test_numbers_that_could_be_names_are_labels():
    """Folders 0, 1, 10, 2 are sorted as words: their labels are others than their names."""
    assert class_order("3,0,1,2", 4, ("0", "1", "10", "2")) == (3, 0, 1, 2)
    assert class_order("10,2,1,0", 4, ("0", "1", "10", "2")) == (2, 3, 1, 0)


@pytest.mark.parametrize(
    ("order", "said"),
    [
        ("owl,cat,Bär,ice", "no class of the --order 'ice'; there are Bär, cat, ice cream, owl"),
        ("owl,cat", "--order leaves out Bär, ice cream: it must name each of the 4 classes once"),
        ("owl,cat,Bär,ice cream,cat", "--order names cat more than once: it must name each class once"),
        ("owls", "no class order 'owls'; there are seed-N"),
    ],
)
def test_an_order_of_names_that_is_not_one_says_what_is_wrong(order, said):
    with pytest.raises(UsageError) as error:
        class_order(order, 4, FOLDERS)
    assert str(error.value).startswith(said)
