"""`bdr watch`: what is told of runs, what is read again, what is served to whom, and the page in a real browser."""

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from directories import PHASES, destruction_series, draw_predictions, make_run, phase_line

from bdr.errors import UsageError
from bdr.metrics import summary
from bdr.records import Run, RunWriter, find_runs
from bdr.report import as_json, compare, comparison_sheets
from bdr.report.colours import PALETTE
from bdr.watch import state as states
from bdr.watch.board import Board
from bdr.watch.command import check_host, listening, make_server, watch_runs
from bdr.watch.server import is_ours

OPENED = []  # what this process opens while a test listens; a hook can be added and not removed
LISTENING = threading.Event()
sys.addaudithook(lambda event, given: OPENED.append(str(given[0])) if event == "open" and LISTENING.is_set() else None)


@contextlib.contextmanager
def opens():
    """The files opened in a block of code."""
    OPENED.clear()
    LISTENING.set()
    try:
        yield OPENED
    finally:
        LISTENING.clear()


def epoch_line(phase, epoch, loss=0.5):
    line = {"phase": phase, "stage": "main", "epoch": epoch, "lr": 0.1, "loss": loss, "terms": {"ce": loss}}
    return line | {"images_per_second": 100.0, "seconds": 2.0}


class Growing:
    """A run under way, as the engine writes it: 10 epochs a phase."""

    def __init__(self, folder, title="ucir+bdr", seed=7, epochs=10):
        work = [[{"stage": "main", "images": 200, "epochs": epochs}] for _ in PHASES]
        changes = {"config": {"stage": {"epochs": epochs}, "checkpoint_every": 20.0}, "work": work}
        self.path = make_run(folder, title, seed, phases=0, done=False, **changes).path
        self.writer, self.rng = RunWriter(self.path), np.random.default_rng(seed)
        self.phase = self.epoch = 0

    def learn(self, epochs=1, loss=0.5):
        for _ in range(epochs):
            self.writer.epoch(epoch_line(self.phase, self.epoch, loss))
            series = destruction_series(self.rng, 1.0, steps=10) if self.phase else np.full(10, np.nan)
            self.writer.steps(self.phase, 0, series, series)
            self.epoch += 1

    def end_phase(self):
        labels, ids = draw_predictions(self.rng, self.phase, 0.8)
        self.writer.predictions(self.phase, labels, {"cnn": (ids, np.full(ids.shape, 0.2))})
        self.writer.phase(phase_line(self.phase, labels, ids))
        self.phase, self.epoch = self.phase + 1, 0

    def finish(self):
        while self.phase < len(PHASES):
            self.learn()
            self.end_phase()
        self.writer.finish()


def board_of(folder):
    board = Board([folder])
    board.look(at_once=60)
    return board


def rows_of(board):
    return {row["folder"]: row for row in board.since(0)["runs"]}


# What a run is doing


def test_a_run_that_writes_is_running_and_says_how_far_it_is(tmp_path):
    run = Growing(tmp_path)
    board = board_of(tmp_path)
    assert rows_of(board)["ucir+bdr-7"]["state"] == "waiting"
    run.learn(10)
    run.end_phase()
    run.learn(5, loss=0.25)
    board.look()
    row = rows_of(board)["ucir+bdr-7"]
    assert (row["state"], row["phase"], row["epoch"], row["epochs"], row["loss"]) == ("running", 1, 5, 10, 0.25)
    assert row["accuracies"][0][0] == 4
    assert 0 < row["share"] < 1


def test_the_time_left_is_that_of_the_work_that_is_recorded(tmp_path):
    run = Growing(tmp_path)
    run.learn(5)
    row = rows_of(board_of(tmp_path))["ucir+bdr-7"]
    assert row["left"] == pytest.approx(35 * 200 / 100)
    assert row["share"] == pytest.approx(5 / 40)


def test_a_run_of_an_older_version_that_is_not_finished_shows_no_time_left(tmp_path):
    make_run(tmp_path, phases=2, done=False)
    row = rows_of(board_of(tmp_path))["ucir-1993"]
    assert (row["left"], row["share"], row["epochs"]) == (None, 0.5, 0)


def test_a_finished_run_is_finished(tmp_path):
    make_run(tmp_path)
    assert rows_of(board_of(tmp_path))["ucir-1993"]["state"] == "finished"


def test_a_silent_run_is_stopped_and_says_how_to_go_on(tmp_path):
    run = Growing(tmp_path)
    run.learn()
    long_ago = time.time() - 3600
    for file in run.path.iterdir():
        os.utime(file, (long_ago, long_ago))
    row = rows_of(board_of(tmp_path))["ucir+bdr-7"]
    assert row["state"] == "stopped"
    assert f"bdr resume {run.path}" in row["note"]


def test_silence_alone_makes_a_running_run_stop_without_reading_it_again(tmp_path, monkeypatch):
    run = Growing(tmp_path)
    run.learn()
    board = board_of(tmp_path)
    version = board.version
    later = time.time() + 7200
    monkeypatch.setattr(time, "time", lambda: later)
    with opens() as opened:
        board.look()
    assert [row["state"] for row in board.since(version)["runs"]] == ["stopped"]
    assert not [name for name in opened if name.startswith(str(tmp_path))]


def test_a_checkpoint_is_a_sign_of_life(tmp_path):
    run = Growing(tmp_path)
    run.learn()
    long_ago = time.time() - 3600
    for file in run.path.iterdir():
        os.utime(file, (long_ago, long_ago))
    (run.path / "checkpoint").mkdir()
    assert rows_of(board_of(tmp_path))["ucir+bdr-7"]["state"] == "running"


def test_a_run_that_was_asked_to_stop_is_stopped_at_once_and_runs_again_when_it_goes_on(tmp_path):
    run = Growing(tmp_path)
    run.learn()
    run.writer.log("stopped on request; the state is saved")
    board = board_of(tmp_path)
    assert rows_of(board)["ucir+bdr-7"]["state"] == "stopped"
    run.learn()
    soon = time.time() + 5
    os.utime(run.path / "epochs.jsonl", (soon, soon))
    board.look()
    assert rows_of(board)["ucir+bdr-7"]["state"] == "running"


def test_a_run_that_failed_says_with_what_until_it_goes_on(tmp_path):
    run = Growing(tmp_path)
    run.learn()
    run.writer.log("failed: BdrError: the loss is not finite")
    board = board_of(tmp_path)
    row = rows_of(board)["ucir+bdr-7"]
    assert (row["state"], row["note"]) == ("failed", "BdrError: the loss is not finite")
    run.writer.log("going on")
    board.look()
    assert rows_of(board)["ucir+bdr-7"]["state"] == "running"


def test_a_log_that_speaks_of_something_that_failed_is_no_failure(tmp_path):
    run = Growing(tmp_path)
    run.learn()
    run.writer.log("warning: wandb failed: it is left out")
    assert rows_of(board_of(tmp_path))["ucir+bdr-7"]["state"] == "running"


def test_a_long_epoch_is_no_silence():
    assert states.quiet_after(True, last_epoch=600.0, checkpoint_every=20.0) == 1800.0


# What is read, and what is not


def many_runs(folder, count):
    """As many runs as somebody may have: one is made, the others differ in their seeds."""
    made = make_run(folder, "ucir", 0)
    info = json.loads((made.path / "run.json").read_text())
    for seed in range(1, count):
        place = folder / f"ucir-{seed}"
        place.mkdir()
        (place / "run.json").write_text(json.dumps(info | {"seed": seed}))
        for name in ("phases.jsonl", "DONE", *(["steps.npz"] if seed % 50 == 0 else [])):
            os.link(made.path / name, place / name)
        (place / "epochs.jsonl").write_text("".join(json.dumps(epoch_line(0, at)) + "\n" for at in range(40)))


def test_of_500_runs_an_unchanged_one_is_not_read_again_and_little_is_sent(tmp_path):
    many_runs(tmp_path, 500)
    board = board_of(tmp_path)
    with opens() as opened:
        board.look()
        board.comparison(())
    assert len(board.kept) == 500
    assert not [name for name in opened if name.startswith(str(tmp_path))]
    sent = len(json.dumps(board.since(0))) + len(json.dumps(board.comparison(())))
    assert sent < 2_000_000
    version = board.version
    with (tmp_path / "ucir-77" / "epochs.jsonl").open("a") as file:
        file.write(json.dumps(epoch_line(0, 40, loss=0.125)) + "\n")
    with opens() as opened:
        board.look()
    read = {Path(name).parent.name for name in opened if name.startswith(str(tmp_path))}
    assert read == {"ucir-77"}
    assert [row["loss"] for row in board.since(version)["runs"]] == [0.125]


def test_what_an_analysis_adds_is_a_sign_of_life(tmp_path):
    run = Growing(tmp_path)
    run.learn()
    board = board_of(tmp_path)
    version = board.version
    run.writer.analysis(0, np.zeros(3), np.zeros(3), np.zeros(3))
    board.look()
    assert board.version > version


def test_many_runs_are_shown_as_they_are_read(tmp_path):
    for seed in range(4):
        make_run(tmp_path, seed=seed)
    board = Board([tmp_path])
    board.look(at_once=0.0)
    assert (len(board.kept), board.pending) == (1, 3)
    for _ in range(3):
        board.look(at_once=0.0)
    assert (len(board.kept), board.pending) == (4, 0)


@pytest.mark.parametrize("address", ["/report", "/api/comparison"])
def test_a_report_and_a_comparison_wait_for_all_runs(tmp_path, monkeypatch, address):
    for what in ("ucir", "wa", "icarl", "ucir+bdr"):
        make_run(tmp_path, what)
    monkeypatch.setattr(Board.look_through, "__defaults__", (0.0,))  # a run at a time, as if reading took long
    with serving(tmp_path) as port:
        body = ask(port, address)[2].decode()
    assert {what for what in ("ucir+bdr", "wa", "icarl") if what in body} == {"ucir+bdr", "wa", "icarl"}


def test_runs_that_never_rest_keep_no_report_waiting(tmp_path, monkeypatch):
    for seed in range(3):
        make_run(tmp_path, seed=seed)
    board = Board([tmp_path])
    monkeypatch.setattr(board, "_is_news", lambda key, look: True)
    board.look_through(at_once=0.0)
    assert board.pending == 2


def test_a_run_that_is_removed_is_gone(tmp_path):
    run = make_run(tmp_path)
    board = board_of(tmp_path)
    version, key = board.version, rows_of(board)["ucir-1993"]["id"]
    for file in (run.path / "run.json", run.path / "phases.jsonl"):
        file.unlink()
    board.look()
    assert board.since(version)["gone"] == [key]
    assert board.curves(key) is None


def test_the_comparison_has_the_numbers_of_show(tmp_path):
    for seed in (1, 2):
        make_run(tmp_path, "ucir", seed, skill=0.6)
        make_run(tmp_path, "ucir+bdr", seed, skill=0.8)
    board = board_of(tmp_path)
    runs = [Run.open(tmp_path / name) for name in ("ucir-1", "ucir-2", "ucir+bdr-1", "ucir+bdr-2")]
    sheet = comparison_sheets(compare(runs))[0]
    assert board.comparison(())["tables"][0]["rows"] == sheet.rows
    one = rows_of(board)["ucir-1"]["id"]
    assert board.comparison((one,))["tables"][0]["rows"] == comparison_sheets(compare(runs[:1]))[0].rows


def test_a_light_run_tells_what_the_whole_one_does(tmp_path):
    make_run(tmp_path)
    board = board_of(tmp_path)
    light = next(iter(board.kept.values())).run
    assert summary(light) == summary(Run.open(tmp_path / "ucir-1993"))
    assert as_json(compare([light])) == as_json(compare([Run.open(light.path)]))


def test_the_curve_of_a_phase_under_way_rises_and_falls(tmp_path):
    run = Growing(tmp_path)
    run.learn(2)
    run.end_phase()
    run.learn(3)
    board = board_of(tmp_path)
    found = board.curves(rows_of(board)["ucir+bdr-7"]["id"])
    assert found["loss"]["epochs"] == [1, 2, 3, 4, 5]
    assert found["loss"]["ends"] == [2]
    assert [curve["phase"] for curve in found["destruction"]] == [1]
    assert found["destruction"][0]["epochs"][-1] == 3.0


# What is odd


def spoil(folder):
    """Folders that are no runs, or no longer; what their rows should say."""
    whole = make_run(folder, "ucir", 1)
    os.truncate(make_run(folder, "lost", 1).path / "phases.jsonl", 300)
    for name in ("empty", "half", "foreign", "array", "binary", "no-run", "strange-phase", "strange-epoch"):
        (folder / name).mkdir()
    text = (whole.path / "run.json").read_bytes()
    (folder / "half" / "run.json").write_bytes(text[: len(text) // 2])
    (folder / "foreign" / "run.json").write_text('{"name": "something else"}')
    (folder / "array" / "run.json").write_text("[1, 2]")
    (folder / "binary" / "run.json").write_bytes(bytes(range(256)))
    (folder / "no-run" / "phases.jsonl").write_text("{}\n")
    for name, file, line in (
        ("strange-phase", "phases.jsonl", '{"phase": 0, "accuracy": 3}'),
        ("strange-epoch", "epochs.jsonl", '{"loss": "high"}'),
    ):
        (folder / name / "run.json").write_bytes(text)
        (folder / name / file).write_text(line + "\n")
    return {
        "lost-1": "phases.jsonl is damaged: 1 of 4 phases are there, and the run was done",
        "half": "run.json is damaged",
        "foreign": "no usable title",
        "array": "not a JSON object",
        "binary": "run.json",
        "no-run": "no run.json",
        "strange-phase": "a line without a usable phase, old, seen, accuracy",
        "strange-epoch": "does not read like a run",
    }


def test_damaged_empty_and_foreign_folders_are_named_or_passed_over(tmp_path):
    expected = spoil(tmp_path)
    rows = rows_of(board_of(tmp_path))
    assert rows.pop("ucir-1")["state"] == "finished"
    assert {name: row["state"] for name, row in rows.items()} == dict.fromkeys(expected, "damaged")
    for name, words in expected.items():
        assert words in rows[name]["note"]


def test_a_run_whose_steps_alone_are_damaged_is_compared_as_in_show_and_warned_of(tmp_path):
    for seed in (1, 2):
        make_run(tmp_path, "ucir", seed, skill=0.6)
    (tmp_path / "ucir-2" / "steps.npz").write_bytes(b"half a file")
    board, (runs, warnings) = board_of(tmp_path), find_runs(tmp_path)
    row = rows_of(board)["ucir-2"]
    assert (row["state"], [row["note"]]) == ("finished", warnings)
    assert board.comparison(())["tables"][0]["rows"] == comparison_sheets(compare(runs))[0].rows
    opened, said, _ = board.open_runs(())
    assert ({run.path.name for run in opened if run.steps_lost}, said) == ({"ucir-2"}, warnings)


def test_a_half_written_last_line_is_left_out_until_it_is_whole(tmp_path):
    run = Growing(tmp_path)
    run.learn(2)
    with (run.path / "epochs.jsonl").open("a") as file:
        file.write('{"phase": 0, "st')
    row = rows_of(board_of(tmp_path))["ucir+bdr-7"]
    assert (row["state"], row["epoch"]) == ("running", 2)


@pytest.mark.parametrize("name", ["run.json", "epochs.jsonl", "phase-00", "phase-01/predictions.npz"])
def test_a_link_that_leads_out_of_the_folder_is_not_followed(tmp_path, name):
    secret, runs = tmp_path / "secret", tmp_path / "runs"
    (secret / "folder").mkdir(parents=True)
    (secret / "file").write_text("{}")
    path = make_run(runs, phases=2).path
    target = path / name
    if target.is_dir():
        target.rename(path / "away")
    target.unlink(missing_ok=True)
    target.symlink_to(secret / ("folder" if name == "phase-00" else "file"))
    with opens() as opened:
        board = board_of(runs)
        left, *_ = board.open_runs(())
    assert "leads out of" in rows_of(board)["ucir-1993"]["note"]
    assert left == []
    assert not [name for name in opened if "secret" in name]


def test_a_linked_folder_is_not_looked_into(tmp_path):
    make_run(tmp_path / "secret")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "link").symlink_to(tmp_path / "secret")
    assert rows_of(board_of(tmp_path / "runs")) == {}


# The server


@contextlib.contextmanager
def serving(folder):
    """The real server, in a thread; its port."""
    server = make_server(Board([folder]))
    with listening("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(10)
            assert not thread.is_alive()


def ask(port, path, method="GET", host=None):
    """(status, headers, body), of a path sent as it stands: urllib would tidy it up."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request(method, path, headers={"Host": host or f"127.0.0.1:{port}"})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, dict(answer.getheaders()), body


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A server of a few runs, whole and spoilt, with a secret beside them."""
    home = tmp_path_factory.mktemp("watch")
    (home / "secret.txt").write_text("a secret")
    spoil(home / "runs")
    make_run(home / "runs", "ucir+bdr", 1)
    with serving(home / "runs") as port:
        yield port, home


def test_all_that_the_page_needs_is_served(served):
    port, _ = served
    rows = json.loads(ask(port, "/api/runs")[2])["runs"]
    key = next(row["id"] for row in rows if row["state"] == "finished")
    for path in ("/", "/colours.css", "/pages/watch.css", "/pages/watch.js", "/pages/plots.js", "/api/about"):
        assert ask(port, path)[0] == 200, path
    for path in (f"/api/runs/{key}", "/api/comparison", f"/api/comparison?run={key}"):
        assert ask(port, path)[0] == 200, path
    for row in rows:
        assert ask(port, f"/api/runs/{row['id']}")[0] == 200


def test_the_page_is_told_how_many_colours_there_are_for_lines(served):
    theme = ask(served[0], "/colours.css")[2].decode()
    assert f"--colours: {len(PALETTE)};" in theme
    assert f"--series-{len(PALETTE) - 1}:" in theme


def test_the_report_of_the_chosen_runs_is_that_of_bdr_report(served):
    port, _ = served
    rows = json.loads(ask(port, "/api/runs")[2])["runs"]
    key = next(row["id"] for row in rows if row.get("title") == "ucir+bdr")
    status, _, body = ask(port, f"/report?run={key}")
    assert status == 200
    assert b"ucir+bdr" in body
    assert b"seed 1" in body


def test_without_a_result_there_is_a_page_that_says_so(tmp_path):
    with serving(tmp_path) as port:
        status, _, body = ask(port, "/report")
    assert status == 404
    assert b"there is no run to compare" in body


@pytest.mark.parametrize(
    "path",
    [
        "/../secret.txt",
        "/pages/../../secret.txt",
        "/pages/..%2f..%2fsecret.txt",
        "/pages/%2e%2e/%2e%2e/secret.txt",
        "/pages/%2Fetc%2Fpasswd",
        "//etc/passwd",
        "/pages/server.py",
        "/api/runs/..%2f..%2fsecret.txt",
        "/api/runs/%2e%2e%2fsecret.txt",
        "/api/runs/../secret.txt",
        "/api/runs/HOME%2fsecret.txt",
        "/report?run=../../secret.txt",
        "/report?run=HOME/secret.txt",
        "/api/comparison?run=../secret.txt",
        "/openapi.json",
        "/docs",
    ],
)
def test_no_address_leads_out_of_the_folder(served, path):
    port, home = served
    with opens() as opened:
        status, _, body = ask(port, path.replace("HOME", str(home)))
    assert status == 404 or json.loads(body)["tables"] == []
    assert b"a secret" not in body
    assert b"root:" not in body
    assert not [name for name in opened if "secret" in name or "passwd" in name]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_nothing_can_be_changed(served, method):
    port, _ = served
    for path in ("/", "/api/runs", "/api/comparison", "/report", "/events"):
        assert ask(port, path, method)[0] == 405


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil", ""])
def test_another_machines_name_is_refused(served, host):
    port, _ = served
    assert not is_ours(host, {"localhost"})
    if host:
        status, _, body = ask(port, "/api/runs", host=host)
        assert status == 421
        assert b"ucir" not in body


@pytest.mark.parametrize("host", ["localhost", "localhost:8000", "127.0.0.1:9", "[::1]:8000", "[::1]", "LOCALHOST:1"])
def test_this_machines_names_are_ours(host):
    assert is_ours(host, {"localhost"})


def test_every_answer_forbids_requests_to_elsewhere(served):
    port, _ = served
    for path in ("/", "/api/runs", "/report?run=none", "/nowhere"):
        policy = ask(port, path)[1]["content-security-policy"]
        assert policy.startswith("default-src 'self'")
        assert "http" not in policy


def events(port):
    """The messages of the stream, as they come."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", "/events")
    answer = connection.getresponse()
    assert answer.getheader("content-type").startswith("text/event-stream")
    while line := answer.readline():
        if line.startswith(b"data: {"):
            yield json.loads(line[6:])


def test_new_epochs_and_new_runs_are_told_within_about_a_second(tmp_path):
    run = Growing(tmp_path)
    with serving(tmp_path) as port:
        stream = events(port)
        news = next(stream)
        while not news["runs"]:
            news = next(stream)
        run.learn()
        began = time.monotonic()
        while not any(row.get("epoch") == 1 for row in news["runs"]):
            news = next(stream)
        Growing(tmp_path, seed=8)
        while not any(row.get("seed") == 8 for row in news["runs"]):
            news = next(stream)
            assert not any(row.get("seed") == 7 for row in news["runs"]), "an unchanged run was sent again"
        assert time.monotonic() - began < 10  # seconds, on a machine with much else to do
        stream.close()


# The command


def test_a_host_that_others_can_reach_must_be_asked_for_twice(capsys):
    for host in ("127.0.0.1", "localhost", "::1", "127.9.9.9"):
        check_host(host, exposed=False)
    for host in ("0.0.0.0", "192.168.1.7", "::", "machine.example"):
        with pytest.raises(UsageError, match="ssh -L"):
            check_host(host, exposed=False)
    check_host("0.0.0.0", exposed=True)
    assert "warning" in capsys.readouterr().err


def test_the_next_free_port_is_taken_and_a_wanted_one_is_not_replaced():
    with listening("127.0.0.1", None) as first, listening("127.0.0.1", None) as second:
        assert second.getsockname()[1] > first.getsockname()[1] >= 8000
        with pytest.raises(UsageError, match="name another with --port"):
            listening("127.0.0.1", first.getsockname()[1])
    with pytest.raises(UsageError, match="0 to 65535"):
        listening("127.0.0.1", 70000)


def test_ctrl_c_ends_it_cleanly_even_while_somebody_watches(tmp_path):
    command = [sys.executable, "-u", "-m", "bdr.cli", "watch", str(tmp_path), "--port", "0", "--no-open"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    said = child.stdout.readline()
    port = int(said.split("http://127.0.0.1:")[1].split()[0])
    stream = events(port)
    next(stream)
    child.send_signal(signal.SIGINT)
    _, wrong = child.communicate(timeout=20)
    assert (child.returncode, wrong) == (0, "")


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UsageError, match="nowhere is not a folder: name the folder that the runs are in"):
        watch_runs([tmp_path / "nowhere"], "127.0.0.1", None, exposed=False, open_page=False)


def test_a_missing_server_is_named_with_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(UsageError, match=r"needs uvicorn.*pip install 'bdr\[watch\]'"):
        watch_runs([tmp_path], "127.0.0.1", None, exposed=False, open_page=False)


# The page


@pytest.fixture
def watched(tmp_path):
    for seed in (1, 2):
        make_run(tmp_path, "ucir", seed, skill=0.6)
        make_run(tmp_path, "ucir+bdr", seed, skill=0.8)
    run = Growing(tmp_path)
    run.learn(2)
    with serving(tmp_path) as port:
        yield f"http://127.0.0.1:{port}/", run


@pytest.mark.browser
def test_progress_moves_by_itself_and_a_new_run_appears(browser, watched, tmp_path):
    address, run = watched
    tab = browser.open(address)
    tab.wait("document.querySelector('.run .where')?.textContent.includes('epoch 2/10')")
    width = "parseFloat(document.querySelector('.run .track > div').style.width)"
    before = tab.run(width)

    def write():
        for _ in range(3):
            run.learn(loss=0.125)
            time.sleep(0.1)

    threading.Thread(target=write).start()
    tab.wait("document.querySelector('.run .where').textContent.includes('epoch 5/10')")
    assert tab.run(width) > before
    assert "0.125" in tab.text(".run .values")
    assert tab.run("document.querySelectorAll('.run').length") == 1
    Growing(tmp_path, seed=9)
    tab.wait("document.querySelectorAll('.run').length === 2")
    run.finish()
    tab.wait("document.querySelector('#states').textContent.includes('5 finished')")
    assert tab.run("document.querySelectorAll('.plot path.line').length") >= 12
    assert tab.run("COLOURS") == len(PALETTE)
    assert tab.errors == []
    assert tab.foreign_requests == []


@pytest.mark.browser
def test_tables_sort_filter_and_choose(browser, watched):
    address, _ = watched
    tab = browser.open(address)
    tab.wait("document.querySelectorAll('#tables tbody tr').length === 2")
    tab.click("#tables th button >> text=average")
    first = tab.texts("#tables tbody th")
    tab.click("#tables th button >> text=average")
    assert tab.texts("#tables tbody th") == first[::-1]
    tab.click("#runs th button >> text=seed")
    tab.wait("document.querySelector('#runs th[aria-sort]').textContent === 'seed'")
    seeds = [int(text) for text in tab.texts("#runs tbody td.column-seed")]
    assert seeds == sorted(seeds)
    tab.page.fill("#filter", "finished ucir+bdr")
    tab.wait("document.querySelectorAll('#runs tbody tr').length === 2")
    tab.page.check("#runs tbody tr >> nth=0 >> input")
    tab.wait("document.querySelector('#report').textContent === 'Report of 1 chosen run'")
    tab.wait("document.querySelectorAll('#tables tbody tr').length === 1")
    tab.click("#report")
    tab.wait("document.querySelectorAll('svg').length > 3")
    assert "ucir+bdr" in tab.text("main")
    assert tab.errors == []
    assert tab.foreign_requests == []


@pytest.mark.browser
def test_lines_of_one_method_are_named_by_the_settings_that_they_do_not_share(browser, tmp_path):
    for m, seed in ((0.0, 7), (0.5, 7), (None, 7), (None, 8)):
        given = {"ucir": {"eta": 20}} | ({} if m is None else {"bdr": {"m": m}})
        config = {"stage": {"epochs": 20}, "settings": given}
        make_run(tmp_path / str(m), "ucir+bdr", seed, config=config, told_stage={"epochs": 20})
    make_run(tmp_path / "again", "ucir+bdr", 8, config=config, told_stage={"epochs": 20})
    with serving(tmp_path) as port:
        tab = browser.open(f"http://127.0.0.1:{port}/")
        tab.wait("document.querySelectorAll('#legend li').length === 5")
        named = sorted(tab.texts("#legend li"))
    assert named[:3] == ["ucir+bdr bdr.m=0.0, seed 7", "ucir+bdr bdr.m=0.5, seed 7", "ucir+bdr, seed 7"]
    assert [each[:18] for each in named[3:]] == ["ucir+bdr, seed 8 ("] * 2  # these differ in nothing but their place
    assert tab.errors == []


@pytest.mark.browser
def test_it_is_dark_where_dark_is_wanted_and_fits_a_phone(browser, watched):
    address, _ = watched
    tab = browser.open(address, width=390, height=844, dark=True)
    tab.wait("document.querySelectorAll('#runs tbody tr').length === 5")
    assert max(tab.colour("body")) < 64
    assert min(tab.colour("body", "color")) > 190
    assert tab.overflow == 0
    tab.dark(False)
    assert min(tab.colour("body")) > 240


@pytest.mark.browser
def test_a_long_name_goes_on_in_the_next_line_and_cuts_no_column(browser, tmp_path):
    title = "ucir+resample+reweight+mixup+aanet+focal+bdr"
    for seed in (1, 2):
        make_run(tmp_path, "ucir", seed, skill=0.6)
        make_run(tmp_path, title, seed, skill=0.8)
    with serving(tmp_path) as port:
        tab = browser.open(f"http://127.0.0.1:{port}/", width=1200)
        tab.wait("document.querySelectorAll('#tables tbody tr').length === 2")
        assert title in tab.run("[...document.querySelectorAll('#tables tbody th')].map((each) => each.textContent)")
        assert tab.run("[...document.querySelectorAll('.scroll')].every((e) => e.scrollWidth <= e.clientWidth)")


@pytest.mark.browser
def test_a_lost_connection_is_said_and_found_again(browser, tmp_path):
    make_run(tmp_path)
    with serving(tmp_path) as port:
        tab = browser.open(f"http://127.0.0.1:{port}/")
        tab.wait("document.querySelector('#connection').dataset.state === 'live'")
    tab.wait("document.querySelector('#connection').dataset.state === 'lost'")
    server = make_server(Board([tmp_path]))
    with listening("127.0.0.1", port) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        tab.wait("document.querySelector('#connection').dataset.state === 'live'")
        server.should_exit = True
        thread.join(10)


@pytest.mark.browser
def test_what_stands_in_a_record_is_text_and_nothing_else(browser, tmp_path):
    make_run(tmp_path, "<img src=x onerror=alert(1)>", 1)
    (tmp_path / "<b>odd<b>").mkdir()
    (tmp_path / "<b>odd<b>" / "run.json").write_text("{")
    with serving(tmp_path) as port:
        tab = browser.open(f"http://127.0.0.1:{port}/")
        tab.wait("document.querySelectorAll('#runs tbody tr').length === 3")
        assert tab.run("document.querySelectorAll('img, b').length") == 0
        assert tab.errors == []
