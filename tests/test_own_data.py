"""A data set of one's own is named on the command line as a method of one's own is: package.module:function."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from runs import execute_until
from test_cli import typed

from bdr import api, from_arrays
from bdr.data.images import Images
from bdr.planning.assemble import plan_run
from bdr.records import Run

SMALL = ("--base", 2, "--step", 2, "--memory", "3/class", "--net", "small", "--device", "cpu")
SHORT = (*SMALL, "--set", "stage.epochs=1", "--set", "stage.batch=16", "--runs", "runs")
OWN = ("--data", "test_own_data:shades", "--root", "there")


def shades(root, size: int = 8):
    """Four greys, as bright as ROOT/brightness.txt says."""
    brightness = int((Path(root) / "brightness.txt").read_text())
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), 12)
    pixels = (rng.integers(0, 20, (48, size, size)) + brightness * labels[:, None, None]).astype(np.uint8)
    return from_arrays(pixels, labels, pixels[::2], labels[::2], mean=[0.4], std=[0.3], name="shades")


def no_size(root):
    return shades(root)


def no_data_set(root):
    return [1, 2, 3]


def no_root():
    return None


def needs_more(root, split):
    return None


def torn(root):
    whole = shades(root)
    return replace(whole, train=Images(whole.train.pixels / 255, whole.train.labels))


def mislabelled(root):
    return replace(shades(root), classes=("dark", "bright"))


def colourful(root):
    return replace(shades(root), mean=(0.5, 0.5, 0.5))


@pytest.fixture(autouse=True)
def there(tmp_path, monkeypatch):
    """A folder to work in, with the data below it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=":")
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "brightness.txt").write_text("60")
    return tmp_path / "there"


def the_run():
    return Run.open(next(Path("runs").rglob("run.json")).parent)


def test_it_is_run_gone_on_with_and_evaluated_under_its_name():
    code, _, said = typed("run", "ucir+bdr", *OWN, *SHORT)
    assert code == 0, said
    run = the_run()
    assert run.info["config"]["data"] == "test_own_data:shades"
    assert (run.protocol["data"], run.protocol["size"], run.info["image"]) == ("shades", 32, [1, 32, 32])
    assert run.path.parts[:2] == ("runs", "shades-b2s2")
    for command in ("resume", "evaluate"):
        code, _, said = typed(command, run.path)
        assert code == 0, said


def test_a_run_of_it_that_was_stopped_goes_on():
    fields = {"root": "there", "base": 2, "step": 2, "memory": "3/class", "net": "small", "device": "cpu"}
    brief = [("stage.epochs", 1), ("stage.batch", 16)]
    begun = plan_run(api.configure("ucir", OWN[1], brief, fields)[0], Path("run"), Path("runs"))
    execute_until(begun, lambda now: now.phase == 1)
    code, _, said = typed("resume", "run")
    assert code == 0, said
    assert Run.open(Path("run")).done


def test_other_images_under_the_same_name_are_noticed(there):
    typed("run", "ucir", *OWN, *SHORT)
    (there / "brightness.txt").write_text("50")
    code, _, said = typed("evaluate", the_run().path)
    assert code == 0
    assert "warning: the test images of" in said
    assert "are not those that" in said
    code, _, said = typed("resume", the_run().path, "--root", there)
    assert code == 2
    assert "the images of shades are not those it was trained on" in said


def test_it_can_be_planned_and_printed_without_training():
    code, printed, _ = typed("run", "ucir", *OWN, *SHORT, "--print-config")
    assert (code, yaml.safe_load(printed)["data"]) == (0, "test_own_data:shades")
    assert typed("run", "ucir", *OWN, *SHORT, "--dry-run")[0] == 0
    assert not Path("runs").exists()


def test_a_printed_configuration_of_it_is_run_again():
    Path("own.yaml").write_text(typed("run", "ucir", *OWN, *SHORT, "--print-config")[1])
    code, _, said = typed("run", "--config", "own.yaml", "--dry-run")
    assert code == 0, said


def test_it_is_swept_and_compared():
    code, said, wrong = typed("sweep", "ucir", "ucir+bdr", *OWN, *SHORT, "--seeds", "1,2", "--dry-run")
    assert (code, said.count("ucir+bdr")) == (0, 2), wrong
    code, _, wrong = typed("compare", "ucir", "--with", "bdr", *OWN, *SHORT, "--seeds", "1")
    assert code == 0, wrong
    assert {run.parent.parent.name for run in Path("runs").rglob("run.json")} == {"ucir", "ucir-bdr"}


def test_a_function_that_takes_no_size_is_given_none():
    own = ("run", "ucir", "--data", "test_own_data:no_size", "--root", "there", *SHORT)
    said = typed(*own, "--size", 16)
    assert said.code == 2
    assert "--size 16 is for folders of images" in said.err
    assert typed(*own)[0] == 0
    assert "size" not in the_run().protocol
    assert the_run().info["image"] == [1, 8, 8]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nowhere:shades", "data set 'nowhere:shades': cannot import nowhere"),
        ("test_own_data:shadows", "test_own_data has no shadows"),
        (":shades", "data set ':shades' is not like package.module:Name"),
        ("test_own_data:Path", "is not a data set"),
        ("test_own_data:no_data_set", "it returned a list; it is a function from a folder to a bdr.DataSet"),
        ("test_own_data:no_root", "too many positional arguments; it is a function from a folder"),
        ("test_own_data:needs_more", "missing a required argument: 'split'"),
        ("test_own_data:torn", "the train images of 'shades' are float64"),
        ("test_own_data:mislabelled", "must be integers from 0 to 1"),
        ("test_own_data:colourful", "mean is (0.5, 0.5, 0.5); give a finite number for each of the 1 channels"),
        ("shades", "no data set 'shades'; there are"),
        ("there", "'there' is a folder: type --data imagefolder --root there"),
    ],
)
def test_what_is_no_data_set_is_refused(name, said):
    code, _, answered = typed("run", "ucir", "--data", name, "--root", "there", *SHORT)
    assert code == 2
    assert said in answered


def test_what_goes_wrong_while_it_reads_names_the_folder(there):
    (there / "brightness.txt").unlink()
    code, _, said = typed("run", "ucir", *OWN, *SHORT)
    assert code == 2
    assert "data set 'test_own_data:shades' with --root there: " in said
    assert "brightness.txt" in said
