"""What a run records arrives in TensorBoard, MLflow and Weights & Biases once, and no tracker can stop a training."""

import json
import os
import struct
import subprocess
import sys
import threading
import time
import warnings
from importlib.util import find_spec
from pathlib import Path

import mlflow
import pytest
from runs import plan, train, train_until
from tensorboard.backend.event_processing.event_accumulator import SCALARS, EventAccumulator
from tensorboard.plugins.hparams.metadata import SESSION_START_INFO_TAG, parse_session_start_info_plugin_data

from bdr import api, doctor, trackers
from bdr.commands import upkeep
from bdr.commands.tracking import log_runs
from bdr.configuration.config import Config, changed
from bdr.configuration.overrides import with_settings
from bdr.engine.checkpoint import Position
from bdr.errors import BdrError, UsageError
from bdr.records import Run
from bdr.trackers import check_tracker, follow
from bdr.trackers.base import Tracker
from bdr.trackers.points import Unread, hyperparameters, identity

# the first two come with the dev extra and are never skipped; wandb is somebody's account, and need not be there
HERE = ("tensorboard", "mlflow", "wandb") if find_spec("wandb") else ("tensorboard", "mlflow")
with_wandb = pytest.mark.skipif("wandb" not in HERE, reason="wandb is not installed")
SMALL = {"what": "runs:TwoStages", "net": "runs:flat"}


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Stores of these tests alone, and no network."""
    folder = tmp_path_factory.mktemp("trackers")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", (folder / "mlruns").as_uri())
        patch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a database takes seconds to lay out
        patch.setenv("WANDB_MODE", "offline")
        yield folder


def expected(path):
    """Every named number of the records as {name: {step: value}}."""
    found = {}
    for step, values in Unread(path).points():
        for name, value in values.items():
            found.setdefault(name, {})[step] = pytest.approx(value, rel=1e-6)
    return found


def once(pairs):
    """(step, value) pairs by step; none may be there twice."""
    pairs = list(pairs)
    assert len(pairs) == len(dict(pairs))
    return dict(pairs)


def in_tensorboard(path):
    events = EventAccumulator(str(path / "tensorboard"), size_guidance={SCALARS: 0})
    events.Reload()
    return {name: once((e.step, e.value) for e in events.Scalars(name)) for name in events.Tags()["scalars"]}


def mlflow_runs():
    client = mlflow.MlflowClient()
    return client, client.search_runs([client.get_experiment_by_name("bdr").experiment_id])


def in_mlflow(path):
    client, found = mlflow_runs()
    assert [run.data.tags["bdr.id"] for run in found] == [identity(Run.open(path))]
    histories = {name: client.get_metric_history(found[0].info.run_id, name) for name in found[0].data.metrics}
    return {name: once((metric.step, metric.value) for metric in history) for name, history in histories.items()}


def wandb_records(file):
    """The records of an offline file: a log of LevelDB, blocks of 32 KiB with chunks of records, behind 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, at, parts = file.read_bytes(), 7, b""
    while at + 7 <= len(content):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", content[at : at + 7])
        parts += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield Record.FromString(parts)
            parts = b""


def in_wandb(path):
    files = list((path / "wandb").glob("offline-run-*/*.wandb"))
    assert len(files) == 1
    found = {}
    for record in wandb_records(files[0]):
        if record.WhichOneof("record_type") == "history":
            row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            for name, value in row.items():
                if not name.startswith("_"):
                    found.setdefault(name, []).append((row["_step"], value))
    return {name: once(pairs) for name, pairs in found.items()}


READERS = {"tensorboard": in_tensorboard, "mlflow": in_mlflow, "wandb": in_wandb}
read_by = [pytest.param(name, marks=with_wandb if name == "wandb" else ()) for name in READERS]


# What arrives


@pytest.fixture(scope="module")
def resumed(places):
    """A run that stopped in the middle of its second phase, and went on."""
    path = train_until(Position(1, 0, 1), places / "run", log=HERE, **SMALL)
    half = {name: len(READERS[name](path)["main/loss"]) for name in HERE}
    api.resume(path)
    return path, half


def test_a_run_that_goes_on_goes_on_with_its_logs_and_doubles_nothing(resumed):
    path, half = resumed
    assert half == dict.fromkeys(HERE, 3)
    wanted = expected(path)
    assert len(wanted["main/loss"]) == 6
    assert {"main/terms/ce", "main/lr", "main/images_per_second", "balanced/loss"} <= set(wanted)
    assert {"accuracy/cnn", "accuracy/nme", "accuracy_old/cnn", "accuracy_new/cnn", "average/cnn"} <= set(wanted)
    assert {"by_phase/cnn/0", "losses/initial_old", "phase/seen"} <= set(wanted)
    timeless = [name for name in wanted if "seconds" not in name and "per_second" not in name]
    for name in HERE:
        found = READERS[name](path)
        assert set(found) == set(wanted), name
        assert {key: found[key] for key in timeless} == {key: wanted[key] for key in timeless}, name


def test_mlflow_knows_what_was_run(resumed):
    run = Run.open(resumed[0])
    _, (theirs,) = mlflow_runs()
    assert theirs.info.status == "FINISHED"
    assert theirs.data.params["stage.epochs"] == "2"
    told = {name: theirs.data.tags[f"bdr.{name}"] for name in ("title", "seed", "fingerprint")}
    assert told == {"title": run.title, "seed": str(run.seed), "fingerprint": run.fingerprint}


@with_wandb
def test_wandb_knows_what_was_run(resumed):
    path, _ = resumed
    run = Run.open(path)
    (file,) = (path / "wandb").glob("offline-run-*/*.wandb")
    (begun,) = [record.run for record in wandb_records(file) if record.WhichOneof("record_type") == "run"]
    assert run.fingerprint in begun.tags
    settings = {item.key: json.loads(item.value_json) for item in begun.config.update}
    assert (settings["stage.epochs"], settings["seed"]) == (2, run.seed)


def test_tensorboard_knows_what_was_run(resumed):
    path, _ = resumed
    run = Run.open(path)
    events = EventAccumulator(str(path / "tensorboard"))
    events.Reload()
    content = events.SummaryMetadata(SESSION_START_INFO_TAG).plugin_data.content
    hyper = parse_session_start_info_plugin_data(content).hparams
    assert hyper["fingerprint"].string_value == run.fingerprint
    assert hyper["stage.epochs"].number_value == 2
    assert run.title in events.Tensors("run/text_summary")[0].tensor_proto.string_val[0].decode()


def test_curves_of_all_phases_join_on_one_axis(resumed):
    path, _ = resumed
    points = list(Unread(path).points())
    epochs = [point.step for point in points if any(name.endswith("/loss") for name in point.values)]
    assert epochs == list(range(1, len(Run.open(path).epochs) + 1))
    assert [point.step for point in points if "accuracy/cnn" in point.values] == [4, 8, 12]
    assert [point.step for point in points] == sorted(point.step for point in points)


@pytest.mark.parametrize("name", read_by)
def test_records_that_are_there_already_are_logged_the_same(name, resumed):
    path, _ = resumed
    live = READERS[name](path)
    log_runs([path], [name])
    assert READERS[name](path) == live


def test_a_line_is_read_when_it_is_whole_and_an_epoch_after_the_end_of_the_phase_before(tmp_path):
    unread = Unread(tmp_path)
    assert list(unread.points()) == []
    epochs, phases = tmp_path / "epochs.jsonl", tmp_path / "phases.jsonl"
    epochs.write_text('{"phase": 0, "stage": "main", "loss": 2.0}\n{"phase": 1, "stage": "main", "lo')
    assert list(unread.points()) == [(1, {"main/loss": 2.0})]
    epochs.write_text(epochs.read_text() + 'ss": 1.0}\n')
    assert list(unread.points()) == []
    phases.write_text('{"phase": 0, "seen": 4, "accuracy": {"cnn": 50.0}}\n')
    ended = {"accuracy/cnn": 50.0, "phase/seen": 4.0, "average/cnn": 50.0}
    assert list(unread.points()) == [(1, ended), (2, {"main/loss": 1.0})]


def test_settings_are_named_by_dots_and_what_is_open_is_left_out(tmp_path):
    run = Run(tmp_path, {"config": {"stage": {"drops": [1, 2], "clip": None}, "log": [], "seed": 3}}, [], True)
    assert hyperparameters(run) == {"stage.drops": "[1, 2]", "seed": 3}


# What goes wrong


class Broken(Tracker):
    """Takes one epoch and then no more."""

    def __init__(self, run):
        self.taken = 0

    def add(self, points):
        self.taken += len(points)
        if self.taken:
            raise OSError("no space left")

    def close(self, done): ...


class Stuck(Broken):
    def add(self, points):
        threading.Event().wait()


class Refusing(Broken):
    def __init__(self, run):
        raise RuntimeError("no answer")


@pytest.fixture
def own_tracker(monkeypatch):
    def use(kind):
        monkeypatch.setitem(trackers.TRACKERS, "json", f"test_trackers:{kind.__name__}")  # a package that is there

    return use


@pytest.mark.parametrize(("kind", "why"), [(Broken, "OSError: no space left"), (Refusing, "RuntimeError: no answer")])
def test_a_tracker_that_fails_is_said_once_and_dropped(kind, why, tmp_path, own_tracker):
    own_tracker(kind)
    with warnings.catch_warnings(record=True) as heard:  # at the end of the run; before, the run notes it in its log
        path = train(tmp_path / "run", phases=2, log="json", **SMALL)
    noted = (path / "log.txt").read_text().splitlines() if (path / "log.txt").exists() else []
    said = [*noted, *(str(each.message) for each in heard)]
    assert sum(f"json failed and is left out ({why})" in text for text in said) == 1
    assert Run.open(path).done


def test_a_tracker_that_hangs_holds_nobody_up(tmp_path, own_tracker, monkeypatch):
    own_tracker(Stuck)
    monkeypatch.setattr(follow, "PATIENCE", 0.1)
    begun = time.monotonic()
    with pytest.warns(UserWarning, match="not taken everything within 0.1 seconds.*bdr log"):
        path = train(tmp_path / "run", phases=1, log="json", **SMALL)
    assert Run.open(path).done
    assert time.monotonic() - begun < 30


@with_wandb
def test_nobody_is_asked_to_log_in(resumed, tmp_path):
    """In a process of its own: who is logged in is remembered."""
    code = "import pathlib, sys; from bdr.records import Run; from bdr.trackers import open_tracker\n"
    code += "open_tracker('wandb', Run.open(pathlib.Path(sys.argv[1])))"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    environment = kept | {"HOME": str(tmp_path), "WANDB_MODE": "online"}
    command = [sys.executable, "-c", code, str(resumed[0])]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert "BdrError: nobody is logged in; type: wandb login, or set WANDB_MODE=offline" in said.stderr


def test_one_log_that_fails_keeps_no_other_from_being_written(tmp_path, own_tracker, capsys):
    own_tracker(Broken)
    paths = [train(tmp_path / name, phases=1, **SMALL) for name in ("one", "two")]
    with pytest.raises(BdrError, match="2 of the logs could not be written"):
        log_runs(paths, ["json"])
    assert capsys.readouterr().err.count("no space left") == 2


# What is asked for


def test_what_is_not_installed_is_refused_before_training(tmp_path, monkeypatch):
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"tensorboard is not installed; type: pip install 'bdr\[tensorboard\]'"):
        plan(tmp_path / "run", log="tensorboard", **SMALL)
    assert not (tmp_path / "run").exists()


def test_a_folder_of_that_name_is_no_package(tmp_path, monkeypatch):
    (tmp_path / "mlruns_of_mine").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(trackers.TRACKERS, "mlruns_of_mine", "")
    with pytest.raises(UsageError, match="not installed"):
        check_tracker("mlruns_of_mine")


def test_an_unknown_tracker_is_refused_with_those_there_are(tmp_path):
    with pytest.raises(UsageError, match=r"'tensorbord'.*did you mean 'tensorboard'"):
        plan(tmp_path / "run", log="tensorbord", **SMALL)


def test_a_list_is_read_from_options_settings_and_files():
    assert changed(Config(), {"log": "tensorboard, mlflow"}).log == ("tensorboard", "mlflow")
    assert with_settings(Config(), [("log", ["wandb"])])[0].log == ("wandb",)
    assert Config().log == ()


def test_where_a_run_is_logged_is_no_part_of_its_fingerprint(tmp_path):
    plain, logged = (plan(Path(tmp_path / "run"), log=log, **SMALL) for log in ((), "tensorboard"))
    assert plain.info["fingerprint"] == logged.info["fingerprint"]
    assert plain.experiment.path == logged.experiment.path


def test_doctor_says_what_to_type_for_what_is_missing(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "optional", lambda name, use: (doctor.MISSING, name, use))
    monkeypatch.setattr(upkeep.out, "width", 200)
    upkeep.examine()
    assert "pip install 'bdr[mlflow]'" in capsys.readouterr().out
