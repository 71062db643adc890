"""What the kept model of a run says of pictures of one's own."""

import csv
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from test_cli import typed

import bdr
from bdr import api
from bdr.data.sets import digits
from bdr.errors import BdrError, UsageError
from bdr.records import Run
from bdr.trained import recognition
from bdr.trained.readouts import advice

SMALL = {"net": "small", "device": "cpu", "memory": "3/class", "set": {"stage.epochs": 2, "stage.batch": 32}}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return api.run("ucir", data="digits", base=6, step=4, out=tmp_path_factory.mktemp("predict") / "run", **SMALL).path


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """The first test digits as files, some of them in a folder below."""
    folder = tmp_path_factory.mktemp("pictures")
    (folder / "below").mkdir()
    for number, pixels in enumerate(digits().test.pixels[:20]):
        Image.fromarray(pixels[..., 0]).save(folder / ("below" if number >= 15 else ".") / f"{number:02d}.png")
    (folder / "notes.txt").write_text("no picture")
    return folder


def test_pictures_are_told_as_the_test_images_were(run, pictures, monkeypatch):
    monkeypatch.setattr(recognition, "EVALUATION_BATCH", 7)  # so that there are several
    recorded, data = Run.open(run).predictions(1), digits()
    arrival = [Run.open(run).info["classes"].index(str(label)) for label in data.test.labels]
    assert recorded["labels"].tolist() == arrival
    found = {each.image.name: each.classes for each in bdr.predict(run, pictures)}
    assert len(found) == 20
    for number in range(20):
        names = [Run.open(run).info["classes"][k] for k in recorded["cnn_ids"][number]]
        told = found[f"{number:02d}.png"]
        assert [name for name, _ in told] == names
        np.testing.assert_allclose([chance for _, chance in told], recorded["cnn_probabilities"][number], atol=3e-3)


def test_as_many_classes_are_named_as_are_asked_for(run, pictures):
    assert [len(next(bdr.predict(run, pictures, top=top)).classes) for top in (1, 7, 99)] == [1, 7, 10]
    with pytest.raises(UsageError, match="ask for 1 or more"):
        next(bdr.predict(run, pictures, top=0))


def test_the_terminal_has_a_line_a_picture_and_json_on_request(run, pictures):
    code, said, _ = typed("predict", run, pictures / "00.png", pictures / "below", "--top", 2)
    assert code == 0
    lines = said.splitlines()
    assert len(lines) == 6
    assert lines[0].startswith(f"{pictures / '00.png'}  ")
    assert lines[0].count(" %") == 2
    told = json.loads(typed("predict", run, pictures / "00.png", "--top", 2, "--json")[1])
    assert [each["image"] for each in told] == [str(pictures / "00.png")]
    assert [set(each) for each in told[0]["classes"]] == [{"class", "probability"}] * 2


def test_what_is_no_picture_is_named(run, pictures, tmp_path):
    code, _, said = typed("predict", run, pictures / "notes.txt")
    assert (code, "notes.txt is no readable picture" in said) == (1, True)
    code, _, said = typed("predict", run, tmp_path)
    assert (code, "holds no pictures (.png" in said) == (2, True)
    code, _, said = typed("predict", run, tmp_path / "gone.png")
    assert (code, "there is no file or folder" in said) == (2, True)
    code, _, said = typed("predict", run, pictures, "--csv", "found.csv")
    assert (code, said) == (2, "bdr: there is no file or folder 'found.csv'; to write it, type -o found.csv\n")


def with_accuracies(run, place, **changes):
    """A copy of a run whose last phase came to something else."""
    copied = shutil.copytree(run, place / "copied")
    lines = (copied / "phases.jsonl").read_text().splitlines()
    accuracy, info = {"cnn": 14.0, "nme": 80.0}, json.loads((copied / "run.json").read_text())
    info["settings"]["ucir"]["eta"] = 1.0  # the frame of digits starts with a grown scale
    last = json.loads(lines[-1])
    lines[-1] = json.dumps(last | {"accuracy": accuracy | changes.pop("accuracy", {}), "method_at_end": {"eta": 1.5}})
    (copied / "phases.jsonl").write_text("\n".join(lines) + "\n")
    (copied / "run.json").write_text(json.dumps(info | changes))
    return copied


def test_pictures_are_told_by_the_readout_that_is_asked_for(run, pictures):
    recorded, names = Run.open(run).predictions(1), Run.open(run).info["classes"]
    for readout in ("cnn", "nme"):
        found = {each.image.name: each.classes[0][0] for each in bdr.predict(run, pictures, top=1, readout=readout)}
        best = [names[ids[0]] for ids in recorded[f"{readout}_ids"][:20]]
        assert [found[f"{number:02d}.png"] for number in range(20)] == best
    assert any((recorded["cnn_ids"][:20, 0] != recorded["nme_ids"][:20, 0]).tolist())
    code, said, _ = typed("predict", run, pictures / "00.png", "--readout", "nme", "--top", 1)
    assert (code, f"  {names[recorded['nme_ids'][0][0]]} " in said) == (0, True)


def test_a_readout_that_the_run_has_not_is_refused_by_name(run, pictures):
    code, _, said = typed("predict", run, pictures, "--readout", "nne")
    assert (code, "'nne'; there are cnn, nme: did you mean 'nme'?" in " ".join(said.split())) == (2, True)


def test_a_readout_that_is_far_better_is_named_with_what_to_do(run, pictures, tmp_path):
    said = "nme is right for 80 % and cnn for 14 %: "
    copied = with_accuracies(run, tmp_path)
    told = typed("predict", copied, pictures / "00.png").err
    assert (
        f"{said}in few epochs the cosine scale may not have grown; predict with --readout nme, or train longer" in told
    )
    assert ", or with --set ucir.eta=20" in told
    assert said not in typed("predict", copied, pictures / "00.png", "--readout", "cnn").err


PLAIN = "nme is right for 80 % and cnn for 14 %: predict with --readout nme"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"settings": {"ucir": {"eta": 20.0}}}, PLAIN),
        ({"scale_setting": None}, PLAIN),  # the method has none, as `wa`, or one that needs no help, as `podnet`
        ({"extends": {}}, PLAIN),  # it began with the scale that was there
        ({"accuracy": {"nme": 34.0}}, None),
        ({"accuracy": {"cnn": 90.0, "nme": 50.0}}, None),  # it is read by the better one already
    ],
)
def test_a_scale_is_named_only_where_there_is_one_to_grow(run, tmp_path, changes, said):
    assert advice(Run.open(with_accuracies(run, tmp_path, **changes))) == said


def test_a_run_says_so_at_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr("bdr.records.readouts.FAR", -1.0)
    words = ("--base", 6, "--step", 4, "--memory", "3/class", "--net", "small", "--device", "cpu", "--order", "natural")
    said = typed("run", "icarl", *words, "--set", "stage.epochs=1", "--phases", 1, "--out", tmp_path / "run").err
    assert " % and nme for " in said


@pytest.fixture
def broken(pictures, tmp_path):
    """The same pictures, of which the fourth and the tenth are none."""
    folder = shutil.copytree(pictures, tmp_path / "broken")
    for name in ("03.png", "09.png"):
        (folder / name).write_bytes(b"no picture")
    return folder


def test_a_broken_picture_is_told_and_all_others_are_recognised(run, broken):
    code, out, err = typed("predict", run, broken, "--top", 1)
    assert (code, len(out.splitlines())) == (1, 18)
    assert [f"{name} is no readable picture" in err for name in ("03.png", "09.png")] == [True, True]
    assert "2 of 20 pictures could not be used" in err
    told = json.loads(typed("predict", run, broken, "--json")[1])
    assert [Path(each["image"]).name for each in told if "error" in each] == ["03.png", "09.png"]
    assert [each["image"] for each in told] == sorted(each["image"] for each in told)


def test_csv_has_a_row_a_class_and_one_a_broken_picture(run, broken, tmp_path):
    code, said, _ = typed("predict", run, broken, "--top", 2, "--csv")
    assert (code, said.splitlines()[0]) == (1, "image,rank,class,probability,error")
    rows = list(csv.DictReader(io.StringIO(said)))
    unreadable = [row for row in rows if row["error"]]
    assert [Path(row["image"]).name for row in unreadable] == ["03.png", "09.png"]
    assert all((row["rank"], row["class"], row["probability"]) == ("", "", "") for row in unreadable)
    told = json.loads(typed("predict", run, broken, "--top", 2, "--json")[1])
    wanted = [
        (each["image"], str(rank), likely["class"], likely["probability"])
        for each in told
        for rank, likely in enumerate(each.get("classes", []), 1)
    ]
    assert [(*list(row.values())[:3], float(row["probability"])) for row in rows if not row["error"]] == wanted


@pytest.mark.parametrize("form", ["csv", "json"])
def test_a_file_has_what_would_be_printed(run, pictures, tmp_path, form):
    words, file = ("predict", run, pictures, "--top", 3), tmp_path / f"found.{form}"
    printed = typed(*words, f"--{form}").out
    assert typed(*words, "-o", file)[:2] == (0, f"written: {file}\n")
    assert file.read_text() == printed
    assert typed(*words, "-o", file, f"--{form}").code == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-o", "found.txt"), "'found.txt' says no form that predictions are written in: end it in .csv or .json"),
        (("-o", "found.csv", "--json"), "--json and 'found.csv' do not agree: end it in .json, or leave --json out"),
        (("--csv", "--json"), "--csv and --json are two forms of the same"),
        (("-o", "gone/found.csv"), "there is no folder gone"),
    ],
)
def test_forms_that_cannot_be_are_refused(run, pictures, words, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, told = typed("predict", run, pictures, *words)
    assert (code, said in told, list(tmp_path.iterdir())) == (2, True, [])


def test_nothing_but_broken_pictures_is_an_error_and_no_crash(run, broken):
    code, out, err = typed("predict", run, broken / "03.png")
    assert (code, out, "1 of 1 pictures could not be used" in err) == (1, "", True)


def test_in_python_a_broken_picture_raises_when_its_turn_comes_or_is_handed_over(run, broken):
    found = bdr.predict(run, broken)
    assert [next(found).image.name for _ in range(3)] == ["00.png", "01.png", "02.png"]
    with pytest.raises(BdrError, match=r"03.png is no readable picture"):
        next(found)
    told = []
    assert len(list(bdr.predict(run, broken, unreadable=told.append))) == 18
    assert [each.path.name for each in told] == ["03.png", "09.png"]


def test_a_run_without_a_model_is_refused(run, pictures, tmp_path):
    copied = shutil.copytree(run, tmp_path / "copied")
    shutil.rmtree(copied / "phase-01" / "model")
    with pytest.raises(UsageError, match=r"keeps no model: .*phase-01/model is gone; put back a copy"):
        bdr.predict(copied, pictures)
    (copied / "DONE").unlink()
    with pytest.raises(UsageError, match=r"keeps no model: it is not finished .2 of 2 phases.: .*bdr resume"):
        bdr.predict(copied, pictures)
    info = json.loads((copied / "run.json").read_text())
    (copied / "run.json").write_text(json.dumps(info | {"config": info["config"] | {"keep": "none"}}))
    with pytest.raises(UsageError, match=r"keeps no model: it ran with --keep none; train it again with --keep last"):
        bdr.predict(copied, pictures)


def test_images_that_are_no_squares_are_for_python(run, pictures, tmp_path):
    copied = shutil.copytree(run, tmp_path / "copied")
    info = json.loads((copied / "run.json").read_text())
    (copied / "run.json").write_text(json.dumps(info | {"image": [1, 8, 9]}))
    with pytest.raises(UsageError, match=r"takes images of 1 x 8 x 9 .* hand over arrays in Python"):
        next(bdr.predict(copied, pictures))
