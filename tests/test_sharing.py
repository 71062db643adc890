"""Runs whose first phase is the same train it once, and end where they would have ended alone."""

import shutil
from pathlib import Path

import pytest
from runs import Loaded, Position, assert_equal, outcome, plan, train, train_until

from bdr import api
from bdr.engine.listen import Listener
from bdr.methods import METHODS
from bdr.planning import own_code
from bdr.planning.own_code import own_files

CWD, BDR = "ucir+cwd", "ucir+cwd+bdr"
BEFORE = "the first phase was trained before by an equal run"


class Phases(Listener):
    """Hears which phases are trained."""

    def __init__(self):
        self.trained = []

    def stage_begins(self, phase, number, stage, first_epoch):
        self.trained.append(phase.index)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """CwD with BDR, in a folder of its own, not sharing."""
    return train(tmp_path_factory.mktemp("alone") / "run", BDR, share=False)


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A folder of runs in which CwD has been trained."""
    runs = tmp_path_factory.mktemp("runs")
    train(None, CWD, runs=runs)
    return runs


@pytest.fixture
def runs(first, tmp_path):
    return Path(shutil.copytree(first, tmp_path / "runs"))


def shared_phases(runs):
    return sorted((runs / ".shared").iterdir())


def log_of(path):
    file = path / "log.txt"
    return file.read_text() if file.exists() else ""


def flip_a_byte(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_a_first_phase_is_taken_from_an_equal_run_and_changes_nothing(runs, alone):
    heard = Phases()
    path = train(None, BDR, runs=runs, listener=heard)
    assert heard.trained == [1, 2]
    assert f"{BEFORE}: taken from {shared_phases(runs)[0]}" in log_of(path)
    assert_equal(path, alone)


@pytest.mark.parametrize("split", ["ucir+cwd+aanet", "ucir+cwd+tade"])
def test_a_network_that_is_split_later_takes_the_first_phase_of_one_that_never_is_and_gives_its_own(
    split, runs, alone, tmp_path
):
    heard = Phases()
    taken = train(None, split, runs=runs, listener=heard)
    assert heard.trained == [1, 2]
    assert_equal(taken, train(tmp_path / "run", split, share=False))
    other = tmp_path / "other"
    train(None, split, runs=other, phases=1)
    heard = Phases()
    assert_equal(train(None, BDR, runs=other, listener=heard), alone)
    assert heard.trained == [1, 2]


def test_a_run_that_took_its_first_phase_does_not_hold_it_any_longer(runs, monkeypatch):
    heard = Loaded(monkeypatch)
    train(None, BDR, runs=runs, listener=heard, phases=2)
    assert heard.read
    assert not any(heard.held)


def test_neither_does_one_that_took_it_from_a_run_with_further_plug_ins(tmp_path, monkeypatch):
    train(None, BDR, runs=tmp_path, phases=1)
    heard = Loaded(monkeypatch)
    train(None, CWD, runs=tmp_path, listener=heard, phases=2)
    assert heard.read
    assert not any(heard.held)


def test_the_run_that_gives_its_first_phase_away_is_not_changed_by_it(first, tmp_path):
    giver = next(first.rglob("DONE")).parent
    assert_equal(giver, train(tmp_path / "run", CWD, share=False))


def test_a_run_does_not_share_when_told_not_to(runs, alone):
    heard = Phases()
    train(None, BDR, runs=runs, listener=heard, share=False, phases=1)
    assert heard.trained == [0]
    assert len(shared_phases(runs)) == 1


def test_a_run_put_elsewhere_by_name_takes_nothing_and_leaves_nothing(runs, tmp_path, alone):
    heard, path = Phases(), tmp_path / "elsewhere" / "run"
    train(path, BDR, runs=runs, listener=heard)
    assert heard.trained == [0, 1, 2]
    assert BEFORE not in log_of(path)
    assert [folder.name for folder in path.parent.iterdir()] == ["run"]
    assert len(shared_phases(runs)) == 1
    assert_equal(path, alone)


def test_a_run_named_below_the_folder_of_runs_shares_there(runs):
    heard, path = Phases(), runs / "some" / "where" / "run"
    train(path, BDR, runs=runs, listener=heard, phases=1)
    assert heard.trained == []
    assert f"{BEFORE}: taken from {shared_phases(runs)[0]}" in log_of(path)


@pytest.mark.parametrize(
    ("path", "shares"),
    [("runs/a/b", True), ("runs/../runs/a", True), ("runs", False), ("runs/../other", False), ("runs-2/a", False)],
)
def test_what_lies_below_the_folder_of_runs_is_told_by_where_it_is(path, shares, tmp_path):
    found = plan(tmp_path / path, runs=tmp_path / "runs").experiment.shared
    assert (found is not None) == shares
    assert found is None or found.parent == tmp_path / "runs" / ".shared"


def key(what=BDR, **fields):
    return plan(None, what, runs=Path("runs"), **fields).experiment.shared.name


@pytest.mark.parametrize(
    "fields",
    [
        {"seed": 1994},
        {"order": "natural"},
        {"base": 7},
        {"net": "resnet32"},
        {"val": 0.7},
        {"settings": [("stage.epochs", 3)]},
        {"settings": [("stage.batch", 16)]},
        {"settings": [("stage.lr", 0.01)]},
        {"settings": [("stage.main.lr", 0.01)]},
        {"settings": [("ucir.eta", 5)]},
        {"settings": [("cwd.coefficient", 1)]},
        {"settings": [("augment.pad", 2)]},
        {"what": "ucir+bdr"},
    ],
    ids=str,
)
def test_a_first_phase_that_would_be_trained_otherwise_is_not_shared(fields):
    assert key(**fields) != key()


@pytest.mark.parametrize(
    "fields",
    [
        {"what": CWD},
        {"what": "ucir+cwd+la"},
        {"memory": "5/class"},
        {"herding": "random"},
        {"step": 2},
        {"phases": 2},
        {"settings": [("bdr.m", 0.5)]},
    ],
    ids=str,
)
def test_what_idles_in_the_first_phase_does_not_keep_runs_from_sharing_it(fields):
    assert key(**fields) == key()


# Each setting that a method says nothing reads in the first phase, at another value than its own.
LATER = {
    "bic": {"temperature": 3.0, "held": 0.4, "beta_decay": 0.5, "keep_corrections": True},
    "der": {"lambda_aux": 2.0, "temperature": 2.0, "balanced": False},
    "dualprompt": {"inherit": False},
    "dytox": {"divergence_weight": 0.5},
    "e2e": {"temperature": 3.0},
    "ewc": {"weight": 10.0},
    "lwf": {"weight": 2.0, "temperature": 3.0},
    "podnet": {"lambda_flat": 2.0, "lambda_spatial": 1.0},
    "rpsnet": {"jump": 1, "rigidity": 1.0, "temperature": 3.0, "reuse": True},
    "rwalk": {"weight": 2.0},
    "si": {"weight": 2.0},
    "simple-der": {"temperature": 3.0},
    "ucir": {"lambda_base": 2.0, "margin": 0.2, "negatives": 1, "imprint": True},
    "wa": {"temperature": 3.0, "align": False},
}


def test_every_setting_that_idles_in_the_first_phase_is_tried_below():
    assert {name: set(method.later) for name, method in METHODS.items() if method.later} == {
        name: set(settings) for name, settings in LATER.items()
    }


@pytest.mark.parametrize("name", LATER)
def test_settings_of_later_phases_leave_the_first_as_it_is(name, tmp_path):
    train(None, name, runs=tmp_path, phases=1)
    other = {"settings": [(f"{name}.{setting}", value) for setting, value in LATER[name].items()]}
    path = train(None, name, runs=tmp_path, phases=2, **other)
    assert BEFORE in log_of(path)
    assert_equal(path, train(tmp_path / "elsewhere", name, share=False, phases=2, **other))


def test_a_run_with_another_seed_trains_its_own_first_phase(runs):
    heard = Phases()
    path = train(None, BDR, runs=runs, listener=heard, seed=1994, phases=1)
    assert heard.trained == [0]
    assert BEFORE not in log_of(path)
    assert len(shared_phases(runs)) == 2


def test_exemplars_are_chosen_anew_under_another_memory(runs, tmp_path):
    path = train(None, BDR, runs=runs, memory="1/class", phases=2)
    assert BEFORE in log_of(path)
    assert_equal(path, train(tmp_path / "alone", BDR, share=False, memory="1/class", phases=2))


def test_a_damaged_shared_phase_is_named_and_trained_anew(runs, alone):
    folder = shared_phases(runs)[0]
    flip_a_byte(folder / "tensors.safetensors")
    heard = Phases()
    path = train(None, BDR, runs=runs, listener=heard)
    assert heard.trained == [0, 1, 2]
    assert f"{folder}/tensors.safetensors is damaged" in log_of(path)
    assert BEFORE not in log_of(path)
    assert_equal(path, alone)


def test_a_damaged_shared_phase_gives_way_to_a_whole_one(runs):
    (shared_phases(runs)[0] / "sums.json").unlink()
    train(None, BDR, runs=runs, phases=1)
    assert BEFORE in log_of(train(None, "ucir+cwd+la", runs=runs, phases=1))


@pytest.mark.parametrize("position", [Position(1), Position(1, 0, 1, 2)])
def test_a_run_that_began_from_a_shared_phase_goes_on_after_a_stop(position, runs, alone):
    path = train_until(position, None, BDR, runs=runs)
    assert BEFORE in log_of(path)
    heard = Phases()
    api.resume(path, listener=heard)
    assert heard.trained == [1, 2]
    assert_equal(path, alone)


def test_a_run_that_loses_its_checkpoints_takes_the_shared_phase_again(runs, alone):
    path = train_until(Position(1), None, BDR, runs=runs)
    shutil.rmtree(path / "checkpoint")
    heard = Phases()
    api.resume(path, listener=heard)
    assert heard.trained == [1, 2]
    assert_equal(path, alone)


def test_a_run_that_loses_its_checkpoints_and_the_shared_phase_trains_it_itself(runs, alone):
    path = train_until(Position(1), None, BDR, runs=runs)
    for lost in (path / "checkpoint", *shared_phases(runs)):
        shutil.rmtree(lost)
    heard = Phases()
    api.resume(path, listener=heard)
    assert heard.trained == [0, 1, 2]
    assert_equal(path, alone)


def test_a_first_phase_that_trained_on_its_exemplars_is_not_shared(tmp_path):
    own = {"what": "runs:TwoStages", "net": "runs:flat", "phases": 1, "runs": tmp_path / "runs"}
    train(None, **own)
    path = train(None, memory="1/class", **own)
    assert {len(rows) for rows in outcome(path)["phase-00/memory.json"][0].values()} == {1}


SOURCE = "from runs import TwoStages\n\n\nclass Mine(TwoStages):\n    pass\n"


def test_a_changed_method_of_ones_own_does_not_take_the_first_phase_of_the_old_one(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "own_method.py"
    file.write_text(SOURCE)
    before = key("own_method:Mine")
    assert key("own_method:Mine") == before
    file.write_text(SOURCE + "\nCHANGED = True\n")
    assert key("own_method:Mine") != before


def write_own(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.mark.parametrize(
    ("what", "files", "changed"),
    [
        ("lone_a:Mine", {"lone_a.py": "import lone_b\n" + SOURCE, "lone_b.py": "FACTOR = 2\n"}, "lone_b.py"),
        (
            "lone_c:Mine",
            {"lone_c.py": "from lone_d import add\n" + SOURCE, "lone_d/__init__.py": "", "lone_d/add.py": "ONE = 1\n"},
            "lone_d/add.py",
        ),
        (
            "own_e.methods.mine:Mine",
            {"own_e/__init__.py": "", "own_e/methods/mine.py": SOURCE, "own_e/losses.py": "ONE = 1\n"},
            "own_e/losses.py",
        ),
        (
            "own_f.mine:Mine",
            {"own_f/mine.py": "import own_g\n" + SOURCE, "own_g.py": "import own_h\n", "own_h.py": "ONE = 1\n"},
            "own_h.py",
        ),
    ],
    ids=["a file beside it", "a package beside it", "its own package", "what is imported by what it imports"],
)
def test_a_changed_file_that_ones_own_method_imports_does_not_take_the_first_phase_of_the_old_one(
    what, files, changed, tmp_path, monkeypatch
):
    monkeypatch.syspath_prepend(tmp_path)
    write_own(tmp_path, files | {"of_somebody_else.py": "ONE = 1\n"})
    before = key(what)
    (tmp_path / "of_somebody_else.py").write_text("ONE = 2\n")
    assert key(what) == before
    (tmp_path / changed).write_text("ONE = 3\n")
    assert key(what) != before


def test_what_is_installed_is_not_ones_own_and_a_file_for_another_python_is_no_hindrance(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    write_own(tmp_path, {"own_i/mine.py": "import numpy\n" + SOURCE, "own_i/template.py": "print {{ name }}\n"})
    names = {file.name for file in own_files("own_i.mine")}
    assert {"mine.py", "template.py", "runs.py"} <= names
    assert not any("site-packages" in file.parts for file in own_files("own_i.mine"))


def test_of_what_ones_own_code_imports_this_library_is_not_read(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    write_own(
        tmp_path, {"own_j/mine.py": "import json\nimport bdr.losses\nfrom bdr.nets import Network\nimport runs\n"}
    )
    assert set(own_code.imports_of(tmp_path / "own_j" / "mine.py")) == {"runs"}
