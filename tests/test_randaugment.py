"""RandAugment on the device against Pillow, operation by operation; how it is drawn, and how it meets a batch."""

import math

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from bdr.configuration.config import checked_augment
from bdr.data.augment import Augment
from bdr.data.pool import Pool
from bdr.data.randaugment import NONE, NUMBER, OPERATIONS, Chosen, choose, operated, randaugmented
from bdr.data.store import Store
from bdr.engine.step import taken
from bdr.errors import UsageError
from bdr.planning.describe import augment_facts
from bdr.types import Phase, Stage

GEOMETRY = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")
FILL = (124, 116, 104)
LEVELS = (-9.6, -9.0, -4.3, 0.0, 2.7, 8.2, 9.0, 10.0)


def pictures(count=4, height=32, width=32, seed=0):
    """Smooth ones and noisy ones, none of them square in levels."""
    chance = np.random.default_rng(seed)
    coarse = chance.integers(0, 256, (count, 6, 6, 3), dtype=np.uint8)
    smooth = [np.asarray(Image.fromarray(each).resize((width, height), Image.Resampling.BICUBIC)) for each in coarse]
    noisy = chance.integers(20, 230, (count, height, width, 3), dtype=np.uint8)
    return np.concatenate([np.stack(smooth), noisy])


# Pillow's own, one picture at a time


def transformed(image, *matrix):
    return image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.BICUBIC, fillcolor=FILL)


def enhanced(kind):
    return lambda image, level: kind(image).enhance(max(0.1, 1 + 0.9 * level / 10))


def with_bits(image, bits):
    return ImageOps.posterize(image, bits) if bits else Image.new("RGB", image.size)  # today's Pillow refuses none


def lighter_below_the_middle(image, level):
    added = int(abs(level) / 10 * 110)
    return image.point([min(255, v + added) if v < 128 else v for v in range(256)] * 3)


PILLOW = {
    "none": lambda image, level: image,
    "autocontrast": lambda image, level: ImageOps.autocontrast(image),
    "equalize": lambda image, level: ImageOps.equalize(image),
    "invert": lambda image, level: ImageOps.invert(image),
    "rotate": lambda image, level: image.rotate(3 * level, Image.Resampling.BICUBIC, fillcolor=FILL),
    "posterize": lambda image, level: with_bits(image, 4 - int(abs(level) / 10 * 4)),
    "solarize": lambda image, level: ImageOps.solarize(image, 256 - int(abs(level) / 10 * 256)),
    "solarize_add": lighter_below_the_middle,
    "color": enhanced(ImageEnhance.Color),
    "contrast": enhanced(ImageEnhance.Contrast),
    "brightness": enhanced(ImageEnhance.Brightness),
    "sharpness": enhanced(ImageEnhance.Sharpness),
    "shear_x": lambda image, level: transformed(image, 1, 0.03 * level, 0, 0, 1, 0),
    "shear_y": lambda image, level: transformed(image, 1, 0, 0, 0.03 * level, 1, 0),
    "translate_x": lambda image, level: transformed(image, 1, 0, 0.045 * level * image.size[0], 0, 1, 0),
    "translate_y": lambda image, level: transformed(image, 1, 0, 0, 0, 1, 0.045 * level * image.size[1]),
}


def ours(images, name, level):
    number = torch.full((len(images),), NUMBER[name])
    done = operated(torch.from_numpy(images).float(), number, torch.full((len(images),), level), torch.tensor(FILL))
    assert (done == done.round()).all()
    return done.numpy()


def theirs(images, name, level):
    return np.stack([np.asarray(PILLOW[name](Image.fromarray(image), level)) for image in images]).astype(np.float32)


@pytest.mark.parametrize("size", [(32, 32), (20, 28)])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_is_pillows_to_within_a_level(name, level, size):
    images = pictures(1, *size)
    difference = np.abs(ours(images, name, level) - theirs(images, name, level))
    if name in GEOMETRY:  # a place on the very edge of a picture may fall to either side
        assert (difference > 1).mean() < 0.002
    else:
        assert difference.max() <= 1
    assert (difference > 0).mean() < 0.005


@pytest.mark.parametrize("name", ["autocontrast", "equalize"])
def test_a_picture_of_one_level_stays_as_it_is(name):
    flat = np.full((1, 8, 8, 3), 77, dtype=np.uint8)
    assert (ours(flat, name, 9.0) == flat).all()


def test_a_few_pixels_are_too_few_to_be_equalized():
    images = pictures(1, 8, 8)
    assert (ours(images, "equalize", 9.0) == images).all()


def test_an_image_that_is_not_warped_keeps_every_pixel():
    images = pictures()
    assert (ours(images, "none", 9.0) == images).all()


def test_every_image_has_its_own_operation_and_both_come_in_turn():
    images = torch.from_numpy(pictures()).float()
    chance = torch.Generator().manual_seed(3)
    chosen = Chosen(torch.randint(16, (8, 2), generator=chance), 20 * torch.rand(8, 2, generator=chance) - 10)
    done = randaugmented(images, chosen, torch.tensor(FILL))
    for i in range(8):
        alone = images[i : i + 1]
        for slot in range(2):
            alone = operated(
                alone, chosen.operation[i : i + 1, slot], chosen.level[i : i + 1, slot], torch.tensor(FILL)
            )
        assert torch.equal(alone[0], done[i])


@pytest.mark.parametrize("name", OPERATIONS)
def test_images_of_one_channel_are_those_of_three_equal_ones(name):
    grey = torch.from_numpy(pictures(2)[..., :1]).float()
    how = torch.full((4,), NUMBER[name]), torch.full((4,), 9.0)
    three = operated(grey.expand(-1, -1, -1, 3), *how, torch.ones(3))
    assert torch.equal(three[..., :1], operated(grey, *how, torch.ones(1)))


# The draws


def drawn(count=30000, magnitude=9.0, spread=0.5):
    return choose(count, magnitude, spread, torch.Generator().manual_seed(0))


def test_half_of_the_operations_are_left_out_and_the_others_are_equally_likely():
    share = torch.bincount(drawn().operation.flatten(), minlength=16) / 60000
    assert float(share[NONE]) == pytest.approx(0.5, abs=0.01)
    torch.testing.assert_close(share[1:], torch.full((15,), 0.5 / 15), rtol=0, atol=0.004)


def test_the_two_operations_of_an_image_are_drawn_apart():
    first, second = drawn().operation.unbind(1)
    assert float(((first != NONE) & (second != NONE)).float().mean()) == pytest.approx(0.25, abs=0.01)
    assert float((first == second)[first != NONE].float().mean()) == pytest.approx(0.5 / 15, abs=0.006)


def test_levels_are_normal_clipped_at_ten_and_go_either_way():
    level = drawn().level
    assert float((level > 0).float().mean()) == pytest.approx(0.5, abs=0.01)
    assert float(level.abs().max()) == 10
    assert float(level.abs().median()) == pytest.approx(9, abs=0.02)
    below = 0.5 * (1 + math.erf(-1 / math.sqrt(2)))
    assert float((level.abs() < 8.5).float().mean()) == pytest.approx(below, abs=0.01)
    assert float((level.abs() == 10).float().mean()) == pytest.approx(0.5 * (1 - math.erf(2 / math.sqrt(2))), abs=0.01)


def test_without_it_nothing_is_drawn_and_nothing_else_changes():
    chance = lambda: torch.Generator().manual_seed(7)  # noqa: E731
    off, on = Augment().draw(50, chance()), Augment(randaugment=9.0).draw(50, chance())
    assert (off.operation, off.level, len(off.columns())) == (None, None, 4)
    assert all(torch.equal(a, b) for a, b in zip(off.columns(), on.columns()[:4], strict=True))


@pytest.mark.parametrize(("name", "value"), [("randaugment", 11.0), ("randaugment", -1.0), ("randaugment_std", -0.5)])
def test_magnitudes_that_cannot_be_are_refused(name, value):
    with pytest.raises(UsageError, match=rf"augment\.{name} = {value} is not allowed"):
        checked_augment(Augment(), {name: value})


def test_a_protocol_names_it_where_it_is_on():
    assert augment_facts(Augment(randaugment=9.0)) == f"{augment_facts(Augment())}, randaugment 9, randaugment_std 0.5"


# In a batch


def store(augment, count=40):
    pixels = torch.from_numpy(pictures(count // 2))
    return Store(pixels, torch.arange(count) % 2, (0.5, 0.45, 0.4), (0.2, 0.25, 0.3), augment, "cpu")


def test_images_are_cropped_and_mirrored_first_and_normalised_last():
    augment, rows = Augment(randaugment=9.0), torch.arange(40)
    images, plain = store(augment), store(Augment())
    draws = augment.draw(40, torch.Generator().manual_seed(0))
    cropped = plain.augmented(rows, draws._replace(operation=None, level=None))
    as_bytes = ((cropped.permute(0, 2, 3, 1) * images.std + images.mean) * 255).round()
    done = randaugmented(as_bytes, Chosen(draws.operation, draws.level), (images.mean * 255).round())
    wanted = ((done / 255 - images.mean) / images.std).permute(0, 3, 1, 2)
    torch.testing.assert_close(images.augmented(rows, draws), wanted)
    untouched = (draws.operation == NONE).all(1)
    assert untouched.any()
    torch.testing.assert_close(wanted[untouched], cropped[untouched])


def test_images_are_told_without_it():
    augment = Augment(randaugment=9.0)
    assert torch.equal(store(augment).plain(torch.arange(40)), store(Augment()).plain(torch.arange(40)))


def test_a_compiled_augmentation_is_the_eager_one():
    images = store(Augment(randaugment=9.0))
    pool = Pool(images, Phase(0, 0, 2), torch.arange(40), torch.zeros(0, dtype=torch.long), 1993)
    epoch, at = pool.epoch(Stage(batch=16), 0, 0), torch.tensor([1])
    assert epoch.draws.operation.shape == (3, 16, 2)
    compiled = torch.compile(taken, fullgraph=True, backend="eager")(images, epoch, at)
    assert torch.equal(compiled[0], taken(images, epoch, at)[0])
