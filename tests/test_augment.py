"""Augmentation of whole batches against one image at a time."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from references import slow_augment
from small import make_store

from bdr.data.augment import Augment

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)


def pictures(count=6, height=7, width=5, channels=3, seed=0):
    chance = torch.Generator().manual_seed(seed)
    return torch.randint(256, (count, height, width, channels), generator=chance, dtype=torch.uint8)


def applied(augment, pixels, rows, draws):
    return augment.apply(pixels, rows, draws, torch.tensor(MEAN), torch.tensor(STD))


def one_by_one(augment, pixels, rows, draws):
    columns = [column.tolist() for column in tuple(draws)]
    done = [
        slow_augment(pixels[row].numpy(), augment.pad, *draw, MEAN, STD)
        for row, draw in zip(rows.tolist(), zip(*columns, strict=True), strict=True)
    ]
    return torch.tensor(np.stack(done), dtype=torch.float32)


@settings(max_examples=40, deadline=None)
@given(
    pad=st.integers(0, 4),
    flip=st.booleans(),
    brightness=st.sampled_from([0.0, 63 / 255, 0.9]),
    seed=st.integers(0, 999),
)
def test_a_batch_is_its_images_one_by_one(pad, flip, brightness, seed):
    augment, pixels, chance = Augment(pad, flip, brightness), pictures(seed=seed), torch.Generator().manual_seed(seed)
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


@pytest.mark.parametrize("augment", [Augment(), Augment(0, False), Augment(3, True, 0.5)])
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
    assert all(torch.equal(a, b) for a, b in zip(tuple(one), tuple(other), strict=True))


def test_rows_of_draws_are_draws():
    draws = Augment().draw(20, torch.Generator().manual_seed(5))
    assert torch.equal(draws.at(slice(3, 7)).top, draws.top[3:7])
    assert draws.at(5).bright == draws.bright[5]


def test_a_mirrored_plain_image_is_the_plain_one_from_the_other_side():
    store, rows = make_store((3, 3), channels=3), torch.arange(6)
    assert torch.equal(store.plain(rows, mirrored=True), store.plain(rows).flip(3))
