"""What a terminal shows of a run: the time left and the bar stay, whatever room there is."""

import inspect
import io
import logging
import signal
import sys
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console
from test_cli import WHOLE, typed

from bdr.cli import heard, say_warning
from bdr.display import Bar, Lines, Logged, Workload, duration
from bdr.engine.listen import EpochLog, Listener, Several
from bdr.terminal import say, stoppable, tell
from bdr.types import Phase, Stage


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.4, "0 s"), (59, "59 s"), (60, "1 min"), (3360, "56 min"), (3599, "1 h 0 min"), (86340, "23 h 59 min")],
)
def test_a_time_has_its_units(seconds, said):
    assert duration(seconds) == said


def drawn(width, stage="main", epochs=3):
    """The line of a run that is in the middle of its second phase, after so many epochs."""
    bar = Bar(Console(width=width, force_terminal=True))
    phases = [Phase(0, 0, 50), *(Phase(n, 40 + 10 * n, 50 + 10 * n) for n in range(1, 11))]
    log = EpochLog(99, 0.1, ("ce",), np.full((4, 1), 2.5), {"ce": 1.0}, seconds=4.0, images=20_000)
    with bar.console.capture():
        bar.run_begins("ucir", phases, "run", [[100_000], [4_000_000]])
        for _ in range(epochs):
            bar.epoch_ends(phases[10], Stage(stage, epochs=160), log)
        bar.run_ends()
    with bar.console.capture() as said:
        bar.console.print(bar.progress.make_tasks_table(bar.progress.tasks))
    return said.get()


@pytest.mark.parametrize("stage", ["main", "correction"])
@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_the_bar_the_time_left_and_the_time_it_took_keep_their_room(width, stage):
    (line,) = drawn(width, stage).splitlines()
    assert "phase 10" in line
    assert "…" not in line
    assert " left" in line
    assert "0:00:0" in line
    assert line.count("━") == 20


def test_where_there_is_room_everything_is_told():
    assert "phase 10 of 0..10, main epoch 100/160, loss 2.500, 5,000 images/s" in drawn(160)
    assert "phase 10, main 100/160, loss 2.500" in drawn(80)
    assert "13:28 left" in drawn(80)  # 4,040,000 images at 5,000 a second
    assert "? left" in drawn(80, epochs=1)


def test_the_time_left_is_told_by_the_last_ten_epochs():
    work = Workload([[1000], [3000]])
    for _ in range(10):
        work.add(100, seconds=1.0)
    for images, seconds in [(50, 5.0), *[(100, 10.0)] * 9]:  # a later phase is slower
        work.add(images, seconds)
    assert work.left == pytest.approx((4000 - 1950) * 0.1)


def test_what_alternates_with_epochs_takes_time_of_which_more_is_left():
    said = io.StringIO()
    lines, phase = Lines(Console(file=said, width=120), every=0.0), Phase(0, 0, 50)
    lines.run_begins("ucir", [phase], "run", [[5000]])
    log = EpochLog(0, 0.1, ("ce",), np.full((4, 1), 2.5), {"ce": 1.0}, seconds=1.0, images=100)
    for _ in range(4):
        lines.epoch_ends(phase, Stage(epochs=50), log)
        lines.turn_ends(phase, Stage("aggregation"), log._replace(seconds=2.0, images=7))
    assert lines.workload.done == 400
    assert lines.workload.left == pytest.approx(4600 * 0.03)
    assert len(said.getvalue().splitlines()) == 5  # a turn has no line of its own


@pytest.fixture
def hand(monkeypatch):
    """A clock that stands until it is moved."""
    hand = SimpleNamespace(now=1000.0)
    monkeypatch.setattr("bdr.display.time", SimpleNamespace(monotonic=lambda: hand.now))
    return hand


def steps_of(listener, hand, seconds, stage, epoch=0, steps=400, first=0):
    """Steps of an epoch under way, told every so many seconds, in which twenty are made."""
    for number, each in enumerate(seconds, 1):
        hand.now += each
        listener.steps_end(Phase(0, 0, 50), stage, epoch, first + 20 * number, steps)


def test_plain_lines_tell_steps_and_the_time_left_before_a_long_first_epoch_ends(hand):
    said = io.StringIO()
    lines, phase, stage = Lines(Console(file=said, width=120)), Phase(0, 0, 50), Stage(epochs=10)
    lines.run_begins("ucir", [phase], "run", [[40_000]])
    lines.stage_begins(phase, 0, stage, 0)
    steps_of(lines, hand, [60.0, 4.0, 4.0, 4.0, 4.0], stage)  # the first steps compile
    assert said.getvalue().splitlines()[1:] == [
        "phase 0 of 0..0, main epoch 1/10, step 20/400",
        "phase 0 of 0..0, main epoch 1/10, step 80/400, 13:04 left",  # 39,200 images at 50 a second
    ]
    log = EpochLog(0, 0.1, ("ce",), np.full((4, 1), 2.5), {"ce": 1.0}, seconds=80.0, images=4000)
    lines.epoch_ends(phase, stage, log)
    assert lines.workload.reached == lines.workload.done == 4000


def test_a_log_has_the_lines_of_a_terminal(hand, caplog):
    caplog.set_level("INFO", "bdr")
    said = io.StringIO()
    log, lines, phase, stage = Logged(), Lines(Console(file=said, width=120)), Phase(0, 0, 50), Stage(epochs=10)
    both = Several([log, lines])
    both.run_begins("ucir", [phase], "run", [[40_000]])
    both.stage_begins(phase, 0, stage, 0)
    steps_of(both, hand, [4.0] * 9, stage)
    both.epoch_ends(phase, stage, EpochLog(0, 0.1, ("ce",), np.full((4, 1), 2.5), {"ce": 1.0}, 80.0, 4000))
    none = {"accuracy_old": {}, "accuracy_new": {}}
    both.phase_ends({"phase": 0, "seen": 50, "accuracy": {"cnn": 75.0}, **none, "seconds": 100.0})
    both.note("warning: it rains")
    assert caplog.messages == said.getvalue().splitlines()
    assert caplog.messages[0] == "ucir: 1 phase, 50 classes -> run"
    assert caplog.messages[-2] == "phase 0 of 0..0: 50 classes, cnn 75.00 %, 1:40"
    assert len(caplog.messages) == 6  # three of them of steps, ten seconds apart
    assert {each.name for each in caplog.records} == {"bdr"}
    assert [each.levelname for each in caplog.records] == ["INFO"] * 5 + ["WARNING"]


def test_the_bar_moves_within_an_epoch_and_keeps_the_words_of_the_last_one_while_they_are_new(hand):
    bar = Bar(Console(width=120, force_terminal=True))
    phase, stage = Phase(0, 0, 50), Stage(epochs=10)
    log = EpochLog(0, 0.1, ("ce",), np.full((4, 1), 2.5), {"ce": 1.0}, seconds=80.0, images=4000)
    with bar.console.capture():
        bar.run_begins("ucir", [phase], "run", [[40_000]])
        bar.stage_begins(phase, 0, stage, 0)
        seen = []
        for told in (
            lambda: steps_of(bar, hand, [4.0], stage),
            lambda: bar.epoch_ends(phase, stage, log),
            lambda: steps_of(bar, hand, [4.0], stage, epoch=1),
            lambda: steps_of(bar, hand, [8.0], stage, epoch=1, first=20),
        ):
            told()
            seen.append((bar.progress.tasks[0].completed, bar.progress.tasks[0].description.split(", ")[-1]))
        bar.run_ends()
    assert seen == [(200, "step 20/400"), (4000, "50 images/s"), (4200, "50 images/s"), (4400, "step 40/400")]


def test_plain_lines_tell_no_time_left_before_epochs_are_steady():
    said = io.StringIO()
    lines, phase = Lines(Console(file=said, width=120), every=0.0), Phase(0, 0, 50)
    lines.run_begins("ucir", [phase], "run", [[5000]])
    for seconds in (100.0, 1.0, 1.0):
        log = EpochLog(0, 0.1, ("ce",), np.full((4, 1), 2.5), {"ce": 1.0}, seconds, images=100)
        lines.epoch_ends(phase, Stage(epochs=50), log)
    assert [line.split(", ")[-1] for line in said.getvalue().splitlines()[1:]] == [
        "1 images/s",
        "100 images/s",
        "0:47 left",
    ]


@pytest.mark.filterwarnings("error")
def test_a_loss_is_that_of_what_is_minimised_with_its_weights():
    values = np.array([[2.0, 1.0, np.nan], [2.0, 3.0, 4.0]], np.float32)
    log = EpochLog(0, 0.1, ("ce", "pod", "ce_old"), values, {"ce": 1.0, "pod": 0.5}, seconds=1.0, images=8)
    assert log.loss == 2.0 + 0.5 * 2.0
    assert log.mean("ce_old") == 4.0  # of the steps that had a sample of an old class
    assert np.isnan(log.mean("distillation"))  # which this method does not have
    assert log._replace(values=np.full((2, 3), 3e38, np.float32)).loss == np.inf


def log(text):
    with heard():
        logging.getLogger("bdr").info(text)


@pytest.mark.parametrize("spoken", [say, tell, log, say_warning])
def test_a_sentence_is_one_line_and_no_markup_so_that_its_paths_and_commands_can_be_copied(capsys, monkeypatch, spoken):
    monkeypatch.setenv("COLUMNS", "20")
    text = "go on with: bdr resume /a/long/path/to/[red]/where/runs/are :smile:"
    spoken(text)
    said = "".join(capsys.readouterr())
    assert said == f"{'warning: ' if spoken is say_warning else ''}{text}\n"


@pytest.mark.parametrize("name", dict(inspect.getmembers(Listener, inspect.isfunction)))
def test_several_listeners_hear_of_everything_in_their_order(name):
    heard = []
    ears = [SimpleNamespace(**{name: partial(lambda *said: heard.append(said), ear)}) for ear in ("left", "right")]
    getattr(Several(ears), name)("word", 1)
    assert heard == [("left", "word", 1), ("right", "word", 1)]


@pytest.mark.parametrize(("terminal", "before"), [(True, "\n"), (False, "")])
def test_what_is_said_of_a_stop_does_not_stick_to_the_bar(monkeypatch, capsys, terminal, before):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    with stoppable() as stopping:
        signal.raise_signal(signal.SIGINT)
        assert stopping()
    assert capsys.readouterr().err.startswith(f"{before}stopping after this step")


def test_a_dry_run_says_that_it_times_steps_before_it_does(tmp_path):
    said = typed("run", "ucir+bdr", *WHOLE, "--dry-run", "--runs", tmp_path / "runs")
    assert said.err.splitlines()[-1] == "timing 2 steps of each stage of ucir+bdr on cpu ..."
    assert " s of training, judging by 2 steps of each stage here" in said.out
