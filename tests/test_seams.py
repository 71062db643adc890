"""Seams that no method here fills alone: draws of plug-ins, frozen parts, what is compiled, settings of networks."""

import copy

import numpy as np
import pytest
import torch
from runs import Position, assert_equal, train, train_until
from small import Flat, make_flat, make_pool
from test_cli import SHORT, typed
from torch import nn

from bdr import api
from bdr.data.sets import from_arrays
from bdr.engine.checkpoint import read_state
from bdr.engine.fit import Fit
from bdr.engine.objective import Objective
from bdr.engine.step import CompiledStep, backbone_parts
from bdr.errors import UsageError
from bdr.methods import Method
from bdr.nets import Backbone, Features, Frozen, LinearHead, Network, Teacher
from bdr.planning.assemble import plan_run
from bdr.plugins import Plugin
from bdr.types import ImageShape, Stage

HERE = "test_seams"
STAGE = Stage(epochs=2, batch=8, lr=0.1)
SHORT_RUN = {"base": 4, "step": 3, "memory": "3/class", "phases": 2, "val": 0.8, "share": False, "device": "cpu"}


class Plain(Method):
    """Cross-entropy; remembers the images of every batch that it is shown."""

    def __init__(self, make=make_flat):
        super().__init__()
        self.net, self.shown = make(LinearHead), []

    def begin(self, phase, pool):
        self.net.head.grow(phase.new)

    def loss(self, batch, phase, classify):
        self.shown.append(batch.x)
        return {"ce": classify(self.net(batch.x), batch.y).mean()}


class Noise(Plugin):
    """Adds noise to the images, a draw of its own for every one of them."""

    def __init__(self, loudness: float = 0.5):
        super().__init__()
        self.loudness = loudness

    def draws(self, steps, size, chance):
        return (torch.randn(steps, size, generator=chance, device=chance.device),)

    def batch(self, batch, drawn):
        (each,) = drawn
        return batch._replace(x=batch.x + self.loudness * each[:, None, None, None])


class Blind(Plugin):
    """Shows nothing of the images."""

    def batch(self, batch, drawn):
        return batch._replace(x=torch.zeros_like(batch.x))


def fit_with(*plugins):
    """A stage about to begin, with these plug-ins; always the same images and weights."""
    torch.manual_seed(0)
    method, pool = Plain(), make_pool([6, 6, 6, 6])
    method.begin(pool.phase, pool)
    return Fit(Objective(method, plugins, pool.phase, STAGE), pool, "eager", 0)


def values_of(fit, epoch=0):
    return fit.epoch(epoch, 0, None, lambda step, log: None).term("ce")


# What plug-ins draw, and how they change a batch


def test_noise_that_a_plug_in_draws_changes_the_loss_and_silence_does_not():
    plain, silent, loud = (values_of(fit_with(*each)) for each in ([], [Noise(0.0)], [Noise(1.0)]))
    assert (plain == silent).all()
    assert (plain != loud).all()


def test_a_method_sees_the_images_and_exactly_what_was_drawn_for_them():
    plain, noisy = fit_with(), fit_with(Noise(0.5))
    drawn = noisy.plan(0).plugins[0][0]
    assert drawn.shape == (3, 8)
    values_of(plain)
    values_of(noisy)
    for x, changed, mine in zip(plain.objective.method.shown, noisy.objective.method.shown, drawn, strict=True):
        torch.testing.assert_close(changed, x + 0.5 * mine[:, None, None, None])


def test_a_plug_in_draws_anew_in_every_epoch_and_the_same_in_the_same_one():
    first, again, second = (fit_with(Noise()).plan(epoch).plugins[0][0] for epoch in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, second)


def test_an_epoch_is_drawn_before_the_one_before_it_is_read_and_the_last_one_draws_none():
    fit, asked = fit_with(Noise()), []
    plan, read = fit.plan, torch.Tensor.cpu
    fit.plan = lambda epoch: asked.append(epoch) or plan(epoch)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "cpu", lambda tensor: asked.append("read") or read(tensor))
        values_of(fit, 0)
        values_of(fit, 1)
    assert asked == [0, 1, "read", "read"]


def test_an_epoch_that_was_drawn_early_trains_as_one_that_is_drawn_in_time():
    early, late = fit_with(Noise()), fit_with(Noise())
    values_of(early, 0)
    values_of(late, 0)
    late.ahead.clear()  # as after a stop
    assert (values_of(early, 1) == values_of(late, 1)).all()
    assert (values_of(early, 0) == values_of(late, 0)).all()  # and one that nobody expected


def test_a_stage_that_is_left_has_drawn_nothing_ahead():
    def leave(step, log):
        raise KeyboardInterrupt

    fit = fit_with(Noise())
    with pytest.raises(KeyboardInterrupt):
        fit.epoch(0, 0, None, leave)
    assert not fit.ahead


def test_the_draws_of_a_plug_in_leave_rows_and_augmentation_alone():
    plain, noisy = fit_with().plan(0), fit_with(Noise()).plan(0)
    assert all(torch.equal(a, b) for a, b in zip(plain.tensors(), noisy.tensors()[:-1], strict=True))


def test_two_plug_ins_draw_apart_and_the_first_one_named_changes_the_batch_first():
    one, other = Noise(), Noise()
    one.name, other.name = "one", "other"
    mine, theirs = (each[0] for each in fit_with(one, other).plan(0).plugins)
    assert not torch.equal(mine, theirs)
    before, after = fit_with(Noise(), Blind()), fit_with(Blind(), Noise())
    values_of(before)
    values_of(after)
    assert not any(x.any() for x in before.objective.method.shown)
    assert all(x.any() for x in after.objective.method.shown)


def test_a_changed_batch_compiles_without_a_break_and_is_the_same():
    torch._dynamo.reset()

    def terms_of(fit, at):
        terms, _ = fit.objective.terms(*fit.step.batch(at))
        return terms["ce"]

    values = []
    for work in (terms_of, torch.compile(terms_of, fullgraph=True, backend="eager")):
        fit = fit_with(Noise())
        fit.open(0)
        values += [work(fit, torch.tensor([step])) for step in (0, 2)]
    torch.testing.assert_close(values[:2], values[2:])
    assert not torch.equal(values[0], values[1])


def test_a_run_with_drawn_noise_goes_on_where_it_stopped(tmp_path):
    given = {"what": f"ucir+{HERE}:Noise", "net": "runs:flat", "phases": 2}
    whole, plain = (
        train(tmp_path / "whole" / "run", **given),
        train(tmp_path / "plain" / "run", **given | {"what": "ucir"}),
    )
    path = train_until(Position(1, 0, 1, 2), tmp_path / "half" / "run", **given)
    api.resume(path)
    assert_equal(path, whole)
    first, other = (api.load(run).state_dict()["net.backbone.matrix.weight"] for run in (whole, plain))
    assert not torch.equal(first, other)


# Frozen parts and teachers


class Rests(Plain):
    """A part of the network that rests for good, and a teacher."""

    def __init__(self, make):
        super().__init__(make)
        self.part, self.teacher = Frozen(nn.BatchNorm2d(1)), Teacher(self.net)

    def loss(self, batch, phase, classify):
        assert not self.part.net.training
        return super().loss(batch._replace(x=self.part(batch.x)), phase, classify)

    def end(self, phase, pool, exemplars):
        self.teacher.refill(self.net)


def test_frozen_parts_count_as_parameters_and_teachers_do_not():
    method = Rests(make_flat)
    method.net.head.grow(3)
    method.teacher.refill(method.net)
    assert method.parameter_count() == (16 * 5) + (3 * 5 + 3) + 2
    assert sum(p.numel() for p in method.teacher.parameters()) == (16 * 5) + (3 * 5 + 3)


def test_no_gradient_and_no_mode_reaches_what_is_frozen():
    method = Rests(make_flat).train()
    assert [part.net.training for part in (method.part, method.teacher)] == [False, False]
    assert not any(p.requires_grad for part in (method.part, method.teacher) for p in part.parameters())
    assert not method.part(torch.randn(2, 1, 4, 4, requires_grad=True)).requires_grad


def test_saved_models_keep_frozen_parts_and_leave_teachers_out(tmp_path):
    run = train(tmp_path / "run", f"{HERE}:Rests", net="runs:flat", phases=2)
    kept = read_state(run / "phase-01" / "model").tensors
    assert {name.partition(".")[0] for name in kept} == {"net", "part", "nearest"}
    assert {name for name in kept if name.startswith("part")} == {
        f"part.net.{name}" for name in nn.BatchNorm2d(1).state_dict()
    }
    assert torch.equal(kept["part.net.running_mean"], torch.zeros(1))  # images have passed, and it rests
    assert api.load(run)(torch.randn(2, 1, 8, 8)).shape == (2, 7)


def test_a_checkpoint_keeps_teachers_too(tmp_path):
    run = train_until(Position(1, 0, 0, 1), tmp_path / "run", f"{HERE}:Rests", net="runs:flat", phases=2)
    newest = max((run / "checkpoint").glob("0*"))
    assert any(name.startswith("method:teacher.net.head") for name in read_state(newest).tensors)


# What is compiled


class Outer(Backbone):
    """Two backbones side by side, of which one stays as it is."""

    def __init__(self):
        super().__init__()
        self.dim, self.stays, self.grows = 10, Flat(), Flat()

    def forward(self, x):
        return Features(torch.cat([self.stays(x).pooled, self.grows(x).pooled], 1))

    def to_compile(self):
        return [self.stays]


def outer(head):
    return Network(Outer(), head(10))


def test_an_outer_backbone_says_what_of_it_is_compiled():
    method = Plain(outer)
    method.teacher = Teacher(method.net)
    mine, taught = method.net.backbone, method.teacher.net.backbone
    assert list(backbone_parts(method)) == [mine.stays, taught.stays]
    plain = Plain()
    assert list(backbone_parts(plain)) == [plain.net.backbone]


def test_a_compiled_step_compiles_exactly_those_parts_and_once():
    torch.manual_seed(0)
    method, pool = Plain(outer), make_pool([6, 6, 6, 6])
    method.begin(pool.phase, pool)
    step = Fit(Objective(method, [], pool.phase, STAGE), pool, "eager", 0).step
    CompiledStep(step)
    backbone = method.net.backbone
    compiled = backbone.stays._compiled_call_impl
    assert compiled is not None
    others = [part for part in method.modules() if part is not backbone.stays]
    assert all(part._compiled_call_impl is None for part in others)
    CompiledStep(step)
    assert backbone.stays._compiled_call_impl is compiled
    assert copy.deepcopy(backbone).stays._compiled_call_impl is None  # a copy is compiled for itself


# Networks: settings by name, and the images that they are made for


class Tunable(Flat):
    def __init__(self, shape, width):
        if width < 1:
            raise ValueError(f"width = {width} is not allowed: it is 1 or more")
        super().__init__(shape.channels * shape.height * shape.width, width)
        self.shape = shape


def tunable(shape: ImageShape, last_relu: bool = True, width: int = 4) -> Tunable:
    """A backbone with a setting."""
    return Tunable(shape, width)


def planned(tmp_path, *settings, data=None, **fields):
    config, _ = api.configure("ucir", "digits", settings, SHORT_RUN | {"net": f"{HERE}:tunable"} | fields)
    return plan_run(config, tmp_path / "run", tmp_path, data)


def test_a_setting_of_a_network_reaches_it(tmp_path):
    method = planned(tmp_path, ("tunable.width", 6)).experiment.method
    assert (method.net.backbone.dim, method.net.head.new.shape[1]) == (6, 6)
    assert planned(tmp_path).experiment.method.net.backbone.dim == 4


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("tunable.widht", 6, r"no setting of tunable 'widht'; there are width: did you mean 'width'\?"),
        ("tunable.shape", 6, "no setting of tunable 'shape'"),
        ("tunable.last_relu", False, "tunable.last_relu = False is not allowed: ucir decides it"),
        ("tunable.width", "wide", "tunable.width = 'wide' is not allowed"),
        ("tunable.width", 0, "tunable: width = 0 is not allowed: it is 1 or more"),
        ("small.width", 6, "no part of this run with settings 'small'; there are .*tunable"),
    ],
)
def test_a_setting_that_a_network_does_not_have_is_refused(name, value, said, tmp_path):
    with pytest.raises(UsageError, match=said):
        planned(tmp_path, (name, value))


def test_a_setting_of_a_network_is_typed_with_its_name(tmp_path):
    words = ("run", "ucir", *SHORT, "--net", f"{HERE}:tunable", "--out", tmp_path / "run")
    said = typed(*words, "--set", "tunable.width=7")
    assert said.code == 0, said.err
    assert api.load(tmp_path / "run").net.backbone.dim == 7  # and the run remembers it
    assert "no setting of tunable 'depth'" in typed(*words, "--set", "tunable.depth=7").err


def test_runs_with_other_settings_of_the_network_are_other_runs(tmp_path):
    one, same, other = (planned(tmp_path, ("tunable.width", w)).info["fingerprint"] for w in (6, 6, 7))
    assert one == same != other


def test_a_network_is_told_what_images_it_is_made_for(tmp_path):
    assert planned(tmp_path).experiment.method.net.backbone.shape == ImageShape(1, 8, 8)
    x, y = np.zeros((20, 6, 10, 3), dtype=np.uint8), np.arange(20) % 10
    wide = planned(tmp_path, data=from_arrays(x, y, x, y), val=0.0)
    assert wide.experiment.method.net.backbone.shape == ImageShape(3, 6, 10)
    assert wide.info["image"] == [3, 6, 10]
