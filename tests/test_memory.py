"""The exemplars: both herdings against loops, quotas, and the order that a shrinking quota keeps."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from references import slow_herd_distance, slow_herd_dot
from small import Flat, make_pool, make_store

from bdr.data.augment import Augment
from bdr.data.memory import HERDINGS, Memory, Quota, herd_distance, herd_dot
from bdr.data.pool import Pool
from bdr.errors import UsageError
from bdr.nets import LinearHead, Network
from bdr.seeding import generator
from bdr.types import Phase

PAIRS = {"distance": (herd_distance, slow_herd_distance), "dot": (herd_dot, slow_herd_dot)}
COUNTS = (12, 5, 9, 7)


def network(classes=4):
    torch.manual_seed(0)
    net = Network(Flat(), LinearHead(5))
    net.head.grow(classes)
    return net


def grid_of(sizes, dim=6, seed=0):
    """Normalised features of classes of these sizes, padded to the largest."""
    chance = torch.Generator().manual_seed(seed)
    present = torch.arange(max(sizes)) < torch.tensor(sizes)[:, None]
    features = torch.randn(len(sizes), max(sizes), dim, generator=chance, dtype=torch.float64) + 0.5
    return F.normalize(features, dim=2) * present[..., None], present


@pytest.mark.parametrize("herding", PAIRS)
@pytest.mark.parametrize("quota", [1, 3, 5, 40])
@pytest.mark.parametrize("seed", range(3))
def test_herding_picks_what_the_loop_picks(herding, quota, seed):
    ours, slow = PAIRS[herding]
    sizes = (9, 3, 15, 1, 6)
    features, present = grid_of(sizes, seed=seed)
    for mine, size, rows in zip(ours(features, present, quota), sizes, features.tolist(), strict=True):
        assert mine.tolist() == slow(rows[:size], quota)


@pytest.mark.parametrize("herding", PAIRS)
def test_a_longer_herd_starts_like_a_shorter_one(herding):
    herd, (features, present) = PAIRS[herding][0], grid_of((20, 14))
    long, short = herd(features, present, 10), herd(features, present, 4)
    assert [mine[:4].tolist() for mine in long] == [mine.tolist() for mine in short]


def selected(herding, quota, pool=None, net=None):
    pool = pool or make_pool(COUNTS)
    memory = Memory(Quota.parse(quota), herding)
    memory.select(pool.phase, pool, net or network())
    return memory


@pytest.mark.parametrize("herding", PAIRS)
def test_a_memory_holds_the_rows_that_herding_picks(herding):
    pool, net = make_pool(COUNTS), network()
    for k, mine in enumerate(selected(herding, "6/class", pool, net).exemplars):
        rows = pool.store.of_classes(k, k + 1)
        with torch.no_grad():
            features = net(pool.store.plain(rows)).features.tolist()
        assert mine == rows[PAIRS[herding][1](features, 6)].tolist()


@pytest.mark.parametrize("herding", HERDINGS)
def test_no_class_gets_more_than_its_quota_or_than_it_has(herding):
    pool = make_pool(COUNTS)
    for k, mine in enumerate(selected(herding, "8/class", pool).exemplars):
        assert len(mine) == len(set(mine)) <= min(8, COUNTS[k])
        assert pool.store.labels[mine].tolist() == [k] * len(mine)
        assert herding in ("dot", "distributed") or len(mine) == min(8, COUNTS[k])


@pytest.mark.parametrize("herding", HERDINGS)
def test_a_shrinking_total_keeps_the_head_of_every_list(herding):
    store, memory, net = make_store(COUNTS), Memory(Quota.parse("13"), herding), network()
    first, later = Phase(0, 0, 2), Phase(1, 2, 4)
    memory.select(first, Pool(store, first, store.of_classes(0, 2), torch.zeros(0, dtype=torch.long), 1), net)
    before = [list(mine) for mine in memory.exemplars]
    halved = herding == "distributed"  # nothing is augmented here, so both GPUs choose the same
    assert [len(mine) for mine in before] == ([3, 3] if halved else [6, 5])
    memory.select(later, Pool(store, later, store.of_classes(2, 4), memory.rows("cpu"), 1), net)
    assert memory.exemplars[:2] == [mine[:3] for mine in before]
    assert [len(mine) for mine in memory.exemplars] == ([3, 3, 2, 2] if halved else [3] * 4)
    assert memory.covers(later)
    assert not memory.covers(first)


def test_distributed_herding_unites_what_two_gpus_choose_of_images_augmented_differently():
    pool, net = make_pool(COUNTS, augment=Augment(pad=1, flip=True)), network()
    store, chosen = pool.store, []
    order = torch.cat([store.of_classes(k, k + 1) for k in range(4)])
    for gpu in range(2):
        draws = store.augment.draw(len(order), generator("cpu", pool.seed, "phase", 0, "gpu", gpu))
        with torch.no_grad():
            features = net(store.augmented(order, draws)).features
        of_class = [(store.labels[order] == k).nonzero().flatten() for k in range(4)]
        chosen.append([order[mine[slow_herd_dot(features[mine].tolist(), 3)]].tolist() for mine in of_class])
    for mine, first, second in zip(selected("distributed", "5/class", pool, net).exemplars, *chosen, strict=True):
        in_turns = [row for turn in zip(first, second, strict=True) for row in turn]
        assert mine == list(dict.fromkeys(in_turns))[:5]
    assert any(first != second for first, second in zip(*chosen, strict=True))


def test_random_herding_is_the_seeds():
    def drawn(seed):
        return selected("random", "4/class", make_pool(COUNTS, run_seed=seed)).exemplars

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


def test_random_herding_asks_no_network():
    assert len(selected("random", "2/class", net=torch.nn.Identity()).rows("cpu")) == 8


def test_selecting_twice_in_a_phase_gives_the_same():
    pool, net = make_pool(COUNTS), network()
    memory = selected("distance", "4/class", pool, net)
    before = list(memory.exemplars)
    memory.select(pool.phase, pool, net)
    assert memory.exemplars == before


def test_a_memory_of_nothing_holds_nothing():
    memory = selected("distance", "0")
    assert memory.exemplars == [[], [], [], []]
    assert memory.rows("cpu").tolist() == []


def test_rows_come_class_by_class():
    memory = selected("distance", "2/class")
    assert memory.rows("cpu").tolist() == [row for mine in memory.exemplars for row in mine]


@pytest.mark.parametrize(
    ("text", "quota"), [("20/class", Quota(20, True)), ("2000", Quota(2000, False)), (" 5/class ", Quota(5, True))]
)
def test_quotas_are_read(text, quota):
    assert Quota.parse(text) == quota
    assert Quota.parse(str(quota)) == quota


@pytest.mark.parametrize("text", ["", "20/phase", "-3", "2.5", "many", "20/", "/class"])
def test_what_is_no_quota_is_refused_with_an_example(text):
    with pytest.raises(UsageError, match="neither like 20/class nor like 2000") as error:
        Quota.parse(text)
    assert f"'{text}'" in str(error.value)


def test_a_total_too_small_for_one_of_each_class_is_refused():
    with pytest.raises(UsageError, match="a memory of 99 images cannot hold one of each of 100 classes"):
        Quota.parse("99").check(100)
    for fine in ("100", "0", "1/class"):
        Quota.parse(fine).check(100)


@settings(max_examples=50, deadline=None)
@given(total=st.integers(0, 5000), seen=st.integers(1, 1000))
def test_a_total_is_shared_equally_and_never_exceeded(total, seen):
    each = Quota(total, per_class=False).each(seen)
    assert each * seen <= total < (each + 1) * seen
    assert Quota(total, per_class=True).each(seen) == total
