"""Commands that look at runs skip by name what they cannot read, and show the rest."""

import json
import shutil
from pathlib import Path

import pytest
from directories import make_run
from test_cli import typed

from bdr.records import RunWriter
from bdr.report import gather

LOOKS = {
    "show": ("show",),
    "list": ("list", "runs", "--runs"),
    "log": ("log", "--to", "json"),
    "figure": ("figure", "3", "--format", "svg", "--out", "figures"),
}
SKIPPED = {"torn", "foreign", "odd", "lost"}
ODD = [
    {"config": {"stage": 5}},
    {"config": "by hand"},
    {"config": {"settings": [1]}},
    {"phases": [1, 2]},
    {"title": " "},
    {"classes": []},
    {"distillation": ["less_forget"]},
]


class JsonTracker:
    """What `bdr log` is handed, into one file for all runs."""

    def __init__(self, run):
        self.run = run

    def add(self, points): ...

    def close(self, done):
        with Path("logged.txt").open("a") as file:
            file.write(f"{self.run.path.name}\n")


@pytest.fixture(autouse=True)
def somewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("bdr.commands.tracking.check_tracker", lambda name: None)
    monkeypatch.setattr("bdr.trackers.follow.open_tracker", lambda name, run: JsonTracker(run))


def changed(folder, **changes):
    info = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(info | changes))


@pytest.fixture
def folder(tmp_path):
    """A method without and with BDR among damaged, empty, half-written and foreign directories."""
    runs = tmp_path / "runs"
    good = make_run(runs, "ucir").path
    half = make_run(runs, "ucir+bdr").path
    with (half / "phases.jsonl").open("a") as file:
        file.write('{"phase": 4, "se')
    for name in (*SKIPPED, "young"):
        shutil.copytree(good, runs / name)
    (runs / "torn" / "run.json").write_text('{"title": ')
    (runs / "foreign" / "run.json").write_text(json.dumps({"name": "of another program"}))
    changed(runs / "odd", config={"stage": 5})
    (runs / "lost" / "run.json").unlink()
    (runs / "young" / "phases.jsonl").write_text("")
    (runs / "young" / "DONE").unlink()
    (runs / "nothing").mkdir()
    return runs


def skipped(said):
    return {Path(line.split(": ")[1].removeprefix("skipped ")).name for line in said.splitlines() if "skipped" in line}


@pytest.mark.parametrize("command", LOOKS)
def test_what_cannot_be_read_is_skipped_by_name_and_the_rest_is_shown(folder, command):
    code, _, said = typed(*LOOKS[command], folder)
    assert code == 0, said
    young = {"young"} if command in ("show", "figure") else set()
    assert skipped(said) == SKIPPED | young


def test_a_half_written_last_line_is_left_out_with_a_note(folder):
    half = folder / "ucir+bdr-1993"
    _, _, said = typed("show", folder)
    assert said.count("note: ") == 1
    assert f"note: the last line of {half / 'phases.jsonl'} is half-written and left out\n" in said
    (half / "DONE").unlink()
    assert f"left out; go on with: bdr resume {half}\n" in typed("show", folder)[2]


def test_runs_without_a_finished_phase_are_listed_in_natural_order(folder):
    _, listed, _ = typed("list", "runs", "--runs", folder)
    assert [line.split()[1] for line in listed.splitlines()] == ["ucir", "ucir", "ucir+bdr"]
    assert "young  ucir seed 1993: stopped in phase 0, or still in it; go on with: bdr resume" in listed
    assert "ucir-1993  ucir seed 1993: done, " in listed


def test_a_run_whose_steps_are_damaged_is_shown_without_its_destruction(tmp_path):
    path = make_run(tmp_path).path
    (path / "steps.npz").write_bytes(b"no arrays")
    code, shown, said = typed("show", path)
    assert code == 0
    assert "Average " in shown
    assert f"warning: {path / 'steps.npz'} is damaged: " in said
    assert said.endswith(f"; {path} is told without its destruction: put back a copy of the file\n")
    values = json.loads(typed("show", path, "--json")[1])["groups"][0]["values"]
    assert values["destruction_peak"]["mean"] is None
    assert values["average"]["n"] == 1
    (path / "checkpoint").mkdir()
    assert str(path / "checkpoint") not in typed("clean", path)[1]


def test_a_run_that_failed_is_listed_with_what_its_log_says_until_it_goes_on(tmp_path):
    for name, phases in (("young", 0), ("older", 2)):
        make_run(tmp_path / name, phases=phases, done=False)
        RunWriter(tmp_path / name / "ucir-1993").log("failed: BdrError: the loss is nan in phase 2")
    _, listed, _ = typed("list", "runs", "--runs", tmp_path)
    said = "failed: BdrError: the loss is nan in phase 2; try again with: bdr resume"
    assert f"young/ucir-1993  ucir seed 1993: {said} {tmp_path / 'young' / 'ucir-1993'}" in listed
    assert f" %; {said} {tmp_path / 'older' / 'ucir-1993'}" in listed
    RunWriter(tmp_path / "young" / "ucir-1993").log("there is no checkpoint: the run begins anew")
    _, listed, _ = typed("list", "runs", "--runs", tmp_path)
    assert "young/ucir-1993  ucir seed 1993: stopped in phase 0, or still in it; go on with: bdr resume" in listed


def test_what_a_run_has_recorded_before_its_first_phase_is_finished_is_logged(folder):
    typed("log", "--to", "json", folder)
    assert sorted(Path("logged.txt").read_text().split()) == ["ucir+bdr-1993", "ucir-1993", "young"]


def test_several_trackers_are_one_look_at_the_runs(folder):
    said = typed("log", "--to", "json,json2", folder)[2]
    assert said.count("skipped") == len(SKIPPED)


@pytest.mark.parametrize("command", LOOKS)
@pytest.mark.parametrize("which", sorted(SKIPPED))
def test_a_damaged_run_that_is_named_alone_is_an_error(folder, command, which):
    code, _, said = typed(*LOOKS[command], folder / which)
    assert code == 1
    assert f"warning: skipped {folder / which}: " in said
    assert f"no run in {folder / which} can be read; the warnings above say why" in said


@pytest.mark.parametrize("command", LOOKS)
def test_a_folder_without_runs_is_told_how_to_make_one(folder, command):
    code, _, said = typed(*LOOKS[command], folder / "nothing")
    assert code == 2
    assert "make one with: bdr run" in said


@pytest.mark.parametrize("command", ["show", "figure"])
def test_a_run_without_a_finished_phase_alone_says_how_to_go_on(folder, command):
    code, _, said = typed(*LOOKS[command], folder / "young")
    assert code != 0
    assert f"go on with: bdr resume {folder / 'young'}" in said


@pytest.mark.parametrize("changes", ODD, ids=json.dumps)
def test_a_record_that_is_json_and_not_ours_is_named(tmp_path, changes):
    good, odd = make_run(tmp_path, "ucir"), make_run(tmp_path, "wa").path
    changed(odd, **changes)
    found, warnings = gather([tmp_path])
    assert [run.path for run in found] == [good.path]
    assert [warning.startswith(f"skipped {odd}: ") for warning in warnings] == [True]
