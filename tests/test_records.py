"""A run directory survives what happens to it: kills, full disks, other people's folders."""

import json
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from directories import gone_on

from bdr.errors import BdrError, UsageError
from bdr.records import Run, RunWriter, differences, find_runs, is_begun, is_done, run_folders, write_atomically
from bdr.records.folders import RECORDS
from bdr.records.lock import LOCK, Lock, is_being_trained

INFO = {
    "title": "ucir+bdr",
    "seed": 1993,
    "fingerprint": "3fa9c1",
    "protocol": {"data": "digits", "memory": 5, "augment": ("shift", 1)},
    "classes": ["a", "b", "c"],
    "phases": [[0, 2], [2, 3]],
}


@pytest.fixture
def writer(tmp_path):
    return RunWriter.create(tmp_path / "run", INFO)


def line_of(phase):
    return {"phase": phase, "old": 2 * (phase > 0), "seen": 2 + phase, "accuracy": {"cnn": 90.0}, "parameters": 9}


def write_phase(writer, phase, steps=4):
    writer.epoch({"phase": phase, "epoch": 0, "loss": 0.5})
    writer.steps(phase, 0, np.arange(steps) + phase, np.full(steps, np.nan))
    writer.predictions(
        phase, np.array([0, 1]), {"cnn": (np.array([[0, 1], [1, 0]]), np.array([[0.9, 0.1], [0.6, 0.4]]))}
    )
    writer.memory(phase, {"a": [3, 1]})
    writer.phase(line_of(phase))


def content(folder):
    """All files but the log, which has times in it."""
    files = [file for file in sorted(Path(folder).rglob("*")) if file.is_file() and file.name != "log.txt"]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def test_what_is_written_is_read_back(writer):
    write_phase(writer, 0)
    writer.log("phase 0 is over")
    writer.finish()
    run = Run.open(writer.path)
    assert (run.title, run.seed, run.fingerprint, run.done) == ("ucir+bdr", 1993, "3fa9c1", True)
    assert run.phases == [line_of(0)]
    assert run.epochs[0]["loss"] == 0.5
    assert json.loads((writer.path / "phase-00/memory.json").read_text()) == {"a": [3, 1]}
    assert (writer.path / "log.txt").read_text().endswith(" phase 0 is over\n")


def test_predictions_come_back_with_their_probabilities(writer):
    write_phase(writer, 0)
    stored = Run.open(writer.path).predictions(0)
    assert stored["cnn_ids"].tolist() == [[0, 1], [1, 0]]
    assert stored["cnn_probabilities"].dtype == np.float32
    np.testing.assert_allclose(stored["cnn_probabilities"], [[0.9, 0.1], [0.6, 0.4]], atol=0.5 / 255 + 1e-6)


@pytest.mark.parametrize(("largest", "dtype"), [(255, np.uint8), (256, np.uint16)])
def test_class_ids_take_two_bytes_only_where_one_does_not_do(writer, largest, dtype):
    writer.predictions(0, np.array([largest]), {"nme": (np.array([[largest]]), np.ones((1, 1)))}, split="val")
    stored = Run.open(writer.path).predictions(0, "val")
    assert stored["labels"].dtype == stored["nme_ids"].dtype == dtype
    assert stored["nme_ids"].tolist() == [[largest]]


def test_predictions_that_were_never_made_are_named(writer):
    with pytest.raises(BdrError, match=r"phase-07.predictions\.npz is missing"):
        Run.open(writer.path).predictions(7)


def test_steps_read_the_same_before_and_after_packing(writer):
    write_phase(writer, 0)
    writer.steps(1, 2, np.array([1.5, np.nan]), np.array([0.1, 0.2]))
    before = Run.open(writer.path).steps(1)
    writer.finish()
    after = Run.open(writer.path).steps(1)
    for name in ("stage", "ce_old", "distillation"):
        np.testing.assert_array_equal(before[name], after[name])
    assert not (writer.path / "steps.bin").exists()
    assert sorted(np.load(writer.path / "steps.npz").files)[-3:] == [
        "phase-01/ce_old",
        "phase-01/distillation",
        "phase-01/stage",
    ]


def test_json_stays_strict_when_a_loss_is_not_a_number(writer):
    writer.epoch({"loss": float("nan"), "terms": {"ce": np.float32("inf")}, "lr": np.float64(0.5)})
    assert (writer.path / "epochs.jsonl").read_text() == '{"loss": null, "terms": {"ce": null}, "lr": 0.5}\n'


def test_the_numbers_of_an_epoch_have_seven_digits_and_those_of_a_phase_all(writer):
    line = {"loss": 1 / 3, "terms": {"ce": np.float32(0.1)}, "epoch": 123456789, "of": [2e-9 / 3, None]}
    writer.epoch(line)
    writer.phase({"loss": 1 / 3})
    assert json.loads((writer.path / "epochs.jsonl").read_text()) == {
        "loss": 0.3333333,
        "terms": {"ce": 0.1},
        "epoch": 123456789,
        "of": [6.666667e-10, None],
    }
    assert json.loads((writer.path / "phases.jsonl").read_text()) == {"loss": 1 / 3}


def test_a_run_that_goes_on_ends_where_the_whole_one_does(tmp_path):
    whole = RunWriter.create(tmp_path / "whole", INFO)
    broken = RunWriter.create(tmp_path / "broken", INFO)
    for each in (whole, broken):
        write_phase(each, 0)
    offsets = broken.offsets()
    broken.epoch({"phase": 1, "epoch": 0, "loss": 9.0})
    broken.steps(1, 0, np.ones(3), np.ones(3))
    broken.memory(1, {"b": [2]})
    broken.close()
    broken = gone_on(broken.path, offsets)
    for each in (whole, broken):
        write_phase(each, 1)
        each.finish()
    assert content(whole.path) == content(broken.path)


def test_a_run_killed_while_finishing_can_go_on(writer):
    write_phase(writer, 0)
    offsets = writer.offsets()
    rows = (writer.path / "steps.bin").read_bytes()
    writer.finish()
    gone_on(writer.path, offsets)
    assert (writer.path / "steps.bin").read_bytes() == rows
    assert not (writer.path / "DONE").exists()
    assert not (writer.path / "steps.npz").exists()


def test_going_on_without_a_checkpoint_begins_anew(writer):
    write_phase(writer, 0)
    writer.close()
    gone_on(writer.path, {})
    run = Run.open(writer.path)
    assert (run.phases, run.epochs, len(run.steps(0)["ce_old"])) == ([], [], 0)
    assert not (writer.path / "phase-00").exists()


def test_records_shorter_than_the_checkpoint_are_an_error(writer):
    writer.close()
    with pytest.raises(BdrError, match=r"phases\.jsonl has 0 bytes, the checkpoint was made at 10"):
        gone_on(writer.path, {"phases.jsonl": 10})


def lose(file):
    file.unlink()
    return f"{file.with_suffix('.bin').name} has 0 bytes, the checkpoint was made at 128: records were lost"


def cut_short(file):
    os.truncate(file, 40)
    return f"{file.name} has 40 bytes" if file.suffix == ".bin" else f"{file.name} is damaged"


def lose_a_phase(file):
    with np.load(file) as stored:
        np.savez(file, **{name: stored[name] for name in stored.files if name.startswith("phase-00")})
    return f"{file.name}, unpacked, has 64 bytes, the checkpoint was made at 128: records were lost"


@pytest.mark.parametrize(
    ("damage", "packed"), [(lose, False), (cut_short, False), (lose, True), (cut_short, True), (lose_a_phase, True)]
)
def test_lost_steps_are_refused_before_anything_is_cut_off(damage, packed, writer):
    write_phase(writer, 0)
    write_phase(writer, 1)
    offsets = writer.offsets()
    writer.epoch({"phase": 2, "epoch": 0, "loss": 9.0})
    if packed:
        writer.finish()
    writer.close()
    said = damage(writer.path / ("steps.npz" if packed else "steps.bin"))
    before = content(writer.path)
    with pytest.raises(BdrError, match="put back a copy of the file, or train anew") as refusal:
        gone_on(writer.path, offsets)
    assert said in str(refusal.value)
    assert content(writer.path) == before


# One process at a time

HOLDS = """
import sys, time
from pathlib import Path
from bdr.records.lock import Lock
lock = Lock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def another(writer):
    """Another process, which trains in the folder of the run."""
    writer.close()
    root = Path(__file__).parent.parent
    child = subprocess.Popen([sys.executable, "-c", HOLDS, writer.path], stdout=subprocess.PIPE, text=True, cwd=root)
    assert child.stdout.readline() == "held\n"
    yield child
    child.kill()
    child.wait()
    child.stdout.close()


def test_a_run_that_another_process_trains_is_refused_untouched_and_that_process_is_named(writer, another):
    write_phase(writer, 0)
    before = content(writer.path)
    for begin in (RunWriter.create, gone_on):
        with pytest.raises(BdrError, match=f"is being trained by process {another.pid}: wait for it, or end it first"):
            begin(writer.path, INFO if begin == RunWriter.create else {})
    assert content(writer.path) == before
    assert is_being_trained(writer.path)


def test_a_folder_that_is_no_run_is_told_which_are_there(tmp_path):
    (tmp_path / "runs" / "pictures").mkdir(parents=True)
    for name in ("first", "data/method/second"):
        RunWriter.create(tmp_path / "runs" / name, INFO).close()
    instead = {
        "runs": f"name one in it: {tmp_path}/runs/data/method/second, {tmp_path}/runs/first",
        "runs/frist": f"did you mean {tmp_path}/runs/first?",
        "runs/other": "name a folder that `bdr run` has written",
        "runs/pictures": "name a folder that `bdr run` has written",
        "none/first": "name a folder that `bdr run` has written",
    }
    for name, words in instead.items():
        with pytest.raises(UsageError) as refused:
            Run.open(tmp_path / name)
        assert str(refused.value) == f"{tmp_path / name} is not a run: it has no run.json; {words}"


def test_the_lock_of_a_killed_process_is_free(writer, another):
    another.kill()
    another.wait()
    assert (writer.path / LOCK).exists()
    assert not is_being_trained(writer.path)
    again = RunWriter.create(writer.path, INFO)
    assert is_being_trained(writer.path)
    again.close()


def test_a_run_that_is_finished_or_closed_or_could_not_go_on_leaves_no_lock(writer):
    writer.close()
    writer.close()  # twice is harmless
    with pytest.raises(BdrError, match="records were lost"):
        gone_on(writer.path, {"phases.jsonl": 10})
    assert not (writer.path / LOCK).exists()
    gone_on(writer.path, {}).finish()
    assert not (writer.path / LOCK).exists()
    assert not is_being_trained(writer.path)


def test_a_lock_file_that_its_owner_removes_meanwhile_is_made_anew(tmp_path, monkeypatch):
    old = Lock(tmp_path)
    opened = Path.open

    def released_after_it_is_opened(path, mode):
        file = opened(path, mode)
        old.release()
        return file

    monkeypatch.setattr(Path, "open", released_after_it_is_opened)
    new = Lock(tmp_path)
    monkeypatch.undo()
    assert is_being_trained(tmp_path)
    new.release()


def test_where_there_are_no_locks_nobody_is_kept_from_anything(writer, monkeypatch):
    monkeypatch.setattr("bdr.records.lock.fcntl", None)
    gone_on(writer.path, {}).close()
    assert not is_being_trained(writer.path)


def test_a_half_written_last_line_is_ignored(writer):
    write_phase(writer, 0)
    for name, rest in (("phases.jsonl", b'{"phase": 1, "acc'), ("epochs.jsonl", b"{"), ("steps.bin", b"\0" * 7)):
        with (writer.path / name).open("ab") as file:
            file.write(rest)
    run = Run.open(writer.path)
    assert (len(run.phases), len(run.epochs), len(run.steps(0)["ce_old"])) == (1, 1, 4)


def test_the_same_configuration_may_begin_anew(writer):
    write_phase(writer, 0)
    writer.close()
    assert Run.open(RunWriter.create(writer.path, INFO).path).phases == []


def test_another_configuration_is_refused_and_its_facts_are_named(writer):
    other = {**INFO, "fingerprint": "beef00", "protocol": {**INFO["protocol"], "memory": 20}}
    with pytest.raises(UsageError, match="belongs to another configuration: memory is 5 there and 20 here"):
        RunWriter.create(writer.path, other)


def with_other_images(*further, **facts):
    protocol = INFO["protocol"] | {"source": "018d", "classes": 10 + len(further), **facts}
    return INFO | {"fingerprint": "beef00", "protocol": protocol, "classes": [*INFO["classes"], *further]}


def test_a_finished_run_whose_data_has_got_classes_is_to_be_extended(writer):
    writer.finish()
    with pytest.raises(UsageError, match=r"got eel, fly since: teach it those with bdr extend .* --out") as error:
        RunWriter.create(writer.path, with_other_images("eel", "fly"))
    assert "018d" not in str(error.value)


def test_other_images_are_told_without_their_checksums(writer):
    told = "belongs to another configuration: .*the images are others"
    for other in (with_other_images("eel"), with_other_images(), with_other_images("eel", memory=20)):
        with pytest.raises(UsageError, match=told) as error:
            RunWriter.create(writer.path, other)
        assert "018d" not in str(error.value)


def test_another_seed_is_refused(writer):
    with pytest.raises(UsageError, match="seed is 1993 there and 1 here"):
        RunWriter.create(writer.path, {**INFO, "seed": 1})


def test_a_hidden_difference_is_told_by_the_fingerprints(writer):
    with pytest.raises(UsageError, match="fingerprint 3fa9c1 there and beef00 here"):
        RunWriter.create(writer.path, {**INFO, "fingerprint": "beef00"})


def test_somebody_elses_folder_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match=r"not a run \(it holds thesis\.tex\)"):
        RunWriter.create(tmp_path, INFO)
    with pytest.raises(UsageError, match="is a file"):
        RunWriter.create(tmp_path / "thesis.tex", INFO)
    assert [item.name for item in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_creation_that_was_killed_can_be_repeated(tmp_path):
    (tmp_path / "run.json.17.partial").write_text("{")
    assert Run.open(RunWriter.create(tmp_path, INFO).path).seed == 1993


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_named_when_a_line_is_appended(writer):
    (writer.path / "epochs.jsonl").symlink_to("/dev/full")
    with pytest.raises(BdrError, match=r"cannot write .*epochs\.jsonl: No space left"):
        writer.epoch({"loss": 1.0})


def test_an_atomic_write_that_fails_leaves_the_old_file_and_no_litter(tmp_path):
    path = tmp_path / "state"
    write_atomically(path, "old")
    code = (
        "import resource, signal, sys; from pathlib import Path; from bdr.records import write_atomically\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "write_atomically(Path(sys.argv[1]), b'x' * 5000)"
    )
    root = Path(__file__).parent.parent
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, cwd=root)
    assert f"BdrError: cannot write {path}: File too large" in done.stderr
    assert path.read_text() == "old"
    assert [item.name for item in tmp_path.iterdir()] == ["state"]


def test_a_link_stays_one_and_its_target_is_written(tmp_path):
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "table.csv", tmp_path / "link.csv"
    link.symlink_to(target)
    for content in ("new", "newer"):  # a target that is yet to be made, and one that is there
        write_atomically(link, content)
        assert link.is_symlink()
        assert target.read_text() == content
    assert [item.name for item in target.parent.iterdir()] == ["table.csv"]


def test_a_pipe_takes_what_is_written_and_stays_one(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    ear = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_atomically(pipe, "content")
        assert os.read(ear, 100) == b"content"
    finally:
        os.close(ear)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_device_takes_what_is_written_through_its_link(tmp_path):
    shown, terminal = os.openpty()
    (tmp_path / "tty").symlink_to(f"/proc/self/fd/{terminal}")
    try:
        write_atomically(tmp_path / "tty", "content")
        assert os.read(shown, 100) == b"content"
    finally:
        os.close(shown)
        os.close(terminal)
    assert (tmp_path / "tty").is_symlink()


def test_what_goes_to_standard_output_stays_behind_what_is_there(tmp_path):
    code = (
        "from pathlib import Path; from bdr.records import write_atomically\n"
        "print('before'); write_atomically(Path('/proc/self/fd/1'), 'content\\n'); print('after')"
    )
    (tmp_path / "said").write_text("first\n")
    with (tmp_path / "said").open("a") as file:
        subprocess.run([sys.executable, "-c", code], stdout=file, check=True, cwd=Path(__file__).parent.parent)
    assert (tmp_path / "said").read_text() == "first\nbefore\ncontent\nafter\n"


def test_a_socket_is_refused_and_stays_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the name of a socket is short
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
        with pytest.raises(BdrError, match=r"cannot write socket: it is a socket"):
            write_atomically(Path("socket"), "content")
    assert stat.S_ISSOCK(Path("socket").stat().st_mode)


def test_a_folder_without_a_run_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match=r"has no run\.json"):
        Run.open(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", '{"title": "x"}', "\x00\xff"])
def test_a_damaged_run_json_is_named(tmp_path, text):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(BdrError, match=r"run\.json is damaged"):
        Run.open(tmp_path)


def test_a_run_json_that_has_nothing_of_a_run_may_be_of_another_program(tmp_path):
    (tmp_path / "run.json").write_text('{"host": "a"}')
    with pytest.raises(BdrError, match=r"run\.json is damaged, or of another program: no usable title, seed, "):
        Run.open(tmp_path)


def test_damaged_runs_are_skipped_with_their_names(tmp_path):
    for name in ("good", "bad_line", "bad_steps", "lost", "young"):
        writer = RunWriter.create(tmp_path / name, INFO)
        if name != "young":
            write_phase(writer, 0)
            write_phase(writer, 1)
            writer.finish()
    (tmp_path / "bad_line/phases.jsonl").write_text('{"phase": 0\n{}\n')
    (tmp_path / "bad_steps/steps.npz").write_bytes(b"PK not a zip")
    (tmp_path / "lost/run.json").unlink()
    runs, warnings = find_runs(tmp_path)
    assert sorted(run.path.name for run in runs) == ["bad_steps", "good"]
    text = "\n".join(warnings)
    assert len(warnings) == 4
    assert "put back a copy of it, or train the run again" in next(each for each in warnings if "bad_line" in each)
    for part in ("bad_line/phases.jsonl, line 1 is damaged", "bad_steps/steps.npz is damaged", "lost is not a run"):
        assert part in text
    assert "no finished phase yet; go on with: bdr resume" in text


def test_a_finished_run_that_lost_phases_is_damaged_and_the_file_is_named(writer):
    write_phase(writer, 0)
    write_phase(writer, 1)
    writer.finish()
    assert Run.open(writer.path).whole
    file = writer.path / "phases.jsonl"
    os.truncate(file, file.read_bytes().index(b"\n") + 9)
    assert (Run.open(writer.path).whole, Run.open(writer.path).cut_short) == (False, True)
    runs, warnings = find_runs(writer.path)
    assert runs == []
    assert "phases.jsonl is damaged: 1 of 2 phases are there, and the run was done; see what can" in warnings[0]


@pytest.mark.parametrize(("numbers", "said"), [([0, 1, 1], "0, 1, 1 instead of 0 to 2"), ([1], "1 instead of 0 to 0")])
def test_a_run_whose_phases_are_not_there_once_and_in_order_is_damaged(numbers, said, writer):
    for number in numbers:
        writer.phase(line_of(number))
    runs, warnings = find_runs(writer.path)
    assert runs == []
    assert f"phases.jsonl is damaged: the phases are {said}; train it again into another folder" in warnings[0]


def test_a_folder_with_the_name_of_a_run_and_nothing_in_it_is_named(tmp_path):
    write_phase(RunWriter.create(tmp_path / "ucir" / "seed1993-0b51c2", INFO), 0)
    for name in ("ucir/seed1994-0b51c2", "wa/seed1-abcdef", "figures", "wa/seed2-abcdef"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "wa/seed2-abcdef/training.lock").touch()
    runs, warnings = find_runs(tmp_path)
    assert len(runs) == 1
    named = [tmp_path / name for name in ("ucir/seed1994-0b51c2", "wa/seed1-abcdef", "wa/seed2-abcdef")]
    assert [warning.split(", left by a run")[0] for warning in warnings] == [
        f"skipped {path}: it is empty" for path in named
    ]
    assert find_runs(tmp_path / "wa/seed1-abcdef")[1][0].startswith("skipped ")


def test_hidden_folders_are_passed_over_and_runs_are_not_searched_for_others(tmp_path):
    for name in ("b/run", "a", "a/inside", ".hidden/run", "b/.shared/run"):
        write_phase(RunWriter.create(tmp_path / name, INFO), 0)
    assert [path for path, _ in run_folders(tmp_path)] == [tmp_path / "a", tmp_path / "b/run"]
    assert [run.path for run in find_runs(tmp_path)[0]] == [tmp_path / "a", tmp_path / "b/run"]
    assert [path for path, _ in run_folders(tmp_path / ".hidden")] == [tmp_path / ".hidden/run"]


def test_a_run_is_begun_with_its_first_record_and_done_with_its_last(tmp_path):
    assert not is_begun(tmp_path / "run")
    writer = RunWriter.create(tmp_path / "run", INFO)
    assert is_begun(writer.path)
    assert not is_done(writer.path)
    writer.finish()
    assert is_done(writer.path)


def test_every_file_that_a_run_leaves_is_in_the_table_of_records(writer):
    write_phase(writer, 0)
    series = np.zeros(3, np.float32)
    writer.analysis(0, series, series, series)
    writer.epoch({"phase": 0})
    writer.log("said")
    under_way = {file.name for file in writer.path.iterdir() if file.is_file()}
    writer.finish()
    finished = {file.name for file in writer.path.iterdir() if file.is_file()}
    assert under_way - {LOCK} | finished == set(RECORDS)


def test_differences_name_the_facts_that_are_not_shared(tmp_path):
    one = RunWriter.create(tmp_path / "one", INFO)
    two = RunWriter.create(
        tmp_path / "two", {**INFO, "protocol": {**INFO["protocol"], "memory": 20, "net": "resnet32"}}
    )
    assert differences([Run.open(one.path)]) == {}
    assert differences([Run.open(one.path), Run.open(two.path)]) == {"memory": [5, 20], "net": [None, "resnet32"]}


def test_a_run_that_is_withdrawn_is_gone_before_another_may_begin_in_its_folder(writer, monkeypatch):
    release = Lock.release

    def released(lock):
        assert not is_begun(writer.path)
        release(lock)

    monkeypatch.setattr(Lock, "release", released)
    with pytest.raises(KeyboardInterrupt), writer.withdrawn_on_failure():
        raise KeyboardInterrupt
    assert not writer.path.exists()
