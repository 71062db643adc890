"""How much of a run is done and how long the rest takes, from its record alone."""

import io
import time

import numpy as np
import pytest
from directories import PHASES, draw_predictions, make_run, phase_line
from rich.console import Console
from runs import assert_equal, plan

from bdr import api
from bdr.display import Lines
from bdr.engine.listen import Listener
from bdr.records import Run, RunWriter, epochs_of, work_of
from bdr.records.work import epochs_told, stages_planned

MAIN, LATER = {"stage": "main", "images": 400, "epochs": 10}, {"stage": "main", "images": 100, "epochs": 10}
BALANCED = {"stage": "balanced", "images": 20, "epochs": 30}
WORK = [[MAIN], *([LATER, BALANCED] for _ in PHASES[1:])]
OF_A_PHASE = 100 * 10 + 20 * 30
TOTAL = 400 * 10 + 3 * OF_A_PHASE


def train_epochs(writer, phase, count, stage="main", speed=100.0, seconds=2.0):
    for epoch in range(count):
        line = {"phase": phase, "stage": stage, "epoch": epoch, "images_per_second": speed, "seconds": seconds}
        writer.epoch(line)


@pytest.fixture
def writer(tmp_path):
    """A run whose first phase is over."""
    made = RunWriter(make_run(tmp_path, phases=0, done=False, work=WORK).path)
    train_epochs(made, 0, 10)
    labels, ids = draw_predictions(np.random.default_rng(0), 0, 0.8)
    made.phase(phase_line(0, labels, ids))
    return made


def test_the_time_left_is_that_of_the_images_left_in_all_stages(writer):
    train_epochs(writer, 1, 10)
    train_epochs(writer, 1, 15, "balanced")
    found = work_of(Run.open(writer.path))
    done = 4000 + 1000 + 15 * 20
    assert (found.done, found.total) == (done, TOTAL)
    assert found.left == pytest.approx((TOTAL - done) / 100)
    assert found.share == pytest.approx(done / TOTAL)


def test_what_alternates_with_a_stage_takes_time_and_is_no_epoch_of_it(writer):
    for _ in range(8):
        train_epochs(writer, 1, 1)
        train_epochs(writer, 1, 1, "turn", speed=10.0, seconds=1.0)
    found = work_of(Run.open(writer.path))
    assert found.done == 4000 + 8 * 100
    assert found.left == pytest.approx((TOTAL - found.done) * 3.0 / 200)


def test_nothing_is_left_of_a_finished_run_and_no_time_is_known_before_the_first_epoch(tmp_path):
    assert work_of(make_run(tmp_path / "done", work=WORK))[:2] == (TOTAL, TOTAL)
    assert work_of(make_run(tmp_path / "new", phases=0, done=False, work=WORK)) == (0, TOTAL, None)


def test_no_time_is_told_before_epochs_are_steady_and_one_that_compiled_does_not_count(tmp_path):
    writer = RunWriter(make_run(tmp_path, phases=0, done=False, work=WORK).path)
    train_epochs(writer, 0, 1, speed=1.0, seconds=400.0)
    assert work_of(Run.open(writer.path)) == (400, TOTAL, None)
    train_epochs(writer, 0, 2)
    assert work_of(Run.open(writer.path)).left == pytest.approx((TOTAL - 3 * 400) / 100)
    train_epochs(writer, 0, 1)
    train_epochs(writer, 0, 1, speed=1.0, seconds=400.0)  # after a stop
    assert work_of(Run.open(writer.path)).left == pytest.approx((TOTAL - 5 * 400) / 100)


def test_a_record_that_does_not_say_how_much_work_it_is_shows_none(tmp_path):
    run = make_run(tmp_path, phases=1, done=False)
    assert work_of(run) is None
    assert epochs_of(run, 1, "main") == 0


def test_a_listener_hears_of_all_that_alternates_and_tells_the_time_that_the_record_tells(tmp_path):
    turns = []

    class Hears(Lines):
        def turn_ends(self, phase, stage, log):
            super().turn_ends(phase, stage, log)
            turns.append((phase.index, stage.name, log.epoch))

    heard = Hears(Console(file=io.StringIO()))
    api.execute(plan(tmp_path / "run", "runs:TakesTurns", net="runs:flat"), heard)
    run = Run.open(tmp_path / "run")
    assert turns
    assert turns == [
        tuple(map(line.get, ("phase", "stage", "epoch"))) for line in run.epochs if line["stage"] == "turn"
    ]
    told = epochs_told(run.epochs, stages_planned(run.info["work"]))
    assert [seconds for _, seconds in heard.workload.epochs] == pytest.approx([seconds for _, seconds in told])


def test_a_stage_says_how_many_epochs_it_has(writer):
    run = Run.open(writer.path)
    assert [epochs_of(run, *where) for where in ((0, "main"), (1, "balanced"), (1, "turn"), (9, "main"))] == [
        10,
        30,
        0,
        0,
    ]


@pytest.mark.parametrize("method", ["TwoStages", "TakesTurns"])
def test_a_run_records_the_work_that_it_then_does(method, tmp_path):
    shares = []

    class Looks(Listener):
        def epoch_ends(self, phase, stage, log):
            shares.append(work_of(Run.open(tmp_path / "run")).share)

    begun = plan(tmp_path / "run", f"runs:{method}", net="runs:flat")
    api.execute(begun, Looks())
    assert Run.open(tmp_path / "run").info["work"] == begun.work()
    assert shares == sorted(set(shares))
    assert shares[-1] == 1.0


def test_steps_are_told_in_their_order_and_change_nothing_of_a_run(tmp_path, monkeypatch):
    told = []

    class Looks(Listener):
        def steps_end(self, phase, stage, epoch, step, steps):
            told.append((phase.index, stage.name, epoch, step, steps))

    api.execute(plan(tmp_path / "silent", "runs:TwoStages", net="runs:flat"))
    monkeypatch.setattr("bdr.engine.course.TOLD_EVERY", 0.0)
    api.execute(plan(tmp_path / "run", "runs:TwoStages", net="runs:flat"), Looks())
    assert_equal(tmp_path / "run", tmp_path / "silent")
    assert told == [
        (phase, stage, epoch, step, steps)
        for phase, stage, epoch, steps in dict.fromkeys((*each[:3], each[4]) for each in told)
        for step in range(1, steps)  # the end of the last one is the end of the epoch
    ]
    assert {phase for phase, *_ in told} == {0, 1, 2}


def test_steps_are_told_once_a_second_at_most(tmp_path):
    told = []

    class Looks(Listener):
        def steps_end(self, phase, stage, epoch, step, steps):
            told.append(time.monotonic())

    begun = time.monotonic()
    api.execute(plan(tmp_path / "run", "runs:TwoStages", net="runs:flat"), Looks())
    assert len(told) <= time.monotonic() - begun


def test_a_run_from_python_tells_its_folder_and_its_phases_to_the_log(tmp_path, caplog):
    caplog.set_level("INFO", "bdr")
    api.execute(plan(tmp_path / "run", "runs:TwoStages", net="runs:flat"))
    told = [text for text in caplog.messages if not text.startswith("note: ")]
    assert told[0].endswith(f" -> {tmp_path / 'run'}")
    assert [text.partition(":")[0] for text in told if " classes, cnn " in text] == [
        f"phase {number} of 0..2" for number in range(3)
    ]
