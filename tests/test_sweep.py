"""Many runs from one command: what a grid means, what waits for what, and how a sweep ends, fails and goes on."""

import contextlib
import io
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from directories import PROTOCOL, make_run
from rich.console import Console
from runs import CHILDREN, assert_equal, train, wait_until
from runs import FIELDS as TRIED

from bdr import api
from bdr.cli import main
from bdr.commands.upkeep import about_run
from bdr.configuration.overrides import as_typed, parse_setting
from bdr.errors import BdrError, UsageError
from bdr.planning.assemble import plan_run
from bdr.records import Run, RunWriter
from bdr.records.speed import Setup
from bdr.sweep import crew as crews
from bdr.sweep import limit, mps, plan
from bdr.sweep import run as sweep
from bdr.sweep.crew import Crew, claimed
from bdr.sweep.grid import checked_grid, grids_of, wishes_of
from bdr.sweep.limit import Limit
from bdr.sweep.plan import Planned, facts_of, plan_sweep
from bdr.sweep.run import parse_duration
from bdr.sweep.view import Lines, LiveTable, list_table, live_table, read_progress
from bdr.sweep.work import images_left, seconds_left, time_note
from bdr.terminal import Conditions

FIELDS = TRIED | {"data": "digits", "phases": 2}
SETTINGS = ("stage.epochs=2", "stage.batch=32")
BEFORE = "the first phase was trained before by an equal run"
OWN = """
import os, time
from pathlib import Path
from bdr.methods.ucir import UCIR

class Broken(UCIR):
    def begin(self, phase, pool):
        raise RuntimeError("this method is broken")

class Paced(UCIR):
    def loss(self, batch, phase, classify):
        hurry = Path(os.environ["HURRY"])
        if not phase.first and not hurry.exists():
            with hurry.with_name("steps").open("a") as steps:
                steps.write(".")
            time.sleep(1)
        return super().loss(batch, phase, classify)
"""


def typed(fields, settings):
    return fields | dict(parse_setting(text) for text in settings)


def swept(what, runs, fields=FIELDS, settings=SETTINGS, seeds=None, jobs=1, until=None, dry_run=False, strict=False):
    """Exit code of a sweep, and what it said."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            conditions = Conditions(runs, jobs, until, only_what_ends=strict)
            sweep.run_sweep(what, sweep.Asked(typed(fields, settings), seeds), conditions, dry_run=dry_run)
        except BdrError as error:
            return error.exit_code, f"{said.getvalue()}bdr: {error}\n"
    return 0, said.getvalue()


def planned(what, runs=Path("runs"), fields=FIELDS, settings=(), seeds=None):
    return plan_sweep(wishes_of(grids_of(what), typed(fields, settings), seeds), runs)


def grid_file(folder, **content):
    file = folder / "grid.yaml"
    file.write_text(yaml.safe_dump(content))
    return str(file)


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """Methods of one's own, for this process and for the runs, which all add with one thread."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "sweep_own.py").write_text(OWN)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("HURRY", str(folder / "hurry"))
        yield folder


# Runs that begin at once


class Forked:
    """A run of a sweep as a copy of a process that has imported all, which most of a short run is spent on."""

    def __init__(self, words, stdout, env, **_):
        assert words[:3] == [sys.executable, "-m", "bdr.cli.child"]
        self.child = CHILDREN.Process(target=bdr_in, args=(words[4:], stdout.name, env))
        self.child.start()
        self.pid, self.wait, self.poll = self.child.pid, self.child.join, lambda: self.returncode

    @property
    def returncode(self):
        return self.child.exitcode

    def send_signal(self, number):
        os.kill(self.pid, number)


def bdr_in(words, log, surroundings):
    """The command line inside such a copy, in a session of its own."""
    os.setsid()
    os.environ |= surroundings
    sys.argv = ["bdr", *words]
    with open(log, "ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    main()


def fork(patch):
    patch.setattr(crews, "subprocess", SimpleNamespace(Popen=Forked, DEVNULL=subprocess.DEVNULL))


@pytest.fixture
def forked(monkeypatch):
    fork(monkeypatch)


# What a grid means


def test_a_grid_is_every_combination_with_seeds_slowest(tmp_path):
    grid = {"base": [4, 7], "memory": ["2/class", "3/class"]}
    file = grid_file(tmp_path, runs=["ucir", "ucir+bdr"], common={"step": 3}, grid=grid, seeds=[1, 2])
    found = wishes_of(grids_of([file]), {}, None)
    assert len(found) == len(set(found)) == 16
    assert [wish.seed for wish in found] == [1] * 8 + [2] * 8
    assert found[1].label == "ucir base=4 memory=3/class"
    assert dict(found[1].settings) == {"step": 3, "base": 4, "memory": "3/class"}


def test_the_command_line_overrides_the_file(tmp_path):
    file = grid_file(tmp_path, runs=["ucir"], common={"step": 2}, grid={"base": [4, 7]}, seeds=[1, 2])
    runs = planned([file], fields={"step": 3, "base": 4, "device": "cpu"}, seeds=[5])
    assert [(run.label, run.seed, run.path.parts[1]) for run in runs] == [("ucir", 5, "digits-b4s3")]


def test_a_setting_of_a_plug_in_concerns_the_runs_that_have_it(tmp_path):
    file = grid_file(tmp_path, runs=["ucir", "ucir+bdr"], grid={"bdr.m": [0.5, 1.0]})
    assert [run.label for run in planned([file])] == ["ucir", "ucir+bdr bdr.m=0.5", "ucir+bdr bdr.m=1.0"]


def test_the_network_of_a_run_has_settings_too():
    (run,) = planned(["l2p"], fields={"device": "cpu"}, settings=["vit-tiny.depth=2"])
    assert "vit-tiny.depth=2" in run.words
    with pytest.raises(UsageError, match=r"no part of any run with settings 'vit-b16'; there are .*vit-tiny"):
        planned(["l2p"], fields={"device": "cpu"}, settings=["vit-b16.depth=2"])


def test_the_network_is_that_of_the_runs_own_data_or_the_one_it_names(tmp_path):
    typed_ = {"vit-b16.weights": "FILE"}
    (wish,) = wishes_of(grids_of(["l2p"]), {"data": "cifar100"} | typed_, None)
    assert wish.settings == {"data": "cifar100"} | typed_
    file = grid_file(tmp_path, runs=["l2p"], set={"vit-tiny.depth": 2}, grid={"net": ["vit-tiny", "small"]})
    assert ["vit-tiny.depth" in wish.settings for wish in wishes_of(grids_of([file]), {}, None)] == [True, False]


def test_drops_of_a_grid_are_scaled_with_epochs_that_are_typed(tmp_path):
    file = grid_file(tmp_path, runs=["ucir"], set={"stage.epochs": 4, "stage.drops": [2]})
    (run,) = planned([file], settings=["stage.epochs=8"])
    assert {"stage.epochs=8", "stage.drops=[4]"} <= set(run.words)
    file = grid_file(tmp_path, runs=["der"], set={"stage.balanced.epochs": 4, "stage.balanced.drops": [2]})
    (run,) = planned([file], settings=["stage.balanced.epochs=8"])
    assert {"stage.balanced.epochs=8", "stage.balanced.drops=[4]"} <= set(run.words)


def test_files_methods_and_recipes_go_together(tmp_path):
    file = grid_file(tmp_path, runs=["ucir"])
    assert [run.label for run in planned([file, "ucir+la", "digits-cwd"])] == ["ucir", "ucir+la", "digits-cwd"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"run": ["ucir"]}, "no key in here 'run'; .* did you mean 'runs'"),
        ({"common": {"base": 4}}, "names no runs"),
        ({"runs": "ucir"}, r"must be a list such as runs: \[ucir\+cwd"),
        ({"runs": ["ucir"], "common": {"bose": 4}}, "did you mean 'base'"),
        ({"runs": ["ucir"], "common": {"seed": 4}}, "list seeds under seeds"),
        ({"runs": ["ucir"], "common": {"stage": {"epochs": 4}}}, "under set, as stage.epochs: 2"),
        ({"runs": ["ucir"], "set": {"epochs": 4}}, "no field for set of here 'epochs'"),
        ({"runs": ["ucir"], "grid": {"base": 4}}, "must be a list of values to try"),
        ({"runs": ["ucir"], "grid": {"base": []}}, "must be a list of values to try"),
        ({"runs": ["ucir"], "seeds": ["a"]}, "must be a list such as seeds"),
        ({"runs": ["ucir"], "seeds": 3}, "must be a list such as seeds"),
        (None, r"here is empty; write for example runs: \[ucir"),
        (["ucir"], "holds a list, and must hold `runs:`"),
    ],
)
def test_a_wrong_grid_is_refused_with_what_to_write(content, said):
    with pytest.raises(UsageError, match=said):
        checked_grid(content, "here")


@pytest.mark.parametrize(
    ("grid", "said"),
    [
        ({"runs": ["ucirr"]}, "no method or recipe 'ucirr'.*did you mean 'ucir'"),
        ({"runs": ["ucir+bdrr"]}, r"ucir\+bdrr: no plug-in 'bdrr'.*did you mean 'bdr'"),
        ({"runs": ["ucir"], "set": {"bdr.m": 1}}, r"no part of any run with settings 'bdr'.*name it: ucir\+bdr"),
        ({"runs": ["ucir+bdr"], "set": {"bdr.mm": 1}}, r"ucir\+bdr: no setting of bdr 'mm'"),
        ({"runs": ["ucir"], "grid": {"stage.epochs": [1, 0]}}, "stage.epochs = 0 is not allowed"),
        ({"runs": ["ucir"], "grid": {"step": [3, 4]}}, "ucir step=4: .*do not split"),
        ({"runs": ["ucir"], "grid": {"keep": ["last", "all"]}}, "are the same run"),
        ({"runs": ["digits-cwd"], "common": {"data": "cifar100"}}, "recipe 'digits-cwd' is for digits"),
    ],
)
def test_a_wrong_run_is_refused_before_anything_trains(grid, said, tmp_path):
    with pytest.raises(UsageError, match=said):
        planned([grid_file(tmp_path, **grid)], tmp_path, {"base": 4, "device": "cpu"})
    assert not list(tmp_path.glob("digits*"))


def test_the_grid_of_the_page_is_what_the_page_says():
    page = Path(__file__).resolve().parents[1] / "docs" / "commands" / "sweep.md"
    block = page.read_text().split("```yaml\n")[1].split("```")[0]
    wishes = wishes_of([checked_grid(yaml.safe_load(block), "page")], {}, None)
    assert len(plan_sweep(wishes, Path("runs"))) == 12


def test_a_missing_grid_is_named():
    with pytest.raises(UsageError, match=r"nowhere\.yaml cannot be read"):
        grids_of(["nowhere.yaml"])


def test_a_time_limit_is_read():
    assert [parse_duration(text) for text in ("26m", "90s", "1h30m", "1.5h")] == [1560, 90, 5400, 5400]
    for text in ("26", "m", "26 minutes", ""):
        with pytest.raises(UsageError, match="is not like 26m"):
            parse_duration(text)


def test_no_jobs_are_refused():
    with pytest.raises(UsageError, match="--jobs 0"):
        sweep.checked_jobs(0, cuda=False)


@pytest.mark.parametrize("value", [4, 0.5, 1e-5, "2/class", "a: b", "", None, True, [1, 2], {"a": [1, "x"]}, "é" * 200])
def test_a_value_is_typed_as_it_is_read(value):
    text = as_typed(value)
    assert "\n" not in text
    assert parse_setting(f"name={text}") == ("name", value)


def test_the_words_of_a_run_make_its_configuration(tmp_path):
    from bdr.commands.training import configurations

    file = grid_file(tmp_path, runs=["ucir+bdr"], set={"stage.epochs": 1, "stage.drops": [1]}, grid={"bdr.m": [0.5]})
    (run,) = planned([file], tmp_path)
    words = dict(zip(run.words[2::2], run.words[3::2], strict=True))
    settings = [word for before, word in zip(run.words, run.words[1:], strict=False) if before == "--set"]
    (config,), _ = configurations(
        run.words[1], typed({"data": words["--data"]}, settings), None, [int(words["--seed"])]
    )
    assert facts_of([("", config, [])], tmp_path)[0]["path"] == str(run.path)


def test_another_process_finds_the_same_facts(monkeypatch, tmp_path):
    """On a GPU the runs are planned elsewhere; here the answer of that process is made in this one."""

    def asked(command, input, **_):
        monkeypatch.setattr(sys, "stdin", io.StringIO(input))
        with contextlib.redirect_stdout(io.StringIO()) as said:
            exec(command[-1])
        return SimpleNamespace(returncode=0, stdout=f"chatter\n{said.getvalue()}", stderr="")

    asked_for = FIELDS, ["stage.epochs=10", "stage.balanced.epochs=20"]
    here = planned(["e2e", "e2e+bdr"], tmp_path, *asked_for)
    assert here[1].notes == (
        "main.drops scaled with the epochs: (12, 17) -> (6, 8)",
        "balanced.drops scaled with the epochs: (3, 5) -> (8, 12)",
    )
    monkeypatch.setattr(plan, "may_use_cuda", lambda configs: True)
    monkeypatch.setattr(plan, "subprocess", SimpleNamespace(run=asked))
    assert planned(["e2e", "e2e+bdr"], tmp_path, *asked_for) == here
    with pytest.raises(UsageError, match=r"ucir\+bdrr: no plug-in"):
        planned(["ucir+bdrr"], tmp_path)


# What waits for what


class Acted(Crew):
    """A crew whose runs are only acted: they end when they are told to."""

    def launch(self, run, log):
        self.children[run], self.states[run], self.started[run] = SimpleNamespace(returncode=None), "running", 0.0
        self.children[run].poll = lambda child=self.children[run]: child.returncode

    def finish(self, run, code=0):
        if code == 0:
            record(run, phases=2)
            (run.path / "DONE").touch()
        self.children[run].returncode = code
        self.step()


def record(run, phases=0, epochs=(), beside=1, images=9):
    """As far as so many phases, with lines of the epochs that are named by phase and images a second."""
    info = {"title": run.label, "seed": run.seed, "fingerprint": "f", "protocol": {"net": "small", "precision": "fp32"}}
    info |= {"classes": ["a", "b"], "image": [1, 8, 8], "device": {"type": "cpu", "name": "CPU"}}
    info |= {"side_by_side": beside, "phases": [[0, 1], [1, 2]]}
    info |= {"work": [[{"stage": "main", "images": images, "epochs": 1}]] * 2}
    run.path.mkdir(parents=True, exist_ok=True)
    (run.path / "run.json").write_text(json.dumps(info))
    line = {"accuracy": {"cnn": 50.0}, "parameters": 1000}
    lines = [line | {"phase": phase, "old": phase, "seen": phase + 1} for phase in range(phases)]
    (run.path / "phases.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    lines = [
        {"phase": phase, "stage": "main", "epoch": 0, "seconds": 9 / speed, "images_per_second": speed}
        for phase, speed in epochs
    ]
    (run.path / "epochs.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))


SETUP = Setup("small", "cpu", (1, 8, 8), "fp32")


def acted(folder, keys, jobs=9):
    """Runs that share a first phase where their letters are equal."""
    shared = [None if key == "-" else folder / ".shared" / key for key in keys]
    work = {"words": (), "title": "ucir", "setup": SETUP, "images": (9, 9)}
    runs = [Planned(f"run{i}", 1, path=folder / f"{i}", shared=key, **work) for i, key in enumerate(shared)]
    return runs, Acted(runs, jobs, folder, {}, lambda text: None)


def running(crew):
    return "".join(run.label[3:] for run in crew.children)


def test_one_run_trains_a_shared_first_phase_and_the_others_wait_for_it(tmp_path):
    runs, crew = acted(tmp_path, "aab--b")
    crew.step()
    assert running(crew) == "0234"
    assert crew.states[runs[1]] == "held"
    (tmp_path / ".shared" / "a").mkdir(parents=True)
    crew.step()
    assert running(crew) == "02341"


def test_side_by_side_a_run_that_others_may_wait_for_starts_before_one_that_has_its_first_phase(tmp_path):
    (tmp_path / ".shared" / "a").mkdir(parents=True)
    _, crew = acted(tmp_path, "aabb", jobs=2)
    crew.step()
    assert running(crew) == "20"
    _, alone = acted(tmp_path, "aabb", jobs=1)
    alone.step()
    assert running(alone) == "0"


def test_the_next_run_trains_a_first_phase_that_failed(tmp_path):
    runs, crew = acted(tmp_path, "aaa")
    crew.step()
    (tmp_path / crew.log_of(runs[0]).name).write_text("Traceback\nRuntimeError: oh\n")
    crew.finish(runs[0], code=1)
    assert running(crew) == "1"
    assert crew.states[runs[0]] == "failed"
    assert crew.last_words(runs[0]) == "RuntimeError: oh"


def test_the_first_warning_of_a_run_is_told_and_the_others_are_counted(tmp_path):
    runs, crew = acted(tmp_path, "--")
    said = []
    crew.tell = said.append
    crew.step()
    runs[0].path.mkdir(parents=True)
    log = "T taken from there\nT warning: offsets span 2.5\nT warning: offsets span 2.5\nT warning: offsets span 3\n"
    (runs[0].path / "log.txt").write_text(log)
    crew.finish(runs[0])
    assert said[-1] == f"run0 seed 1: warning: offsets span 2.5 (1 more in {runs[0].path / 'log.txt'})"
    crew.finish(runs[1])
    assert said[-1].startswith("done run1")


def test_a_first_phase_that_is_over_without_being_left_to_others_holds_nobody(tmp_path):
    runs, crew = acted(tmp_path, "aa")
    crew.step()
    record(runs[0], phases=1)
    crew.step()
    assert running(crew) == "01"


def test_what_was_begun_goes_first_and_never_waits(tmp_path):
    runs, _ = acted(tmp_path, "aaa")
    record(runs[2])
    runs, crew = acted(tmp_path, "aaa", jobs=1)
    crew.step()
    assert running(crew) == "2"


def test_no_more_than_so_many_run_at_a_time(tmp_path):
    runs, crew = acted(tmp_path, "----", jobs=2)
    crew.step()
    assert running(crew) == "01"
    crew.finish(runs[0])
    assert running(crew) == "12"
    assert crew.states[runs[0]] == "done"


def test_a_run_that_another_process_has_is_left_to_it(tmp_path):
    runs, crew = acted(tmp_path, "--")
    theirs = claimed(crew.log_of(runs[0]))
    crew.step()
    assert running(crew) == "1"
    assert crew.states[runs[0]] == "elsewhere"
    record(runs[0], phases=2)
    (runs[0].path / "DONE").touch()
    theirs.close()
    crew.step()
    assert crew.states[runs[0]] == "already done"


def test_a_run_that_somebody_trains_by_hand_is_waited_for(tmp_path):
    runs, crew = acted(tmp_path, "--")
    record(runs[0])
    by_hand = RunWriter.alone(runs[0].path)
    crew.step()
    assert running(crew) == "1"
    assert crew.states[runs[0]] == "elsewhere"
    by_hand.close()  # stopped half-way
    crew.step()
    assert running(crew) == "10"


# What can end before the time is up

HOUR = 3600
LONG = (9, 100 * HOUR)  # at the image a second of later phases that `finish_earlier` shows


def finish_earlier(folder, **how):
    """A finished run that is none of the sweep's own, and says how fast such runs are."""
    (earlier, *_), _ = acted(folder / "earlier", "-")
    record(earlier, phases=2, epochs=[(0, 3.0), (1, 1.0)], **how)
    (earlier.path / "DONE").touch()


@pytest.fixture
def within_an_hour(tmp_path, monkeypatch):
    """Makes a crew for runs of so many images by phase, of which it hears what is said."""
    monkeypatch.setattr(limit, "APART", 0.0)

    def crew_of(images, keys=None, jobs=1, only_what_ends=False):
        runs, _ = acted(tmp_path, keys or "-" * len(images))
        runs = [replace(run, images=each) for run, each in zip(runs, images, strict=True)]
        within, said = Limit(time.monotonic() + HOUR, 1, tmp_path, only_what_ends), []
        return runs, Acted(runs, jobs, tmp_path, {}, said.append, within.sort_out), said

    return crew_of


def test_what_can_end_starts_first_and_what_cannot_uses_the_time_that_is_left(tmp_path, within_an_hour):
    finish_earlier(tmp_path)
    runs, crew, said = within_an_hour([LONG, (9, 9), LONG])
    crew.step()
    assert running(crew) == "1"
    crew.finish(runs[1])
    assert running(crew) == "0"
    assert said[-1].startswith("done run1")


def test_whether_a_run_can_end_is_told_with_what_runs_took_besides_their_epochs(tmp_path, within_an_hour):
    """A short one took two hours, most of it besides its epochs: now no other can end within the hour."""
    finish_earlier(tmp_path)
    runs, crew, said = within_an_hour([(9, 9), (9, 9)], only_what_ends=True)
    crew.step()
    crew.started[runs[0]] = time.monotonic() - 2 * HOUR
    crew.sort_out.__self__.judged_at = -math.inf
    crew.finish(runs[0])
    assert said[-1].startswith("run1 seed 1 is not started: it takes about 2 h")


def test_one_that_was_begun_goes_on_first_if_it_can_end_and_last_if_it_cannot(tmp_path, within_an_hour):
    finish_earlier(tmp_path)
    runs, _, _ = within_an_hour([(9, 9), LONG])
    for images, first in ((9, "1"), (LONG[1], "0")):
        record(runs[1], phases=1, images=images)
        _, crew, _ = within_an_hour([(9, 9), LONG])
        crew.step()
        assert running(crew) == first


def test_only_what_ends_leaves_out_what_cannot_says_so_once_and_does_not_wait(tmp_path, within_an_hour):
    finish_earlier(tmp_path)
    runs, crew, said = within_an_hour([LONG, (9, 9)], jobs=2, only_what_ends=True)
    crew.step()
    crew.step()
    assert running(crew) == "1"
    assert len(said) == 1
    assert said[0].startswith("run0 seed 1 is not started: it takes about 100 h 0 min, ")
    assert said[0].endswith(" min are left")
    crew.finish(runs[1])
    assert not crew.busy
    assert "2 runs: 1 done, 1 left out" in drawn(live_table(crew, rows=4))
    with contextlib.redirect_stdout(io.StringIO()) as told:
        sweep.say_what_is_left(crew, "", "1h")
    assert "stopped by --until 1h with 1 of 2 runs to go; go on by typing the same again" in told.getvalue()


def test_a_run_of_unknown_speed_is_started(within_an_hour):
    _, crew, _ = within_an_hour([LONG], only_what_ends=True)
    crew.step()
    assert running(crew) == "0"


def test_a_record_that_cannot_be_read_says_nothing_of_the_speed(tmp_path, within_an_hour):
    finish_earlier(tmp_path)
    (tmp_path / "earlier" / "0" / "epochs.jsonl").write_text("{\n")
    _, crew, _ = within_an_hour([LONG], only_what_ends=True)
    crew.step()
    assert running(crew) == "0"


def test_runs_under_way_show_how_long_others_take_once_their_epochs_are_steady(within_an_hour):
    runs, crew, _ = within_an_hour([(9, 9), LONG], only_what_ends=True)
    crew.step()
    crew.jobs = 2
    record(runs[0], phases=1, epochs=[(0, 3.0), (1, 0.001)])  # it has only compiled in its second phase
    crew.sort_out(crew)
    assert crew.states[runs[1]] == "waiting"
    record(runs[0], phases=1, epochs=[(0, 3.0), (1, 0.001), (1, 1.0), (1, 1.0)])
    crew.step()
    assert crew.states[runs[1]] == "left out"


def test_a_first_phase_that_another_run_trains_takes_no_time_as_long_as_it_does(tmp_path, within_an_hour):
    finish_earlier(tmp_path)
    runs, crew, _ = within_an_hour([(100 * HOUR, 9)] * 2, keys="aa", jobs=2, only_what_ends=True)
    crew.fill()  # before anything was known
    crew.step()
    assert [crew.states[run] for run in runs] == ["running", "held"]
    crew.log_of(runs[0]).write_text("RuntimeError: oh\n")
    crew.finish(runs[0], code=1)
    assert [crew.states[run] for run in runs] == ["failed", "left out"]


@pytest.mark.parametrize(("beside", "starts"), [(1, ""), (4, "0")])
def test_a_speed_among_many_runs_may_be_so_much_higher_alone(beside, starts, tmp_path, within_an_hour):
    finish_earlier(tmp_path, beside=beside)
    _, crew, _ = within_an_hour([(9, 2 * HOUR)], only_what_ends=True)
    crew.step()
    assert running(crew) == starts


@pytest.mark.parametrize(("runs", "starts"), [(4, ""), (2, "0")])
def test_the_last_runs_of_a_sweep_are_judged_by_the_company_that_they_will_have(runs, starts, tmp_path, within_an_hour):
    """Each takes almost two hours among four, and half of that among two."""
    finish_earlier(tmp_path, beside=4)
    _, crew, _ = within_an_hour([(9, 1.9 * HOUR)] * runs, only_what_ends=True)
    crew.sort_out.__self__.at_once = 4
    crew.step()
    assert running(crew) == starts


def test_a_sweep_of_which_nothing_can_end_is_over_at_once(tmp_path):
    (earlier, *_), _ = acted(tmp_path, "-")
    record(earlier, phases=2, epochs=[(0, 1e-6), (1, 1e-6)])
    (earlier.path / "DONE").touch()
    code, said = swept(["ucir"], tmp_path, until="1h", strict=True)
    assert code == 0
    assert "ucir seed 1993 is not started: it takes about " in said
    assert "stopped by --until 1h with 1 of 1 runs to go" in said
    assert "started ucir" not in said


def test_only_what_ends_wants_a_time_to_end_by(tmp_path):
    with pytest.raises(UsageError, match="--only-what-ends needs a time to end by: add --until 26m"):
        Conditions(tmp_path, 1, None, only_what_ends=True)


# What is shown


def drawn(table, width=120):

    console = Console(file=io.StringIO(), width=width)
    console.print(table)
    return console.file.getvalue()


def test_the_live_table_says_how_far_each_run_is(tmp_path):
    runs, crew = acted(tmp_path, "aa-----", jobs=2)
    crew.step()
    assert "waits for #1" in drawn(live_table(crew, rows=4))
    record(runs[0], phases=1)
    (runs[0].path / "epochs.jsonl").write_text(
        3 * '{"phase": 0, "stage": "main", "images_per_second": 3.0, "seconds": 3.0}\n'
    )
    shown = drawn(live_table(crew, rows=4))
    assert "7 runs: 2 running, 5 waiting" in shown
    cells = next(line for line in shown.splitlines() if "run0" in line).replace("│", " ").split()
    assert cells == ["1", "run0", "1", "running", "1", "of", "0..1", "50.00", "3", "0:03"]
    assert "and 3 more" in shown
    (tmp_path / ".shared" / "a").mkdir(parents=True)
    crew.step()
    assert "waits for" not in drawn(live_table(crew, rows=4))


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_on_a_narrow_terminal_only_the_names_of_runs_are_wrapped_and_between_words(width, tmp_path):
    runs, crew = acted(tmp_path, "aa-", jobs=1)
    runs = [replace(run, label="ucir+cwd+bdr memory=5/class bdr.m=0.5", seed=1993) for run in runs]
    crew = Acted(runs, 1, tmp_path, {}, lambda text: None)
    crew.step()
    tables = live_table(crew, 9, width), list_table(runs, width)
    for shown in (drawn(table, width) for table in tables):
        assert {"ucir+cwd+bdr", "memory=5/class", "bdr.m=0.5", "state", "1993"} <= set(shown.split())
        assert max(map(len, shown.splitlines())) <= width
        assert len(shown.splitlines()) <= 3 * 3 + 5
    assert "waits for #1" in drawn(tables[0], width)
    assert ("folder" in drawn(tables[1], width)) == (width == 140)


def test_the_live_table_and_the_list_tell_accuracy_by_the_readout_of_the_method(tmp_path):
    run = make_run(tmp_path, phases=0, done=False, protocol=PROTOCOL | {"readout": "nme"})
    assert run.last_accuracy is None
    line = {"phase": 0, "old": 0, "seen": 4, "accuracy": {"cnn": 10.0, "nme": 90.0}, "parameters": 1000}
    RunWriter(run.path).phase(line)
    run = Run.open(run.path)
    assert read_progress(run).accuracy == "90.00"
    assert about_run(run) == "ucir seed 1993: 1/4 phases, 90.00 %"


def test_the_live_table_leaves_the_terminal_as_it_was(tmp_path):

    _, crew = acted(tmp_path, "-")
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    with LiveTable(console) as lines:
        lines.update(crew)
        lines.tell("a [line]")
    assert "a [line]" in console.file.getvalue()
    assert console.file.getvalue().rstrip().endswith("\x1b[2K")


def test_a_dry_run_lists_what_is_done_and_what_is_shared(tmp_path):
    runs, _ = acted(tmp_path, "aabc")
    record(runs[3], phases=2)
    (runs[3].path / "DONE").touch()
    (tmp_path / ".shared" / "b").mkdir(parents=True)
    shown = drawn(list_table(runs))
    for said in ("4 runs, 3 to do", "trained, also for 2", "as 1", "trained before", "done"):
        assert said in shown


def test_a_dry_run_counts_the_images_that_each_run_trains_on_itself(tmp_path):
    runs, _ = acted(tmp_path, "aab-")
    record(runs[3], phases=1, epochs=[(0, 3.0)])
    (tmp_path / ".shared" / "b").mkdir(parents=True)
    assert [sum(images_left(run, runs)) for run in runs] == [18, 9, 9, 9]
    (runs[3].path / "DONE").touch()
    assert sum(images_left(runs[3], runs)) == 0


def test_who_is_done_and_left_no_first_phase_trains_none_for_others(tmp_path):
    runs, _ = acted(tmp_path, "aaa")
    record(runs[0], phases=2)
    (runs[0].path / "DONE").touch()
    assert "trained, also for 3" in drawn(list_table(runs))
    assert "1 run, 1 to do" in drawn(list_table(runs[1:2]))
    assert [sum(images_left(run, runs)) for run in runs] == [0, 18, 9]


def test_a_dry_run_says_how_long_by_runs_that_are_there(tmp_path):
    runs, _ = acted(tmp_path, "---")
    assert "54 images to train on: no record of small on cpu" in time_note(runs, tmp_path, 1)
    record(runs[0], phases=2, epochs=[(0, 3.0), (1, 1.0)])
    (runs[0].path / "DONE").touch()
    assert time_note(runs, tmp_path, 1) == "36 images to train on: about 24 s of training one after the other."
    for run in runs[1:]:
        record(run, phases=2)
        (run.path / "DONE").touch()
    assert time_note(runs, tmp_path, 1) == "Nothing is to do."


def test_the_time_left_is_that_of_all_runs_at_the_speed_of_those_under_way(tmp_path):
    runs, crew = acted(tmp_path, "----", jobs=2)
    crew.step()
    assert seconds_left(crew) is None
    record(runs[0], phases=1, epochs=[(0, 0.1)])  # it has compiled so far, rather than trained
    assert seconds_left(crew) is None
    record(runs[0], phases=1, epochs=[(0, 0.1), (0, 3.0), (0, 3.0)])
    # 9 images of the first, 18 of each of the others, two side by side at three a second each
    assert seconds_left(crew) == pytest.approx((9 + 3 * 18) / (2 * 3.0))
    record(runs[1], phases=1, epochs=[(0, 1.0)] * 3)
    assert seconds_left(crew) == pytest.approx((9 + 9 + 2 * 18) / (3.0 + 1.0))
    for run in runs[2:]:
        crew.states[run] = "done"
    assert seconds_left(crew) == pytest.approx(9 / 1.0)  # the slower of the two


@pytest.mark.parametrize(("has_first", "besides"), [(False, 10.0), (True, 13.0)])
def test_the_time_left_counts_what_runs_take_besides_their_epochs(has_first, besides, tmp_path, monkeypatch):
    """Two runs wait; one was done in 16 s, of which its two epochs were 6 s, or 3 s where it was given the first."""
    runs, crew = acted(tmp_path, "aaaa" if has_first else "----", jobs=1)
    if has_first:
        (tmp_path / ".shared" / "a").mkdir(parents=True)
    monkeypatch.setattr("bdr.sweep.crew.time", SimpleNamespace(monotonic=lambda: 16.0))
    crew.step()
    record(runs[0], phases=2, epochs=[(0, 3.0), (1, 3.0)])
    (runs[0].path / "DONE").touch()
    crew.children[runs[0]].returncode = 0
    crew.step()
    record(runs[1], phases=1, epochs=[(0, 3.0)] * 3)
    waiting = 9 if has_first else 18
    assert seconds_left(crew) == pytest.approx((9 + 2 * waiting) / 3.0 + 2 * besides)


def test_without_a_terminal_a_line_says_now_and_then_how_long_it_will_go_on(tmp_path):
    runs, crew = acted(tmp_path, "--", jobs=1)
    crew.step()
    record(runs[0], phases=1, epochs=[(0, 3.0)] * 3)
    console = Console(file=io.StringIO())
    Lines(console).update(crew)
    assert console.file.getvalue() == ""
    Lines(console, every=0.0).update(crew)
    assert console.file.getvalue() == "2 runs: 1 running, 1 waiting; about 9 s left\n"


def test_a_run_that_was_not_analysed_does_not_count_as_one_that_is(forked, tmp_path):
    assert swept(["ucir"], tmp_path)[0] == 0
    code, said = swept(["ucir"], tmp_path, fields=FIELDS | {"analyse": True})
    assert (code, "was begun without --analyse: choose another folder with --runs" in said) == (2, True)


def test_a_dry_run_leaves_nothing_behind(tmp_path):
    code, said = swept(["ucir+cwd", "ucir+cwd+bdr"], tmp_path, dry_run=True)
    assert code == 0
    assert "2 runs, 2 to do" in said
    assert not list(tmp_path.iterdir())


def test_the_averages_come_in_the_order_that_was_typed(tmp_path, monkeypatch):
    runs, _ = acted(tmp_path, "---")
    record(runs[2])
    runs, crew = acted(tmp_path, "---")
    crew.step()
    for run in runs:
        crew.finish(run)
    shown = []
    monkeypatch.setattr(sweep, "show_averages", lambda found: shown.extend(run.title for run in found))
    sweep.conclude(crew, runs, "", None)
    assert crew.runs[0] is runs[2]
    assert shown == ["run0", "run1", "run2"]


# Sharing a machine


def test_runs_are_told_how_many_they_are(monkeypatch):
    monkeypatch.delenv("BDR_SIDE_BY_SIDE", raising=False)
    assert sweep.environment(jobs=4, at_once=3, cuda=True)["BDR_SIDE_BY_SIDE"] == "3"
    assert sweep.environment(jobs=1, at_once=0, cuda=True)["BDR_SIDE_BY_SIDE"] == "1"
    monkeypatch.setenv("BDR_SIDE_BY_SIDE", "7")  # by somebody who has started another sweep
    assert sweep.environment(jobs=4, at_once=3, cuda=True)["BDR_SIDE_BY_SIDE"] == "7"


def test_cores_are_shared_among_the_runs_of_a_sweep_and_a_gpu_needs_no_share(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(sweep, "usable_cores", lambda: 8)
    threads = [sweep.environment(jobs, 1, False).get("OMP_NUM_THREADS") for jobs in (1, 2, 3, 16)]
    assert threads == [None, "4", "2", "1"]
    assert "OMP_NUM_THREADS" not in sweep.environment(2, 2, True)
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert sweep.environment(2, 2, False)["OMP_NUM_THREADS"] == "5"


def test_a_run_is_alone_unless_it_is_told_otherwise_and_the_same_run_either_way(tmp_path, monkeypatch):
    def about(told):
        monkeypatch.setenv("BDR_SIDE_BY_SIDE", told) if told else monkeypatch.delenv("BDR_SIDE_BY_SIDE", raising=False)
        config = api.configure("ucir", "digits", fields={"device": "cpu"})[0]
        return plan_run(config, None, tmp_path)

    alone, beside = about(None), about("3")
    assert (alone.info["side_by_side"], beside.info["side_by_side"]) == (1, 3)
    assert alone.info["fingerprint"] == beside.info["fingerprint"]
    assert alone.experiment.shared == beside.experiment.shared
    with pytest.raises(UsageError, match="BDR_SIDE_BY_SIDE=many is not allowed"):
        about("many")


DAEMON = """#!/bin/sh
state={folder}/daemon
if [ "$1" = -d ]; then {start}; exit; fi
read command; echo "$command" >> {folder}/told
[ -e $state ] || exit 1
[ "$command" != get_server_list ] || echo 77
[ "$command" != "get_client_list 77" ] || cat {folder}/clients
[ "$command" != quit ] || rm $state
"""


def fake_daemon(folder, monkeypatch, start="touch $state"):
    file = folder / mps.CONTROL
    file.write_text(DAEMON.format(folder=folder, start=start))
    file.chmod(0o755)
    (folder / "clients").touch()
    monkeypatch.setattr(mps, "BETWEEN", 0.0)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder / "daemon"


def test_mps_is_started_where_there_is_none_and_stopped_again(tmp_path, monkeypatch):
    daemon, said = fake_daemon(tmp_path, monkeypatch), []
    with mps.side_by_side(True, said.append):
        assert daemon.exists()
    assert not daemon.exists()
    assert said == ["the runs share the GPU through MPS, started for this sweep"]


def test_mps_that_runs_already_is_left_running(tmp_path, monkeypatch):
    daemon, said = fake_daemon(tmp_path, monkeypatch), []
    daemon.touch()
    with mps.side_by_side(True, said.append):
        pass
    assert daemon.exists()
    assert said == ["the runs share the GPU through MPS, which is running already and is left running"]


def test_mps_that_others_have_joined_is_left_running(tmp_path, monkeypatch):
    daemon, said = fake_daemon(tmp_path, monkeypatch), []
    with mps.side_by_side(True, said.append):
        (tmp_path / "clients").write_text("4711\n")
    assert daemon.exists()
    assert said[1:] == [
        "MPS is left running, since other runs use it; after them, stop it with: echo quit | nvidia-cuda-mps-control"
    ]


def test_it_is_said_where_mps_cannot_be_had(tmp_path, monkeypatch):
    fake_daemon(tmp_path, monkeypatch, start="echo no rights; false")
    said = []
    with mps.side_by_side(True, said.append):
        pass
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with mps.side_by_side(True, said.append):
        pass
    assert "could not be started: no rights" in said[0]
    assert "is not installed" in said[1]


def test_mps_is_left_alone_where_it_is_not_wanted(tmp_path, monkeypatch):
    daemon = fake_daemon(tmp_path, monkeypatch)
    with mps.side_by_side(False, pytest.fail):
        assert not daemon.exists()
    assert not (tmp_path / "told").exists()


# Whole sweeps


@pytest.fixture(scope="module")
def finished(own, tmp_path_factory):
    """A sweep of two runs that share their first phase, and one that fails."""
    runs = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        fork(patch)
        code, said = swept(["ucir+cwd", "ucir+cwd+bdr", "sweep_own:Broken"], runs, jobs=2)
    return SimpleNamespace(runs=runs, code=code, said=said)


@pytest.mark.slow
def test_a_failing_run_does_not_stop_the_rest(finished):
    assert finished.code == 1
    assert len(list(finished.runs.rglob("DONE"))) == 2
    assert "failed sweep_own:Broken seed 1993" in finished.said
    assert "RuntimeError: this method is broken" in finished.said
    assert "1 of 3 runs failed" in finished.said.splitlines()[-1]
    assert "Finished runs" in finished.said


@pytest.mark.slow
def test_only_one_run_trains_a_shared_first_phase(finished):
    started = [line.split()[1] for line in finished.said.splitlines() if line.startswith("started")]
    assert started == ["ucir+cwd", "sweep_own:Broken", "ucir+cwd+bdr"]
    first, second = ((finished.runs / "digits-b4s3" / name) for name in ("ucir-cwd", "ucir-cwd-bdr"))
    assert not [log for log in first.rglob("log.txt") if BEFORE in log.read_text()]
    assert BEFORE in next(second.rglob("log.txt")).read_text()
    assert [folder.name for folder in (finished.runs / ".shared").iterdir()] == [planned_key(finished.runs)]


def planned_key(runs):
    return planned(["ucir+cwd+bdr"], runs, settings=SETTINGS)[0].shared.name


@pytest.mark.slow
def test_a_log_holds_what_the_run_said_and_how_to_type_it(finished):
    (log,) = (finished.runs / "sweep-logs").glob("digits-b4s3-ucir-cwd-bdr-*.log")
    assert "bdr run ucir+cwd+bdr --data digits --seed 1993" in log.read_text()
    info = Run.open(next((finished.runs / "digits-b4s3" / "ucir-cwd-bdr").iterdir())).info
    assert info["command"] in log.read_text()


@pytest.mark.slow
def test_a_run_says_how_many_were_side_by_side(finished):
    assert {Run.open(file.parent).info["side_by_side"] for file in finished.runs.rglob("DONE")} == {2}


@pytest.mark.slow
def test_typing_it_again_skips_what_is_done(finished):
    code, said = swept(["ucir+cwd", "ucir+cwd+bdr"], finished.runs)
    assert code == 0
    assert said.count("already done") == 2
    assert "started" not in said


def when(true, act):
    """Does something from outside, once something is true."""

    def watch():
        wait_until(true)
        act()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


def further_steps(own):
    """Whether a paced run has begun a step of its second phase from now on."""
    steps = own / "steps"
    steps.unlink(missing_ok=True)
    return steps.exists


def listening_and_stepping(own):
    """The sweep listens to signals, and its run is in a step: a signal too early would end the tests."""
    nobody, stepped = signal.getsignal(signal.SIGINT), further_steps(own)
    return lambda: signal.getsignal(signal.SIGINT) is not nobody and stepped()


@pytest.mark.slow
def test_a_sweep_that_was_stopped_twice_ends_where_a_whole_one_does(own, forked, tmp_path):
    runs, what = tmp_path / "runs", ["sweep_own:Paced"]
    code, said = swept(what, runs, until="2s")
    assert code == 0
    assert "stopped by --until 2s with 1 of 1 runs to go; go on by typing the same again: bdr" in said

    thread = when(listening_and_stepping(own), lambda: os.kill(os.getpid(), signal.SIGINT))
    code, said = swept(what, runs)
    thread.join()
    assert code == 130
    assert "stopped with 1 of 1 runs to go, and saved" in said
    (path,) = (file.parent for file in runs.rglob("run.json"))
    assert "stopped on request; the state is saved" in (path / "log.txt").read_text()

    (own / "hurry").touch()
    code, said = swept(what, runs)
    assert code == 0, said
    assert "going on with sweep_own:Paced" in said
    assert_equal(path, train(tmp_path / "whole", *what, phases=2))
    (own / "hurry").unlink()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell a process that its parent is gone")
def test_runs_save_themselves_when_their_sweep_is_killed(own, tmp_path):
    (run,) = planned(["sweep_own:Paced"], tmp_path / "runs", settings=SETTINGS)
    stepping = further_steps(own)
    options = [f"--{name.replace('_', '-')}={value}" for name, value in FIELDS.items()]
    words = [
        "sweep",
        "sweep_own:Paced",
        f"--runs={tmp_path / 'runs'}",
        *options,
        *(f"--set={each}" for each in SETTINGS),
    ]
    parent = subprocess.Popen([sys.executable, "-m", "bdr.cli", *words], stdout=subprocess.DEVNULL)
    wait_until(stepping)
    parent.kill()
    parent.wait()
    log = run.path / "log.txt"
    wait_until(lambda: log.exists() and "stopped on request; the state is saved" in log.read_text())
    assert not api.Run.open(run.path).done
    (said,) = (tmp_path / "runs" / "sweep-logs").iterdir()
    wait_until(lambda: f"stopped, and saved; go on with: bdr resume {run.path}" in said.read_text().replace("\n", " "))
