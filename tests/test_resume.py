"""A run that was stopped, by whom and wherever, ends where the whole one does: bit for bit."""

import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest
import torch
from runs import (
    Loaded,
    Position,
    arguments,
    assert_equal,
    newest,
    outcome,
    read_state,
    start,
    train,
    train_until,
    wait_until,
    where,
)

from bdr import api
from bdr.cli import main
from bdr.engine.checkpoint import Checkpoints, State
from bdr.engine.course import Course
from bdr.engine.listen import Listener
from bdr.methods import METHODS
from bdr.nets import Teacher
from bdr.records import Run, RunWriter

FLAT = {"net": "runs:flat"}
OWN, RESTLESS, TURNS = "runs:TwoStages", "runs:Restless", "runs:TakesTurns"
HALF_WAY = Position(1, 0, 1, 2)  # inside the second epoch of the second phase


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return train(tmp_path_factory.mktemp("whole") / "run")


@pytest.fixture(scope="module")
def whole_flat(tmp_path_factory):
    return train(tmp_path_factory.mktemp("whole") / "run", **FLAT)


@pytest.fixture(scope="module")
def whole_own(tmp_path_factory):
    return train(tmp_path_factory.mktemp("whole") / "run", OWN, **FLAT)


@pytest.fixture(scope="module")
def half(tmp_path_factory):
    return train_until(HALF_WAY, tmp_path_factory.mktemp("half") / "run", **FLAT)


@pytest.fixture
def stopped(half, tmp_path):
    """A run stopped half-way, to do with as one likes."""
    return Path(shutil.copytree(half, tmp_path / "run"))


@pytest.fixture
def bdr(monkeypatch, capsys):
    """The command line inside this process: its exit code, and what it says."""

    def call(*given):
        monkeypatch.setattr(sys, "argv", ["bdr", *map(str, given)])
        with pytest.raises(SystemExit) as left:
            main()
        said = capsys.readouterr()
        return left.value.code, said.out + said.err

    return call


def go_on(path, **fields):
    """What somebody types: `resume` once there is a run, the whole command before."""
    return ["resume", str(path)] if (path / "run.json").exists() else arguments(path, **fields)


def snapshot(path):
    return {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in path.rglob("*") if file.is_file()}


def test_a_run_is_compared_by_all_that_it_leaves(whole):
    parts = outcome(whole)
    last = parts["checkpoint"]
    assert {"method:net.head.new", "plugins.bdr:balance.mean", "plugins.bdr:balance.offset", "exemplars"} <= last.keys()
    assert {"steps.npz", "phase-02/model", "phase-01/memory.json", "phase-00/predictions.npz"} <= parts.keys()
    assert len(parts["epochs.jsonl"]) == 6
    assert len(parts["phases.jsonl"]) == 3


# Kills


@pytest.mark.slow
def test_a_run_killed_at_ten_random_moments_ends_where_the_whole_one_does(whole, tmp_path):
    path, chance, seen = tmp_path / "run", random.Random(2308), []
    further = [0, *(chance.choice([1, 1, 2]) for _ in range(9))]  # checkpoints beyond the one that was there
    for count in further:
        wanted = newest(path) + count
        child = start(go_on(path), tmp_path / "said")
        wait_until(lambda child=child, wanted=wanted: newest(path) >= wanted or not child.is_alive())
        time.sleep(chance.uniform(0, 0.01))
        child.kill()
        child.join()
        assert child.exitcode == -signal.SIGKILL
        seen.append(newest(path))
    assert len(set(seen)) > 5  # most of them fell into training
    finish(path, tmp_path)
    assert_equal(path, whole)


def finish(path, tmp_path):
    child = start(go_on(path), tmp_path / "said")
    child.join()
    assert child.exitcode == 0, (tmp_path / "said").read_text()


def die_again_and_again(path, tmp_path, **fields):
    """The first process dies at its first event, the second at its second, until one comes through; how many died."""
    for fatal in range(1, 200):
        child = start(go_on(path, **fields), tmp_path / "said", fatal)
        child.join()
        if child.exitcode == 0:
            return fatal - 1
        assert child.exitcode == 9, (tmp_path / "said").read_text()
        if newest(path):
            read_state(path / "checkpoint" / f"{newest(path):06d}")  # the newest is always whole
    raise AssertionError("no end")


@pytest.mark.slow
def test_death_after_any_write_sync_or_rename_costs_nothing(whole_flat, tmp_path):
    died = die_again_and_again(tmp_path / "run", tmp_path, **FLAT)
    assert died > 25  # more than the events of one checkpoint
    assert_equal(tmp_path / "run", whole_flat)


def test_death_while_a_run_is_being_finished_costs_nothing(whole_flat, tmp_path):
    path = Path(shutil.copytree(whole_flat, tmp_path / "run"))
    (path / "DONE").unlink()
    assert die_again_and_again(path, tmp_path) > 5
    assert_equal(path, whole_flat)


class Crash(Listener):
    """Raises when an epoch has been recorded and not yet saved."""

    def __init__(self, phase, epoch):
        self.place = phase, epoch

    def epoch_ends(self, phase, stage, log):
        if (phase.index, log.epoch) == self.place:
            raise RuntimeError("a crash")


@pytest.mark.parametrize("place", [(0, 0), (1, 1)])
def test_lines_written_after_the_last_checkpoint_do_not_stand_twice(place, whole_flat, tmp_path):
    with pytest.raises(RuntimeError, match="a crash"):
        train(tmp_path / "run", listener=Crash(*place), checkpoint_every=1000.0, **FLAT)
    api.resume(tmp_path / "run")
    assert_equal(tmp_path / "run", whole_flat)


@pytest.mark.parametrize(
    ("what", "saved", "told"),
    [
        ("ucir", HALF_WAY, "going on in phase 1 in epoch 2 of 2"),
        ("ucir", Position(1, 0, 1), "going on in phase 1 after epoch 1 of 2"),
        ("ucir", Position(2), "going on with phase 2"),
        (OWN, Position(1, 0, 1), "going on in phase 1, stage main, after epoch 1 of 2"),
    ],
)
def test_it_says_where_it_goes_on(what, saved, told, tmp_path, bdr):
    path = train_until(saved, tmp_path / "run", what, **FLAT)
    assert told in bdr("resume", path)[1].splitlines()


def test_it_says_that_it_begins_anew_where_nothing_was_saved(stopped, bdr):
    shutil.rmtree(stopped / "checkpoint")
    assert "there is no checkpoint: the run begins anew" in bdr("resume", stopped)[1].splitlines()


# Stops on request


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_asked_to_stop_it_saves_itself_and_says_how_to_go_on(number, whole, tmp_path):
    path, log = tmp_path / "run", tmp_path / "said"
    child = start(arguments(path), log)
    wait_until(lambda: newest(path) >= 2 or not child.is_alive())
    os.kill(child.pid, number)
    child.join(60)
    said = log.read_text()
    assert child.exitcode == 130
    assert "stopping after this step" in said
    assert f"bdr resume {path}" in said
    assert said.count("stopped") == 1
    assert "Traceback" not in said
    assert "stopped on request" in (path / "log.txt").read_text()
    api.resume(path)
    assert_equal(path, whole)


@pytest.mark.slow
def test_asked_twice_it_leaves_at_once(tmp_path):
    log = tmp_path / "said"
    child = start(arguments(tmp_path / "run", "runs:Slow", **FLAT), log)
    wait_until(lambda: log.exists() and "in the second step" in log.read_text())
    os.kill(child.pid, signal.SIGINT)
    wait_until(lambda: "once more to leave at once" in log.read_text())
    os.kill(child.pid, signal.SIGINT)
    child.join(30)  # half of what its step would take
    said = log.read_text()
    assert child.exitcode == 130
    assert "left at once; the last checkpoint is kept" in said
    assert "Traceback" not in said
    assert where(tmp_path / "run") == Position(0, 0, 0, 1)


# Damage


def flip_a_byte(folder):
    file = folder / "tensors.safetensors"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def cut_the_info(folder):
    os.truncate(folder / "info.json", 100)


def lose_the_sums(folder):
    (folder / "sums.json").unlink()


@pytest.mark.parametrize("damage", [flip_a_byte, cut_the_info, lose_the_sums])
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_used(damage, stopped, whole_flat, bdr):
    folder = stopped / "checkpoint" / f"{newest(stopped):06d}"
    damage(folder)
    code, said = bdr("resume", stopped)
    assert (code, str(folder) in said) == (0, True)
    assert "going on from the checkpoint before it" in said
    assert str(folder) in (stopped / "log.txt").read_text()
    assert_equal(stopped, whole_flat)


def test_the_one_before_a_damaged_checkpoint_is_a_step_behind(stopped):
    flip_a_byte(stopped / "checkpoint" / f"{newest(stopped):06d}")
    with pytest.warns(UserWarning, match=r"tensors\.safetensors is damaged"):
        found = Checkpoints(stopped / "checkpoint").newest()
    assert Position(**found.info["position"]) == Position(1, 0, 1, 1)


def test_with_every_checkpoint_damaged_a_run_starts_anew(stopped, whole_flat, bdr):
    for folder in Checkpoints(stopped / "checkpoint").saved():
        flip_a_byte(folder)
    code, said = bdr("resume", stopped)
    assert (code, said.count("is damaged")) == (0, 2)
    assert "phase 0 of 0..2: 4 classes" in said
    assert_equal(stopped, whole_flat)


@pytest.fixture
def finished(whole_flat, tmp_path):
    """A finished run, to be damaged."""
    return Path(shutil.copytree(whole_flat, tmp_path / "run"))


def test_a_finished_run_that_lost_its_last_line_goes_on_from_the_checkpoint_before(finished, whole_flat, bdr):
    file = finished / "phases.jsonl"
    os.truncate(file, file.stat().st_size - 10)
    code, said = bdr("show", finished)
    assert (code, "phases.jsonl is damaged: 2 of 3 phases are there" in said) == (1, True)
    assert f"bdr resume {finished}" in said
    code, said = bdr("resume", finished)
    assert (code, "records were lost; going on from the checkpoint before it" in said) == (0, True)
    assert_equal(finished, whole_flat)


@pytest.mark.parametrize("checkpoints", [True, False])
@pytest.mark.parametrize("again", ["resume", "run"])
def test_a_finished_run_that_lost_too_much_keeps_the_rest_and_says_what_to_do(checkpoints, again, finished, bdr):
    os.truncate(finished / "phases.jsonl", 300)
    if not checkpoints:
        shutil.rmtree(finished / "checkpoint")
    before = snapshot(finished)
    code, said = bdr(*(["resume", finished] if again == "resume" else arguments(finished, **FLAT)))
    assert (code, "already done" in said) == (1, False)
    assert ("phases.jsonl has 300 bytes" if checkpoints else "phases.jsonl is damaged") in said
    assert f"put back a copy of the file, or train anew: remove or rename {finished}, and type bdr" in said
    now = snapshot(finished)
    assert {**now, finished / "log.txt": None} == {**before, finished / "log.txt": None}


def test_a_run_that_lost_its_steps_keeps_the_rest_and_says_what_to_do(stopped, bdr):
    (stopped / "steps.bin").unlink()
    before = snapshot(stopped)
    code, said = bdr("resume", stopped)
    assert (code, "steps.bin has 0 bytes" in said) == (1, True)
    assert f"put back a copy of the file, or train anew: remove or rename {stopped}, and type bdr" in said
    now = snapshot(stopped)
    assert {**now, stopped / "log.txt": None} == {**before, stopped / "log.txt": None}


# What rests is written once


class Half(torch.nn.Module):
    """A part that learns and a part at rest, as checkpoints see them."""

    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(3, 3)
        self.teacher = Teacher(self.net)

    def save(self, checkpoints):
        checkpoints.save(State(dict(self.state_dict()), {}), {"teacher.": self.teacher.content})
        checkpoints.wait()


def at_rest(folder):
    return sorted(file.name for file in folder.glob("resting/*"))


def test_a_teacher_is_written_once_and_again_when_it_is_refilled(tmp_path):
    checkpoints, half = Checkpoints(tmp_path), Half()
    seen = []
    for step in range(5):
        with torch.no_grad():
            half.net.weight += 1
        if step == 2:
            half.teacher.refill(half.net)
        half.save(checkpoints)
        seen.append(at_rest(tmp_path))
        tensors = checkpoints.newest().tensors
        assert all(torch.equal(value, tensors[name]) for name, value in half.state_dict().items())
    first, second = ["000001-0.safetensors"], ["000003-0.safetensors"]
    assert seen == [first, first, first + second, second, second]  # two checkpoints are kept, and what they refer to


def test_a_run_that_goes_on_refers_to_what_is_there(tmp_path):
    half = Half()
    half.save(Checkpoints(tmp_path))
    later = Checkpoints(tmp_path)
    assert later.newest() is not None
    later.trust({"teacher.": half.teacher.content})
    half.save(later)
    assert at_rest(tmp_path) == ["000001-0.safetensors"]
    half.save(Checkpoints(tmp_path))  # one that has not loaded anything trusts nothing
    assert at_rest(tmp_path) == ["000001-0.safetensors", "000003-0.safetensors"]


def test_a_damaged_file_at_rest_damages_the_checkpoints_that_refer_to_it(tmp_path):
    checkpoints, half = Checkpoints(tmp_path), Half()
    half.save(checkpoints)
    half.teacher.refill(half.net)
    half.save(checkpoints)
    (tmp_path / "resting" / "000002-0.safetensors").write_bytes(b"nothing")
    with pytest.warns(UserWarning, match=r"000002-0\.safetensors is damaged"):
        assert checkpoints.newest() is not None


# What was read is not held


@pytest.mark.parametrize(
    ("position", "held"),
    [(Position(1, 0, 1, 2), 1), (Position(1, 0, 1, 0), 0), (Position(1), 0)],
    ids=["inside an epoch", "between epochs", "between phases"],
)
def test_a_run_that_goes_on_holds_nothing_that_it_has_read_but_the_log_of_its_epoch(
    position, held, tmp_path, monkeypatch
):
    path = train_until(position, tmp_path / "run", OWN, **FLAT)
    heard = Loaded(monkeypatch)
    api.resume(path, listener=heard)
    assert heard.read
    assert heard.held == [held] + [0] * (len(heard.held) - 1)


def test_a_run_that_goes_on_after_a_stage_holds_nothing_that_it_has_read(tmp_path, monkeypatch):
    save = Course.save

    def crash(self, *given):
        save(self, *given)
        if self.position == Position(1, 1):
            raise RuntimeError("a crash")

    with monkeypatch.context() as patch:
        patch.setattr(Course, "save", crash)
        with pytest.raises(RuntimeError, match="a crash"):
            train(tmp_path / "run", OWN, **FLAT)
    assert where(tmp_path / "run") == Position(1, 1)
    heard = Loaded(monkeypatch)
    api.resume(tmp_path / "run", listener=heard)
    assert heard.read
    assert not any(heard.held)


# Inside epochs and stages


@pytest.mark.parametrize("position", [Position(0, 0, 0, 1), Position(1, 0, 1, 2)])
def test_dropout_goes_on_with_the_random_numbers_that_were_next(position, whole_own, tmp_path):
    path = train_until(position, tmp_path / "run", OWN, **FLAT)
    torch.rand(7)  # whatever else happened meanwhile
    api.resume(path)
    assert_equal(path, whole_own)


def test_without_the_random_state_dropout_ends_elsewhere(whole_own, tmp_path, monkeypatch):
    path = train_until(Position(0, 0, 0, 1), tmp_path / "run", OWN, **FLAT)
    monkeypatch.setattr(torch, "set_rng_state", lambda state: None)
    api.resume(path)
    assert outcome(path)["checkpoint"] != outcome(whole_own)["checkpoint"]


@pytest.mark.parametrize("position", [Position(1, 1, 1, 0), Position(2, 1, 1, 3)])
def test_a_run_stopped_in_a_second_stage_on_the_exemplars_ends_equal(position, whole_own, tmp_path):
    path = train_until(position, tmp_path / "run", OWN, **FLAT)
    api.resume(path)
    assert_equal(path, whole_own)


@pytest.fixture(scope="module")
def whole_turns(tmp_path_factory):
    return train(tmp_path_factory.mktemp("whole") / "run", TURNS, **FLAT)


@pytest.mark.parametrize("position", [Position(1, 0, 0, 2), Position(1, 0, 1, 0), Position(2, 0, 1, 3)])
def test_stages_that_take_turns_end_equal_after_a_stop_inside_and_between_epochs(position, whole_turns, tmp_path):
    path = train_until(position, tmp_path / "run", TURNS, **FLAT)
    torch.rand(7)  # whatever else happened meanwhile
    api.resume(path)
    assert_equal(path, whole_turns)


def test_a_crash_before_the_turn_of_an_epoch_costs_nothing(whole_turns, tmp_path):
    with pytest.raises(RuntimeError, match="a crash"):
        train(tmp_path / "run", TURNS, listener=Crash(1, 1), **FLAT)
    api.resume(tmp_path / "run")
    assert_equal(tmp_path / "run", whole_turns)


def test_without_the_moments_of_the_other_stage_turns_end_elsewhere(whole_turns, tmp_path, monkeypatch):
    path = train_until(Position(1, 0, 1, 0), tmp_path / "run", TURNS, **FLAT)
    restore = Course.restore

    def without_the_other(self, state):
        """What alternates is not found under its name."""
        tensors = {name: value for name, value in state.tensors.items() if not name.startswith("alternate:")}
        restore(self, state._replace(tensors=tensors))

    monkeypatch.setattr(Course, "restore", without_the_other)
    api.resume(path)
    assert outcome(path)["checkpoint"] != outcome(whole_turns)["checkpoint"]


def test_a_stage_and_its_turns_stand_in_the_records_one_after_the_other(whole_turns):
    names = [(line["phase"], line["epoch"], line["stage"]) for line in outcome(whole_turns)["epochs.jsonl"]]
    assert names == [(0, 0, "main"), (0, 1, "main")] + [
        (phase, epoch, stage) for phase in (1, 2) for epoch in (0, 1) for stage in ("main", "turn")
    ]


def test_moments_are_saved_under_the_names_that_checkpoints_have_always_had(tmp_path):
    path = train_until(Position(1, 0, 1), tmp_path / "run", TURNS, **FLAT)
    starts = {name.partition(":")[0] for name in Checkpoints(path / "checkpoint").newest().tensors}
    assert starts == {"method", "optimizer", "alternate"}


def test_each_of_two_stages_that_take_turns_moves_what_it_names(tmp_path, monkeypatch):
    states, alternate = [], Course.alternate

    def watched(self, main, aside, epoch):
        states.append(copied(self.method))
        alternate(self, main, aside, epoch)
        states.append(copied(self.method))
        moving = {name.split(".")[1] for name, p in self.method.named_parameters() if p.requires_grad}
        assert moving == {"backbone"}  # again, for the next epoch
        assert self.method.net.backbone.training

    monkeypatch.setattr(Course, "alternate", watched)
    train(tmp_path / "run", TURNS, phases=2, **FLAT)
    before, after, later, _ = states
    assert changed_parts(before, after) == {"head"}
    assert changed_parts(after, later) == {"backbone"}


def copied(method):
    return {name: value.clone() for name, value in method.net.state_dict().items()}


def changed_parts(one, other):
    return {name.split(".")[0] for name in one if not torch.equal(one[name], other[name])}


@pytest.fixture(scope="module")
def whole_restless(tmp_path_factory):
    return train(tmp_path_factory.mktemp("whole") / "run", RESTLESS, **FLAT)


@pytest.mark.parametrize("position", [Position(0, 0, 1, 0), Position(1, 0, 1, 2), Position(1, 1, 1, 0), Position(2)])
def test_a_head_that_is_drawn_anew_before_every_epoch_is_the_same_after_a_stop(position, whole_restless, tmp_path):
    path = train_until(position, tmp_path / "run", RESTLESS, **FLAT)
    torch.rand(7)  # whatever else happened meanwhile
    api.resume(path)
    assert_equal(path, whole_restless)


def test_what_is_drawn_at_the_end_of_a_phase_is_the_same_after_a_crash_before_it(whole_restless, tmp_path, monkeypatch):
    def crash(self, phase, pool):
        raise RuntimeError("a crash")

    with monkeypatch.context() as patch:
        patch.setattr(Course, "end_phase", crash)
        with pytest.raises(RuntimeError, match="a crash"):
            train(tmp_path / "run", RESTLESS, **FLAT)
    assert where(tmp_path / "run") == Position(0, 2)
    torch.rand(7)
    api.resume(tmp_path / "run")
    assert_equal(tmp_path / "run", whole_restless)


def test_the_second_stage_trains_on_the_exemplars_alone(whole_own):
    names = [line["stage"] for line in outcome(whole_own)["epochs.jsonl"]]
    assert names == ["main", "main", "balanced", "balanced"] * 3


# Commands


def test_a_finished_run_is_left_as_it_is(whole, bdr):
    before = snapshot(whole)
    code, said = bdr("resume", whole)
    assert (code, "already done" in said, "accuracy" in said) == (0, True, True)
    assert snapshot(whole) == before


def test_the_same_command_on_a_finished_run_shows_its_table_without_training(whole, bdr):
    before = snapshot(whole)
    code, said = bdr(*arguments(whole))
    assert (code, "already done" in said, "accuracy" in said) == (0, True, True)
    assert snapshot(whole) == before


def test_the_same_command_on_an_unfinished_run_goes_on_with_it(stopped, whole_flat, bdr):
    code, said = bdr(*arguments(stopped, **FLAT))
    assert (code, f"going on with {stopped}" in said) == (0, True)
    assert ("phase 0 of 0..2" in said, "phase 1 of 0..2: 7 classes" in said) == (False, True)
    assert_equal(stopped, whole_flat)


def test_a_run_of_a_gpu_goes_on_and_is_evaluated_on_a_cpu_as_precisely(tmp_path, bdr):
    path = train_until(HALF_WAY, tmp_path / "run", precision="bf16", **FLAT)
    info = json.loads((path / "run.json").read_text())
    info["config"]["precision"] = "auto"  # which is bf16 on a GPU
    (path / "run.json").write_text(json.dumps(info))
    assert bdr("resume", path)[0] == 0
    there = Run.open(path)
    assert (there.done, there.protocol["precision"]) == (True, "bf16")
    assert api.evaluate(path)[1]["accuracy"] == there.phases[-1]["accuracy"]


@pytest.mark.parametrize("again", ["resume", "run"])
def test_a_run_that_is_under_way_elsewhere_is_not_trained_twice(again, stopped, bdr):
    theirs = RunWriter.alone(stopped)
    before = snapshot(stopped)
    code, said = bdr(*(["resume", stopped] if again == "resume" else arguments(stopped, **FLAT)))
    assert (code, f"is being trained by process {os.getpid()}: wait for it" in said) == (1, True)
    assert snapshot(stopped) == before
    theirs.close()


@pytest.mark.parametrize("made", [None, "folder", "file"])
def test_what_is_not_a_run_cannot_be_gone_on_with(made, tmp_path, bdr):
    path = tmp_path / "thing"
    if made == "folder":
        path.mkdir()
    if made == "file":
        path.touch()
    code, said = bdr("resume", path)
    assert (code, f"{path} is not a run" in said) == (2, True)


def test_a_run_asked_to_stop_between_phases_begins_with_the_next_one(whole_flat, tmp_path):
    path = train_until(Position(2), tmp_path / "run", **FLAT)
    assert not (path / "phase-02").exists()
    api.resume(path)
    assert_equal(path, whole_flat)


def test_the_last_position_is_past_the_last_phase(whole):
    assert where(whole) == Position(3)


# Every method

VIT = [("vit-tiny.embed", 8), ("vit-tiny.heads", 2)]
NARROW = {  # of methods that need a network of another kind, and would take most of the time
    "dualprompt": VIT,
    "dytox": [("convit-small.embed", 16)],
    "l2p": VIT,
    "rpsnet": [("rps-small.modules", 3), ("rps-small.widths", [4, 6, 8])],
}


@pytest.mark.parametrize("name", METHODS)
def test_every_method_ends_where_the_whole_run_does(name, tmp_path):
    """Stopped in the middle of the first epoch with a teacher, an anchor or a memory."""
    keeps = METHODS[name].keeps
    given = {"memory": "3/class" if "some" in keeps else "0" if "none" in keeps else "all", "phases": 2}
    given["settings"] = NARROW.get(name, [])
    whole = train(tmp_path / "whole" / "run", name, **given)
    path = train_until(Position(1, 0, 0, 2), tmp_path / "stopped" / "run", name, **given)
    api.resume(path)
    assert_equal(path, whole)
