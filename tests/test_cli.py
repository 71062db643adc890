"""The command line as it is typed, and the same from Python: what is written, shown, kept and removed."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import shutil
import subprocess
import sys
import tarfile
import warnings
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
import yaml

import bdr
from bdr.cli import main
from bdr.commands.upkeep import listing
from bdr.configuration.recipes import RECIPES, configure
from bdr.data.published import PUBLISHED, md5_of
from bdr.engine.checkpoint import read_state
from bdr.methods import METHODS
from bdr.nets import NETS
from bdr.plugins import PLUGINS
from bdr.records import Run

SMALL = ("--base", "4", "--step", "3", "--memory", "3/class", "--device", "cpu")
BRIEF = ("--set", "stage.epochs=1", "--set", "stage.batch=64")
WHOLE = (*SMALL, *BRIEF)  # three phases of an epoch: seconds
SHORT = (*WHOLE, "--phases", "2")


class Said(NamedTuple):
    code: int
    out: str
    err: str


def typed(*words) -> Said:
    """What the command line answers, in this process: a new one would spend seconds on importing torch."""
    out, err, before = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["bdr", *map(str, words)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
        code = 0
    except SystemExit as left:
        code = left.code or 0
    finally:
        sys.argv = before
    return Said(code, out.getvalue(), err.getvalue())


def typed_in_a_shell(*words, folder) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "bdr.cli", *map(str, words)]
    same = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}  # sums of floats depend on it
    return subprocess.run(command, cwd=folder, env=same, capture_output=True, text=True, timeout=120)


def tree(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def only_run_below(folder: Path) -> Run:
    (found,) = folder.rglob("run.json")
    return Run.open(found.parent)


def accuracies(run: Run) -> list[float]:
    return [line["accuracy"]["cnn"] for line in run.phases]


@pytest.fixture(scope="module", autouse=True)
def elsewhere(tmp_path_factory):
    """Away from the source: runs with equal first phases share them in a folder beside, wherever they are typed."""
    with contextlib.chdir(tmp_path_factory.mktemp("elsewhere")):
        yield


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder of runs that many tests add to: those with equal first phases train it once."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of all three phases with every model kept."""
    path = tmp_path_factory.mktemp("whole") / "run"
    said = typed("run", "ucir+bdr", *WHOLE, "--keep", "all", "--out", path)
    assert said.code == 0, said.err
    return Run.open(path)


# Warnings


def test_a_warning_is_said_in_its_own_words_and_only_while_a_command_runs(monkeypatch):
    before = warnings.showwarning
    monkeypatch.setattr("bdr.cli.app", lambda: warnings.warn("files [of a kind] are left out", stacklevel=1))
    assert typed("list") == Said(0, "", "warning: files [of a kind] are left out\n")
    assert warnings.showwarning is before


def test_how_far_a_long_wait_is_is_said_beside_the_output_and_only_while_a_command_runs(monkeypatch):
    log = logging.getLogger("bdr.data.reading")
    monkeypatch.setattr("bdr.cli.app", lambda: log.info("reading pictures: %s of %s", 3, "[9]"))
    assert typed("list") == Said(0, "", "reading pictures: 3 of [9]\n")
    assert (log.getEffectiveLevel(), logging.getLogger("bdr").handlers) == (logging.WARNING, [])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a place that is always full")
def test_a_full_disk_under_the_output_is_said_in_a_sentence(tmp_path):
    command = [sys.executable, "-m", "bdr.cli", "list", "methods"]
    with Path("/dev/full").open("w") as full:
        said = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
    assert (said.returncode, said.stderr) == (1, "bdr: the output cannot be written: No space left on device\n")


# Running


@pytest.fixture(scope="module")
def from_a_shell(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shell")
    said = typed_in_a_shell("run", "ucir+cwd+bdr", "--data", "digits", "--seed", "5", *SHORT, folder=folder)
    assert said.returncode == 0, said.stderr
    return said, folder


def test_a_run_whose_output_nobody_reads_any_more_says_how_to_go_on(tmp_path):
    command = [sys.executable, "-m", "bdr.cli", "run", "ucir", *SHORT, "--out", "run"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=tmp_path, **pipes, env={**os.environ, "OMP_NUM_THREADS": "1"}) as run:
        assert "ucir: 2 phases" in run.stdout.readline()
        run.stdout.close()
        said = run.stderr.read()
    assert run.returncode == 1
    assert said.splitlines()[-1] == "bdr: stopped, since nobody reads the output any more; go on with: bdr resume run"


def test_a_run_in_a_shell_leaves_a_plain_directory(from_a_shell):
    said, folder = from_a_shell
    run = only_run_below(folder)
    assert run.path.parent == folder / "runs" / "digits-b4s3" / "ucir-cwd-bdr"
    assert run.path.name == f"seed5-{run.fingerprint}"
    files = {path.name for path in run.path.iterdir()}
    assert files == {
        *("run.json", "phases.jsonl", "epochs.jsonl", "steps.npz"),
        *("phase-00", "phase-01"),
        *("checkpoint", "DONE"),
    } | (files & {"log.txt"})
    assert "phase 0 of 0..1: 4 classes" in said.stdout
    assert "phase 1 of 0..1: 7 classes" in said.stdout
    assert "Traceback" not in said.stderr


def test_the_record_says_how_to_type_it_again(from_a_shell):
    info = only_run_below(from_a_shell[1]).info
    assert info["command"].startswith("bdr run ucir+cwd+bdr --data digits --seed 5")
    assert info["config"]["plugins"] == ["cwd", "bdr"]
    assert {"bdr", "torch", "python", "numpy"} <= info["versions"].keys()


def test_python_gives_the_accuracies_of_the_command_line(from_a_shell, tmp_path):
    fields = {"base": 4, "step": 3, "memory": "3/class", "device": "cpu", "phases": 2, "seed": 5}
    changes = {"stage.epochs": 1, "stage.batch": 64}
    result = bdr.run("ucir+cwd+bdr", data="digits", out=tmp_path / "run", set=changes, **fields)
    run = only_run_below(from_a_shell[1])
    assert result.accuracies == accuracies(run)
    assert Run.open(result.path).fingerprint == run.fingerprint
    assert result.average == pytest.approx(np.mean(result.accuracies))
    assert result.last == result.accuracies[-1]
    assert result.matrix.shape == (2, 2)
    assert np.isnan(result.matrix[0, 1])
    assert np.isfinite(result.matrix[np.tril_indices(2)]).all()
    assert result.readouts.keys() == {"cnn", "nme"}


@pytest.mark.parametrize("what", ["ucir", "ucir+la", "ucir+cwd", "ucir+bdr"])
def test_methods_and_plug_ins_are_named_with_plus_signs(what, runs):
    said = typed("run", what, *SHORT, "--runs", runs)
    assert said.code == 0, said.err
    run = only_run_below(runs / "digits-b4s3" / what.replace("+", "-"))
    assert (run.title, run.done, len(run.phases)) == (what, True, 2)


def test_a_recipe_is_a_name_too(runs):
    said = typed("run", "digits-cwd-bdr", *SHORT, "--runs", runs)
    assert said.code == 0, said.err
    assert only_run_below(runs / "digits-b4s3" / "ucir-cwd-bdr").title == "ucir+cwd+bdr"


@pytest.mark.parametrize("name", ["digits-cwd", "digits-cwd-bdr"])
def test_the_digits_recipes_are_scarce_and_leave_the_logits_room(name):
    found = RECIPES[name]()
    assert (found.memory, found.net, found.settings["ucir"]) == ("2/class", "small", {"eta": 20.0})
    assert bdr.api.configure("ucir+bdr", "digits")[0].settings["ucir"] == {"eta": 20.0}


OWN = '''
"""A method of one's own."""
from bdr.methods import Method
from bdr.nets import LinearHead, MakeNetwork, Network

class Finetune(Method):
    def __init__(self, make: MakeNetwork, share: float = 1.0) -> None:
        super().__init__()
        self.net, self.share = make(LinearHead), share
    def begin(self, phase, pool):
        self.net.head.grow(phase.new)
    def loss(self, batch, phase, classify):
        return {"ce": self.share * classify(self.net(batch.x), batch.y).mean()}
'''


def test_a_method_of_ones_own_takes_plug_ins_and_settings(tmp_path, monkeypatch):
    (tmp_path / "ones_own.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "run"
    said = typed("run", "ones_own:Finetune+bdr", *SHORT, "--set", "Finetune.share=0.5", "--out", path)
    assert said.code == 0, said.err
    assert Run.open(path).info["config"]["settings"] == {"Finetune": {"share": 0.5}}
    assert bdr.load(path).share == 0.5
    assert typed("evaluate", path).code == 0


def test_several_seeds_are_several_runs(runs):
    said = typed("run", "ucir+cwd+la", *SHORT, "--seeds", "1,2", "--runs", runs)
    assert said.code == 0, said.err
    names = {path.name.partition("-")[0] for path in (runs / "digits-b4s3" / "ucir-cwd-la").iterdir()}
    assert names == {"seed1", "seed2"}
    assert "Comparison" in said.out
    assert "mean ± sample standard deviation over seeds" in said.out[said.out.rindex("Comparison") :]


def test_a_finished_run_is_not_trained_again(whole):
    before = tree(whole.path)
    said = typed("run", "ucir+bdr", *WHOLE, "--keep", "all", "--out", whole.path)
    assert said.code == 0
    assert f"already done: {whole.path}" in said.out
    assert tree(whole.path) == before


def test_fewer_phases_stop_early(runs, whole):
    typed("run", "ucir+bdr", *SHORT, "--runs", runs)
    early = only_run_below(runs / "digits-b4s3" / "ucir-bdr")
    assert accuracies(early) == accuracies(whole)[:2]


def test_held_out_images_are_validated_on_and_never_trained_on(tmp_path):
    said = typed("run", "ucir", *SHORT, "--val", "0.2", "--out", tmp_path / "run")
    assert said.code == 0, said.err
    run = Run.open(tmp_path / "run")
    assert all(0 <= value <= 100 for line in run.phases for value in line["val"].values())
    held, test = run.predictions(0, "val"), run.predictions(0)
    assert np.mean(held["cnn_ids"][:, 0] == held["labels"]) * 100 == pytest.approx(run.phases[0]["val"]["cnn"])
    whole_pool = sum(np.isin(bdr_digits().train.labels, run.info["order"][:4]))
    assert run.phases[0]["images"] + len(held["labels"]) == whole_pool
    assert len(test["labels"]) == sum(np.isin(bdr_digits().test.labels, run.info["order"][:4]))


def bdr_digits():
    from bdr.data import DATASETS

    return DATASETS["digits"]()


# Settings


def test_a_printed_configuration_gives_the_same_run(whole, tmp_path):
    words = ("ucir+bdr", *WHOLE, "--keep", "all")
    printed = typed("run", *words, "--print-config").out
    (tmp_path / "run.yaml").write_text(printed)
    assert typed("run", "ucir+bdr", "--config", tmp_path / "run.yaml", "--print-config").out == printed
    said = typed("run", "ucir+bdr", "--config", tmp_path / "run.yaml", "--out", whole.path)
    assert f"already done: {whole.path}" in said.out


def test_what_a_method_declares_of_its_stages_is_not_printed_and_not_read(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(typed("run", "ucir+bdr", *WHOLE, "--print-config").out)
    assert not {"name", "loss", "alternate"} & yaml.safe_load(file.read_text())["stage"].keys()
    file.write_text("stage: {loss: loss}")
    said = typed("run", "ucir+bdr", "--config", file, "--print-config")
    assert said.code == 2
    assert "stage.loss = 'loss' is not allowed: the method declares it" in " ".join(said.err.split())


def test_a_configuration_file_names_the_method_too(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(typed("run", "ucir+bdr", *WHOLE, "--print-config").out)
    assert typed("run", "--config", file, "--print-config").out == file.read_text()
    other = typed("run", "ucir+la", "--config", file, "--print-config")
    assert other.code == 2
    assert "is of ucir+bdr and you typed ucir+la" in " ".join(other.err.split())


def printed(*words) -> dict:
    said = typed("run", "ucir+bdr", *words, "--print-config")
    assert said.code == 0, said.err
    return yaml.safe_load(said.out)


def test_settings_overrule_options_and_options_overrule_the_file(tmp_path):
    file = tmp_path / "some.yaml"
    file.write_text("base: 6\nstep: 2\nseed: 3\nsettings: {bdr: {m: 0.3}}")
    found = printed("--config", file, "--base", "4", "--step", "4", "--set", "step=3", "--set", "bdr.tau=2")
    assert (found["base"], found["step"], found["seed"]) == (4, 3, 3)
    assert found["settings"]["bdr"] == {"m": 0.3, "tau": 2}


def test_other_epochs_scale_the_drops_and_say_so(tmp_path):
    said = typed("run", "ucir", *SMALL, "--set", "stage.epochs=10", "--dry-run", "--runs", tmp_path)
    assert "main.drops scaled with the epochs: (12, 17) -> (6, 8)" in said.err
    assert printed("--set", "stage.epochs=10")["stage"]["drops"] == [6, 8]


def test_what_has_no_effect_is_scaled_in_silence():
    config, notes = configure("dytox", "cifar100", [("stage.epochs", 100)])
    assert (config.stage.schedule, config.stage.drops) == ("cosine", (16, 24))  # as records have always had it
    assert notes == ["main.warmup scaled with the epochs: 5 -> 2"]
    settings = [("stage.epochs", 10), ("stage.schedule", "constant")]
    assert configure("ucir", "digits", settings)[1] == []


def test_a_rate_holds_for_an_epoch_before_it_drops():
    assert printed("--set", "stage.epochs=1")["stage"]["drops"] == [1, 1]


def test_drops_that_are_set_are_not_scaled(tmp_path):
    words = ("--set", "stage.epochs=10", "--set", "stage.drops=[3]")
    assert "scaled" not in typed("run", "ucir", *SMALL, *words, "--dry-run", "--runs", tmp_path).err
    assert printed(*words)["stage"]["drops"] == [3]


def test_drops_of_a_file_are_scaled_with_epochs_that_are_set(tmp_path):
    (tmp_path / "run.yaml").write_text(typed("run", "ucir+bdr", "--print-config").out)
    assert printed("--config", tmp_path / "run.yaml", "--set", "stage.epochs=10")["stage"]["drops"] == [6, 8]


def test_drops_are_scaled_once_from_where_they_were_given(tmp_path):
    file = tmp_path / "brief.yaml"
    file.write_text("stage: {epochs: 1}")
    typed_ = "--config", file, "--set", "stage.epochs=40"
    assert printed(*typed_)["stage"]["drops"] == printed("--set", "stage.epochs=40")["stage"]["drops"] == [24, 34]
    file.write_text("stage: {epochs: 4, drops: [2]}")
    assert printed(*typed_)["stage"]["drops"] == [20]


def test_the_last_data_set_that_is_named_has_the_frame(tmp_path):
    file = tmp_path / "some.yaml"
    file.write_text("data: cifar10")
    assert printed("--config", file)["net"] == "resnet18"
    for words in (("--data", "digits"), ("--set", "data=digits")):
        assert printed("--config", file, *words)["net"] == "small"


def test_a_mapping_from_python_or_a_file_changes_what_it_names(tmp_path):
    file = tmp_path / "some.yaml"
    file.write_text("settings: {ucir: {margin: 0.4}}\nstage: {lr: 0.05}")
    config, _ = bdr.api.configure("ucir", fields={"settings": {"ucir": {"margin": 0.4}}, "stage": {"lr": 0.05}})
    found = typed("run", "ucir", "--config", file, "--print-config").out
    assert yaml.safe_load(found)["settings"] == config.settings == {"ucir": {"eta": 20.0, "margin": 0.4}}
    assert yaml.safe_load(found)["stage"]["epochs"] == config.stage.epochs == 20


@pytest.mark.parametrize("command", ["run", "sweep", "compare"])
def test_commands_that_train_have_an_option_for_the_same_fields(command):
    from bdr.cli.options import FIELDS
    from bdr.configuration.config import Config

    assert set(FIELDS) <= set(Config.model_fields)
    said = " ".join(typed(command, "--help").out.split())
    assert all(f"--{name.replace('_', '-')}" in said for name in FIELDS)


def test_a_bare_number_is_a_seed_and_the_plan_shows_it(tmp_path):
    said = typed("run", "ucir", *SMALL, "--seeds", "3", "--dry-run", "--runs", tmp_path)
    assert "ucir, seed 3 ->" in " ".join(said.out.split())


def test_one_stage_can_be_named(tmp_path):
    said = typed("run", "ucir", *SHORT, "--set", "stage.main.lr=0.05", "--out", tmp_path / "run")
    assert said.code == 0, said.err
    assert {line["lr"] for line in Run.open(tmp_path / "run").epochs} == {0.05}


def test_a_run_that_began_captured_goes_on_where_nothing_can_be(whole, tmp_path):
    run = shutil.copytree(whole.path, tmp_path / "run")
    (run / "DONE").unlink()
    info = json.loads((run / "run.json").read_text())
    info["config"]["engine"] = "graph"
    (run / "run.json").write_text(json.dumps(info))
    said = typed("resume", run, "--device", "cpu")
    assert (said.code, "use --engine eager" in " ".join(said.err.split())) == (2, True)
    assert typed("resume", run, "--device", "cpu", "--engine", "eager").code == 0


def test_a_dry_run_trains_and_writes_nothing(tmp_path):
    said = typed("run", "ucir+bdr", *WHOLE, "--dry-run", "--runs", tmp_path / "runs")
    assert said.code == 0, said.err
    assert "of training" in said.out
    assert "of disk" in said.out
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_judges_the_time_by_runs_that_are_there_or_else_by_steps(tmp_path):
    def judged():
        return " ".join(typed("run", "ucir+aanet+bdr", *SHORT, "--dry-run", "--runs", tmp_path).out.split())

    assert "judging by 2 steps of each stage here" in judged()
    assert typed("run", "ucir", *SHORT, "--runs", tmp_path).code == 0
    assert "judging by 1 record of ucir with any plug-ins on CPU" in judged()
    for others in (("replay",), ("ucir", "--precision", "bf16")):  # another method, and steps of another kind
        said = typed("run", *others, *SHORT, "--dry-run", "--runs", tmp_path)
        assert "judging by 2 steps of each stage here" in " ".join(said.out.split())


# Kept models


def test_a_kept_model_evaluates_to_exactly_the_recorded_accuracy(whole):
    before = tree(whole.path)
    said = typed("evaluate", whole.path, "--phase", "1", "--json")
    assert said.code == 0, said.err
    found, line = json.loads(said.out), whole.phases[1]
    assert found.pop("phase") == 1
    assert found == {name: line[name] for name in found}
    assert tree(whole.path) == before


def test_evaluation_is_a_table_of_the_last_model_by_default(whole):
    said = typed("evaluate", whole.path)
    assert "model of phase 2" in " ".join(said.out.split())
    assert f"{whole.phases[2]['accuracy']['nme']:.2f}" in said.out


def test_a_loaded_model_predicts_as_it_did(whole):
    model, data, order = bdr.load(whole.path, phase=1, device="cpu"), bdr_digits(), whole.info["order"]
    seen = np.isin(data.test.labels, order[:7])
    pixels = torch.from_numpy(data.test.pixels[seen]).float() / 255
    x = ((pixels - data.mean[0]) / data.std[0]).permute(0, 3, 1, 2)
    with torch.no_grad():
        best = {name: scores.argmax(1).numpy() for name, scores in model.readouts(x).items()}
    stored = whole.predictions(1)
    assert not model.training
    assert np.array_equal(stored["labels"], [order.index(label) for label in data.test.labels[seen]])
    assert np.array_equal(best["cnn"], stored["cnn_ids"][:, 0])
    assert np.array_equal(best["nme"], stored["nme_ids"][:, 0])


# Looking


@pytest.mark.parametrize(
    ("what", "names"),
    [
        ("methods", METHODS),
        ("plugins", PLUGINS),
        ("nets", NETS),
        ("recipes", RECIPES),
        ("data", ["digits", "cifar10", "cifar100", "imagefolder"]),
    ],
)
def test_everything_that_can_be_named_is_listed(what, names):
    said = typed("list", what)
    first = {line.split()[0] for line in said.out.splitlines() if line[:1].strip()}
    assert said.code == 0
    assert set(names) <= first


def test_runs_are_listed_with_their_state(whole):
    said = typed("list", "runs", "--runs", whole.path.parent)
    assert f"ucir+bdr seed 1993: done, {accuracies(whole)[-1]:.2f} %" in " ".join(said.out.split())


def test_a_run_is_shown_with_a_row_a_phase(whole):
    said = typed("show", whole.path)
    assert said.code == 0
    assert [f"{value:.2f}" in said.out for value in accuracies(whole)] == [True] * 3


def test_shown_json_is_json_with_the_numbers_of_the_run(whole):
    said = typed("show", whole.path, "--json")
    text = json.dumps(json.loads(said.out))
    assert said.code == 0
    assert "NaN" not in said.out
    assert all(str(value) in text for value in accuracies(whole))


def test_several_runs_are_compared(whole, from_a_shell):
    said = typed("show", whole.path, from_a_shell[1] / "runs")
    assert said.code == 0, said.err
    assert "ucir+cwd+bdr" in said.out


def test_a_report_is_one_page(whole, tmp_path):
    said = typed("report", whole.path, "--out", tmp_path / "page.html", "--title", "Ten digits")
    assert said.code == 0, said.err
    page = (tmp_path / "page.html").read_text()
    assert "Ten digits" in page
    assert "ucir+bdr" in page
    assert "</html>" in page


def test_a_report_writes_its_figures_when_asked(whole, tmp_path):
    figures = tmp_path / "some" / "figures"
    said = typed("report", whole.path, "--out", tmp_path / "page.html", "--figures", figures)
    assert said.code == 0, said.err
    names = {path.name for path in figures.iterdir()}
    assert names >= {
        *("accuracy.svg", "accuracy.csv", "matrix-0.svg", "offsets.svg"),
        *(f"{series}-phase-{phase:02d}.svg" for series in ("ce-old", "distillation") for phase in (1, 2)),
    }
    assert f"written: {tmp_path / 'page.html'}\n" in said.out
    assert said.out.endswith(f"written: {len(names)} files in {figures}\n")


def test_the_doctor_names_versions_and_the_device():
    said = typed("doctor")
    assert said.code == 0
    assert torch.__version__ in said.out
    assert "disk" in said.out


def test_the_version_is_printed():
    assert typed("--version") == (0, f"bdr {bdr.__version__}\n", "")


def test_there_is_help_for_every_command():
    for command in ("run", "resume", "show", "report", "evaluate", "list", "doctor", "clean", "demo", "data"):
        said = typed(command, "--help")
        assert said.code == 0
        assert f"{command} " in said.out.partition("Usage:")[2]


def test_the_shell_can_complete_commands(tmp_path):
    said = typed_in_a_shell("--show-completion", "bash", folder=tmp_path)
    if said.returncode and "shell" in said.stderr.lower():
        pytest.skip("the shell cannot be detected here")
    assert said.returncode == 0, said.stderr
    assert "complete" in said.stdout


def test_what_is_listed_is_said_to_its_end_and_a_second_name_is_told_as_one():
    about = dict(listing("plugins"))
    assert about["tade"].endswith("(Zhang et al., NeurIPS 2022), without what it does at test time.")
    assert about["balanced-softmax"].startswith("Another name of la: ")
    assert about["la"].startswith("LA: ")
    whole = [text for what in ("methods", "plugins", "nets", "recipes") for _, text in listing(what)]
    assert [text for text in whole if not text.endswith(".")] == []


# Cleaning


@pytest.fixture
def three_kinds(whole, tmp_path):
    """A finished run, one under way, and a shared first phase."""
    shutil.copytree(whole.path, tmp_path / "finished")
    shutil.copytree(whole.path, tmp_path / "under way")
    (tmp_path / "under way" / "DONE").unlink()
    (tmp_path / ".shared" / "key").mkdir(parents=True)
    return tmp_path


def test_cleaning_without_yes_only_says_what_it_would_do(three_kinds):
    before = tree(three_kinds)
    said = typed("clean", "--runs", three_kinds)
    assert said.code == 0
    assert f"would remove {three_kinds / 'finished' / 'checkpoint'}" in said.out
    assert "add --yes" in said.out
    assert tree(three_kinds) == before


def test_cleaning_removes_what_finished_runs_no_longer_need(three_kinds, whole):
    said = typed("clean", "--runs", three_kinds, "--yes")
    assert said.code == 0
    assert not (three_kinds / "finished" / "checkpoint").exists()
    assert not list((three_kinds / ".shared").iterdir())
    assert any((three_kinds / "under way" / "checkpoint").iterdir())
    left = {name for name in tree(whole.path) if not name.startswith("checkpoint")}
    assert tree(three_kinds / "finished").keys() == left
    assert typed("evaluate", three_kinds / "finished").code == 0


def test_what_cannot_be_removed_is_not_said_to_be(three_kinds, monkeypatch):
    def rmtree(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("bdr.commands.upkeep.shutil.rmtree", rmtree)
    said = typed("clean", three_kinds, "--yes")
    assert said.code == 1
    assert f"cannot remove {three_kinds / 'finished' / 'checkpoint'}: Permission denied" in said.err
    assert "removed" not in said.out


def test_a_run_or_a_folder_is_cleaned_by_its_name_alone(three_kinds):
    said = typed("clean", three_kinds / "finished", three_kinds / "under way")
    assert said.code == 0
    assert said.out.count("would remove") == 1  # neither the run under way nor what other runs share
    both = typed("clean", three_kinds, three_kinds / "finished")
    assert both.out == typed("clean", "--runs", three_kinds).out
    assert "bdr clean DIR" in typed("clean", three_kinds / "nowhere").err


@pytest.mark.parametrize(
    ("words", "instead"),
    [
        (("table", "T4", "--runs", "mine"), "bdr table T4 mine"),
        (("show", "--runs=mine", "--json"), "bdr show --json mine"),
        (("figure", "--runs", "mine", "4"), "bdr figure 4 mine"),
        (("report", "--runs"), "bdr report DIR"),
    ],
)
def test_where_runs_are_named_without_an_option_it_is_said_what_to_type(words, instead):
    said = typed(*words)
    assert (said.code, said.err.endswith(f"without --runs: {instead}\n")) == (2, True)


# Data of one's own


def patches(seed, count, side=8, channels=1):
    """Images of four classes: noise with a bright patch in the corner of its class."""
    chance = np.random.default_rng(seed)
    labels = np.arange(count) % 4
    pixels = chance.integers(0, 80, (count, side, side, channels), dtype=np.uint8)
    for image, label in zip(pixels, labels, strict=True):
        top, left = 4 * (label // 2), 4 * (label % 2)
        image[top : top + 4, left : left + 4] += 150
    return pixels, labels


def test_arrays_are_learnt_from_python(tmp_path):
    data = bdr.from_arrays(*patches(0, 80), *patches(1, 40), classes=["nw", "ne", "sw", "se"])
    fields = {"base": 2, "step": 2, "memory": "2/class", "net": "small", "device": "cpu", "order": "natural"}
    changes = {"stage.epochs": 4, "stage.batch": 16, "stage.lr": 0.05, "ucir.eta": 10}
    result = bdr.run("ucir+bdr", data=data, out=tmp_path / "run", set=changes, **fields)
    run = Run.open(result.path)
    assert run.info["classes"] == ["nw", "ne", "sw", "se"]
    assert run.info["protocol"]["source"] == data.source
    assert result.accuracies[0] > 75
    assert run.info["image"][0] == 1
    model = bdr.load(result.path)
    assert model.readouts(torch.zeros(1, 1, 8, 8))["cnn"].shape == (1, 4)


def paint(folder, seed, count):
    """A folder for each of four classes, with pictures in colour."""
    image = pytest.importorskip("PIL.Image")
    for number, (pixels, label) in enumerate(zip(*patches(seed, count, channels=3), strict=True)):
        (folder / f"corner{label}").mkdir(parents=True, exist_ok=True)
        image.fromarray(pixels).save(folder / f"corner{label}" / f"{number}.png")


def train_on_pictures(place):
    words = ("--base", "2", "--step", "2", "--memory", "2/class", "--net", "small", "--size", "8", "--device", "cpu")
    where = ("--data", "imagefolder", "--root", place / "pictures", "--out", place / "run")
    said = typed("run", "ucir+bdr", *words, *where, "--set", "stage.epochs=1", "--set", "stage.batch=16")
    assert said.code == 0, said.err


@pytest.fixture(scope="module")
def of_pictures(tmp_path_factory):
    """A run on a folder of pictures in colour, which is gone by now."""
    place = tmp_path_factory.mktemp("pictures")
    paint(place / "pictures", seed=0, count=40)
    train_on_pictures(place)
    assert typed("evaluate", place / "run").code == 0
    shutil.copytree(place / "pictures", place / "grown")
    shutil.copytree(place / "pictures" / "corner0", place / "grown" / "another")
    shutil.rmtree(place / "pictures")
    return Run.open(place / "run")


def test_a_folder_of_pictures_is_learnt(of_pictures):
    assert sorted(of_pictures.info["classes"]) == ["corner0", "corner1", "corner2", "corner3"]
    assert of_pictures.info["image"][0] == 3


def test_of_a_folder_that_has_grown_a_run_reads_the_classes_that_it_knows(of_pictures, tmp_path):
    grown, run = of_pictures.path.parent / "grown", shutil.copytree(of_pictures.path, tmp_path / "run")
    said = typed("evaluate", of_pictures.path, "--root", grown, "--json")
    assert json.loads(said.out)["accuracy"] == of_pictures.phases[-1]["accuracy"]
    (run / "DONE").unlink()
    assert typed("resume", run, "--root", grown).code == 0
    assert (run / "DONE").exists()
    assert typed("evaluate", run).code == 0  # it has been told where they are


def test_a_folder_that_has_grown_must_have_kept_the_images_that_were_there(of_pictures, tmp_path):
    grown = shutil.copytree(of_pictures.path.parent / "grown", tmp_path / "grown")
    next((grown / "corner0").iterdir()).unlink()
    said = typed("evaluate", of_pictures.path, "--root", grown)  # which are for testing goes by their place
    assert (said.code, "some may have been trained on" in " ".join(said.err.split())) == (2, True)


def test_test_images_of_their_own_are_all_that_an_evaluation_needs(tmp_path):
    for split, seed, count in (("train", 0, 40), ("test", 1, 20)):
        paint(tmp_path / "pictures" / split, seed, count)
    train_on_pictures(tmp_path)
    shutil.rmtree(tmp_path / "pictures" / "train")
    said = typed("evaluate", tmp_path / "run", "--json")
    assert (json.loads(said.out)["accuracy"], said.err) == (Run.open(tmp_path / "run").phases[-1]["accuracy"], "")
    next((tmp_path / "pictures" / "test" / "corner1").iterdir()).unlink()
    said = typed("evaluate", tmp_path / "run")
    assert (said.code, "warning: the test images of corner1 are not those" in " ".join(said.err.split())) == (0, True)


def test_a_finished_run_is_told_where_its_images_have_gone(of_pictures, tmp_path):
    run = shutil.copytree(of_pictures.path, tmp_path / "run")
    assert typed("evaluate", run).code == 2
    assert typed("resume", run, "--root", of_pictures.path.parent / "grown").code == 0
    assert typed("evaluate", run).code == 0


def test_classes_that_are_gone_are_named_with_those_that_came(of_pictures, tmp_path):
    grown = shutil.copytree(of_pictures.path.parent / "grown", tmp_path / "grown")
    shutil.rmtree(grown / "corner1")
    said = typed("evaluate", of_pictures.path, "--root", grown)
    told = f"now has 4 classes, and {of_pictures.path} was trained on 4 (new: another; missing: corner1): "
    assert (said.code, f"{told}put {grown / 'corner1'} back, or" in " ".join(said.err.split())) == (2, True)


def test_the_folder_of_a_class_that_lacks_its_test_images_is_named(of_pictures, tmp_path):
    for split in ("train", "test"):
        shutil.copytree(of_pictures.path.parent / "grown", tmp_path / "grown" / split)
    shutil.rmtree(tmp_path / "grown" / "test" / "corner1")
    said = typed("evaluate", of_pictures.path, "--root", tmp_path / "grown")
    assert (said.code, f"put {tmp_path / 'grown' / 'test' / 'corner1'} back, or" in said.err) == (2, True)


def test_a_model_is_loaded_without_the_data(of_pictures):
    assert typed("evaluate", of_pictures.path).code == 2
    model, x = bdr.load(of_pictures.path, device="cpu"), torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        scores, again = model.readouts(x), bdr.load(of_pictures.path, phase=1, device="cpu").readouts(x)
    assert {name: tuple(value.shape) for name, value in scores.items()} == {"cnn": (2, 4), "nme": (2, 4)}
    assert all(torch.equal(value, again[name]) for name, value in scores.items())
    kept = read_state(of_pictures.path / "phase-01" / "model").tensors
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in kept.items())


# Published data


@pytest.fixture
def archive(tmp_path, monkeypatch):
    """A small archive in the place of the published one."""
    data, files = PUBLISHED["cifar100"], {"train": b"1" * 999, "test": b"2" * 99, "meta": b"3"}
    path = tmp_path / "archive.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(f"{data.folder}/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    sums = {name: md5_of(content) for name, content in files.items()}
    monkeypatch.setitem(PUBLISHED, "cifar100", replace(data, md5=md5_of(path.read_bytes()), files=sums))
    return path


def test_fetched_data_is_verified_file_by_file(archive, tmp_path):
    root = tmp_path / "data"
    missing = typed("data", "verify", "cifar100", "--root", root)
    fetched = typed("data", "fetch", "cifar100", "--root", root, "--url", archive.as_uri())
    verified = typed("data", "verify", "cifar100", "--root", root)
    again = typed("data", "fetch", "cifar100", "--root", root)
    assert (missing.code, fetched.code, verified.code, again.code) == (1, 0, 0, 0)
    assert missing.out.split()[::2] == ["missing"] * 3
    assert verified.out.split()[::2] == ["ok"] * 3
    assert "already there" in again.out
    (root / PUBLISHED["cifar100"].folder / "test").write_bytes(b"4")
    damaged = typed("data", "verify", "cifar100", "--root", root)
    assert damaged.code == 1
    assert "damaged  test" in damaged.out
    assert "bdr data fetch cifar100" in damaged.err


def test_an_archive_that_is_not_the_published_one_is_refused(archive, tmp_path):
    (tmp_path / "other.tar.gz").write_bytes(b"something else")
    said = typed("data", "fetch", "cifar100", "--root", tmp_path / "d", "--url", (tmp_path / "other.tar.gz").as_uri())
    assert said.code == 1
    assert "not the published archive" in said.err
    assert os.listdir(tmp_path / "d") == []
