"""The pool of a phase: what an epoch holds, and how each draw draws."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small import Flat, make_pool, make_store

from bdr.data.augment import Augment
from bdr.data.pool import DRAWS, Pool, held_of_each, images_drawn
from bdr.errors import UsageError
from bdr.nets import LinearHead, Network
from bdr.planning.host_reads import HostReads
from bdr.types import Phase, Stage

COUNTS, OLD, EACH = (9, 8, 12, 10), 2, 3
HELD = 0.7  # of three exemplars: two


def pool_of(run_seed=1993, **store):
    return make_pool(COUNTS, OLD, EACH, run_seed=run_seed, **store)


def rows_of(pool, draw="all", stage=0, batch=8, epoch=0):
    return pool.epoch(Stage(draw=draw, batch=batch), stage, epoch).rows.flatten()


def classes_of(pool, rows):
    return torch.bincount(pool.store.labels[rows], minlength=len(COUNTS)).tolist()


@settings(max_examples=40, deadline=None)
@given(batch=st.integers(1, 40), epoch=st.integers(0, 5), draw=st.sampled_from(["all", "rarest", "memory"]))
def test_every_image_comes_once_and_the_filler_is_the_head_of_the_next_epoch(batch, epoch, draw):
    pool = pool_of()
    rows, size = pool.candidates(draw, 0), len(pool.candidates(draw, 0))
    ours = pool.epoch(Stage(draw=draw, batch=batch), 0, epoch)
    stage = Stage(draw=draw, batch=batch)
    assert ours.rows.shape == (pool.steps(stage), pool.batch_size(stage))
    flat = ours.rows.flatten()
    assert sorted(flat[:size].tolist()) == sorted(rows.tolist())
    filler = flat[size:]
    assert len(filler) < pool.batch_size(stage)
    assert torch.equal(filler, rows_of(pool, draw, 0, batch, epoch + 1)[: len(filler)])


def test_a_pool_holds_new_classes_in_full_and_old_ones_as_exemplars():
    pool = pool_of()
    assert classes_of(pool, pool.rows) == [EACH, EACH, 12, 10]
    assert classes_of(pool, pool.memory) == [EACH, EACH, 0, 0]
    assert pool.counts(pool.rows).tolist() == [EACH, EACH, 12, 10]


def test_a_fresh_cut_to_the_rarest_class_is_another_one_in_every_epoch():
    pool = pool_of()
    cuts = [pool.candidates("fresh", 0, epoch) for epoch in range(3)]
    counts = [pool.counts(rows).unique().tolist() for rows in cuts]
    assert counts == [[int(pool.counts(pool.rows).min())]] * 3
    assert len({tuple(sorted(rows.tolist())) for rows in cuts}) == 3
    assert torch.equal(pool.candidates("rarest", 0, 0), pool.candidates("rarest", 0, 5))


def test_an_epoch_cuts_to_the_rarest_class_once_for_itself_and_once_for_what_follows(monkeypatch):
    pool, seen = pool_of(), []
    cut = Pool.cut_to_rarest
    monkeypatch.setattr(Pool, "cut_to_rarest", lambda self, *place: seen.append(place) or cut(self, *place))
    rows_of(pool, "fresh", epoch=4)
    assert [place[-1] for place in seen] == [4, 5]
    rows_of(pool, "fresh", epoch=5)
    assert [place[-1] for place in seen] == [4, 5, 6]  # what followed is what comes now


@pytest.mark.parametrize("draw", ["all", "rarest", "uniform", "fresh"])
def test_an_order_that_was_drawn_by_the_epoch_before_is_the_one_that_would_be_drawn_now(draw):
    pool = pool_of()
    one_after_the_other = [rows_of(pool, draw, epoch=epoch) for epoch in range(3)]
    rows_of(pool, draw, stage="0.aside", epoch=1)
    for epoch, rows in enumerate(one_after_the_other):
        assert torch.equal(rows, rows_of(pool_of(), draw, epoch=epoch))


def test_stages_that_draw_otherwise_do_not_take_each_other_s_orders():
    pool = pool_of()
    rows_of(pool, "all", epoch=0)
    assert torch.equal(rows_of(pool, "uniform", epoch=1), rows_of(pool_of(), "uniform", epoch=1))
    pool.epoch(Stage(batch=8), 0, 0)
    assert torch.equal(
        pool.epoch(Stage(batch=8, repeat=3), 0, 1).rows, pool_of().epoch(Stage(batch=8, repeat=3), 0, 1).rows
    )


def test_repeated_images_stand_side_by_side_in_an_epoch_that_stays_as_long():
    pool = pool_of()
    rows = pool.order(Stage(repeat=3), 0, 0)
    assert len(rows) == len(pool.rows)
    assert torch.equal(rows, pool.order(Stage(), 0, 0).repeat_interleave(3)[: len(rows)])


@pytest.mark.parametrize("draw", DRAWS)
def test_an_epoch_is_a_function_of_seed_phase_stage_and_epoch(draw):
    held = HELD if draw == "held" else 0.0
    pool, augment = pool_of(held=held), Augment(pad=2)
    assert torch.equal(rows_of(pool, draw), rows_of(pool_of(held=held), draw))
    for other in (rows_of(pool_of(1994, held=held), draw), rows_of(pool, draw, stage=1), rows_of(pool, draw, epoch=1)):
        assert not torch.equal(rows_of(pool, draw), other)
    one, same = (pool_of(augment=augment, held=held).epoch(Stage(draw=draw, batch=8), 0, 3).draws for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one.columns(), same.columns(), strict=True))


def test_what_is_held_out_is_balanced_and_trained_on_by_no_other_draw():
    pool = pool_of(held=HELD)
    assert classes_of(pool, pool.held) == [2, 2, 2, 2]
    assert not set(pool.held.tolist()) & set(pool.rows.tolist())
    assert sorted([*pool.held.tolist(), *pool.rows.tolist()]) == sorted(pool_of().rows.tolist())
    assert torch.equal(pool.held, pool_of(held=HELD).held)


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("held", [0.0, 0.1, HELD])
def test_how_many_images_a_stage_draws_is_known_from_numbers_alone(draw, held):
    pool = pool_of(held=held)
    pool.memory = torch.cat([pool.memory, pool.new[:4]])
    counts = torch.tensor([EACH, EACH, 12, 10])
    found = images_drawn(draw, counts, held_of_each(held, counts), pool.counts(pool.memory))
    assert found == len(pool.candidates(draw, 0))


@pytest.mark.parametrize("draw", DRAWS)
def test_epochs_of_all_stages_that_draw_alike_are_equally_long(draw):
    pool, stage = pool_of(held=HELD), Stage(draw=draw, batch=3)
    long = pool.steps(stage), pool.batch_size(stage)
    assert {tuple(pool.epoch(stage, number, 1).rows.shape) for number in (0, 1, "1.aside")} == {long}


def test_a_first_phase_holds_nothing_out():
    assert len(make_pool(COUNTS, held=HELD).held) == 0


def test_exemplars_too_few_to_hold_one_out_are_refused():
    with pytest.raises(UsageError, match="leaves none to train on; use a larger --memory"):
        make_pool(COUNTS, OLD, each=1, held=HELD)


def test_another_phase_draws_otherwise():
    store = make_store(COUNTS)
    rows = store.of_classes(0, 4)
    one, other = (Pool(store, Phase(i, 0, 4), rows, rows[:0], 1993) for i in (0, 1))
    assert not torch.equal(rows_of(one), rows_of(other))


@pytest.mark.parametrize("draw", ["all", "memory", "rarest", "uniform", "fresh"])
def test_the_next_epoch_is_drawn_without_waiting_for_the_device(draw):
    pool = pool_of()
    rows_of(pool, draw)  # what is cut once a stage is cut here
    with HostReads({"bdr"}) as reads:
        rows_of(pool, draw, epoch=1)
    assert reads.found == ""


def test_a_draw_that_waited_would_be_found():
    with HostReads({"bdr"}) as reads:
        pool_of().candidates("rarest", 0)
    assert "bincount" in reads.found  # the classes of a new pool are counted


def test_rarest_cuts_every_class_to_the_rarest_once_a_stage():
    pool = pool_of()
    rows = pool.candidates("rarest", 0)
    assert classes_of(pool, rows) == [EACH] * 4
    assert set(rows.tolist()) <= set(pool.rows.tolist())
    for epoch in range(3):
        assert sorted(rows_of(pool, "rarest", batch=4, epoch=epoch).tolist()) == sorted(rows.tolist())
    assert set(rows.tolist()) != set(pool.candidates("rarest", 1).tolist())


def test_uniform_makes_all_classes_equally_likely_and_is_fresh_each_epoch():
    pool = pool_of()
    epochs = [rows_of(pool, "uniform", batch=len(pool.rows), epoch=e) for e in range(200)]
    assert {len(rows) for rows in epochs} == {len(pool.rows)}
    share = torch.tensor(classes_of(pool, torch.cat(epochs))) / (200 * len(pool.rows))
    torch.testing.assert_close(share, torch.full((4,), 0.25), rtol=0, atol=0.03)
    assert not torch.equal(epochs[0], epochs[1])


def test_memory_draws_exemplars_alone_also_those_just_chosen():
    pool = pool_of()
    assert sorted(rows_of(pool, "memory", batch=3).tolist()) == sorted(pool.memory.tolist())
    pool.memory = torch.cat([pool.memory, pool.new[:4]])
    assert sorted(rows_of(pool, "memory", batch=5).tolist()) == sorted(pool.memory.tolist())


@pytest.mark.parametrize("draw", DRAWS)
def test_a_pool_smaller_than_a_batch_is_its_own_batch(draw):
    pool = pool_of(held=HELD)
    size, stage = len(pool.candidates(draw, 0)), Stage(draw=draw, batch=1000)
    assert pool.epoch(stage, 0, 0).rows.shape == (1, size)
    assert (pool.steps(stage), pool.batch_size(stage)) == (1, size)


def test_every_place_of_an_epoch_has_a_draw_of_its_own():
    epoch = pool_of(side=8, augment=Augment(pad=3, brightness=0.2)).epoch(Stage(batch=8), 0, 0)
    assert all(column.shape == epoch.rows.shape for column in epoch.draws.columns())
    assert len(epoch.draws.bright.unique()) == epoch.rows.numel()
    toned = pool_of(side=8, augment=Augment(pad=3, contrast=0.2)).epoch(Stage(batch=8), 0, 0)
    assert [column.shape for column in toned.tensors()] == [epoch.rows.shape] * 6
    assert torch.equal(toned.each(torch.clone).at(torch.tensor([1])).draws.contrast, toned.draws.contrast[1])
    assert epoch.draws.at(0).top.shape == (8,)
    assert epoch.steps == len(epoch.rows)


def test_outputs_are_those_of_eval_mode_in_the_order_of_the_rows(monkeypatch):
    monkeypatch.setattr("bdr.data.store.EVALUATION_BATCH", 7)
    pool, net = pool_of(), Network(Flat(), LinearHead(5))
    net.head.grow(4)
    net.backbone.eval()
    out = pool.outputs(net, pool.rows, mirrored=True)
    torch.testing.assert_close(out.features, net.backbone(pool.store.plain(pool.rows).flip(3)).pooled)
    assert not out.logits.requires_grad
    assert (net.training, net.backbone.training) == (True, False)


def test_a_store_finds_the_rows_of_classes_in_the_order_of_the_data():
    store = make_store(COUNTS)
    rows = store.of_classes(1, 3)
    assert rows.tolist() == [i for i, y in enumerate(store.labels.tolist()) if 1 <= y < 3]
    assert len(store) == sum(COUNTS)
