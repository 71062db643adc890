"""An analysed run ends where the plain one does, and has looked at what the figures show."""

import copy
import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from directories import gone_on
from runs import Position, assert_equal, outcome, plan, train, train_until
from small import make_flat, make_pool
from test_engine import World, losses_of, unread
from torch import nn

from bdr import api
from bdr.engine.analyse import (
    Snapshots,
    as_it_was,
    copied,
    gradient_norms,
    is_due,
    new_loss,
    principal_axes,
    spread_evenly,
    watches_of,
)
from bdr.engine.listen import EpochLog, Listener
from bdr.engine.objective import Objective
from bdr.errors import UsageError
from bdr.methods import METHODS
from bdr.metrics import first_stage, moving_mean, short_window
from bdr.nets import LinearHead
from bdr.records import Run, RunWriter
from bdr.records.steps import CE_NEW, GRADIENTS
from bdr.types import Outputs, Phase, Stage

LATER = Phase(1, 2, 4)
# the peak is looked for in the first two of four epochs
ANALYSED = {"net": "runs:flat", "phases": 2, "analyse": True, "settings": [("stage.epochs", 4)]}
OWN = "runs:TwoStages"  # a second stage, and no distillation


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return train(tmp_path_factory.mktemp("analysed") / "run", **ANALYSED)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return train(tmp_path_factory.mktemp("plain") / "run", **ANALYSED | {"analyse": False})


@pytest.fixture(scope="module")
def whole_own(tmp_path_factory):
    return train(tmp_path_factory.mktemp("analysed") / "run", OWN, **ANALYSED)


# The run


def without_tests(line):
    kept = {name: value for name, value in line["losses"].items() if not name.startswith("test_")}
    return line | {"losses": kept}


def test_an_analysed_run_is_the_plain_one_bit_for_bit(whole, plain):
    here, there = outcome(whole), outcome(plain)
    assert here.pop("files") - there.pop("files") == {"analysis.npz", "phase-01/snapshots.npz"}
    here["phases.jsonl"] = [without_tests(line) for line in here["phases.jsonl"]]
    here["checkpoint"]["losses"] = there["checkpoint"]["losses"]
    assert [part for part in there if here[part] != there[part]] == []


def test_whether_a_run_is_analysed_is_no_part_of_its_fingerprint(whole, plain):
    here, there = Run.open(whole), Run.open(plain)
    assert (here.info["analyse"], there.info["analyse"]) == (True, False)
    assert here.fingerprint == there.fingerprint


def test_a_plain_run_has_neither_snapshots_nor_gradients(plain):
    run = Run.open(plain)
    assert run.snapshots(1) == run.analysis(1) == {}
    assert set(run.phases[1]["losses"]) == {"initial_old", "initial_new", "final_old", "final_new"}


def test_the_losses_on_test_images_are_those_of_the_model_that_was_kept(tmp_path):
    path = train(tmp_path / "run", "ucir", **ANALYSED)
    run, test = Run.open(path), plan(tmp_path / "other", "ucir", **ANALYSED).experiment.test
    rows = test.of_classes(0, run.phases[1]["seen"])
    method, labels = api.load(path, device="cpu"), test.labels[rows]
    with torch.no_grad():
        loss = F.cross_entropy(method.net(test.plain(rows)).logits, labels, reduction="none")
    found, old = run.phases[1]["losses"], labels < run.phases[1]["old"]
    assert found["test_final_old"] == pytest.approx(float(loss[old].mean()), rel=1e-5)
    assert found["test_final_new"] == pytest.approx(float(loss[~old].mean()), rel=1e-5)
    assert found["test_final_new"] < found["test_initial_new"]
    assert run.phases[0]["losses"] == {}


def highest_look(run, phase):
    """After how many steps the records have the highest moving mean, of those that are looked at."""
    steps = run.phases[phase]["steps_per_epoch"]
    window = short_window(steps)
    means = moving_mean(first_stage(run, phase, "distillation")[: 2 * steps], window)
    looked = [step for step in range(window, 2 * steps + 1) if step % steps == 0 or is_due(step % steps, steps)]
    return max(looked, key=lambda step: means[step - window])


def test_snapshots_hold_the_same_images_at_every_moment(whole):
    run, memory = Run.open(whole), json.loads((whole / "phase-00" / "memory.json").read_text())
    found, line = run.snapshots(1), run.phases[1]
    assert run.snapshots(0) == {}
    assert found["classes"].tolist() == [0, 1, 2, 3]
    assert set(found["labels"]) == {0, 1, 2, 3}
    assert found["exemplar"].sum() == sum(len(kept) for kept in memory.values())
    assert (int(found["start_step"]), int(found["end_step"])) == (0, 4 * line["steps_per_epoch"])
    assert int(found["peak_step"]) == highest_look(run, 1)
    for moment in ("start", "peak", "end"):
        assert found[f"{moment}_features"].dtype == np.float16
        assert found[f"{moment}_features"].shape == (len(found["labels"]), 8)
    assert not np.array_equal(found["start_features"], found["peak_features"])
    assert not np.array_equal(found["peak_features"], found["end_features"])


def test_gradients_are_recorded_for_every_step_of_the_first_stage(whole_own):
    run = Run.open(whole_own)
    stage = run.steps(1)["stage"]
    for values in run.analysis(1).values():
        assert values.shape == (int((stage == 0).sum()),) != stage.shape
        assert values.dtype == np.float32
        assert (values[np.isfinite(values)] > 0).any()
    assert run.analysis(0) == {}


# Stops


@pytest.mark.parametrize("position", [Position(1, 0, 0, 2), Position(1, 0, 1), Position(1, 0, 1, 2), Position(1, 0, 2)])
def test_an_analysed_run_that_was_stopped_ends_where_the_whole_one_does(position, whole, tmp_path):
    path = train_until(position, tmp_path / "run", **ANALYSED)
    api.resume(path)
    assert_equal(path, whole)


def test_snapshots_outlive_a_stop_in_a_later_stage(whole_own, tmp_path):
    path = train_until(Position(1, 1, 1), tmp_path / "run", OWN, **ANALYSED)
    api.resume(path)
    assert_equal(path, whole_own)


def test_a_run_begun_without_it_is_not_analysed_later(plain, tmp_path):
    class Unspoken(Listener):
        def note(self, text):
            raise AssertionError(f"'{text}' was said of what is refused")

    path = shutil.copytree(plain, tmp_path / "run")
    with pytest.raises(UsageError, match=r"begun without --analyse: choose another folder"):
        train(path, listener=Unspoken(), **ANALYSED)


def test_a_run_begun_without_it_does_not_go_on_with_it(tmp_path):
    path = train_until(Position(0, 0, 1), tmp_path / "run", **ANALYSED | {"analyse": False})
    with pytest.raises(UsageError, match=r"begun without --analyse: choose another folder"):
        api.resume(path, analyse=True)


def test_a_run_begun_with_it_stays_analysed_whatever_is_typed(whole, tmp_path):
    path = train_until(Position(1, 0, 1, 2), tmp_path / "run", **ANALYSED)
    train(path, **ANALYSED | {"analyse": False})
    assert_equal(path, whole)


# Gradients


def norms_of(objective, out, y):
    return torch.stack([gradient_norms(objective, out, y)[name] for name in GRADIENTS])


def objective_of(criterion=lambda out, y: F.cross_entropy(out.logits, y, reduction="none")):
    return SimpleNamespace(around=criterion, phase=LATER)


def test_the_norms_are_those_of_the_last_layers_gradient():
    torch.manual_seed(0)
    features, y, layer = torch.randn(6, 5), torch.tensor([0, 3, 1, 2, 2, 3]), nn.Linear(5, 4, bias=False)
    offset = torch.tensor([-2.0, -1.0, 1.0, 2.0])

    def criterion(out, y):
        return F.cross_entropy(out.logits + offset, y, reduction="none")

    found = norms_of(objective_of(criterion), Outputs(layer(features), features), y)
    for value, part in zip(found, (y < 2, y >= 2), strict=True):
        loss = criterion(Outputs(layer(features), features), y)[part].sum() / 6
        (slope,) = torch.autograd.grad(loss, layer.weight)
        torch.testing.assert_close(value, slope.norm())


def test_under_a_cosine_head_they_are_of_the_unit_embeddings():
    torch.manual_seed(0)
    features, y, eta = torch.randn(6, 5), torch.tensor([0, 3, 1, 2, 2, 3]), torch.tensor(7.0, requires_grad=True)
    unit = F.normalize(torch.randn(4, 5)).requires_grad_()
    logits = eta * F.linear(F.normalize(features), unit)
    found = norms_of(objective_of(), Outputs(logits, features, eta), y)
    loss = F.cross_entropy(logits[y >= 2], y[y >= 2], reduction="sum") / 6
    torch.testing.assert_close(found[1], torch.autograd.grad(loss, unit)[0].norm())


def test_of_several_experts_each_last_layer_counts():
    torch.manual_seed(0)
    parts, y = torch.randn(3, 6, 5), torch.tensor([0, 3, 1, 2, 2, 3])
    layers = torch.randn(3, 4, 5, requires_grad=True)
    said = parts @ layers.transpose(1, 2)

    def criterion(out, y):
        return sum(F.cross_entropy(logits, y, reduction="none") for logits in out.experts)

    out = Outputs(said.mean(0), parts.transpose(0, 1).flatten(1), experts=said)
    loss = criterion(out, y)[y < 2].sum() / 6
    found = norms_of(objective_of(criterion), out, y)
    torch.testing.assert_close(found[0], torch.autograd.grad(loss, layers)[0].norm())


def test_a_batch_without_old_or_new_samples_has_no_such_norm():
    out = Outputs(torch.randn(3, 4), torch.randn(3, 5))
    assert norms_of(objective_of(), out, torch.tensor([2, 3, 2])).isnan().tolist() == [True, False]
    assert norms_of(objective_of(), out, torch.tensor([0, 1, 0])).isnan().tolist() == [False, True]


def test_a_mixture_belongs_to_both_parts_by_its_shares():
    out = Outputs(torch.randn(3, 4), torch.randn(3, 5))
    both = norms_of(objective_of(), out, torch.tensor([[0.25, 0, 0.75, 0]]).repeat(3, 1))
    torch.testing.assert_close(both[1], 3 * both[0])


def analysed(world, stage):
    return Objective(world.method, world.plugins, world.phase, stage, watches_of(0, analysed=True))


@pytest.mark.parametrize("method", METHODS)
def test_every_method_can_be_analysed(method):
    world = World(method, ("bdr",) if "some" in METHODS[method].keeps else (), 1)
    stage = world.stages(Stage())[0]
    world.begin(stage)
    objective = analysed(world, stage)
    batch = world.batch()
    _, out = objective.terms(batch)
    found = objective.watched(out, batch)
    assert set(found) == {"ce_old", CE_NEW, *GRADIENTS}
    assert not any(value.requires_grad for value in found.values())
    assert found["gradient_new"] > 0


@pytest.mark.parametrize("mixed", [False, True])
def test_the_loss_of_new_samples_is_that_of_a_plain_loop(mixed):
    out, y = Outputs(torch.randn(6, 4), torch.randn(6, 5)), torch.tensor([0, 3, 2, 1, 3, 0])
    whole = F.one_hot(y, 4).float()
    y = (whole + whole.roll(1, 0)) / 2 if mixed else y
    shares = y if mixed else whole
    new = shares[:, 2:].sum(1)
    losses = torch.stack([-(shares[i] * out.logits[i].log_softmax(0)).sum() for i in range(6)])
    assert new_loss(objective_of(), out, y)["ce_new"] == pytest.approx(float((new * losses).sum() / new.sum()))


# No engine compiles what is watched: where this is skipped, every run is analysed all the same.
@pytest.mark.skipif(torch.__version__ < (2, 12), reason="torch 2.11 follows no `requires_grad_` into a graph")
@pytest.mark.parametrize(("method", "plugins"), [("ucir", ("bdr",)), ("icarl", ("bdr",)), ("wa", ("tade",))])
def test_the_gradients_compile_without_a_break_and_are_the_same(method, plugins):
    torch._dynamo.reset()
    world = World(method, plugins, 1)
    stage = world.stages(Stage())[0]
    world.begin(stage)

    def values_of(objective, batch):
        _, out = objective.terms(batch)
        return objective.watched(out, batch)

    eager = values_of(analysed(copy.deepcopy(world), stage), world.batch())
    with torch._dynamo.config.patch(trace_autograd_ops=True):
        compiled = torch.compile(values_of, fullgraph=True, backend="eager")(
            analysed(copy.deepcopy(world), stage), world.batch()
        )
    torch.testing.assert_close(compiled, eager)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_an_analysed_step_is_captured_and_none_of_it_is_read_by_the_host(monkeypatch):
    torch._dynamo.reset()
    monkeypatch.setattr(World, "objective", analysed)
    eager, names = losses_of("eager", "cuda", steps=20, precision="bf16")
    assert set(names[-3:]) == {CE_NEW, *GRADIENTS}
    assert unread("cuda").mode
    for engine in ("compile", "graph"):
        values, same = losses_of(engine, "cuda", steps=20, precision="bf16")
        assert same == names
        torch.testing.assert_close(values, eager, rtol=0.05, atol=0.05, equal_nan=True, msg=engine)


# Snapshots


def snapshots(counts=(3, 3, 4, 4), old=2, distillation=None):
    pool = make_pool(counts, old=old, each=2)
    torch.manual_seed(0)
    net = make_flat(LinearHead)
    net.head.grow(len(counts))
    return Snapshots(net, pool, old, pool.memory.tolist(), distillation)


def log_of(epoch, values, name="ce_old"):
    return EpochLog(epoch, 0.1, (name,), np.array(values, np.float32)[:, None], {}, 1.0, 1)


@torch.no_grad()
def train_on(net):
    """Other weights than before."""
    for parameter in net.parameters():
        parameter.add_(1)


@pytest.mark.parametrize(
    ("name", "distillation"), [("ce_old", None), ("ce_old", "less_forget"), ("less_forget", "less_forget")]
)
def test_the_peak_is_the_highest_mean_in_early_epochs(name, distillation):
    seen, features = snapshots(distillation=distillation), []
    seen.start()
    for epoch, values in enumerate([[1, np.nan], [5, 3], [0, 7], [9, 9]]):
        train_on(seen.net)
        features.append(seen.look())
        seen.epoch_ends(Stage(epochs=8), log_of(epoch, values, name))
    found = seen.arrays()
    assert (found["peak_step"], "end_step" in found) == (4, False)
    wanted = ((features[1] - seen.seen["mean"]) @ seen.seen["axes"]).half()
    np.testing.assert_array_equal(found["peak_features"], wanted.numpy())


def peak_of(*epochs):
    """The step that weights are held of, the mean there, and whether they are those of that step."""
    seen, stage, names, looks = snapshots(), Stage(epochs=8), ("ce_old",), {}
    seen.start()
    for epoch, values in enumerate(epochs):
        log = torch.tensor(values, dtype=torch.float32)[:, None]
        for step in range(1, len(values) + 1):
            train_on(seen.net)
            looks[epoch * len(values) + step] = seen.look()
            if step < len(values):
                seen.step_ends(stage, epoch, step, names, log)
        seen.epoch_ends(stage, log_of(epoch, values))
    found = seen.arrays()
    wanted = ((looks[int(found["peak_step"])] - seen.seen["mean"]) @ seen.seen["axes"]).half()
    np.testing.assert_array_equal(found["peak_features"], wanted.numpy())
    return int(found["peak_step"]), seen.highest


def test_a_peak_is_met_to_a_quarter_of_an_epoch_in_the_first_one_too():
    rest = [1] * 20
    assert peak_of([1] * 5 + [4, 5, 5, 5, 6] + [2] * 10, rest) == (10, 5)
    assert peak_of([1] * 20, [1] * 10 + [7] * 5 + [1] * 5) == (35, 7)


def test_a_window_of_few_steps_begins_in_the_epoch_before():
    """Of eight steps an epoch a quarter is two, and a mean of two is noise: it is over five."""
    assert peak_of([0, 0, 0, 0, 0, 5, 5, 5], [5, 5, 0, 0, 0, 0, 0, 0]) == (10, 5)
    assert peak_of([9, 9, 0, 0, 0, 0, 0, 0], [0] * 8) == (6, pytest.approx(9 / 5))  # nothing is told of two steps


def test_steps_without_old_samples_count_as_none():
    assert peak_of([1] * 5 + [np.nan, 6, 6, 6, np.nan] + [2] * 10, [1] * 20) == (10, 6)


def test_the_device_is_read_three_times_within_an_early_epoch_and_never_after():
    seen, stage = snapshots(), Stage(epochs=8)
    reads = {}
    for epoch in range(5):
        log = Counting()
        for step in range(1, 49):
            seen.step_ends(stage, epoch, step, ("ce_old",), log)
        reads[epoch] = log.read
        seen.epoch_ends(stage, log_of(epoch, np.ones(49)))
    assert reads == {0: 3, 1: 3, 2: 3, 3: 0, 4: 0}


class Counting:
    """A log on a device, which counts how often it is read."""

    read = 0

    def __len__(self):
        return 49

    def __getitem__(self, place):
        self.read += 1
        return torch.ones(place[0].stop)


def test_without_any_old_sample_there_is_no_peak():
    seen = snapshots()
    seen.start()
    seen.epoch_ends(Stage(epochs=1), log_of(0, [np.nan, np.nan]))
    assert {"start_step", "end_step"} == {name for name in seen.arrays() if name.endswith("_step")}


def test_exemplars_are_told_from_images_that_training_does_not_see():
    found = snapshots().arrays()
    assert np.bincount(found["labels"][found["exemplar"]]).tolist() == [2, 2]
    assert np.bincount(found["labels"]).tolist() == [3, 3]


def test_looking_back_leaves_the_network_as_it_was():
    net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    then = copied(net)
    net(torch.randn(8, 3)).sum()
    train_on(net)
    now = copied(net)
    with as_it_was(net, then):
        assert all(map(torch.equal, copied(net), then))
    assert all(map(torch.equal, copied(net), now))


@pytest.mark.parametrize(
    ("old", "classes"), [(50, [0, 5, 11, 16, 22, 27, 33, 38, 44, 49]), (10, list(range(10))), (3, [0, 1, 2]), (1, [0])]
)
def test_ten_classes_are_chosen_evenly(old, classes):
    assert spread_evenly(old) == classes


def test_fifty_axes_keep_what_differs_most():
    torch.manual_seed(0)
    features = torch.randn(200, 60) * torch.arange(60, 0, -1).float()
    features = features - features.mean(0)
    axes = principal_axes(features)
    torch.testing.assert_close(axes.T @ axes, torch.eye(50), rtol=0, atol=1e-4)
    spread = (features @ axes).std(0)
    assert (spread[:-1] >= spread[1:]).all()
    _, widths, _ = torch.linalg.svd(features)
    torch.testing.assert_close(spread * 199**0.5, widths[:50], rtol=1e-3, atol=1e-3)


# Records


def test_the_series_are_cut_back_and_packed_as_steps_are(tmp_path):
    info = {"title": "ucir", "seed": 1, "fingerprint": "a", "protocol": {}, "classes": [], "phases": []}
    writer = RunWriter.create(tmp_path / "run", info)
    writer.analysis(1, np.array([1.0, np.nan]), np.array([2.0, 3.0]), np.array([4.0, 5.0]))
    offsets = writer.offsets()
    writer.analysis(1, np.ones(3), np.ones(3), np.ones(3))
    writer.close()
    writer = gone_on(writer.path, offsets)
    before = Run.open(writer.path).analysis(1)
    writer.finish()
    after = Run.open(writer.path).analysis(1)
    for name, values in {"gradient_old": [1.0, np.nan], "gradient_new": [2.0, 3.0], "ce_new": [4.0, 5.0]}.items():
        np.testing.assert_array_equal(before[name], values)
        np.testing.assert_array_equal(after[name], values)
    assert sorted(np.load(writer.path / "analysis.npz").files) == [
        f"phase-01/{name}" for name in (CE_NEW, *sorted(GRADIENTS))
    ]
    gone_on(writer.path, offsets)
    np.testing.assert_array_equal(Run.open(writer.path).analysis(1)["gradient_new"], [2.0, 3.0])
