"""A finished run learns further classes: from its weights, with its exemplars, as if they had been planned."""

import json
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from runs import Loaded, arrays, execute_until, lines, state, train
from small import make_store
from test_cli import typed

from bdr import api, from_arrays
from bdr.configuration.overrides import with_stage_settings
from bdr.data.exemplars import find, tell
from bdr.data.images import Images
from bdr.data.sets import digits
from bdr.errors import BdrError, Interrupted, UsageError
from bdr.planning.describe import shared_facts
from bdr.records import Run
from bdr.report.protocols import protocol_key
from bdr.types import Stage

SETTINGS = {"stage.epochs": 2, "stage.batch": 32}
PLAIN = {"net": "small", "device": "cpu", "order": "natural", "memory": "3/class", "set": SETTINGS}


def digits_of(*classes, train=lambda labels: np.ones(len(labels), bool)):
    """Some handwritten digits of some classes, in that order, of which a mask says which are for training."""
    whole = digits()

    def part(images):
        chosen = np.isin(images.labels, classes)
        labels = np.array([classes.index(label) for label in images.labels[chosen]])
        return images.pixels[chosen], labels

    few = np.sort(np.concatenate([np.flatnonzero(whole.train.labels == label)[:40] for label in range(10)]))
    (x, y), (test_x, test_y) = part(whole.train.where(few)), part(whole.test)
    kept = train(y)
    names = [str(name) for name in classes]
    given = {"classes": names, "mean": whole.mean, "std": whole.std, "augment": whole.augment, "name": "some-digits"}
    return from_arrays(x[kept], y[kept], test_x, test_y, **given)


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    return tmp_path_factory.mktemp("extend")


@pytest.fixture(scope="module")
def six(places):
    """A run over six digits: four, and two more."""
    return api.run("ucir+bdr", data=digits_of(0, 1, 2, 3, 4, 5), base=4, step=2, out=places / "six", **PLAIN).path


@pytest.fixture(scope="module")
def eight(six, places):
    return api.extend(six, data=digits_of(*range(8)), out=places / "eight").path


def contents(path):
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def comparable(path):
    """What a run came to, but for whether phases were taken over."""
    apart = ("taken_over", "plugins_at_start")
    phases = [{k: v for k, v in line.items() if k not in apart} for line in lines(path / "phases.jsonl")]
    files = {str(file.relative_to(path)): arrays(file) for file in path.rglob("*.npz")}
    last = max(path.glob("phase-*/model"))
    memory = json.loads((last.parent / "memory.json").read_text())
    # what plug-ins say of themselves is a mean over images, whose last digit may be another: nothing trains on it
    epochs = [{k: v for k, v in line.items() if k != "plugins"} for line in lines(path / "epochs.jsonl")]
    return {"phases": phases, "epochs": epochs, "model": state(last), "memory": memory} | files


# As if it had been planned


@pytest.mark.parametrize(
    ("what", "memory"),
    [
        ("ucir+cwd+bdr", "3/class"),
        ("icarl", "24"),  # of which old classes keep fewer when others come
        ("bic", "3/class"),
        ("der", "3/class"),
        ("ewc", "0"),
        ("replay+bcl", "3/class"),  # which remembers single images
    ],
)
def test_a_run_that_is_extended_ends_like_one_that_was_planned_whole(tmp_path, what, memory):
    plain = PLAIN | {"memory": memory}
    some, all_of_them = digits_of(0, 1, 2, 3, 4, 5), digits_of(*range(8))
    whole = api.run(what, data=all_of_them, base=4, step=2, out=tmp_path / "whole", **plain)
    first = api.run(what, data=some, base=4, step=2, out=tmp_path / "first", **plain)
    extended = api.extend(first.path, data=all_of_them, out=tmp_path / "extended")
    here, there = comparable(extended.path), comparable(whole.path)
    assert [part for part in there if here[part] != there[part]] == []


def test_a_run_that_stopped_after_some_phases_is_extended_by_the_classes_it_had_planned(tmp_path):
    plain = PLAIN | {"order": "seed-1993"}
    whole = api.run("ucir", data=digits_of(*range(8)), base=4, step=2, out=tmp_path / "whole", **plain)
    first = api.run("ucir", data=digits_of(*range(8)), base=4, step=2, phases=1, out=tmp_path / "first", **plain)
    extended = api.extend(first.path, data=digits_of(*range(8)), step=2, out=tmp_path / "extended")
    assert comparable(extended.path)["model"] == comparable(whole.path)["model"]
    assert Run.open(extended.path).info["classes"] == Run.open(whole.path).info["classes"]


def test_what_was_read_of_the_run_that_is_extended_is_not_held_any_longer(six, tmp_path, monkeypatch):
    heard = Loaded(monkeypatch)
    api.extend(six, data=digits_of(*range(8)), out=tmp_path / "extended", listener=heard)
    assert heard.read
    assert not any(heard.held)


def test_of_old_classes_only_the_exemplars_are_needed(six, eight, places):
    kept = {name: [each["place"] for each in mine] for name, mine in exemplars(six).items()}

    def train(labels):
        """All of new classes, of old ones the exemplars alone."""
        chosen = labels >= 6
        for name, mine in kept.items():
            chosen[np.flatnonzero(labels == int(name))[mine]] = True
        return chosen

    bare = api.extend(six, data=digits_of(*range(8), train=train), out=places / "bare").path
    assert comparable(bare)["model"] == comparable(eight)["model"]


def exemplars(path):
    return Run.open(path).exemplars(len(Run.open(path).phases) - 1)["exemplars"]


# The records


def test_the_run_that_is_extended_is_not_changed(six, places):
    before = contents(six)
    api.extend(six, data=digits_of(*range(8)), out=places / "unchanged", step=1)
    assert contents(six) == before


def test_the_records_begin_with_those_of_the_run_that_is_extended(six, eight):
    old, new = Run.open(six), Run.open(eight)
    assert [line.get("taken_over") for line in new.phases] == [old.fingerprint, old.fingerprint, None]
    assert [line["accuracy"] for line in new.phases[:2]] == [line["accuracy"] for line in old.phases]
    assert new.info["extends"]["run"] == str(six.resolve())
    assert new.info["extends"]["fingerprint"] == old.fingerprint
    sums = json.loads((six / "phase-01" / "model" / "sums.json").read_text())
    assert new.info["extends"]["model"] == sums["tensors"]
    assert new.info["classes"] == [str(name) for name in range(8)]
    assert new.info["phases"] == [[0, 4], [4, 6], [6, 8]]
    assert new.epochs[: len(old.epochs)] == old.epochs
    assert arrays(eight / "phase-00" / "predictions.npz") == arrays(six / "phase-00" / "predictions.npz")
    assert new.fingerprint != old.fingerprint


def test_it_is_shown_reported_and_evaluated_like_any_other(eight, tmp_path):
    assert "ucir+bdr" in typed("show", eight)[1]
    assert typed("report", eight, "-o", tmp_path / "page.html")[0] == 0
    number, found = api.evaluate(eight, data=digits_of(*range(8)))
    assert number == 2
    assert found["accuracy"] == Run.open(eight).phases[-1]["accuracy"]
    assert api.load(eight)(torch.zeros(1, 1, 8, 8)).shape == (1, 8)


def test_it_says_so_if_its_data_has_grown_again(eight):
    with pytest.raises(UsageError, match=r"now has 9 classes, and .* trained on 8 .new: 8.: .* bdr extend .* the new"):
        api.evaluate(eight, data=digits_of(*range(9)))


def test_it_can_be_extended_again(six, eight, places):
    """And a class may arrive before others in the data set: what is known keeps its place."""
    ten = api.extend(eight, data=digits_of(9, *range(9)), step=1, out=places / "ten").path
    run = Run.open(ten)
    assert run.info["classes"] == ["0", "1", "2", "3", "4", "5", "6", "7", "9", "8"]
    assert [line.get("taken_over") for line in run.phases] == [
        *[Run.open(six).fingerprint] * 2,
        Run.open(eight).fingerprint,
        *[None] * 2,
    ]
    assert run.protocol["further"] == "1+1"


def test_a_stop_and_a_resume_change_nothing(six, eight, places):
    steps = iter(range(100))
    plan = api.plan_extension(six, digits_of(*range(8)), out=places / "stopped")
    with pytest.raises(Interrupted):
        api.execute(plan, stopping=lambda: next(steps) >= 3)
    resumed = api.resume(places / "stopped", data=digits_of(*range(8)))
    assert comparable(resumed.path) == comparable(eight)


def test_one_that_was_killed_before_it_saved_anything_begins_with_what_it_takes_over(six, eight, places):
    plan = api.plan_extension(six, digits_of(*range(8)), out=places / "killed")
    plan.experiment.path.mkdir()
    (plan.experiment.path / "run.json").write_text((eight / "run.json").read_text())
    with pytest.raises(BdrError, match=r"type the bdr extend that began it once more"):
        api.resume(places / "killed", data=digits_of(*range(8)))
    again = api.extend(six, data=digits_of(*range(8)), out=places / "killed")
    assert comparable(again.path) == comparable(eight)


def test_an_analysed_run_stays_one(tmp_path):
    first = api.run(
        "ucir", data=digits_of(0, 1, 2, 3), base=2, step=2, analyse=True, out=tmp_path / "first", **PLAIN
    ).path
    run = Run.open(api.extend(first, data=digits_of(*range(6)), out=tmp_path / "second").path)
    assert all(run.analysis(phase) and run.snapshots(phase) for phase in (1, 2))


def test_another_seed_is_another_run(six, places):
    data, plan = digits_of(*range(8)), api.plan_extension
    same, other = plan(six, data).info, plan(six, data, fields={"seed": 7}).info
    assert (same["seed"], other["seed"]) == (1993, 7)
    assert other["fingerprint"] != same["fingerprint"]


def test_methods_that_are_extended_alike_stand_in_one_table_and_those_that_were_planned_whole_in_another(tmp_path):
    some, more, plain = digits_of(0, 1, 2), digits_of(0, 1, 2, 3), PLAIN | {"base": 2, "step": 1}
    for what in ("ucir", "replay"):
        first = api.run(what, data=some, out=tmp_path / what, **plain).path
        api.extend(first, data=more, out=tmp_path / "runs" / what)
    api.run("ucir", data=more, out=tmp_path / "runs" / "whole", **plain)
    groups = {path.name: protocol_key(Run.open(path)) for path in (tmp_path / "runs").iterdir()}
    assert groups["ucir"] == groups["replay"] != groups["whole"]


def test_the_checksum_of_what_methods_share_is_what_it_was_whatever_is_a_methods_own():
    shared = {"data": "digits", "base": 4, "held_out": 0.0, "size": None}
    own = {"order": "natural", "epochs": 2, "batch": 8, "optimizer": "sgd", "readout": "cnn"}
    assert shared_facts(shared | own) == shared_facts(shared) == "9c27ea"


def test_images_are_normalised_as_those_of_the_run_were(places):
    def grey(count, shade):
        labels = np.repeat(np.arange(count), 12)
        pixels = np.random.default_rng(0).integers(0, shade, (len(labels), 8, 8)).astype(np.uint8)
        return from_arrays(pixels, labels, pixels, labels)  # whose mean and spread are measured

    first = api.run("ucir", data=grey(2, 100), base=2, step=2, out=places / "dark", **PLAIN).path
    plan = api.plan_extension(first, merged(grey(2, 100), grey(4, 255)))
    assert plan.info["protocol"]["normalise"] == Run.open(first).protocol["normalise"]
    assert plan.learner.train.mean.tolist() == pytest.approx(grey(2, 100).mean)
    assert plan.notes == ()


def merged(old, new):
    """The classes of one data set, and those of another that it lacks."""
    later = new.train.labels >= len(old.classes)
    pixels = np.concatenate([old.train.pixels, new.train.pixels[later]])
    labels = np.concatenate([old.train.labels, new.train.labels[later]])
    return from_arrays(pixels, labels, pixels, labels)


# Exemplars in other data


def test_exemplars_are_found_by_place_and_pixels_wherever_their_rows_went():
    before, after = make_store((6, 6), seed=1), make_store((9, 9, 9), seed=2)
    rows = [before.of_classes(k, k + 1)[[2, 0]].tolist() for k in range(2)]
    for label, mine in enumerate(rows):
        for place, row in enumerate(mine):  # the same images, elsewhere
            after.pixels[after.of_classes(label, label + 1)[5 + place]] = before.pixels[row]
    found = find(after, tell(before, rows))
    assert found.rows == [after.of_classes(k, k + 1)[5:7].tolist() for k in range(2)]
    assert (found.missing, found.altered) == ([], [])


def test_a_file_is_found_by_its_name_and_said_to_be_another_if_its_pixels_are():
    before, after = make_store((4,), seed=1), make_store((5,), seed=2)
    before.names, after.names = list("abcd"), list("xdcba")
    found = find(after, tell(before, [[0, 3]]))
    assert found.rows == [[4, 1]]
    assert [kept.name for _, kept in found.altered] == ["a", "d"]


def test_exemplars_that_are_gone_are_named(six):
    first = exemplars(six)["2"][0]["place"]

    def train(labels):
        chosen = np.ones(len(labels), bool)
        chosen[np.flatnonzero(labels == 2)[first]] = False
        return chosen

    with pytest.raises(
        UsageError, match=rf"1 exemplar of .* is not among the training images: 2/image {first} .* put it"
    ):
        api.extend(six, data=digits_of(*range(8), train=train))


def test_a_run_with_validation_images_is_extended(tmp_path):
    first = api.run("ucir", data=digits_of(0, 1, 2), base=2, step=1, val=0.2, out=tmp_path / "first", **PLAIN).path
    extended = api.extend(first, data=digits_of(0, 1, 2, 3), out=tmp_path / "second").path
    assert [set(line["val"]) for line in Run.open(extended).phases] == [{"cnn", "nme"}] * 3
    assert (extended / "phase-00" / "predictions-val.npz").exists()


def test_a_record_says_what_images_are_normalised_with(six):
    run = Run.open(six)
    assert run.normalisation == (digits().mean, digits().std)
    with pytest.raises(BdrError, match=r"run.json is damaged: it does not say what images are normalised"):
        _ = replace(run, info=run.info | {"mean": None}).normalisation


def test_other_test_images_are_said(six):
    data = digits_of(*range(8))
    fewer = data.test.where(np.arange(len(data.test)) != np.flatnonzero(data.test.labels == 3)[0])
    notes = api.plan_extension(six, replace(data, test=fewer)).notes
    assert [note for note in notes if "the test images of 3 are not those" in note] == [*notes] != []


def test_in_python_a_warning_is_logged_where_nobody_listens(six, tmp_path, caplog):
    data = digits_of(*range(8))
    fewer = data.test.where(np.arange(len(data.test)) != np.flatnonzero(data.test.labels == 3)[0])
    api.extend(six, data=replace(data, test=fewer), out=tmp_path / "extended")
    assert [(each.name.split(".")[0], each.levelname) for each in caplog.records] == [("bdr", "WARNING")]
    assert caplog.messages[0].startswith("warning: the test images of 3 are not those")


def test_a_new_class_that_reads_like_a_known_one_is_said(tmp_path):
    first, second = (replace(digits_of(*range(n)), classes=("a", "ice cream", "c", "Ice-Cream")[:n]) for n in (3, 4))
    known = api.run("ucir", data=first, base=3, step=1, out=tmp_path / "first", **PLAIN).path
    notes = api.plan_extension(known, second).notes
    assert (
        [note for note in notes if "the new class 'Ice-Cream' reads like 'ice cream', which" in note] == [*notes] != []
    )


# What cannot be


def test_test_images_that_are_held_out_by_place_and_have_moved_are_refused(six):
    """A file that comes before others moves every fifth picture: some that were trained on would be tested."""
    data = digits_of(*range(8))
    fewer = data.test.where(np.arange(len(data.test)) != np.flatnonzero(data.test.labels == 3)[0])
    with pytest.raises(UsageError, match=r"the test images of 3 are not those .* by their place, and some may have"):
        api.extend(six, data=replace(data, test=fewer, by_place=True))


def test_a_run_without_anything_new_is_refused(six):
    with pytest.raises(UsageError, match=r"nothing new in the data.* knows all of its 6 classes; add images"):
        api.extend(six, data=digits_of(0, 1, 2, 3, 4, 5))


def test_a_class_that_is_gone_is_named(six):
    with pytest.raises(UsageError, match=r"no class 4, 5, and .* knows 6 classes that must all be there"):
        api.extend(six, data=digits_of(0, 1, 2, 3, 6))


def test_a_class_without_test_images_is_named(six):
    data = digits_of(*range(8))
    without = data.test.where(data.test.labels != 3)
    with pytest.raises(UsageError, match=r"class '3', which .* knows, has no test image any more"):
        api.extend(six, data=replace(data, test=without))


def test_images_of_another_size_are_refused(six):
    data = digits_of(*range(8))
    larger = [Images(part.pixels.repeat(2, 1), part.labels) for part in (data.train, data.test)]
    with pytest.raises(UsageError, match=r"images are 1 x 16 x 8 .* here and 1 x 8 x 8 where"):
        api.extend(six, data=replace(data, train=larger[0], test=larger[1]))


def test_what_made_the_network_or_the_memory_cannot_be_another(six):
    for name, value in {"net": "resnet18", "memory": "9/class", "method": "icarl", "step": 3}.items():
        with pytest.raises(
            UsageError, match=f"{name} is that of .* cannot be another when it is extended; what can is"
        ):
            api.extend(six, data=digits_of(*range(8)), set={name: value})
    with pytest.raises(UsageError, match=r"no part with settings .* 'small'; there are augment, bdr, stage, ucir"):
        api.extend(six, data=digits_of(*range(8)), set={"small.width": 3})
    with pytest.raises(UsageError, match=r"no setting of bdr 'mm'"):
        api.extend(six, data=digits_of(*range(8)), set={"bdr.mm": 3})


def test_where_a_scale_starts_from_says_nothing_of_one_that_is_trained(six):
    with pytest.raises(
        UsageError, match=r"ucir\.eta is where the scale of a new classifier starts.* bdr run ucir\+bdr"
    ):
        api.extend(six, data=digits_of(*range(8)), set={"ucir.eta": 20.0})


def test_the_folder_of_the_run_itself_is_refused_with_no_word_of_removing_it(six):
    with pytest.raises(UsageError, match=r"is the run that is extended, which stays as it is: name another") as error:
        api.extend(six, data=digits_of(*range(8)), out=six.parent / "." / six.name)
    assert "remove" not in str(error.value)


def test_settings_of_training_can_be_others(six):
    plan = api.plan_extension(six, digits_of(*range(8)), settings=[("stage.epochs", 4), ("bdr.m", 0.5)])
    assert [stages[0].epochs for stages in plan.learner.stages] == [4, 4, 4]
    assert plan.config.settings["bdr"] == {"m": 0.5}


def test_a_step_that_does_not_fit_is_refused(six):
    with pytest.raises(UsageError, match=r"3 new classes do not split into phases of 2: use a --step of 1, 3, or"):
        api.extend(six, data=digits_of(*range(9)), step=2)
    plan = api.plan_extension(six, digits_of(*range(9)), 2, [("uneven", True)])
    assert plan.info["phases"][2:] == [[6, 8], [8, 9]]


def test_a_run_that_is_not_finished_keeps_nothing_or_was_cleaned_is_refused(six, tmp_path):
    copied = shutil.copytree(six, tmp_path / "copied")
    shutil.rmtree(copied / "checkpoint")
    with pytest.raises(UsageError, match=r"has no checkpoint any more.*.bdr clean"):
        api.extend(copied, data=digits_of(*range(8)))
    shutil.rmtree(copied / "phase-01" / "model")
    with pytest.raises(UsageError, match=r"keeps no model: .*model is gone; put back a copy"):
        api.extend(copied, data=digits_of(*range(8)))
    (copied / "DONE").unlink()
    with pytest.raises(UsageError, match=r"is not finished .2 of 2 phases.: finish it first with bdr resume"):
        api.extend(copied, data=digits_of(*range(8)))


@pytest.mark.parametrize(("what", "keep"), [("ucir", "last"), ("ucir", "none"), ("joint", "last")])
def test_a_run_says_how_its_exemplars_are_found_where_it_can_be_extended(what, keep, tmp_path):
    memory = {"memory": "all"} if what == "joint" else {}
    path = train(tmp_path / "run", what, phases=2, keep=keep, **memory)
    assert (path / "phase-01" / "exemplars.json").exists() == ((what, keep) == ("ucir", "last"))


def test_a_run_that_lost_its_list_of_exemplars_says_so(six, tmp_path):
    copied = shutil.copytree(six, tmp_path / "copied")
    (copied / "phase-01" / "exemplars.json").unlink()
    with pytest.raises(UsageError, match=r"exemplars.json is missing, by which exemplars are found"):
        api.extend(copied, data=digits_of(*range(8)))


def test_joint_training_cannot_be_extended(tmp_path):
    path = api.run(
        "joint", data=digits_of(0, 1), base=1, step=1, out=tmp_path / "joint", **PLAIN | {"memory": "all"}
    ).path
    with pytest.raises(UsageError, match=r"'joint' trains on all images of all classes .* run it anew, bdr run joint"):
        api.extend(path, data=digits_of(0, 1, 2))


def test_arrays_are_handed_over_in_python(six):
    code, _, said = typed("extend", six)
    assert code == 2
    assert "was trained on 'some-digits', which was given as a data set in Python: extend it there, bdr.extend(" in said


# Data sets of one's own, and folders of pictures, on the command line

TRAIN = ("--memory", "2/class", "--net", "small", "--device", "cpu", "--set", "stage.epochs=1")
GREYS = (*TRAIN, "--set", "stage.batch=16", "--base", 2, "--step", 1, "--order", "natural")
SHORT = (*GREYS, "--size", 8)


def greys(root):
    """As many classes as ROOT/classes.txt says, with statistics that are measured over all of them."""
    count = int((Path(root) / "classes.txt").read_text())
    labels = np.tile(np.arange(count), 12)  # so that rows of known classes move when others come
    noise = [np.random.default_rng(int(label)).integers(0, 30, (12, 8, 8)) for label in range(count)]
    pixels = np.stack([noise[label][row // count] + 30 * label for row, label in enumerate(labels)]).astype(np.uint8)
    return from_arrays(pixels, labels, pixels, labels, name="greys")


def test_a_data_set_of_ones_own_is_read_again_by_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("classes.txt").write_text("3")
    assert typed("run", "ucir", "--data", "test_extend:greys", "--root", ".", *GREYS, "--out", "first")[0] == 0
    Path("classes.txt").write_text("5")
    assert typed("extend", "first", "--out", "second")[0] == 0
    run, before = Run.open(Path("second")), Run.open(Path("first"))
    assert run.info["phases"] == [[0, 2], [2, 3], [3, 5]]
    assert {name: exemplars(run.path)[name] for name in before.info["classes"]} == exemplars(before.path)
    assert (run.info["mean"], run.info["std"]) == (before.info["mean"], before.info["std"])
    assert typed("evaluate", "second")[0] == 0


def paint(folder, shade, count=8):
    folder.mkdir(parents=True)
    rng = np.random.default_rng(shade)
    for number in range(count):
        pixels = (rng.integers(0, 40, (8, 8, 3)) + shade).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:02d}.png")


@pytest.fixture
def pictures(tmp_path, monkeypatch):
    """Three classes, in training and test folders."""
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(("bee", "fly", "wasp")):
        paint(tmp_path / "mine" / "train" / name, 60 * number)
        paint(tmp_path / "mine" / "test" / name, 60 * number + 1, count=3)
    return tmp_path / "mine"


def test_folders_that_were_added_are_learned_in_further_phases(pictures):
    assert typed("run", "ucir+bdr", "--data", "imagefolder", "--root", "mine", *SHORT, "--out", "first")[0] == 0
    before = exemplars(Path("first"))
    for name, shade in {"ant": 200, "moth": 30}.items():  # which sort before, and among, the known ones
        paint(pictures / "train" / name, shade)
        paint(pictures / "test" / name, shade + 1, count=3)
    Image.new("RGB", (8, 8)).save(pictures / "train" / "bee" / "000.png")  # an image more, of a known class
    assert typed("extend", "first", "--step", 1, "--out", "second")[0] == 0
    run = Run.open(Path("second"))
    assert run.info["classes"] == ["bee", "fly", "wasp", "ant", "moth"]
    assert run.info["phases"] == [[0, 2], [2, 3], [3, 4], [4, 5]]
    assert {name: exemplars(run.path)[name] for name in ("fly", "wasp")} == {k: before[k] for k in ("fly", "wasp")}
    assert [each["name"] for each in exemplars(run.path)["bee"]] == [each["name"] for each in before["bee"]]
    assert run.info["command"].endswith("extend first --step 1 --out second")
    assert typed("evaluate", "second", "--root", "mine")[0] == 0
    assert "already done" in typed("extend", "first", "--step", 1, "--out", "second")[1]


def keep_first(to="less", *more):
    """What `bdr keep` answers for a run over the three classes."""
    typed("run", "ucir+bdr", "--data", "imagefolder", "--root", "mine", *SHORT, "--out", "first")
    return typed("keep", "first", to, *more)


@pytest.mark.parametrize("apart", [True, False])
def test_what_is_kept_of_old_pictures_is_all_that_an_extension_needs(pictures, apart):
    if not apart:  # every fifth picture of a class is for testing
        shutil.rmtree("mine/test")
        shutil.move("mine/train", "flat")
        shutil.rmtree("mine")
        shutil.move("flat", "mine")
    code, said, _ = keep_first()
    assert code == 0
    assert "bdr extend first --root less" in said
    assert len(list(Path("less").rglob("*.png"))) < len(list(Path("mine").rglob("*.png")))
    assert not list(Path().glob("*.partial"))
    folders = {"mine": ["mine/train", "mine/test"] if apart else ["mine"], "less": ["less/train", "less/test"]}
    for kinds in folders.values():
        for kind in kinds:
            paint(Path(kind) / "ant", 200)
    if not apart:  # of the new class, too, the same pictures are for testing
        for picture in sorted(Path("mine/ant").iterdir()):
            is_test = picture in sorted(Path("mine/ant").iterdir())[1::5]
            Path("less", "train" if is_test else "test", "ant", picture.name).unlink()
    for root in folders:
        assert typed("extend", "first", "--root", root, "--out", f"of-{root}")[0] == 0
    assert comparable(Path("of-less"))["model"] == comparable(Path("of-mine"))["model"]


def test_pictures_are_not_kept_where_nothing_can_be_written(pictures):
    Path("file").write_text("mine")
    code, out, said = keep_first("file/less")
    assert (code, out) == (1, "")
    assert "bdr: cannot write file/less: Not a directory" in said


def test_pictures_are_kept_from_where_they_are_now_and_of_an_extended_run_too(pictures):
    typed("run", "ucir+bdr", "--data", "imagefolder", "--root", "mine", *SHORT, "--out", "first")
    for kind in ("train", "test"):
        paint(pictures / kind / "ant", 200)
    assert typed("extend", "first", "--out", "second")[0] == 0
    shutil.move("mine", "yours")
    assert "name it with --root" in typed("keep", "second", "less")[2]
    assert typed("keep", "second", "less", "--root", "yours")[0] == 0
    assert {path.name for path in Path("less/train").iterdir()} == {"ant", "bee", "fly", "wasp"}


def test_pictures_that_are_others_now_are_not_kept(pictures):
    typed("run", "ucir+bdr", "--data", "imagefolder", "--root", "mine", *SHORT, "--out", "first")
    name = exemplars(Path("first"))["bee"][0]["name"]
    Image.new("RGB", (8, 8)).save(pictures / "train" / "bee" / name)
    code, _, said = typed("keep", "first", "less")
    assert code == 2
    assert f"of the exemplars of first, 1 has other pixels now (bee/{name}" in said
    (pictures / "train" / "bee" / name).unlink()
    assert f"1 is not among the training images (bee/{name}" in typed("keep", "first", "less")[2]
    shutil.rmtree(pictures / "train" / "bee")
    assert "class" in typed("keep", "first", "less")[2]
    assert not list(Path().glob("less*"))


def test_pictures_are_kept_in_a_folder_of_their_own(pictures):
    Path("less").mkdir()
    assert keep_first()[0] == 0  # an empty one will do
    code, _, said = typed("keep", "first", "less")
    assert code == 2
    assert "less is there already" in said
    code, _, said = typed("keep", "first", "mine/train/kept")
    assert code == 2
    assert "a folder outside of it" in said


def test_only_pictures_of_runs_with_exemplars_can_be_kept(pictures, six):
    assert "only folders of pictures" in typed("keep", six, "less")[2]
    for name, more, why in (
        ("lwf", ("--memory", "0"), "'lwf' keeps none"),
        ("ucir", ("--val", "0.2"), "holds out 0.2 of its training images by their place"),
    ):
        typed("run", name, "--data", "imagefolder", "--root", "mine", *SHORT, *more, "--out", name)
        code, _, said = typed("keep", name, "less")
        assert (code, why in said) == (2, True), said


def test_the_three_commands_of_the_readme_work(pictures):
    text = (Path(__file__).resolve().parents[1] / "README.md").read_text()
    block = text.split("## Add classes to your model\n\n```\n")[1].split("```")[0]
    train, extend, predict = [shlex.split(line, comments=True)[1:] for line in block.splitlines()]
    for kind in ("train", "test"):
        for number in range(3):  # so that there are six: a base of four, and a step of two
            shutil.copytree(pictures / kind / "bee", pictures / kind / f"bee{number}")
    shutil.move("mine", "my_images")
    assert typed(*train, *TRAIN, "--size", 8, "--set", "stage.batch=16")[0] == 0
    for kind in ("train", "test"):
        paint(Path("my_images") / kind / "ant", 200)
    assert typed(*extend)[0] == 0
    code, said, _ = typed(*predict)
    assert (code, len(said.splitlines())) == (0, 6 * 3 + 8)


def test_where_tests_are_not_apart_images_of_known_classes_stay_as_they_are(pictures):
    typed("run", "ucir", "--data", "imagefolder", "--root", "mine/train", *SHORT, "--out", "first")
    paint(pictures / "train" / "ant", 200)
    paint(pictures / "train" / "hive", 210)
    shutil.copytree(pictures, "untouched")
    assert typed("extend", "first", "--root", "untouched/train", "--out", "second")[0] == 0
    for name in exemplars(Path("first")):
        for number in range(4):
            Image.new("RGB", (8, 8), (number, 0, 0)).save(pictures / "train" / name / f"00{number}.png")
    code, _, said = typed("extend", "first", "--out", "third")
    assert code == 2
    told = r"(is a test image|are test images) now, held out by place in the class: .*; put (it|them) back"
    assert re.search(told, " ".join(said.split()))


def test_a_folder_named_from_where_a_run_was_started_is_found_from_elsewhere(pictures, monkeypatch):
    typed("run", "ucir", "--data", "imagefolder", "--root", "mine", *SHORT, "--out", "first")
    info = json.loads(Path("first/run.json").read_text())
    assert (info["config"]["root"], info["root"]) == ("mine", str(pictures.resolve()))
    for kind in ("train", "test"):
        paint(pictures / kind / "ant", 200)
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    told = json.loads(typed("evaluate", "../first", "--json").out)
    assert told["accuracy"] == Run.open(Path("../first")).phases[-1]["accuracy"]
    assert typed("extend", "../first", "--out", "../second")[0] == 0
    assert typed("evaluate", "../second")[0] == 0


@pytest.mark.parametrize("recorded", [True, False])
def test_a_folder_that_is_gone_is_named_as_it_was(pictures, recorded):
    typed("run", "ucir", "--data", "imagefolder", "--root", "mine", *SHORT, "--out", "first")
    if not recorded:  # as it was before
        info = json.loads(Path("first/run.json").read_text())
        del info["root"]
        Path("first/run.json").write_text(json.dumps(info))
    shutil.move("mine", "yours")
    where = pictures.resolve() if recorded else "'mine', seen from the folder that it was started in"
    for words in (("evaluate", "first"), ("extend", "first")):
        code, _, said = typed(*words)
        assert (code, f"; first was trained on {where}: name it with --root" in " ".join(said.split())) == (2, True)
    assert typed("evaluate", "first", "--root", "yours")[0] == 0


def test_more_epochs_than_before_have_the_drops_of_the_frame_and_not_those_that_few_epochs_rounded(six):
    data = digits_of(*range(8))
    assert Run.open(six).info["config"]["stage"]["drops"] == [1, 2]  # of 2 epochs; at (80, 120) of 160 they were
    plan = api.plan_extension(six, data, settings=[("stage.epochs", 100)])
    assert (plan.config.stage.epochs, plan.config.stage.drops) == (100, (50, 75))
    assert plan.notes == ("main.drops scaled with the epochs: (80, 120) -> (50, 75)",)
    assert api.plan_extension(six, data).config.stage == api.plan_of(six, digits_of(*range(6))).config.stage
    chosen = api.plan_extension(six, data, settings=[("stage.epochs", 100), ("stage.drops", [30, 60])])
    assert chosen.config.stage.drops == (30, 60)


def brief(what, path, **settings):
    """A run on half of the digits, whose other half it has yet to learn."""
    epochs = {f"stage.{name}": count for name, count in {"epochs": 4, **settings}.items()}
    return api.run(what, data="digits", base=2, step=4, phases=2, device="cpu", out=path, set=epochs).path


def test_a_single_stage_with_more_epochs_than_before_has_the_drops_of_the_frame_too(tmp_path):
    run = brief("bic", tmp_path / "run", **{"correction.epochs": 2})
    assert Run.open(run).info["config"]["stages"]["correction"]["drops"] == [1, 1, 2, 2]  # of 200, (60, 120, 160, 180)
    plan = api.plan_extension(run, settings=[("stage.correction.epochs", 20)])
    assert plan.config.stages["correction"]["drops"] == (6, 12, 16, 18)
    assert plan.notes == ("correction.drops scaled with the epochs: (60, 120, 160, 180) -> (6, 12, 16, 18)",)
    chosen = api.plan_extension(run, settings=[("stage.correction.drops", [1, 2])])
    assert chosen.config.stages["correction"] == {"epochs": 2, "drops": (1, 2), "lr": 0.03}


def test_what_is_adapted_in_stages_that_the_method_declares_is_told_of_an_extension_too(tmp_path):
    said = "balanced.drops scaled with the epochs: (1, 2) -> (3, 5)"
    run = brief("e2e", tmp_path / "run", **{"balanced.epochs": 8})
    assert api.plan_extension(run).notes == (said,)
    assert said in typed("extend", str(run), "--out", str(tmp_path / "out"), "--dry-run")[2]


def test_drops_that_few_epochs_have_rounded_to_one_place_are_told_where_more_are_asked_for():
    stage, notes = with_stage_settings(Stage(epochs=3, drops=(2, 2)), {"epochs": 100})
    assert stage.drops == (67, 67)
    assert notes[0].endswith("(2, 2) -> (67, 67); two of them fall together: type --set stage.drops=[E1,E2] for others")
    _, notes = with_stage_settings(Stage("balanced", epochs=3, drops=(2, 2)), {"epochs": 100})
    assert notes[0].endswith("type --set stage.balanced.drops=[E1,E2] for others")


def stopped_after_a_phase(path):
    """A run on the folder `mine` that is stopped when its first phase is done."""
    settings = [("stage.epochs", 2), ("stage.batch", 16)]
    fields = {"root": "mine", "base": 2, "step": 1, "memory": "3/class", "net": "small", "size": 8, "device": "cpu"}
    config, _ = api.configure("ucir", "imagefolder", settings, fields)
    begun = api.plan_run(config, path, path)
    execute_until(begun, lambda now: now.phase == 1)


def test_a_run_that_goes_on_from_a_folder_that_has_moved_is_looked_for_there_from_then_on(pictures):
    stopped_after_a_phase(Path("first"))
    before = json.loads(Path("first/run.json").read_text())
    shutil.move("mine", "yours")
    plan = api.plan_of(Path("first"), root="yours")
    with pytest.raises(Interrupted, match="go on with: bdr resume first"):
        api.go_on(plan, stopping=lambda: True)
    info = json.loads(Path("first/run.json").read_text())
    assert info["root"] == str(Path("yours").resolve())
    assert info == before | {"root": info["root"], "config": before["config"] | {"root": "yours"}}
    for words in (("resume", "first"), ("evaluate", "first")):
        assert typed(*words)[0] == 0
    for kind in ("train", "test"):
        paint(Path("yours") / kind / "ant", 200)
    assert typed("extend", "first", "--out", "second")[0] == 0


def test_a_folder_of_other_images_is_not_written_down(pictures):
    stopped_after_a_phase(Path("first"))
    before = Path("first/run.json").read_text()
    shutil.copytree("mine", "yours")
    Image.new("RGB", (8, 8), (7, 0, 0)).save("yours/train/bee/00.png")
    code, _, said = typed("resume", "first", "--root", "yours")
    assert (code, "another checksum" in " ".join(said.split())) == (2, True)
    assert Path("first/run.json").read_text() == before


@pytest.mark.parametrize("moved", [False, True])
def test_a_missing_exemplar_is_sought_among_test_images_by_its_pixels_and_not_by_its_name(pictures, moved):
    typed("run", "ucir", "--data", "imagefolder", "--root", "mine", *SHORT, "--out", "first")
    paint(pictures / "train" / "ant", 200)
    paint(pictures / "test" / "ant", 201)
    name = exemplars(Path("first"))["bee"][0]["name"]
    gone = pictures / "train" / "bee" / name
    tests = pictures / "test" / "bee"
    other = next(path for path in sorted(tests.iterdir()) if path.name != name)
    shutil.copy(other, tests / name)  # another image of that name
    if moved:
        shutil.copy(gone, tests / "moved.png")
    gone.unlink()
    code, _, said = typed("extend", "first", "--out", "second")
    where = "; it is a test image" if moved else ""
    told = f"1 exemplar of first is not among the training images: bee/{name}{where}; put it back"
    assert (code, told in " ".join(said.split())) == (2, True)


def test_the_folder_of_a_known_class_that_was_emptied_is_to_be_filled_and_not_removed(pictures):
    typed("run", "ucir", "--data", "imagefolder", "--root", "mine", *SHORT, "--out", "first")
    for kind in ("train", "test"):
        paint(pictures / kind / "ant", 200)
    known = pictures / "test" / "bee"
    shutil.move(known, "aside")
    known.mkdir()
    for words in (("extend", "first"), ("evaluate", "first")):
        code, _, said = typed(*words)
        assert code == 2
        assert said.startswith("bdr: class folder ")
        assert "bee holds no pictures (" in said
        assert said.endswith("and first was trained on that class: put its pictures back\n")
    shutil.rmtree(known)
    shutil.move("aside", known)
    shutil.rmtree(pictures / "train" / "ant")
    (pictures / "train" / "ant").mkdir()  # which nothing was trained on
    assert "ant holds no pictures (" in (said := typed("extend", "first")[2])
    assert "fill or remove it" in said


def test_a_dry_run_of_an_extension_writes_nothing(pictures):
    typed("run", "ucir", "--data", "imagefolder", "--root", "mine", *SHORT, "--out", "first")
    paint(pictures / "train" / "ant", 200)
    paint(pictures / "test" / "ant", 201)
    code, said, _ = typed("extend", "first", "--dry-run", "--out", "second")
    assert code == 0
    assert "MiB of disk" in said
    assert not Path("second").exists()
