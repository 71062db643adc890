"""Augmentation of whole batches against one image at a time."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from references import slow_augment
from small import make_pool, make_store

from bdr.data.augment import Augment
from bdr.engine.step import taken
from bdr.types import Stage

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
TWELVE = Augment(additive=63 / 255, contrast=0.8, uncropped=0.5)  # the twelve kinds of E2E


def pictures(count=6, height=7, width=5, channels=3, seed=0):
    chance = torch.Generator().manual_seed(seed)
    return torch.randint(256, (count, height, width, channels), generator=chance, dtype=torch.uint8)


def applied(augment, pixels, rows, draws):
    return augment.apply(pixels, rows, draws, torch.tensor(MEAN), torch.tensor(STD))


def one_by_one(augment, pixels, rows, draws):
    done = []
    for i, row in enumerate(rows.tolist()):
        *crop, added, contrast = (None if column is None else column[i].item() for column in tuple(draws)[:6])
        tone = {"added": added or 0.0, "contrast": 1.0 if contrast is None else contrast}
        done.append(slow_augment(pixels[row].numpy(), augment.pad, *crop, MEAN, STD, **tone))
    return torch.tensor(np.stack(done), dtype=torch.float32)


@settings(max_examples=40, deadline=None)
@given(
    pad=st.integers(0, 4),
    flip=st.booleans(),
    brightness=st.sampled_from([0.0, 63 / 255, 0.9]),
    tone=st.sampled_from([(0.0, 0.0, 0.0), (63 / 255, 0.8, 0.5), (0.9, 0.0, 0.0), (0.0, 1.0, 0.3)]),
    seed=st.integers(0, 999),
)
def test_a_batch_is_its_images_one_by_one(pad, flip, brightness, tone, seed):
    augment, pixels = Augment(pad, flip, brightness, *tone), pictures(seed=seed)
    chance = torch.Generator().manual_seed(seed)
    rows = torch.randint(6, (9,), generator=chance)
    draws = augment.draw(9, chance)
    torch.testing.assert_close(
        applied(augment, pixels, rows, draws), one_by_one(augment, pixels, rows, draws), rtol=0, atol=2e-6
    )


def test_padding_is_black_before_normalisation():
    augment, pixels = Augment(pad=2, flip=False), torch.full((1, 4, 4, 3), 255, dtype=torch.uint8)
    draws = augment.none(1, "cpu")._replace(top=torch.tensor([0]))
    image = applied(augment, pixels, torch.tensor([0]), draws)[0]
    torch.testing.assert_close(image[:, 0, 0], -torch.tensor(MEAN) / torch.tensor(STD))
    torch.testing.assert_close(image[:, 3, 0], (1 - torch.tensor(MEAN)) / torch.tensor(STD))


def test_brightness_stops_at_white():
    augment, pixels = Augment(pad=0, brightness=1.0), torch.full((1, 2, 2, 3), 200, dtype=torch.uint8)
    draws = augment.none(1, "cpu")._replace(bright=torch.tensor([1.9]))
    white = (1 - torch.tensor(MEAN)) / torch.tensor(STD)
    torch.testing.assert_close(applied(augment, pixels, torch.tensor([0]), draws)[0, :, 0, 0], white)


@pytest.mark.parametrize("augment", [Augment(), Augment(0, False), Augment(3, True, 0.5), TWELVE])
def test_the_draws_of_none_leave_images_as_they_are(augment):
    pixels, rows = pictures(), torch.tensor([4, 0, 0, 5])
    plain = ((pixels[rows] / 255 - torch.tensor(MEAN)) / torch.tensor(STD)).permute(0, 3, 1, 2)
    torch.testing.assert_close(applied(augment, pixels, rows, augment.none(4, "cpu")), plain)


def test_each_sample_has_its_own_draw():
    augment, pixels = Augment(pad=2, brightness=0.3), pictures()
    draws = augment.draw(50, torch.Generator().manual_seed(0))
    batch = applied(augment, pixels, torch.zeros(50, dtype=torch.long), draws)
    assert len(batch.flatten(1).unique(dim=0)) == 50
    assert set(draws.top.tolist()) == set(draws.left.tolist()) == set(range(5))
    assert not torch.equal(draws.top, draws.left)


def test_half_of_the_images_are_mirrored():
    mirrored = Augment().draw(4000, torch.Generator().manual_seed(0)).mirror
    assert 0.45 < mirrored.float().mean() < 0.55


def test_without_flip_none_is_ever_mirrored():
    assert not Augment(flip=False).draw(4000, torch.Generator().manual_seed(0)).mirror.any()


@pytest.mark.parametrize("brightness", [0.0, 0.25])
def test_brightness_stays_within_its_bounds(brightness):
    bright = Augment(brightness=brightness).draw(4000, torch.Generator().manual_seed(0)).bright
    assert bright.min() >= 1 - brightness
    assert bright.max() <= 1 + brightness
    assert float(bright.mean()) == pytest.approx(1, abs=0.01)
    assert float(bright.max() - bright.min()) == pytest.approx(2 * brightness, abs=0.01)


def test_equal_seeds_draw_equally():
    one, other = (Augment(brightness=0.1).draw(20, torch.Generator().manual_seed(5)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one.columns(), other.columns(), strict=True))


def test_rows_of_draws_are_draws():
    draws = Augment().draw(20, torch.Generator().manual_seed(5))
    assert torch.equal(draws.at(slice(3, 7)).top, draws.top[3:7])
    assert draws.at(5).bright == draws.bright[5]


def test_a_mirrored_plain_image_is_the_plain_one_from_the_other_side():
    store, rows = make_store((3, 3), channels=3), torch.arange(6)
    assert torch.equal(store.plain(rows, mirrored=True), store.plain(rows).flip(3))


# Tones


def drawn(augment, count=12000, seed=0):
    return augment.draw(count, torch.Generator().manual_seed(seed))


def test_the_twelve_kinds_are_equally_likely():
    draws = drawn(TWELVE)
    kind = 1 * (draws.added != 0) + 2 * (draws.contrast != 1)
    whole = (draws.top == 4) & (draws.left == 4)
    of_each = torch.bincount(kind + 3 * draws.mirror + 6 * whole, minlength=12) / len(kind)
    crop_that_does_not_shift = 0.5 / 81
    wanted = torch.tensor([(0.5 - crop_that_does_not_shift) / 6] * 6 + [(0.5 + crop_that_does_not_shift) / 6] * 6)
    torch.testing.assert_close(of_each, wanted, rtol=0, atol=0.01)


def test_tones_stay_within_their_bounds():
    draws = drawn(TWELVE)
    moved, stretched = draws.added[draws.added != 0], draws.contrast[draws.contrast != 1]
    assert (float(moved.min()), float(moved.max())) == pytest.approx((-63 / 255, 63 / 255), abs=1e-3)
    assert (float(stretched.min()), float(stretched.max())) == pytest.approx((0.2, 1.8), abs=3e-3)
    assert (float(moved.mean()), float(stretched.mean())) == pytest.approx((0, 1), abs=0.03)


def test_tones_come_after_the_draws_that_were_there_before():
    before, toned = drawn(Augment(brightness=0.2)), drawn(Augment(brightness=0.2, additive=0.1, contrast=0.5))
    assert (before.added, before.contrast, len(before.columns())) == (None, None, 4)
    assert all(torch.equal(a, b) for a, b in zip(before.columns(), toned.columns()[:4], strict=True))


def test_the_draws_without_tones_are_the_numbers_that_they_have_always_been():
    draws = drawn(Augment(brightness=0.25), count=3, seed=7)
    chance = torch.Generator().manual_seed(7)
    top, left = torch.randint(9, (2, 3), generator=chance)
    mirror, bright = torch.rand((2, 3), generator=chance)
    wanted = (top, left, mirror < 0.5, 1 + 0.25 * (2 * bright - 1))
    assert all(torch.equal(a, b) for a, b in zip(draws.columns(), wanted, strict=True))


def test_contrast_by_hand():
    """Two pixels at 0.2 and 0.6 of 1: twice the contrast around 0.4 makes 0 and 0.8."""
    augment, pixels = Augment(pad=0, contrast=1.0), torch.tensor([51, 153], dtype=torch.uint8).view(1, 1, 2, 1)
    draws = augment.none(1, "cpu")._replace(contrast=torch.tensor([2.0]))
    image = augment.apply(pixels, torch.tensor([0]), draws, torch.zeros(1), torch.ones(1))
    torch.testing.assert_close(image.flatten(), torch.tensor([0.0, 0.8]))


def test_padding_stays_black_when_an_image_is_brightened():
    augment, pixels = Augment(pad=1, additive=0.5), torch.full((1, 2, 2, 1), 51, dtype=torch.uint8)
    draws = augment.none(1, "cpu")._replace(top=torch.tensor([0]), added=torch.tensor([0.5]))
    image = augment.apply(pixels, torch.tensor([0]), draws, torch.zeros(1), torch.ones(1))
    torch.testing.assert_close(image[0, 0], torch.tensor([[0.0, 0.0], [0.7, 0.7]]))


@pytest.mark.parametrize("augment", [Augment(), TWELVE])
def test_a_compiled_augmentation_is_the_eager_one(augment):
    pool, at = make_pool((9, 8), augment=augment), torch.tensor([1])
    epoch = pool.epoch(Stage(batch=5), 0, 0)
    compiled = torch.compile(taken, fullgraph=True, backend="eager")(pool.store, epoch, at)
    assert torch.equal(compiled[0], taken(pool.store, epoch, at)[0])
