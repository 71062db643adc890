"""A run says which code trained it, the library's and one's own, and whoever changes that code is told."""

import copy
import json
import re
import sys
import threading
from dataclasses import replace

import pytest
import torch
from runs import Position, TwoStages, assert_equal, plan, train, train_until
from test_cli import typed
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from bdr import api
from bdr.bench.cases import fits_of, steps_of
from bdr.dryrun import estimate
from bdr.engine.listen import Listener
from bdr.errors import BdrError, UsageError
from bdr.methods import Method
from bdr.nets import Backbone, Features, LinearHead
from bdr.planning.host_reads import asked_by
from bdr.planning.own_code import code_version, library_version, own_versions
from bdr.planning.rehearsal import Weighed, on_few_images, rehearse_training, train_a_little
from bdr.plugins import Plugin
from bdr.plugins.base import Prior
from bdr.records import Run, RunWriter, other_code
from bdr.records.code import with_code
from bdr.report import compare
from bdr.sweep.plan import facts

SOURCE = "from runs import TwoStages\n\n\nclass Mine(TwoStages):\n    pass\n"
OWN = {"what": "edited:Mine", "net": "runs:flat", "phases": 2}


class Mean(Plugin):
    """A slip: the method's own mean of one number is that number."""

    def classify(self, inner, out, y):
        return inner(out, y).mean()


class LateMean(Prior):
    """The same in later phases, with something that it knows only then."""

    def begin(self, phase, census, net):
        self.counts = census.counts

    def classify(self, inner, out, y):
        return inner(out, y).mean() / self.counts.sum()


class Ungrown(TwoStages):
    """A slip: nothing is begun."""

    def begin(self, phase, pool):
        pass


class LateSlip(TwoStages):
    """A slip before the first epoch of the last stage of a later phase."""

    def begin(self, phase, pool):
        super().begin(phase, pool)
        self.later = not phase.first

    def at_epoch(self, stage, epoch):
        if self.later and stage.name == "balanced":
            raise BdrError(f"nothing is known of epoch {epoch}")


class Prepared(TwoStages):
    """Its loss needs what is made ready before every epoch, and is gone with the stage."""

    def begin_stage(self, stage, phase, pool):
        self.share = None

    def at_epoch(self, stage, epoch):
        self.share = 1 / (1 + epoch)

    def loss(self, batch, phase, classify):
        return {"ce": self.share * super().loss(batch, phase, classify)["ce"]}


class Mistaken(TwoStages):
    """A slip that training comes to late."""

    def __init__(self, make, where: str = ""):
        super().__init__(make)
        self.where = where

    def loss(self, batch, phase, classify):
        if self.where == "loss" and not phase.first:
            return {"ce": undefined}  # noqa: F821
        return super().loss(batch, phase, classify)

    def end(self, phase, pool, exemplars):
        if self.where == "end":
            self.tescher.refill(self.net)


class Demanding(TwoStages):
    """It can begin with more images than a trial has of each class, and with no fewer."""

    def begin(self, phase, pool):
        super().begin(phase, pool)
        if len(pool.rows) < 30:
            raise ValueError(f"30 clusters of {len(pool.rows)} images")


class Locked(TwoStages):
    """It holds what cannot be copied."""

    def __init__(self, make):
        super().__init__(make)
        self.lock = threading.Lock()


class Crooked(Plugin):
    corrects = True

    def correction(self, phase):
        return torch.zeros(phase.new)


class Weightless(TwoStages):
    def weights(self, phase, stage):
        pass


class Listing(TwoStages):
    def readouts(self, x):
        return list(super().readouts(x).values())


class Sideways(TwoStages):
    def readouts(self, x):
        return {"cnn": self.net(x).features}


class Verbose(TwoStages):
    def report(self, phase):
        return {"norms": torch.ones(phase.seen)}


class Reading(TwoStages):
    """Asks the device for a value in each of its steps, in the way that `how` says."""

    def __init__(self, make, how: str = ""):
        super().__init__(make)
        self.how = how

    def loss(self, batch, phase, classify):
        terms = super().loss(batch, phase, classify)
        if self.how == "item":
            terms["ce"] = terms["ce"] * (1 + 0 * terms["ce"].item())
        if self.how == "if" and terms["ce"] > 100:
            terms = {}
        if self.how == "mask":
            self.net(batch.x[batch.y >= phase.old])
        if self.how == "where":
            (batch.y >= phase.old).nonzero()
        if self.how == "equal" and torch.equal(batch.y, batch.y + 1):
            terms = {}
        if self.how == "count":
            terms["ce"] = terms["ce"] + 0 * torch.bincount(batch.y).sum()
        if self.how == "put":
            batch.x[batch.y >= phase.old] = batch.x[batch.y >= phase.old]
        if self.how == "once" and not hasattr(self, "kept"):
            self.kept = [float(batch.x.mean())]  # while a step is warmed up, anybody may
        if self.how == "fill":
            batch.x.clone()[batch.y < 0] = 0.0  # all alike: nothing is asked
        return terms

    def end(self, phase, pool, exemplars):
        float(self.net(pool.store.plain(exemplars[:2])).logits.mean())  # between steps anybody may


class Netless(Method):
    def loss(self, batch, phase, classify):
        return {}

    def __init__(self, make):
        super().__init__()
        self.network = make(LinearHead)


class Narrow(TwoStages):
    def end(self, phase, pool):
        pass


class Copying(TwoStages):
    """A slip: the network before is a part that a method as it is built does not have."""

    def end(self, phase, pool, exemplars):
        self.before = copy.deepcopy(self.net)


class BegunPart(TwoStages):
    """A slip: a part that is made in the first phase."""

    def begin(self, phase, pool):
        super().begin(phase, pool)
        if phase.first:
            self.extra = nn.Linear(2, 2)


class Counting(TwoStages):
    """A slip: a number that changes from step to step, and is a number of Python."""

    def __init__(self, make, share: float = 1.0):
        super().__init__(make)
        self.share = share

    def loss(self, batch, phase, classify):
        self.share *= 0.5
        return super().loss(batch, phase, classify)


class Growing(Plugin):
    """A slip: a buffer that grows, and nothing that says so."""

    def __init__(self):
        super().__init__()
        self.register_buffer("offset", torch.zeros(0))

    def begin(self, phase, census, net):
        self.offset = torch.zeros(phase.seen)


class Widening(Backbone):
    """A slip of the same kind in a network."""

    def __init__(self, shape, last_relu: bool = True):
        super().__init__()
        self.dim = shape.channels
        self.level = nn.BatchNorm2d(shape.channels)
        self.register_buffer("known", torch.zeros(0))

    def forward(self, x):
        if self.training:
            self.known = torch.zeros(3)
        return Features.of(self.level(x))


class OneStage(TwoStages):
    """A slip: the stage itself."""

    def stages(self, phase, base):
        return base


class NoStages(Plugin):
    """A slip: nothing is returned."""

    def stages(self, phase, stages):
        stages.reverse()


class Saying(Growing):
    by_class = ("offset",)


class Telling(Saying):
    """A number that changes, and comes back with the layout."""

    phases = 0

    def begin(self, phase, census, net):
        super().begin(phase, census, net)
        self.phases = phase.index + 1

    def layout(self):
        return super().layout() | {"phases": self.phases}

    def lay_out(self, layout):
        super().lay_out(layout)
        self.phases = layout["phases"]


class Detached(TwoStages):
    """A slip that torch finds when the step goes backward."""

    def loss(self, batch, phase, classify):
        return {"ce": super().loss(batch, phase, classify)["ce"].detach()}


class Greedy(TwoStages):
    """Wants more images in a later phase than a rehearsal has."""

    def begin(self, phase, pool):
        super().begin(phase, pool)
        if not phase.first:
            self.some = pool.rows.topk(30).values


class Weighing(TwoStages):
    """Two terms, one of them after the first phase alone, and weights for whatever is set."""

    def __init__(self, make, names: str = ""):
        super().__init__(make)
        self.names = names.split()

    def loss(self, batch, phase, classify):
        terms = super().loss(batch, phase, classify)
        return terms if phase.first else terms | {"held": self.net(batch.x).logits.square().mean()}

    def weights(self, phase, stage):
        return dict.fromkeys(self.names, 0.5)


class Spreading(Plugin):
    """A term that its weight misses."""

    def terms(self, batch, out, forward):
        return {"spread": out.features.std()}

    def weights(self, phase, stage):
        return {"spred": 0.1}


class Heard(Listener):
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A method of one's own, to be edited."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "edited", raising=False)  # that of another test
    (tmp_path / "edited.py").write_text(SOURCE)
    return tmp_path / "edited.py"


def edit(module):
    module.write_text(module.read_text() + "CHANGED = True\n")


def info_of(path):
    return json.loads((path / "run.json").read_text())


def test_a_run_records_the_versions_of_its_own_modules_and_of_no_others(module, tmp_path):
    info = plan(tmp_path / "run", **OWN).info
    assert info["own_code"] == own_versions("edited:Mine", "runs:flat")
    assert list(info["own_code"]) == ["edited", "runs"]
    assert "own_code" not in plan(tmp_path / "run", "ucir").info
    assert own_versions("ucir", "bdr.methods.ucir:UCIR") == {}


def test_a_finished_run_of_other_code_is_refused_and_left_as_it_is(module, tmp_path):
    path = train(tmp_path / "run", **OWN)
    again = plan(path, **OWN)
    assert api.execute(again).path == path
    edit(module)
    before = info_of(path)
    changed = plan(path, **OWN)
    with pytest.raises(UsageError, match="is already done with other code of edited: to keep it, put the new run"):
        api.execute(changed)
    assert (path / "DONE").exists()
    assert info_of(path) == before
    del before["own_code"]  # a record of before the versions were kept
    (path / "run.json").write_text(json.dumps(before))
    assert api.execute(changed).path == path


def test_the_same_command_after_an_edit_exits_with_2_and_says_what_to_do(module, tmp_path):
    words = ("run", "edited:Mine", "--net=runs:flat", "--phases=1", "--set=stage.epochs=1", "--val=0.8", "--out")
    assert typed(*words, tmp_path / "run").code == 0
    edit(module)
    said = typed(*words, tmp_path / "run")
    assert (said.code, "already done" in said.out) == (2, False)
    assert "to replace it, remove it first" in said.err


def test_a_run_that_goes_on_with_other_code_says_so_and_records_from_where(module, tmp_path):
    path = train_until(Position(1), tmp_path / "run", **OWN)
    first = info_of(path)["own_code"]
    edit(module)
    heard = Heard()
    api.resume(path, listener=heard)
    said = "warning: edited changed since the run was trained: phase 1 goes on with other code"
    assert said in heard.notes
    assert said in (path / "log.txt").read_text()
    now = own_versions("edited:Mine", "runs:flat")
    assert (info_of(path)["own_code"], info_of(path)["own_code_since"]) == (first, [{"phase": 1, "own_code": now}])
    assert api.execute(plan(path, **OWN)).path == path  # the code of its end is what is here


def test_a_run_that_goes_on_with_the_same_code_says_nothing(module, tmp_path):
    path = train_until(Position(1), tmp_path / "run", **OWN)
    before, heard = info_of(path), Heard()
    api.resume(path, listener=heard)
    assert info_of(path) == before
    assert "other code" not in "".join(heard.notes)


def test_a_sweep_knows_which_finished_runs_are_of_other_code(module, tmp_path):
    planned = plan(None, runs=tmp_path / "runs", **OWN)
    api.execute(planned)
    assert facts(planned.config, tmp_path / "runs", None)["other_code"] == []
    edit(module)
    assert facts(planned.config, tmp_path / "runs", None)["other_code"] == ["edited"]


def test_code_that_was_cut_off_with_its_phase_does_not_count_any_more():
    since = [{"phase": 1, "own_code": {"mine": "b"}}, {"phase": 3, "own_code": {"mine": "c"}}]
    info = {"own_code": {"mine": "a"}, "own_code_since": since}
    assert other_code(info, {"mine": "c"}) == []
    assert with_code(info, {"mine": "c"}, "", phase=3) == info
    assert with_code(info, {"mine": "b"}, "", phase=2) == {**info, "own_code_since": since[:1]}
    assert with_code(info, {"mine": "a"}, "", phase=0) == {"own_code": {"mine": "a"}}


EXTENDABLE = {
    "net": "runs:flat",
    "base": 4,
    "step": 3,
    "memory": "3/class",
    "device": "cpu",
    "set": {"stage.epochs": 1},
}


def test_a_run_that_is_extended_by_other_code_says_so(module, tmp_path):
    path = api.run("edited:Mine", data="digits", out=tmp_path / "run", phases=2, **EXTENDABLE).path
    assert api.plan_extension(path).notes == ()
    edit(module)
    notes = api.plan_extension(path).notes
    assert notes == (f"warning: edited changed since {path} was trained: it is extended by other code",)


SLIP = {"what": "test_own_code:Mistaken", "net": "runs:flat", "settings": [("Mistaken.where", "loss")]}


def left_without_a_step(path, **what):
    """As a run that was killed before its first step."""
    RunWriter.create(path, plan(path, **what).info | {"command": "", "created": ""}).close()


def test_a_slip_is_told_where_a_run_that_saved_nothing_begins_anew(tmp_path):
    left_without_a_step(tmp_path / "run", **SLIP)
    with pytest.raises(UsageError, match=r"in loss: NameError: .*tried before training"):
        api.resume(tmp_path / "run")
    assert not (tmp_path / "run" / "epochs.jsonl").exists()


def test_a_run_that_is_refused_before_training_leaves_nothing_behind(tmp_path):
    with pytest.raises(UsageError, match=r"in loss: NameError: .*tried before training"):
        train(tmp_path / "runs" / "mine" / "seed1", **SLIP)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine").mkdir()
    with pytest.raises(UsageError, match=r"tried before training"):
        train(tmp_path / "mine", **SLIP)
    assert list((tmp_path / "mine").iterdir()) == []


def test_a_run_that_begins_anew_is_of_the_code_of_now(module, tmp_path):
    left_without_a_step(tmp_path / "run", **OWN)
    edit(module)
    heard = Heard()
    api.resume(tmp_path / "run", listener=heard)
    info = info_of(tmp_path / "run")
    assert (info["own_code"], "own_code_since" in info) == (own_versions("edited:Mine", "runs:flat"), False)
    assert "other code" not in "".join(heard.notes)


def test_comments_and_spacing_are_no_other_code(module):
    before = own_versions("edited:Mine")
    module.write_text("# first\n\n" + module.read_text().replace("\n\n", "\n\n\n") + "\n# last\n")
    assert own_versions("edited:Mine") == before
    edit(module)
    assert own_versions("edited:Mine") != before


def test_rows_of_several_codes_are_told(module, tmp_path):
    runs = [Run.open(train(tmp_path / "1", seed=1, **OWN)), Run.open(train(tmp_path / "2", seed=2, **OWN))]
    assert not [note for note in compare(runs).notes if "edited was" in note]
    edit(module)
    runs.append(Run.open(train(tmp_path / "3", seed=3, **OWN)))
    old, new = (run.info["own_code"]["edited"][:6] for run in runs[1:])
    (note,) = [note for note in compare(runs).notes if "edited was" in note]
    assert note.startswith("edited was changed between these runs, so that gains and spreads are of several codes: ")
    assert f"{old} trained edited:Mine (seeds 1, 2); {new} trained edited:Mine (seed 3)" in note


def test_a_slip_is_told_before_a_run_is_extended_too(tmp_path):
    path = api.run("test_own_code:Mistaken", data="digits", out=tmp_path / "run", phases=2, **EXTENDABLE).path
    with pytest.raises(UsageError, match=r"in loss: NameError: .*tried before training"):
        api.extend(path, out=tmp_path / "further", set={"Mistaken.where": "loss"})
    assert not (tmp_path / "further" / "epochs.jsonl").exists()


SCALAR = r"plug-in {}: classify must return one loss a sample, \(B,\), and returned a tensor of shape \(\)"


def test_a_plug_in_that_averages_is_told_at_its_first_step(tmp_path):
    with pytest.raises(BdrError, match=SCALAR.format("Mean")):
        train(tmp_path / "run", "ucir+test_own_code:Mean", net="runs:flat")
    assert not (tmp_path / "run" / "epochs.jsonl").exists()


def test_a_plug_in_that_averages_in_later_phases_alone_is_told_before_training(tmp_path):
    with pytest.raises(BdrError, match=SCALAR.format("LateMean")):
        train(tmp_path / "run", "ucir+test_own_code:LateMean", net="runs:flat")
    assert not (tmp_path / "run" / "epochs.jsonl").exists()


def test_a_plug_in_that_cannot_be_tried_before_training_is_told_when_its_phase_comes(tmp_path, monkeypatch):
    monkeypatch.setattr("bdr.planning.rehearsal.rehearse_training", lambda plan: None)
    with pytest.raises(BdrError, match=SCALAR.format("LateMean")):
        train(tmp_path / "run", "ucir+test_own_code:LateMean", net="runs:flat")
    assert (tmp_path / "run" / "phases.jsonl").read_text().count("\n") == 1


MISTAKES = {
    "loss": "NameError: name 'undefined' is not defined",
    "end": "AttributeError: 'Mistaken' object has no attribute 'tescher'",
}


@pytest.mark.parametrize("where", MISTAKES)
def test_a_slip_in_ones_own_code_is_told_before_training_with_its_line(where, tmp_path):
    said = typed(
        *("run", "test_own_code:Mistaken", "--net=runs:flat", "--phases=2", "--out", tmp_path / "run"),
        *("--set", f"Mistaken.where={where}"),
    )
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert re.search(rf"test_own_code\.py, line \d+, in {where}: {MISTAKES[where]}", said.err)
    assert not (tmp_path / "run" / "epochs.jsonl").exists()


def test_a_seam_that_takes_other_arguments_is_told_before_training():
    said = typed("run", "test_own_code:Narrow", "--net=runs:flat", "--dry-run")
    takes = "takes (phase, pool), and bdr calls it with (phase, pool, exemplars): let it take these"
    assert (said.code, said.err) == (2, f"bdr: end of 'test_own_code:Narrow' {takes}\n")


def test_what_fails_on_a_few_images_alone_is_a_warning(tmp_path):
    heard = Heard()
    path = train(tmp_path / "run", "test_own_code:Greedy", net="runs:flat", phases=2, listener=heard)
    (note,) = [note for note in heard.notes if "a trial before training" in note]
    assert "in begin: RuntimeError: selected index k out of range" in note
    assert Run.open(path).whole


def test_what_fails_outside_of_ones_own_lines_is_a_warning_too(tmp_path):
    heard = Heard()
    with pytest.raises(RuntimeError, match="does not require grad"):
        train(tmp_path / "run", "test_own_code:Detached", net="runs:flat", phases=2, listener=heard)
    (note,) = [note for note in heard.notes if "a trial before training" in note]
    assert note.startswith("warning: RuntimeError: element 0 of tensors does not require grad")


@pytest.mark.parametrize(
    ("what", "name", "kind"),
    [
        ("test_own_code:OneStage", "test_own_code:OneStage", "Stage"),
        ("ucir+test_own_code:NoStages", "NoStages", "NoneType"),
    ],
)
def test_what_declares_no_list_of_stages_is_told(what, name, kind):
    said = typed("run", what, "--net=runs:flat", "--dry-run")
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert said.err == f"bdr: `stages` of '{name}' must return a list of stages, [base], and returned a {kind}\n"


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("Weightless", "`weights` of Weightless must return a number by term, {} for none, and returned None"),
        ("Listing", "`readouts` of Listing must return scores by name, and returned a list"),
        ("Sideways", r"readout 'cnn' of Sideways must be \(64, 4\), a score for each of 4 classes, and is \(64, 8\)"),
        ("Verbose", r"`report` of method must return numbers, and 'norms' is \(4,\): average it"),
        ("Netless", "'test_own_code:Netless' has no network: say `self.net = make"),
    ],
)
def test_what_a_method_of_ones_own_returns_is_told_by_name_where_it_is_something_else(what, said, tmp_path):
    with pytest.raises(BdrError, match=said):
        train(tmp_path / "run", f"test_own_code:{what}", net="runs:flat", phases=2)


def test_a_correction_that_is_not_a_number_a_class_is_told_before_training(tmp_path):
    with pytest.raises(BdrError, match=r"of plug-in 'Crooked' must be .* each of 7 classes, and is \(3,\)"):
        train(tmp_path / "run", "ucir+test_own_code:Crooked", net="runs:flat", phases=2)
    assert not (tmp_path / "run" / "epochs.jsonl").exists()


def captured(there):
    """The plan as it is where steps are captured, on a GPU."""
    return replace(there, experiment=replace(there.experiment, learner=replace(there.learner, engine="graph")))


@pytest.mark.parametrize(
    ("how", "why"),
    [
        *(("item", "reads"), ("if", "reads"), ("equal", "reads")),
        *(("mask", "mask"), ("put", "mask")),
        *(("where", "how many"), ("count", "how many")),
    ],
)
def test_a_line_that_waits_for_the_device_in_a_step_is_told_before_steps_are_captured(how, why, tmp_path):
    made = plan(tmp_path / "run", "test_own_code:Reading", net="runs:flat", phases=2, settings=[("Reading.how", how)])
    rehearse_training(made)  # where none is captured, it may
    with pytest.raises(UsageError, match=rf"test_own_code.py, line \d+, in loss, .*{why}.*--engine eager"):
        rehearse_training(captured(made))


@pytest.mark.parametrize("how", ["", "fill", "once"])
def test_a_method_that_waits_between_steps_alone_is_captured_without_a_word(how, tmp_path):
    made = plan(tmp_path / "run", "test_own_code:Reading", net="runs:flat", phases=2, settings=[("Reading.how", how)])
    rehearse_training(captured(made))


def test_what_waits_for_a_gpu_is_known_without_one():
    with FakeTensorMode(allow_non_fake_inputs=True):
        there, here = torch.zeros(4, device="cuda"), torch.zeros(())
        some, rows, gpu, cpu = there > 0, there.long(), {"device": there.device}, {"device": here.device}
        one = torch.zeros((), device="cuda")
    put, copy_ = torch.ops.aten.index_put_.default, torch.ops.aten._to_copy.default
    assert asked_by(put, (there, [some], here), {}) == ""
    assert "mask" in asked_by(put, (there, [some], one), {})  # torch does not fill with a number on the device
    assert "mask" in asked_by(put, (there, [some, rows], here), {})
    assert asked_by(put, (there, [rows], there), {}) == ""
    assert "to the CPU" in asked_by(copy_, (there,), cpu)
    assert "from the CPU" in asked_by(copy_, (here,), gpu)
    assert asked_by(copy_, (there,), gpu | {"dtype": torch.float16}) == asked_by(copy_, (there,), {}) == ""


@pytest.mark.parametrize(("what", "why"), [("Demanding", "30 clusters of 8 images"), ("Locked", "cannot pickle")])
def test_what_cannot_be_tried_on_a_few_images_is_said_once_and_trained(what, why, tmp_path):
    heard = Heard()
    path = train(tmp_path / "run", f"test_own_code:{what}", listener=heard, net="runs:flat", phases=2)
    assert [note.count(why) for note in heard.notes if "so ended a trial before training" in note] == [1]
    assert (path / "DONE").exists()


LATE = {"what": "test_own_code:LateSlip", "net": "runs:flat", "phases": 2}
PREPARED = {"what": "test_own_code:Prepared", "net": "runs:flat", "phases": 2}


def test_what_fails_before_an_epoch_of_a_later_phase_is_told_before_training(tmp_path):
    with pytest.raises(BdrError, match="nothing is known of epoch 0"):
        train(tmp_path / "run", **LATE)
    assert not (tmp_path / "run" / "epochs.jsonl").exists()


def test_what_fails_before_an_epoch_fails_in_a_dry_run(tmp_path):
    with pytest.raises(BdrError, match="nothing is known of epoch 0"):
        estimate(plan(tmp_path / "run", **LATE), None)


def test_what_is_made_ready_before_an_epoch_is_there_in_a_dry_run(tmp_path):
    estimate(plan(tmp_path / "run", **PREPARED), None)


def test_what_is_made_ready_before_an_epoch_is_there_in_a_rehearsal(tmp_path):
    seen = Weighed()
    learner = plan(tmp_path / "run", **PREPARED).learner
    train_a_little(on_few_images(learner), seen)
    assert (seen.terms, seen.whole) == ({"ce"}, True)


LOST = {
    "test_own_code:Copying": "no checkpoint of Copying could be .*: 'before' is to be laid out, and this model ",
    "test_own_code:BegunPart": "no checkpoint of BegunPart could be .*: Unexpected .*extra.weight",
    "ucir+test_own_code:Growing": "no checkpoint of Growing could be .*: size mismatch for offset: .*",
}


@pytest.mark.parametrize("what", LOST)
def test_what_no_checkpoint_would_be_good_for_is_told_before_training(what, tmp_path):
    with pytest.raises(UsageError, match=LOST[what]):
        train(tmp_path / "run", what, net="runs:flat", phases=2)
    assert not (tmp_path / "run" / "epochs.jsonl").exists()


def test_a_number_that_no_checkpoint_has_is_a_warning(tmp_path):
    heard = Heard()
    train(tmp_path / "run", "test_own_code:Counting", net="runs:flat", phases=2, listener=heard)
    (note,) = [note for note in heard.notes if "numbers of Python" in note]
    assert re.match(r"warning: Counting.share is 0\.\d+ after a trial of training and was 1.0 when it was made: ", note)


def test_a_network_whose_state_no_checkpoint_could_give_back_is_told_before_training(tmp_path):
    with pytest.raises(UsageError, match=r"no checkpoint of \w+ could be .*: size mismatch for net\.backbone\.known: "):
        train(tmp_path / "run", "replay", net="test_own_code:Widening", phases=2)
    assert not (tmp_path / "run" / "epochs.jsonl").exists()


@pytest.mark.parametrize("name", ["Saying", "Telling"])
def test_state_that_says_how_it_changes_is_trained_without_a_word(name, tmp_path):
    heard = Heard()
    what = f"ucir+test_own_code:{name}"
    assert Run.open(train(tmp_path / "run", what, net="runs:flat", phases=2, listener=heard)).whole
    assert not [note for note in heard.notes if "Python" in note]


@pytest.mark.parametrize("number", [0, 1])
def test_what_is_made_ready_before_an_epoch_is_there_in_a_benchmark(number, tmp_path):
    (fit,) = fits_of(plan(tmp_path / "run", **PREPARED).learner, number)
    steps_of(fit, 1)


def test_a_method_whose_head_did_not_grow_is_told_what_to_call(tmp_path):
    words = ("run", "test_own_code:Ungrown", "--net=runs:flat", "--out", tmp_path / "run")
    said = typed(*words)
    assert (said.code, said.err.count("\n")) == (1, 1)
    assert said.err.startswith("bdr: the head of Ungrown has 0 classes after begin(), and there are 4 in phase 0: ")
    assert said.err.endswith("call self.net.head.grow(phase.new) in begin()\n")


SLIPS = {
    "ce_": "weights of Weighing name 'ce_', .*; the terms are ce, held: did you mean 'ce'?",
    "ce hold": "weights of Weighing name 'hold', .* the first two phases; the terms are ce, held: did you mean 'held'?",
    "ce held more": "weights of Weighing name 'more', a term of no stage .*; the terms are ce, held$",
}


@pytest.mark.parametrize("names", SLIPS)
def test_a_weight_of_a_term_that_there_is_not_is_told_before_training(names, tmp_path):
    with pytest.raises(UsageError, match=SLIPS[names].replace("?", r"\?")):
        train(tmp_path / "run", "test_own_code:Weighing", net="runs:flat", settings=[("Weighing.names", names)])
    assert not (tmp_path / "run" / "epochs.jsonl").exists()


def test_a_weight_of_a_plug_in_that_there_is_no_term_of_is_told_before_training(tmp_path):
    with pytest.raises(UsageError, match=r"weights of plug-in 'Spreading' name 'spred', .*: did you mean 'spread'"):
        train(tmp_path / "run", "ucir+test_own_code:Spreading", net="runs:flat")


def test_a_term_of_later_phases_may_have_a_weight_from_the_start_and_in_a_run_of_one_phase(tmp_path):
    weighed = {"net": "runs:flat", "settings": [("Weighing.names", "held")]}
    for phases in (1, 2):
        train(tmp_path / str(phases), "test_own_code:Weighing", phases=phases, **weighed)
    with pytest.raises(UsageError, match="did you mean 'ce'"):  # what can be seen of one phase
        train(
            tmp_path / "slip", "test_own_code:Weighing", phases=1, net="runs:flat", settings=[("Weighing.names", "cee")]
        )


def test_rehearsing_changes_nothing_of_what_is_trained(tmp_path, monkeypatch):
    path = train(tmp_path / "rehearsed", **SHORT)
    monkeypatch.setattr("bdr.planning.rehearsal.rehearse_training", lambda plan: None)
    assert_equal(path, train(tmp_path / "not", **SHORT))


# The library itself


@pytest.fixture
def change_library(monkeypatch):
    """As if a later version of the library were installed."""

    def change(version="later"):
        for place in ("planning.describe", "planning.begun"):
            monkeypatch.setattr(f"bdr.{place}.library_version", lambda: version)

    return change


SHORT = {"what": "runs:TwoStages", "net": "runs:flat", "phases": 2}
CHANGED = f"note: the library has changed since the run was trained (code {library_version()} then, later now)"


def test_a_run_records_the_version_of_the_library(tmp_path):
    code = plan(tmp_path / "run", "ucir").info["code"]
    assert code == library_version()
    assert len(code) == 12
    assert code_version() != code_version("runs:flat")
    assert code_version().startswith(code)


def test_a_changed_line_of_the_library_is_another_version(tmp_path, monkeypatch):
    monkeypatch.setattr("bdr.planning.own_code.HOME", tmp_path)
    fresh = library_version.__wrapped__
    (tmp_path / "one.py").write_text("a = 1\n")
    before = fresh()
    (tmp_path / "one.py").write_text("a = 2\n")
    assert fresh() != before


def test_a_finished_run_of_another_library_is_shown_with_a_note(tmp_path, change_library):
    path, heard = train(tmp_path / "run", **SHORT), Heard()
    done = f"already done: {path}"
    api.execute(plan(path, **SHORT), heard)
    assert heard.notes == [done]
    change_library()
    heard.notes.clear()
    before = info_of(path)
    assert api.execute(plan(path, **SHORT), heard).path == api.resume(path, listener=heard).path == path
    assert heard.notes == 2 * [done, f"{CHANGED}: its numbers are of that code"]
    assert info_of(path) == before


def test_the_same_command_with_another_library_says_so_in_one_line_and_shows_the_run(tmp_path, change_library):
    words = ("run", "ucir", "--net=runs:flat", "--phases=1", "--set=stage.epochs=1", "--val=0.8", "--out")
    assert typed(*words, tmp_path / "run").code == 0
    change_library()
    for again in ([*words, tmp_path / "run"], ["resume", tmp_path / "run"]):
        said = typed(*again)
        assert said.code == 0, said.err
        assert said.out.count(CHANGED) == said.out.count("already done") == 1


def test_a_run_that_goes_on_with_another_library_says_so_and_records_from_where(tmp_path, change_library):
    path, heard = train_until(Position(1), tmp_path / "run", **SHORT), Heard()
    change_library()
    api.resume(path, listener=heard)
    said = f"{CHANGED}: phase 1 goes on with other code"
    assert said in heard.notes
    assert said in (path / "log.txt").read_text()
    info = info_of(path)
    assert (info["code"], info["code_since"]) == (library_version(), [{"phase": 1, "code": "later"}])
    heard.notes.clear()
    api.execute(plan(path, **SHORT), heard)  # the code of its end is what is here
    assert heard.notes == [f"already done: {path}"]


def test_show_and_the_page_say_what_code_a_run_was_trained_with(tmp_path, change_library):
    path = train_until(Position(1), tmp_path / "run", **SHORT)
    change_library()
    api.resume(path)
    told = f"{library_version()}, from phase 1 on later"
    assert f"Code {told}." in " ".join(typed("show", path).out.split())
    assert typed("report", path, "--out", tmp_path / "page.html").code == 0
    assert told in (tmp_path / "page.html").read_text()


def test_a_record_that_does_not_say_its_code_is_shown_without_a_note(tmp_path, change_library):
    path, heard = train(tmp_path / "run", **SHORT), Heard()
    info = info_of(path)
    del info["code"]
    (path / "run.json").write_text(json.dumps(info))
    change_library()
    api.execute(plan(path, **SHORT), heard)
    assert heard.notes == [f"already done: {path}"]
    assert "Code" not in typed("show", path).out


def test_a_sweep_knows_which_finished_runs_are_of_another_library(tmp_path, change_library):
    planned = plan(None, runs=tmp_path / "runs", **SHORT)
    api.execute(planned)
    assert facts(planned.config, tmp_path / "runs", None)["other_library"] is False
    change_library()
    assert facts(planned.config, tmp_path / "runs", None)["other_library"] is True


def test_a_run_that_is_extended_by_another_library_says_so(tmp_path, change_library):
    fields = {"net": "runs:flat", "base": 4, "step": 3, "memory": "3/class", "device": "cpu"}
    path = api.run("ucir", data="digits", out=tmp_path / "run", phases=2, set={"stage.epochs": 1}, **fields).path
    assert api.plan_extension(path).notes == ()
    change_library()
    assert api.plan_extension(path).notes == (f"{CHANGED}: {path} is extended by other code",)
