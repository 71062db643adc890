"""Views: what is drawn, what Pillow and colour circles make of the same images, and the seam that brings them."""

import colorsys
import copy

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance
from small import make_flat, make_pool, make_store
from torch import nn

from bdr.data.augment import Augment
from bdr.data.views import Looks, View, hued, normalised, seen
from bdr.engine.fit import Fit
from bdr.engine.objective import Objective, copied
from bdr.errors import BdrError
from bdr.methods.plain import Replay
from bdr.nets import LinearHead
from bdr.plugins import Plugin
from bdr.types import Stage

COUNTS, OLD = (6, 7, 8, 9), 2
FLIPPING = Augment(pad=0, flip=True)


def chance(seed=0):
    return torch.Generator().manual_seed(seed)


def still(count):
    """Draws that leave an image as it is."""
    zero, one, no = torch.zeros(count), torch.ones(count), torch.zeros(count, dtype=torch.bool)
    return Looks(zero, zero, one, one, no, one, one, one, zero, no)


def images(count=5, side=9, channels=3, augment=FLIPPING):
    return make_store((count,), side=side, channels=channels, augment=augment)


def pictures(store):
    return [Image.fromarray(pixels.numpy()) for pixels in store.pixels]


def bytes_of(picture):
    return torch.from_numpy(np.asarray(picture).copy()).float()


def view_of(store, **drawn):
    rows = torch.arange(len(store))
    return seen(store, rows, still(len(store))._replace(**drawn))


# Against Pillow


def test_draws_that_change_nothing_leave_an_image_as_it_is():
    store = images()
    assert torch.equal(view_of(store), store.pixels.float())


def test_a_part_of_an_image_is_what_pillow_makes_of_it():
    store, looks = images(side=9), View(0.1).draw(1, 5, chance())
    drawn = {name: getattr(looks, name)[0] for name in ("top", "left", "height", "width")}
    ours = view_of(store, **drawn)
    for place, picture in enumerate(pictures(store)):
        top, left, height, width = (9 * float(drawn[name][place]) for name in ("top", "left", "height", "width"))
        theirs = picture.resize((9, 9), Image.Resampling.BILINEAR, (left, top, left + width, top + height))
        assert (ours[place] - bytes_of(theirs)).abs().max() <= 1


def test_a_mirrored_part_is_the_mirror_image_of_the_part():
    store, half = images(), torch.full((5,), 0.5)
    part = {"top": 0.2 * half, "left": 0.6 * half, "height": half, "width": half}
    mirrored = view_of(store, mirror=torch.ones(5, dtype=torch.bool), **part)
    assert torch.equal(mirrored, view_of(store, **part).flip(2))


def test_nothing_is_mirrored_where_the_data_set_mirrors_nothing():
    store = images(augment=Augment(pad=0, flip=False))
    assert torch.equal(view_of(store, mirror=torch.ones(5, dtype=torch.bool)), store.pixels.float())


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("brightness", ImageEnhance.Brightness),
        ("contrast", ImageEnhance.Contrast),
        ("colour", ImageEnhance.Color),
    ],
)
@pytest.mark.parametrize("factor", [0.6, 1.0, 1.35])
def test_tones_are_those_of_pillow(name, theirs, factor):
    store = images()
    ours = view_of(store, **{name: torch.full((5,), factor)})
    for place, picture in enumerate(pictures(store)):
        assert (ours[place] - bytes_of(theirs(picture).enhance(factor))).abs().max() <= 1


def test_grey_is_that_of_pillow():
    store = images()
    ours = view_of(store, grey=torch.tensor([True, True, True, False, False]))
    for place, picture in enumerate(pictures(store)):
        wanted = bytes_of(picture.convert("L"))[..., None].expand(9, 9, 3) if place < 3 else bytes_of(picture)
        assert (ours[place] - wanted).abs().max() <= 1


@pytest.mark.parametrize("turn", [-0.1, 0.0, 0.07, 0.5])
def test_hues_are_turned_as_on_the_colour_circle(turn):
    pixels = torch.randint(256, (2, 4, 4, 3), generator=chance()).float()
    pixels[0, 0, :3] = torch.tensor([[7.0, 7, 7], [0, 0, 0], [255, 255, 0]])  # without a hue, or with two highest
    ours = hued(pixels, torch.full((2,), turn))
    for place in np.ndindex(2, 4, 4):
        hue, full, value = colorsys.rgb_to_hsv(*(pixels[place] / 255).tolist())
        wanted = torch.tensor(colorsys.hsv_to_rgb((hue + turn) % 1, full, value)) * 255
        torch.testing.assert_close(ours[place], wanted, rtol=0, atol=0.51)


def test_images_without_colour_lose_none():
    store, half = images(channels=1), torch.full((5,), 0.5)
    coloured = view_of(store, colour=half, hue=0.1 * half, grey=torch.ones(5, dtype=torch.bool))
    assert torch.equal(coloured, store.pixels.float())


def test_a_view_is_normalised_as_the_images_of_the_method_are():
    store, rows = images(), torch.tensor([3, 0])
    ours = normalised(store, seen(store, rows, still(2)))
    torch.testing.assert_close(ours, store.plain(rows))


# The draws


def test_parts_lie_inside_the_image_and_are_as_large_as_they_may_be():
    looks = View(0.2).draw(100, 50, chance())
    area, ratio = looks.height * looks.width, looks.width / looks.height
    assert float(looks.top.min()) >= 0
    assert float((looks.top + looks.height).max()) <= 1 + 1e-6
    assert float((looks.left + looks.width).max()) <= 1 + 1e-6
    assert 0.2 - 1e-6 <= float(area.min()) <= float(area.max()) <= 1
    assert 0.75 - 1e-6 <= float(ratio.min()) <= float(ratio.max()) <= 4 / 3 + 1e-6
    assert float(looks.height.mean()) == pytest.approx(float(looks.width.mean()), abs=0.01)


def test_shares_of_views_are_jittered_mirrored_and_grey():
    looks = View().draw(100, 200, chance())
    for shares, wanted in ((looks.mirror, 0.5), (looks.grey, 0.2), (looks.brightness != 1, 0.8), (looks.hue != 0, 0.8)):
        assert float(shares.float().mean()) == pytest.approx(wanted, abs=0.02)
    assert torch.equal(looks.contrast != 1, looks.hue != 0)
    for factor in (looks.brightness, looks.contrast, looks.colour):
        assert 0.6 <= float(factor.min()) < 0.65 < 1.35 < float(factor.max()) <= 1.4
    assert float(looks.hue.abs().max()) <= 0.1


@pytest.mark.parametrize("crop", [0.0, 1.2])
def test_a_part_is_some_of_the_image(crop):
    with pytest.raises(ValueError, match=f"crop = {crop} is not allowed"):
        View(crop)


# The seam


class Looking(Plugin):
    """Wants so many views, each of one level, and keeps what it is handed."""

    def __init__(self, views, level):
        super().__init__()
        self.name, self.views, self.level, self.handed = f"looks{level}", views, level, []

    def draws(self, steps, size, chance):
        return (torch.rand((steps, size), generator=chance),)

    def look(self, store, rows, drawn):
        (share,) = drawn
        plain = store.plain(rows)
        return tuple(plain * share[:, None, None, None] + self.level + place for place in range(self.views))

    def observe(self, batch, out):
        self.handed.append(batch)

    def terms(self, batch, out, forward):
        self.handed.append(batch)
        return {self.name: forward(batch.views[0]).logits.square().mean()} if self.views else {}


class Normed(nn.Module):
    """A network whose batch norm has running statistics."""

    def __init__(self):
        super().__init__()
        self.inner, self.norm = make_flat(LinearHead), nn.BatchNorm2d(1)
        self.head = self.inner.head

    def forward(self, x):
        return self.inner(self.norm(x))


def fit_of(plugins, engine="eager"):
    torch.manual_seed(0)
    pool, method = make_pool(COUNTS, OLD), Replay(make_flat)
    method.net = Normed()
    method.net.head.grow(len(COUNTS))
    stage = Stage(epochs=2, batch=5)
    return Fit(Objective(method, plugins, pool.phase, stage), pool, engine, 0)


def test_every_plug_in_is_handed_its_own_views_and_no_others():
    plugins = [Looking(1, 10), Looking(0, 0), Looking(2, 20)]
    fit = fit_of(plugins)
    fit.open(0)
    _, views = fit.step.batch(torch.tensor([0]))
    fit.step()
    for plugin, wanted in zip(plugins, views, strict=True):
        assert len(plugin.handed) == 2  # it observes, and has terms
        for batch in plugin.handed:
            assert len(batch.views) == plugin.views
            assert all(torch.equal(a, b) for a, b in zip(batch.views, wanted, strict=True))


def test_as_many_views_are_made_as_are_wanted():
    plugin = Looking(2, 0)
    plugin.look = lambda store, rows, drawn: (store.plain(rows),)
    fit = fit_of([plugin])
    fit.open(0)
    with pytest.raises(BdrError, match="'looks0' wants 2 further views, and its `look` makes 1"):
        fit.step.batch(torch.tensor([0]))


def test_views_change_nothing_of_what_the_method_sees():
    plain, looking = fit_of([]), fit_of([Looking(1, 10)])
    for fit in (plain, looking):
        fit.open(0)
    (one, none), (other, some) = (fit.step.batch(torch.tensor([1])) for fit in (plain, looking))
    assert (len(none), len(some)) == (0, 1)
    assert one.views == other.views == ()
    assert all(torch.equal(a, b) for a, b in zip(one[:3], other[:3], strict=True))


def test_a_method_is_handed_no_view_of_a_plug_in():
    fit, shown = fit_of([Looking(1, 10)]), []
    loss = fit.objective.loss
    fit.objective.loss = lambda batch, *others: shown.append(batch.views) or loss(batch, *others)
    fit.open(0)
    fit.step()
    assert shown == [()]


def test_the_images_of_a_step_are_told_with_all_views_in_a_row():
    fit, told = fit_of([Looking(1, 10), Looking(0, 0), Looking(2, 20)]), []
    fit.open(0)
    fit.step.seen = told.extend
    fit.step()
    assert len(told) == 4
    assert all(isinstance(images, torch.Tensor) for images in told)


def test_what_a_plug_in_shows_the_network_moves_no_running_statistics():
    states = []
    for plugins in ([], [Looking(1, 1000)]):
        fit = fit_of(plugins)
        fit.open(0)
        fit.step()
        states.append({name: b.clone() for name, b in fit.objective.method.net.named_buffers()})
    assert states[0]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_copies_of_buffers_are_equal_and_apart_whatever_they_are_of_and_none_are_none():
    buffers = {"a": torch.rand(3), "b": torch.arange(4), "none": torch.empty(0), "mask": torch.tensor(True)}
    found = copied(buffers)
    assert list(found) == list(buffers)
    for name, buffer in buffers.items():
        assert torch.equal(found[name], buffer)
        assert found[name].dtype == buffer.dtype
    found["a"].zero_()
    assert buffers["a"].all()
    assert copied({}) == {}


def test_what_a_plug_in_shows_the_network_is_learnt_from_as_in_training():
    fit = fit_of([Looking(1, 0)])
    net, x = fit.objective.method.net, torch.randn(6, 1, 4, 4)
    out = fit.objective.beside(x)
    torch.testing.assert_close(out.logits, copy.deepcopy(net)(x).logits)
    out.logits.square().mean().backward()
    assert float(net.norm.weight.grad.abs().sum()) > 0


def test_views_are_drawn_by_their_place_alone():
    fit = fit_of([Looking(1, 0)])
    first, again, next_one = (fit.plan(epoch).plugins[0][0] for epoch in (0, 0, 1))
    assert first.shape == (fit.steps, 5)
    assert torch.equal(first, again)
    assert not torch.equal(first, next_one)


def test_a_compiled_step_looks_as_the_eager_one():
    fit = fit_of([Looking(2, 10)])
    fit.open(0)
    _, (eager,) = fit.step.batch(torch.tensor([1]))
    _, (compiled,) = torch.compile(fit.step.batch, fullgraph=True, backend="eager")(torch.tensor([1]))
    assert len(eager) == 2
    assert all(torch.equal(a, b) for a, b in zip(eager, compiled, strict=True))
