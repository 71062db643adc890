"""Re-weighting, balanced sampling, focal loss, LDAM and post-hoc adjustment, each against a loop of its own."""

import json
import math

import pytest
import torch
import torch.nn.functional as F
from runs import FIELDS, SETTINGS, Position, assert_equal, plan, train, train_until
from small import Flat, make_batch, make_pool
from test_engine import World

import bdr
from bdr import api
from bdr.engine.objective import Objective
from bdr.errors import UsageError
from bdr.losses import cross_entropy
from bdr.methods.plain import Replay
from bdr.nets import CosineHead, LinearHead, Network
from bdr.plugins import LDAM, PLUGINS, Focal, LogitAdjustment, Reweighting
from bdr.plugins.base import compose
from bdr.plugins.focal import focus
from bdr.plugins.ldam import margins
from bdr.plugins.weighting import effective_number, expected, inverse_frequency
from bdr.records import Run
from bdr.types import Clock, Outputs, Phase, Stage

COUNTS, OLD, EACH = (9, 8, 12, 10), 2, 3
SEEN = [EACH] * OLD + list(COUNTS[OLD:])
FIRST, LATER = Phase(0, 0, len(COUNTS)), Phase(1, OLD, len(COUNTS))
COLUMNS = {
    "reweight": "weight_old weight_new",
    "ldam": "margin_old margin_new weight_old weight_new",
    "focal": "factor_old factor_new",
    "la": "offset_old offset_new",
    "balanced-softmax": "offset_old offset_new",
    "resample": "share_old",
    "paco": "paco",
    "bcl": "bcl boost_old boost_new",
    "balanced-contrastive": "balanced_contrastive",
    "tade": "tade_1 tade_2 tade_3",
    "bdr": "offset_old offset_new spread_old spread_new",
}  # of each plug-in, what is told of it
KINDS = {"reweight": Reweighting, "ldam": LDAM, "focal": Focal, "la": LogitAdjustment}


def later_pool(counts=COUNTS, each=EACH):
    return make_pool(counts, OLD, each)


def network(head=LinearHead):
    torch.manual_seed(0)
    net = Network(Flat(), head(5))
    net.head.grow(len(COUNTS))
    return net


def begun(plugin, pool=None, net=None):
    pool = pool or later_pool()
    plugin.begin(pool.phase, pool.census("all", 0), net or network())
    return plugin


def some_outputs(size=12, scale=1.0):
    chance = torch.Generator().manual_seed(0)
    logits, features = (torch.randn(size, n, generator=chance, dtype=torch.float64) for n in (4, 5))
    return Outputs(scale * logits, features, scale), torch.randint(4, (size,), generator=chance)


def loss_of(plugin, out, y, criterion=cross_entropy):
    return compose(criterion, [plugin.double()])(out, y)


def slow_cross_entropy(logits, label):
    return math.log(sum(math.exp(z) for z in logits)) - logits[label]


def batch_at(epoch, epochs, y, step=0):
    now = [torch.tensor(value) for value in (epoch, step, 3, epochs)]
    return make_batch(torch.zeros(len(y), 1), y)._replace(clock=Clock(*now))


def close(ours, theirs):
    torch.testing.assert_close(ours, torch.tensor(theirs, dtype=torch.float64), rtol=1e-6, atol=1e-7)


# Class weights


def test_inverse_weights_have_mean_one_and_undo_the_frequency():
    weight = inverse_frequency(torch.tensor(SEEN, dtype=torch.float64))
    assert float(weight.mean()) == pytest.approx(1)
    products = weight * torch.tensor(SEEN)
    torch.testing.assert_close(products, products[:1].expand(4))


def test_effective_numbers_are_those_of_the_closed_form():
    raw = [(1 - 0.99) / (1 - 0.99**n) for n in SEEN]
    close(effective_number(torch.tensor(SEEN, dtype=torch.float64), 0.99), [4 * w / sum(raw) for w in raw])


def test_effective_numbers_lie_between_no_weights_and_inverse_ones():
    counts = torch.tensor(SEEN, dtype=torch.float64)
    torch.testing.assert_close(effective_number(counts, 1 - 1e-9), inverse_frequency(counts), rtol=1e-6, atol=0)
    torch.testing.assert_close(effective_number(counts, 1e-9), torch.ones(4, dtype=torch.float64))


@pytest.mark.parametrize("scheme", ["inverse", "effective"])
def test_reweighting_averages_a_batch_by_the_weights_of_its_classes(scheme):
    (out, y), plugin = some_outputs(), begun(Reweighting(scheme, beta=0.9))
    raw = [1 / n if scheme == "inverse" else 0.1 / (1 - 0.9**n) for n in SEEN]
    rows = list(zip(out.logits.tolist(), y.tolist(), strict=True))
    sum_of_weights = sum(raw[label] for _, label in rows)
    found = loss_of(plugin, out, y)
    close(found, [len(rows) * raw[label] / sum_of_weights * slow_cross_entropy(z, label) for z, label in rows])
    weights = torch.tensor(raw, dtype=torch.float64)
    torch.testing.assert_close(found.mean(), F.cross_entropy(out.logits, y, weights), rtol=1e-6, atol=1e-6)


def test_a_mixture_has_the_weight_of_its_classes_on_average():
    weight, y = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.25, 0.75]])
    assert expected(weight, y).tolist() == [1.5, 3.5]
    assert expected(weight, torch.tensor([2, 0])).tolist() == [4.0, 1.0]


# Focal loss


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_focal_loss_and_its_gradient_are_those_of_the_paper(gamma):
    out, y = some_outputs()
    logits = out.logits.requires_grad_()
    loss_of(Focal(gamma), out._replace(logits=logits), y).sum().backward()
    for z, label, slope in zip(logits.detach(), y.tolist(), logits.grad, strict=True):
        z = z.clone().requires_grad_()
        p = z.softmax(0)[label]
        loss = -((1 - p) ** gamma) * p.log()
        torch.testing.assert_close(loss_of(Focal(gamma), Outputs(z[None], z[None]), torch.tensor([label]))[0], loss)
        loss.backward()
        torch.testing.assert_close(slope, z.grad)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0])
def test_a_sample_that_is_surely_right_has_a_finite_gradient(gamma):
    loss = torch.tensor([0.0, -1e-3, 1e-20], requires_grad=True)
    (focus(loss, gamma) * loss).sum().backward()
    assert loss.grad.isfinite().all()


@pytest.mark.parametrize("method", ["icarl", "dytox", "podnet"])
def test_focal_loss_is_refused_where_the_loss_is_no_logarithm_of_a_probability(method, tmp_path):
    with pytest.raises(UsageError, match=f"'focal' takes losses for .* and '{method}' has another"):
        bdr.run(f"{method}+focal", data="digits", runs=tmp_path)


def test_focal_loss_acts_after_the_first_phase_or_always():
    acting = [
        (p.index, d) for p in (FIRST, LATER) for d in ("all", "uniform", "memory") if Focal().acts(p, Stage(draw=d))
    ]
    assert acting == [(1, "all"), (1, "uniform")]
    assert Focal(always=True).acts(FIRST, Stage())


def test_focal_loss_reports_the_mean_factor_of_an_epoch():
    focal, (out, y) = begun(Focal()).double(), some_outputs()
    for step in (0, 0, 1):  # the first epoch has one step, the second two
        focal.observe(batch_at(0, 2, y, step), out)
    factors = (1 - out.logits.softmax(1).gather(1, y[:, None])[:, 0]) ** 2
    told = focal.report(LATER, network())
    torch.testing.assert_close(told, {"factor_old": factors[y < OLD].mean(), "factor_new": factors[y >= OLD].mean()})
    assert int(focal.count.sum()) == 2 * len(y)


# LDAM


def test_margins_go_with_the_fourth_root_and_the_rarest_has_the_largest():
    found = margins(torch.tensor([16.0, 1.0, 81.0]), 0.5)
    torch.testing.assert_close(found, torch.tensor([0.25, 0.5, 0.5 / 3]))


@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_ldam_lowers_the_logit_of_ones_own_class_and_weighs_late(scale):
    (out, y), ldam = some_outputs(scale=scale), begun(LDAM(0.5, 0.8, 0.9)).double()
    margin = [0.5 * (min(SEEN) / n) ** 0.25 for n in SEEN]
    raw = [0.1 / (1 - 0.9**n) for n in SEEN]
    late = [4 * w / sum(raw) for w in raw]
    for epoch, weight in {0: [1.0] * 4, 7: [1.0] * 4, 8: late, 9: late}.items():
        ldam.observe(batch_at(epoch, 10, y), out)
        expected_losses = []
        for z, label in zip(out.logits.tolist(), y.tolist(), strict=True):
            z[label] -= scale * margin[label]
            expected_losses.append(weight[label] * slow_cross_entropy(z, label))
        mean_weight = sum(weight[label] for label in y.tolist()) / len(y)
        close(loss_of(ldam, out, y), [loss / mean_weight for loss in expected_losses])


def test_ldam_without_margins_and_weights_is_the_plain_loss():
    (out, y), ldam = some_outputs(), begun(LDAM(0.0, 1.0))
    torch.testing.assert_close(loss_of(ldam, out, y), cross_entropy(out, y))


# All of them


@pytest.mark.parametrize("name", ["la", "balanced-softmax", "reweight"])
def test_on_balanced_data_nothing_changes(name):
    (out, y), pool = some_outputs(), later_pool((9, 9, 9, 9), 9)
    torch.testing.assert_close(loss_of(begun(PLUGINS[name](), pool), out, y), cross_entropy(out, y))


def test_on_balanced_data_with_equal_spreads_bdr_changes_nothing():
    plugin, (out, y) = PLUGINS["bdr"](), some_outputs()
    features = torch.tensor([[-1.0, 0.0], [1.0, 0.0]]).repeat(4, 1)  # two of each class, alike but for their place
    labels = torch.arange(4).repeat_interleave(2)
    plugin.balance.begin(labels, features + 3 * labels[:, None])
    torch.testing.assert_close(loss_of(plugin, out, y), cross_entropy(out, y))


def test_on_balanced_data_a_balanced_draw_expects_what_a_plain_one_holds():
    pool = later_pool((9, 9, 9, 9), 9)
    torch.testing.assert_close(pool.census("uniform", 0).counts, pool.census("all", 0).counts)


@pytest.mark.parametrize("counts", [(9, 9, 9, 9), COUNTS])
def test_the_loss_that_a_balanced_draw_expects_is_the_mean_over_classes_and_on_balanced_data_the_plain_one(counts):
    pool = later_pool(counts, counts[0] if len(set(counts)) == 1 else EACH)
    y = pool.store.labels[pool.rows]
    logits = torch.randn(len(y), 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    losses, likely = cross_entropy(Outputs(logits, logits), y), pool.likelihood().double()
    expected_loss = (likely * losses).sum() / likely.sum()
    of_classes = torch.stack([losses[y == k].mean() for k in range(4)])
    torch.testing.assert_close(expected_loss, of_classes.mean(), rtol=1e-7, atol=0)  # what is drawn by is float32
    if len(set(counts)) == 1:
        torch.testing.assert_close(expected_loss, losses.mean(), rtol=1e-14, atol=0)
    else:
        assert not torch.isclose(expected_loss, losses.mean(), rtol=1e-3)


@pytest.mark.parametrize("head", [LinearHead, lambda dim: CosineHead(dim, 10.0)])
@pytest.mark.parametrize("kind", KINDS.values())
def test_each_changes_the_gradient_of_the_backbone(kind, head):
    pool, net, slopes = later_pool(), network(head), []
    batch = batch_at(9, 10, pool.store.labels[pool.rows])._replace(x=pool.store.plain(pool.rows))
    for plugins in ([], [begun(kind(), pool, net)]):
        out = net(batch.x)
        for plugin in plugins:
            plugin.observe(batch, out)
        net.zero_grad()
        compose(cross_entropy, plugins)(out, batch.y).mean().backward()
        slopes.append(net.backbone.matrix.weight.grad.clone())
    assert not torch.allclose(*slopes)
    assert slopes[1].isfinite().all()


@pytest.mark.parametrize("kind", KINDS.values())
def test_one_laid_out_and_loaded_again_goes_on_as_before(kind):
    (out, y), old, fresh = some_outputs(), begun(kind()), kind()
    old.observe(batch_at(9, 10, y), out)
    fresh.lay_out(old.layout())
    fresh.load_state_dict(old.state_dict())
    assert torch.equal(loss_of(fresh, out, y), loss_of(old, out, y))
    assert fresh.report(LATER, None) == old.report(LATER, None) != {}


@pytest.mark.parametrize("kind", [Reweighting, LDAM])
def test_a_prior_rests_in_the_first_phase_and_where_not_all_is_drawn(kind):
    draws = ("all", "uniform", "rarest", "memory")
    assert [(p.index, d) for p in (FIRST, LATER) for d in draws if kind().acts(p, Stage(draw=d))] == [(1, "all")]


@pytest.mark.parametrize(
    ("kind", "settings", "said"),
    [
        (Reweighting, {"beta": 1.0}, "beta = 1.0 is not allowed"),
        (Focal, {"gamma": -1.0}, "gamma = -1.0 is not allowed"),
        (LogitAdjustment, {"tau": -3.0}, "tau = -3.0 is not allowed"),
        (LDAM, {"max_margin": -0.5}, "max_margin = -0.5 is not allowed"),
        (LDAM, {"deferred": 80}, "a share of the epochs, from 0 to 1"),
    ],
)
def test_settings_that_cannot_be_are_refused(kind, settings, said):
    with pytest.raises(ValueError, match=said):
        kind(**settings)


# Whole runs


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("ucir+reweight+la", "'reweight' and 'la' both set the prior: use one of them"),
        ("ucir+ldam+bdr", "'ldam' and 'bdr' both set the prior: use one of them"),
        ("ucir+la+balanced-softmax", "both set the prior"),
        (
            "ucir+resample+bdr",
            "'bdr' would act in no stage of this run: after the first phase they draw uniform",
        ),
        ("ucir+reweight+resample", "'reweight' would act in no stage"),
        ("ucir+reweight+focal", "name 'focal' first, ...+focal+reweight"),
        ("ucir+ldam+focal", "name 'focal' first, ...+focal+ldam"),
        ("ucir+tade+focal", "name 'focal' first, ...+focal+tade"),
        ("ucir+focal+paco", "'focal' makes something else of them before: no order of the two is right"),
        ("ucir+paco+focal", "'paco' makes something else of them before: no order of the two is right"),
        ("ucir+aanet+tade", "both set the net"),
        ("dytox+mixup+balanced-contrastive", "'balanced-contrastive' needs the one class of each image"),
        ("ucir+reweight+paco", "'reweight' and 'paco' both set the prior"),
        ("ucir+ldam+paco", "'ldam' and 'paco' both set the prior"),
        ("dytox+mixup+ldam", "'ldam' needs the one class of each image"),
    ],
)
def test_combinations_that_mean_nothing_are_refused_before_training(tmp_path, what, said):
    with pytest.raises(UsageError) as error:
        plan(tmp_path / "run", what)
    assert said in str(error.value)


@pytest.mark.parametrize(
    "what",
    [
        *("ucir+focal+bdr", "ucir+bdr+focal", "ucir+focal+reweight", "ucir+focal+resample", "ucir+focal+tade"),
        *(
            "ucir+focal+balanced-contrastive",
            "ucir+balanced-contrastive+focal",
            "ucir+bcl+paco",
            "ucir+resample+bcl",
            "replay+cwd+la",
        ),
    ],
)
def test_combinations_that_mean_something_are_planned(tmp_path, what):
    assert plan(tmp_path / "run", what).learner.plugins


def test_a_prior_beside_a_draw_that_was_set_is_refused_too(tmp_path):
    with pytest.raises(UsageError, match="after the first phase they draw rarest"):
        plan(tmp_path / "run", "ucir+la", settings=[("stage.draw", "rarest")])


def test_resampling_where_nothing_draws_all_is_refused(tmp_path):
    with pytest.raises(UsageError, match="phase 1 has no such stage \\(rarest\\)"):
        plan(tmp_path / "run", "ucir+resample", settings=[("stage.draw", "rarest")])


def test_resampling_changes_the_draw_of_later_phases_and_nothing_else(tmp_path):
    plain, drawn = (plan(tmp_path / what, what).learner for what in ("runs:TwoStages", "runs:TwoStages+resample"))
    changed = [
        (a.name, b.draw)
        for one, two in zip(plain.stages, drawn.stages, strict=True)
        for a, b in zip(one, two, strict=True)
        if a != b
    ]
    assert changed == [("main", "uniform")] * 2
    assert drawn.stages[0] == plain.stages[0]


@pytest.mark.parametrize("what", ["reweight", "resample", "focal+bdr", "ldam", "balanced-softmax"])
def test_a_run_trains_and_its_records_show_the_effect(tmp_path, what):
    found = bdr.run(f"replay+{what}", out=tmp_path / "run", set=SETTINGS, net="runs:flat", phases=2, **FIELDS)
    run = Run.open(found.path)
    assert run.title == f"replay+{what}"
    told = run.epochs[-1].get("plugins", {})
    assert "plugins" not in run.epochs[0]
    name = what.split("+")[0]
    assert told.keys() == set(what.split("+"))
    if what == "resample":
        assert 0.4 < told[name]["share_old"] < 0.75  # four of seven classes, of which there are 12 of 99 images
        return
    old, new = (value for key, value in told[name].items() if key.split("_")[0] in ("weight", "factor", "offset"))
    assert old != new


@pytest.mark.parametrize("name", COLUMNS)
def test_every_one_changes_what_the_backbone_learns_from(name):
    """The gradient of its shared part; where the draw is what changes, the images of an epoch."""
    world = World("replay", (name,), 1)
    (stage,) = world.stages(Stage(batch=8))
    if name == "resample":
        assert not torch.equal(world.pool.epoch(stage, 0, 0).rows, world.pool.epoch(Stage(batch=8), 0, 0).rows)
        return
    world.begin(stage)
    batch, shared = world.batch(), next(world.method.net.backbone.parameters())
    slopes = []
    for plugins in ([], world.plugins):
        objective = Objective(world.method, plugins, world.phase, stage)
        terms, _ = objective.terms(batch, world.views(objective.plugins, batch))
        slopes += torch.autograd.grad(objective.total(terms), shared)
    assert slopes[1].isfinite().all()
    assert (slopes[1] - slopes[0]).norm() > 1e-3 * slopes[0].norm()


@pytest.mark.parametrize(("name", "columns"), COLUMNS.items())
def test_every_one_has_its_named_columns_in_the_records(name, columns, tmp_path):
    net = "small" if name == "tade" else "runs:flat"  # experts need levels
    options = FIELDS | {"net": net, "phases": 2, "keep": "none", "checkpoint_every": 60, "share": False}
    found = bdr.run(f"replay+{name}", out=tmp_path, set={"stage.epochs": 1, "stage.batch": 64}, **options)
    first, later = Run.open(found.path).epochs
    for column in columns.split():
        assert column not in told_in(first, name)
        assert math.isfinite(told_in(later, name)[column])


def told_in(line, name):
    return line["terms"] | line.get("plugins", {}).get(name, {})


@pytest.mark.parametrize("what", ["focal+reweight", "resample", "ldam", "la"])
def test_a_run_stopped_half_way_ends_where_a_whole_one_does(tmp_path, what):
    settings = [("la.when", "testing")] if what == "la" else []
    options = {"settings": settings, "net": "runs:flat", "phases": 2}
    path = train_until(Position(1, 0, 1, 1), tmp_path / "half", f"replay+{what}", **options)
    api.resume(path)
    assert_equal(path, train(tmp_path / "whole", f"replay+{what}", **options))


def test_plug_ins_that_rest_in_the_first_phase_share_it(tmp_path):
    specs = ["replay", "replay+reweight", "replay+resample", "replay+focal", "replay+ldam", "replay+la"]
    keys = {str(plan(None, what, runs=tmp_path).experiment.shared) for what in specs}
    assert len(keys) == 1


# Post hoc


def test_a_correction_is_read_and_not_trained_with(tmp_path):
    """The network is that of a plain run to the bit, and its scores are shifted; a loaded model says the same."""
    paths = {}
    for what, settings in {"replay": {}, "replay+la": {"la.when": "testing"}}.items():
        options = {"set": SETTINGS | settings, "net": "runs:flat", "phases": 2, **FIELDS}
        paths[what] = bdr.run(what, out=tmp_path / what, **options).path
    plain, adjusted = (bdr.load(path, device="cpu") for path in paths.values())
    for name, value in plain.state_dict().items():
        assert torch.equal(adjusted.state_dict()[name], value), name
    images = Run.open(paths["replay"]).phases[-1]["images"]
    x = torch.randn(5, 1, 8, 8)
    with torch.no_grad():
        shift = adjusted.readouts(x)["cnn"] - plain.readouts(x)["cnn"]
    counts = torch.full((7,), 3.0)
    counts[4:] = (images - 4 * 3) / 3
    torch.testing.assert_close(shift, -torch.log(7 * counts / images).expand_as(shift), rtol=0, atol=0.1)
    assert torch.equal(adjusted.readouts(x)["nme"], plain.readouts(x)["nme"])
    _, found = api.evaluate(paths["replay+la"], device="cpu")
    line = json.loads((paths["replay+la"] / "phases.jsonl").read_text().splitlines()[-1])
    assert found["accuracy"] == line["accuracy"]
    other = json.loads((paths["replay"] / "phases.jsonl").read_text().splitlines()[-1])
    assert line["accuracy_old"]["cnn"] > other["accuracy_old"]["cnn"]


def test_a_correction_leaves_the_loss_alone():
    (out, y), plugin = some_outputs(), begun(LogitAdjustment(when="testing"))
    assert torch.equal(loss_of(plugin, out, y), cross_entropy(out, y))
    assert torch.equal(plugin.correction(LATER), -plugin.offset)
    assert plugin.correction(Phase(2, 4, 6)).tolist() == [0.0] * 6


def test_nothing_is_corrected_where_no_plug_in_asks_for_it(tmp_path):
    assert plan(tmp_path / "run", "ucir+la").experiment.method.correction is None
    assert (
        not Objective(Replay(lambda head: Network(Flat(), head(5))), [LogitAdjustment()], LATER, Stage())
        .plugins[0]
        .corrects
    )


def test_a_first_phase_is_not_shared_with_a_model_that_has_a_part_more(tmp_path):
    settings = [("la.when", "testing")]
    plain, adjusted = plan(None, "replay", runs=tmp_path), plan(None, "replay+la", runs=tmp_path, settings=settings)
    assert plain.experiment.shared != adjusted.experiment.shared
