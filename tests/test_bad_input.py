"""What cannot be: every refusal is one clear sentence and an exit code, and leaves the disk as it was."""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
import shlex
import shutil
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from small import OWN_MAKERS, make_flat
from test_cli import SHORT, WHOLE, tree, typed
from typer.main import get_command

import bdr
from bdr.cli import COMMANDS, DATA_COMMANDS, app
from bdr.cli.bench import bench_app
from bdr.cli.hints import Hinting
from bdr.configuration.config import fields_of
from bdr.data import DATASETS
from bdr.data.published import PUBLISHED, md5_of
from bdr.errors import BdrError, UsageError, shortened
from bdr.methods import METHODS
from bdr.records import Run
from bdr.types import Stage

USAGE, FAILURE = 2, 1


def everything_in(folder):
    return tree(folder), {path for path in folder.rglob("*") if path.is_dir()}


@pytest.fixture(scope="module", autouse=True)
def elsewhere(tmp_path_factory):
    """Away from the source: runs with equal first phases share them in a folder beside, wherever they are typed."""
    with contextlib.chdir(tmp_path_factory.mktemp("elsewhere")):
        yield


@pytest.fixture(scope="module", autouse=True)
def digits_read_once():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(DATASETS, "digits", cache(DATASETS["digits"]))
        yield


@pytest.fixture
def refused(tmp_path, monkeypatch):
    """Types something, checks the exit code and that nothing was written, and returns what was said."""
    monkeypatch.chdir(tmp_path)

    def typing(code, *words):
        before = everything_in(tmp_path)
        said = typed(*words)
        assert said.code == code, said
        assert "Traceback" not in said.err + said.out
        assert said.err.strip()
        assert everything_in(tmp_path) == before
        return " ".join(said.err.replace("│", " ").split())

    return typing


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A finished run that keeps its last model alone."""
    path = tmp_path_factory.mktemp("made") / "run"
    said = typed("run", "ucir+bdr", *SHORT, "--out", path)
    assert said.code == 0, said.err
    return path


# Names


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["ucri"], "no method or recipe 'ucri'; there are"),
        (["ucirr"], "did you mean 'ucir'?"),
        (["ucir+bdrr"], "no plug-in 'bdrr'; there are aanet, "),
        (["ucir+bdrr"], "did you mean 'bdr'?"),
        (["bdr"], "'bdr' is a plug-in: name a method before it, such as ucir+bdr"),
        (["la+bdr"], "'la' is a plug-in: name a method before it, such as ucir+la+bdr"),
        (["bdr+ucir"], "'bdr' is a plug-in: name a method before it, such as ucir+bdr"),
        (["ucir-bdr"], "'ucir-bdr' is not like METHOD+PLUGIN+PLUGIN: type ucir+bdr"),
        (["icarl, cwd-bdr"], "'icarl, cwd-bdr' is not like METHOD+PLUGIN+PLUGIN: type icarl+cwd+bdr"),
        (["ucir-bdrr"], "no method or recipe 'ucir-bdrr'; there are"),
        ([","], "no method or recipe ','; there are"),
        (["la+icarl+bdr"], "'la' is a plug-in: name a method before it, such as icarl+la+bdr"),
        (["ucir+ucir"], "'ucir' is a method, and a run has one: leave out the second 'ucir'"),
        (["ucir+icarl"], "'icarl' is a method, and a run has one: leave out 'icarl' or 'ucir'"),
        (["ucir+"], "'ucir+' is not like METHOD+PLUGIN"),
        (["+bdr"], "'+bdr' is not like METHOD+PLUGIN"),
        (["ucir", "--data", "digit"], "no data set 'digit'; there are cifar10, cifar100, digits, imagefolder"),
        (["ucir", "--net", "smal"], "no net 'smal'; there are"),
        (
            ["ucir", "--herding", "dots"],
            "no herding 'dots'; there are distance, distributed, dot, random: did you mean 'dot'?",
        ),
        (["ucir", "--order", "seed1993"], "no class order 'seed1993'; there are seed-N"),
        (["ucir", "--order", "0,1,2"], "the class order '0,1,2' has 3 entries up to 2"),
        (["ucir", "--order", "podnet-1"], "the class order podnet-1 has 100 entries up to 99"),
        (["cwd", "--data", "digits"], "recipe 'cwd' is for cifar100, not for digits"),
        (["no_such_module:Method"], "cannot import no_such_module"),
        (["math:no_such_name"], "math has no no_such_name"),
        (["math:pi"], "'math:pi' is not a method"),
        (["collections:OrderedDict"], "'collections:OrderedDict' is not a method"),
        (["ucir+collections:OrderedDict"], "'collections:OrderedDict' is not a plug-in"),
        (["ucir", "--net", "math:pi"], "'math:pi' is not a net"),
        ([":Method"], "':Method' is not like package.module:Name"),
        (["mine.part.Method"], "; one of your own is typed mine.part:Method"),
        (["ucir+mine.Focal"], "; one of your own is typed mine:Focal"),
        (["ucir", "--net", "mine.Net"], "; one of your own is typed mine:Net"),
        (["ucir", "--data", "mine.flowers"], "; one of your own is typed mine:flowers"),
    ],
)
def test_unknown_names_are_told_what_there_is(refused, words, sentence):
    assert sentence in refused(USAGE, "run", *words, *SHORT)


@pytest.mark.parametrize("words", ["ucir+foo", "foo", "ucir+iccarl"])
def test_a_name_that_is_like_no_other_is_given_no_far_fetched_hint(refused, words):
    assert "did you mean" not in refused(USAGE, "run", words, *SHORT)


@pytest.mark.parametrize("words", [["frobnicate"], ["show"], ["list", "things"], ["run", "ucir", "--bse", "4"]])
def test_unknown_commands_and_options_are_refused_with_the_usage(refused, words):
    assert "Usage" in refused(USAGE, *words)


@pytest.mark.parametrize(
    ("words", "instead"),
    [
        (["run", "ucir+bdr", "--epochs", "3"], "run has no option --epochs: type --set stage.epochs=VALUE"),
        (["run", "ucir", "--epoch", "3"], "type --set stage.epochs=VALUE"),
        (["run", "ucir", "--lr=0.1"], "type --set stage.lr=VALUE"),
        (["run", "ucir", "--learning-rate", "0.1"], "type --set stage.lr=VALUE"),
        (["run", "ucir", "--batch-size", "64"], "type --set stage.batch=VALUE"),
        (["run", "ucir", "--weight-decay", "0"], "type --set stage.weight_decay=VALUE"),
        (["run", "ucir", "--pad", "2"], "type --set augment.pad=VALUE"),
        (["run", "ucir", "--statistics", "der"], "type --set statistics=VALUE"),
        (["run", "ucir+bdr", "--tau", "1"], "type --set bdr.tau=VALUE"),
        (["run", "--method", "ucir"], "run has no option --method: it takes WHAT (METHOD+PLUGIN+..., a recipe"),
        (["sweep", "ucir", "--epochs", "3"], "type --set stage.epochs=VALUE"),
        (["compare", "ucir", "--lr", "3"], "type --set stage.lr=VALUE"),
        (["extend", "runs", "--keep", "all"], "type --set keep=VALUE"),
        (["bench", "growth", "--epochs", "3"], "type --set stage.epochs=VALUE"),
    ],
)
def test_a_setting_in_place_of_an_option_is_told_how_it_is_typed(refused, words, instead):
    assert instead in refused(USAGE, *words)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "ucir", "--bse", "4"], "--base"),
        (["sweep", "ucir", "--seed", "3"], "--seeds"),
        (["run", "ucir", "--tau", "1"], "No such option: --tau"),  # bdr is no part of it
        (["run", "ucir", "--dropout", "1"], "No such option: --dropout"),
        (["run", "ucir", "--loss", "loss"], "No such option: --loss"),  # which is its method's own
        (["run", "ucir", "--base"], "requires an argument"),
        (["show", "runs", "--epochs", "1"], "No such option: --epochs"),  # it has no --set
    ],
)
def test_where_no_setting_is_like_it_typer_says_what_it_can(refused, words, said):
    assert said in refused(USAGE, *words)


@pytest.mark.parametrize("spelt", [["stage.epochs", "3"], ["stage.epochs=", "3"], ["stage.epochs", "=3"]])
def test_a_setting_in_two_words_is_told_to_be_one(refused, spelt):
    said = "--set takes NAME=VALUE without spaces: type --set stage.epochs=3"
    assert said in refused(USAGE, "run", "ucir", "--set", *spelt)
    assert said in refused(USAGE, "run", "--set", *spelt, "ucir")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["list", "runs", "there"],
            "list takes WHAT (methods, plugins, data, nets, recipes, runs), and nothing else: ",
        ),
        (["list", "runs", "there"], "there is too much"),
        (["run", "ucir", "bdr"], "run takes WHAT (METHOD+PLUGIN+..., a recipe, or package.module:MyMethod+bdr), and"),
        (["resume", "one", "two"], "resume takes RUN (A run directory, as printed by bdr run), and nothing else: two"),
        (["doctor", "me", "too"], "doctor takes no argument: me too is too much"),
        (["data", "fetch", "cifar10", "there"], "fetch takes NAME (cifar10 or cifar100), and nothing else: there is"),
    ],
)
def test_an_argument_too_many_is_told_what_the_command_takes(refused, words, said):
    assert said in refused(USAGE, *words)


@pytest.mark.parametrize("folder", ["my runs", "runs"])
def test_a_folder_of_runs_in_place_of_an_option_is_told_which(refused, tmp_path, folder):
    (tmp_path / folder).mkdir()
    assert f"nothing else: bdr list runs --runs {shlex.quote(folder)}" in refused(USAGE, "list", "runs", folder)
    assert f"{folder} is too much" in refused(USAGE, "list", "runs", folder, "--runs", folder)


@pytest.mark.parametrize(
    ("typed", "instead"),
    [
        ("run ucir+bdr --data imagefolder pics", "bdr run ucir+bdr --data imagefolder --root pics"),
        ("run ucir+bdr pics --data=imagefolder", "bdr run ucir+bdr --data=imagefolder --root pics"),
        ("run ucir+bdr pics --base 2", "bdr run ucir+bdr --base 2 --data imagefolder --root pics"),
        ("extend RUN pics", "bdr extend RUN --root pics"),
        ("evaluate RUN pics", "bdr evaluate RUN --root pics"),
        ("run ucir+bdr runs", "bdr run ucir+bdr --runs runs"),
        ("run ucir+bdr --data imagefolder --root=pics runs", "--root=pics --runs runs"),
        ("run ucir+bdr --root pics --runs=other runs", "and nothing else: runs is too much"),
    ],
)
def test_a_folder_of_pictures_in_place_of_an_option_is_told_which(refused, tmp_path, typed, instead):
    (tmp_path / "runs").mkdir()
    (tmp_path / "pics" / "train" / "ant").mkdir(parents=True)
    (tmp_path / "pics" / "train" / "ant" / "1.png").write_bytes(b"")
    assert refused(USAGE, *typed.split()).endswith(instead)


def test_every_command_can_say_what_it_takes():
    groups = [get_command(app)]
    groups += [group for group in groups[0].commands.values() if hasattr(group, "commands")]
    every = [command for group in groups for command in group.commands.values() if command not in groups]
    assert len(every) == len({*COMMANDS.values(), *DATA_COMMANDS.values(), *bench_app.registered_commands})
    assert all(isinstance(command, Hinting) and "None" not in command.taken() for command in every)


def test_a_run_of_nothing_is_told_what_to_name(refused):
    said = refused(USAGE, "run")
    assert "name what to run, for example: bdr run ucir+cwd+bdr" in said
    assert "bdr list methods" in said


# Values


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("bse=4", "no setting 'bse'; there are"),
        ("bse=4", "did you mean 'base'?"),
        ("stage.epoch=2", "no setting of stage 'epoch'; there are"),
        ("stage.epoch=2", "did you mean 'epochs'?"),
        ("stage.mian.lr=1", "no stage 'mian'; there are main: did you mean 'main'?"),
        ("stage.main.lrr=1", "no setting of stage.main 'lrr'"),
        ("bdr.mm=1", "no setting of bdr 'mm'; there are beta, components, formula, m, m_prime, tau"),
        ("ucir.etta=1", "no setting of ucir 'etta'"),
        ("augment.pads=1", "no setting of augment 'pads'; there are additive, brightness, contrast, flip, pad,"),
        ("la.tau=1", "no part of this run with settings 'la'"),
        ("cwd.coefficient=1", "; to have 'cwd' name it: ucir+bdr+cwd"),
        ("icarl.outputs=100", "; to have 'icarl' name it: icarl+bdr, in place of ucir"),
        ("resnet32.width=1", "; to have 'resnet32' name it: --net resnet32"),
        ("stage.optimizer=adam", "there are adamw, sgd: did you mean 'adamw'?"),
        ("stage.schedule=step", "there are constant, cosine, steps"),
        ("stage.draw=none", "there are all, fresh, held, memory, rarest, uniform"),
        ("stage.loss=classification", "stage.loss = 'classification' is not allowed: the method declares it"),
        ("stage.name=balanced", "stage.name = 'balanced' is not allowed: the method declares it"),
        ("stage.main.loss=margin_ranking", "leave stage.loss out (settings of a stage are batch, clip, draw,"),
        ("stage={alternate: null}", "stage.alternate = None is not allowed"),
        ("loss=classification", "no setting 'loss'; there are"),
        (
            "statistics=der",
            "statistics = 'der' is not allowed: it is for 3 channels, and the images of 'digits' have 1",
        ),
        ("statistics=der", "type --set statistics=default or --set statistics=half"),
        ("bdr.formula=right", "input should be 'corrected', 'released' or 'anchored'"),
        ("precision=fp8", "input should be 'auto', 'fp32', 'tf32' or 'bf16'"),
        ("engine=fast", "input should be 'auto', 'eager', 'compile' or 'graph'"),
        ("keep=some", "input should be 'last', 'all' or 'none'"),
        ("device=toaster", "device 'toaster' cannot be used"),
        ("NAME", "'NAME' is not like NAME=VALUE"),
        ("=3", "'=3' is not like NAME=VALUE"),
        ("stage.drops=[1", "the value of 'stage.drops=[1' cannot be read"),
    ],
)
def test_unknown_settings_are_told_what_there_is(refused, setting, sentence):
    assert sentence in refused(USAGE, "run", "ucir+bdr", *SHORT, "--set", setting)


@pytest.mark.parametrize(
    "setting",
    [
        *("stage.epochs=two", "stage.epochs=0", "stage.epochs=1.5", "stage.batch=1", "stage.drops=5"),
        *("stage.lr=0", "stage.lr=-1", "stage.lr=.nan", "stage.lr=.inf", "stage.main.lr=-1", "stage.drop=-1"),
        *("stage.warmup=-1", "stage.momentum=-1", "stage.weight_decay=-1", "stage.clip=-1", "stage=5"),
        *("stage.warmup_lr=-1",),
        *("bdr.m=2", "bdr.m=-0.1", "bdr.beta=x", "bdr.tau=.nan", "ucir.eta=big", "ucir.eta=.inf", "ucir.imprint=3"),
        *("augment.pad=-1", "augment.pad=x", "augment.flip=2", "augment.brightness=-1", "augment.brightness=.nan"),
        "augment.rotation=-1",
        *("seed=-1", "seed=x", "val=1", "val=-0.1", "val=0.999", "phases=0", "size=2", "checkpoint_every=-1"),
        *("memory=x", "memory=-3", "memory=5/classes", "uneven=maybe", "order=5", "root=3", "settings=3", "base=-1"),
    ],
)
def test_values_of_a_wrong_type_or_range_are_refused_by_name(refused, setting):
    said = refused(USAGE, "run", "ucir+bdr", *SHORT, "--set", setting)
    assert setting.partition("=")[0].rpartition(".")[2] in said


NUMBERS = [
    (name, setting)
    for name, method in METHODS.items()
    for setting, (_, default) in fields_of(method, ["make"]).items()
    if type(default) in (int, float)
]


@pytest.mark.parametrize(("method", "setting"), NUMBERS)
def test_no_number_of_a_method_may_be_below_zero(method, setting):
    with pytest.raises(ValueError, match=f"^{setting} = -1"):
        METHODS[method](OWN_MAKERS.get(method, make_flat), **{setting: -1})


SCALES = [(name, setting) for name, setting in NUMBERS if setting in ("temperature", "damping", "eta")]


@pytest.mark.parametrize(("method", "setting"), SCALES)
def test_a_scale_of_zero_is_refused(method, setting):
    with pytest.raises(ValueError, match=f"^{setting} = 0 is not allowed: it is more than 0"):
        METHODS[method](OWN_MAKERS.get(method, make_flat), **{setting: 0})


def test_a_word_where_a_number_belongs_is_refused(refused):
    assert "--base" in refused(USAGE, "run", "ucir", "--base", "many")


# Protocols and combinations


@pytest.mark.parametrize(
    ("what", "words", "sentence"),
    [
        ("ucir", ["--base", "4", "--step", "4"], "10 classes do not split into a base of 4 and steps of 4: 2 would be"),
        ("ucir", ["--base", "4", "--step", "4"], "use a step of 2, 3 or 6, or --uneven"),
        ("ucir", ["--base", "11", "--step", "1"], "the first phase wants 11 classes and there are 10"),
        ("ucir", ["--base", "4", "--step", "0"], "a step 1 or more"),
        ("ucir", ["--memory", "9"], "a memory of 9 images cannot hold one of each of 10 classes"),
        ("ucir+bdr", ["--memory", "0"], "plug-in 'bdr' balances old classes against new ones and needs an exemplar"),
        ("ucir+la", ["--memory", "0/class"], "plug-in 'la' balances"),
        ("finetune+bdr", [], "'finetune' keeps none: use another method, such as replay+bdr, or leave the plug-in out"),
        ("finetune+bdr", ["--memory", "2/class"], "'finetune' keeps none: use another method, such as replay+bdr"),
        ("icarl+bdr", ["--memory", "0"], "'icarl' does not go with --memory 0: use --memory 20/class or --memory all"),
        ("ewc+aanet", ["--memory", "0"], "'ewc' needs all parameters of its network from the start"),
        ("ucir+la+bdr", [], "'la' and 'bdr' both set the prior: use one of them"),
        ("ucir+bdr+bdr", [], "plug-in 'bdr' is named twice; name it once"),
        ("digits-cwd+cwd", [], "plug-in 'cwd' is named twice; name it once"),
        ("ucir", ["--seed", "1", "--seeds", "2,3"], "give --seed or --seeds, not both"),
        ("ucir", ["--seeds", "1993;1994"], "--seeds '1993;1994' is not like 1993,1994,1995"),
        ("ucir", ["--seeds", "7,0,0"], "--seeds '7,0,0' has 0 more than once"),
        ("ucir", ["--seeds", ""], "--seeds is followed by an empty word"),
        ("ucir", ["--seeds", "3,-4"], "seed = -4 is not allowed"),
        ("ucir", ["--seeds", "1,2", "--out", "run"], "--out names one run and --seeds asks for several"),
    ],
)
def test_what_does_not_go_together_is_refused_before_anything_trains(refused, what, words, sentence):
    assert sentence in refused(USAGE, "run", what, *WHOLE, *words)


def test_the_graph_engine_without_a_gpu_is_refused(refused):
    said = refused(USAGE, "run", "ucir", *SHORT, "--engine", "graph")
    assert "needs a CUDA device" in said
    assert "--engine eager" in said


# Configuration files


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"base: [4", "bdr: some.yaml, line 1, column 9: expected ',' or ']', but got the end of the file"),
        (b"base: 4\n\tstep: 2", "bdr: some.yaml, line 2, column 1: found character '\\t'"),
        (b"base: \x01", "some.yaml is not YAML: unacceptable character #x0001"),
        (b"\xff\xfe\x00", "is not YAML"),
        (b"- base", "holds a list, and must hold fields"),
        (b"bse: 4", "no setting 'bse'"),
        (b"4: base", "no setting in some.yaml '4'"),
        (b"stage: {epoch: 4}", "no setting of stage 'epoch'"),
        (b"stage: 4", "stage = 4 is not allowed"),
        (b"data: 4", "data = 4 is not allowed"),
        (b"settings: {bdr: {mm: 1}}", "no setting of bdr 'mm'"),
        (b"base: many", "base = 'many' is not allowed"),
    ],
)
def test_a_configuration_file_that_is_wrong_is_told_where(refused, tmp_path, content, sentence):
    (tmp_path / "some.yaml").write_bytes(content)
    assert sentence in refused(USAGE, "run", "ucir+bdr", "--config", "some.yaml")


def test_a_configuration_file_that_cannot_be_read_is_named(refused, tmp_path):
    assert "--config none.yaml cannot be read" in refused(USAGE, "run", "ucir", "--config", "none.yaml")
    assert "cannot be read" in refused(USAGE, "run", "ucir", "--config", tmp_path)


# Data


def test_data_that_is_not_there_says_how_to_get_it(refused, tmp_path):
    assert "bdr data fetch cifar100 --root DIR" in refused(USAGE, "run", "ucir", "--data", "cifar100")
    assert "no folder cifar-100-python/" in refused(USAGE, "run", "ucir", "--data", "cifar100", "--root", tmp_path)
    assert "was given no root" in refused(USAGE, "run", "ucir", "--data", "imagefolder")


def cifar_folder(root):
    folder = root / PUBLISHED["cifar100"].folder
    folder.mkdir()
    return folder


def test_a_missing_cifar_file_is_named(refused, tmp_path):
    cifar_folder(tmp_path)
    said = refused(USAGE, "run", "ucir", "--data", "cifar100", "--root", tmp_path)
    assert "cifar-100-python/meta, which does not exist" in said


def test_a_truncated_cifar_file_is_told_by_its_checksum(refused, tmp_path):
    folder = cifar_folder(tmp_path)
    (folder / "meta").write_bytes(pickle.dumps({"fine_label_names": list("abc")})[:-5])
    said = refused(FAILURE, "run", "ucir", "--data", "cifar100", "--root", tmp_path)
    assert "meta is damaged" in said
    assert "bdr data fetch cifar100" in said


class Trap:
    def __init__(self, place):
        self.place = place

    def __reduce__(self):
        return os.mkdir, (str(self.place),)


def test_a_pickle_that_would_run_code_is_not_read(refused, tmp_path, monkeypatch):
    folder, sprung = cifar_folder(tmp_path), tmp_path / "sprung"
    content = pickle.dumps({"fine_label_names": Trap(sprung)})
    (folder / "meta").write_bytes(content)
    good = {**PUBLISHED["cifar100"].files, "meta": md5_of(content)}
    monkeypatch.setitem(PUBLISHED, "cifar100", replace(PUBLISHED["cifar100"], files=good))
    said = refused(FAILURE, "run", "ucir", "--data", "cifar100", "--root", tmp_path)
    assert "mkdir and was not read" in said
    assert not sprung.exists()


def test_published_data_that_is_unknown_is_told_what_there_is(refused):
    for verb in ("fetch", "verify"):
        assert "there are cifar10, cifar100: did you mean" in refused(USAGE, "data", verb, "cifar1000")


def test_arrays_that_hold_no_numbers_are_refused():
    x, y = np.zeros((4, 8, 8, 1), np.float32), np.array([0, 0, 1, 1])
    x[2, 3, 4, 0] = np.nan
    with pytest.raises(UsageError, match=r"train_x has 1 of 256 values .* nan at image 2, row 3, column 4, channel 0"):
        bdr.from_arrays(x, y, np.zeros_like(x), y)


def test_fields_from_python_are_checked_too(tmp_path):
    with pytest.raises(UsageError, match="did you mean 'memory'"):
        bdr.run("ucir", data="digits", runs=tmp_path, memry="3/class")
    with pytest.raises(UsageError, match=r"stage\.epochs"):
        bdr.run("ucir", data="digits", runs=tmp_path, set={"stage.epochs": -1})
    with pytest.raises(UsageError, match=r"stage\.name = 'balanced' is not allowed: the method declares it"):
        bdr.run("e2e", data="digits", runs=tmp_path, stage=Stage(name="balanced"))
    assert not list(tmp_path.iterdir())


# Places


def test_a_run_below_a_regular_file_is_refused(refused, tmp_path):
    (tmp_path / "file").write_text("mine")
    assert "file is a file; a run needs a folder" in refused(USAGE, "run", "ucir", *SHORT, "--out", "file/run")
    assert "file is a file; a run needs a folder" in refused(USAGE, "run", "ucir", *SHORT, "--runs", "file")
    assert "file is a file; a run needs a folder" in refused(USAGE, "run", "ucir", *SHORT, "--out", "file")


def test_a_page_below_a_regular_file_is_refused(refused, tmp_path, made):
    (tmp_path / "file").write_text("mine")
    said = refused(USAGE, "report", made, "--out", "file/page.html")
    assert "cannot write file/page.html: there is no folder file" in said


LOST = {
    "lost": "0 of 2 phases are there, and the run was done",
    "half": "a line without a usable phase, old, seen, accuracy, parameters",
}


@pytest.mark.parametrize("damage", LOST)
@pytest.mark.parametrize("words", [["predict", "cat.png"], ["evaluate"], ["export", "--out", "model.pt2"], ["extend"]])
def test_a_run_that_lost_its_phases_is_told_to_be_damaged(refused, tmp_path, made, damage, words):
    path = shutil.copytree(made, tmp_path / "run")
    (path / "phases.jsonl").write_text('{"phase": 0}\n' if damage == "half" else "")
    command, *rest = words
    assert f"phases.jsonl is damaged: {LOST[damage]}" in refused(FAILURE, command, path, *rest)


def test_nothing_is_begun_with_what_is_damaged(refused, tmp_path, made):
    path = shutil.copytree(made, tmp_path / "run")
    (path / "steps.npz").write_bytes(b"no arrays")
    assert "steps.npz" in refused(FAILURE, "extend", path, "--out", "further")


def test_a_folder_that_is_taken_says_by_what_in_the_words_that_were_typed(refused, made):
    for words, sentence in (
        (["ucir"], "title is ucir+bdr there and ucir here"),
        (["ucir+bdr", "--set", "bdr.m=0.5"], "bdr.m is 0.8 there and 0.5 here"),
    ):
        assert sentence in refused(USAGE, "run", *words, *SHORT, "--out", made)


def test_a_folder_of_something_else_is_left_alone(refused, tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_text("meow")
    said = refused(USAGE, "run", "ucir", *SHORT, "--out", "photos")
    assert "photos is not empty and not a run (it holds cat.jpg)" in said


@pytest.mark.parametrize(
    ("what", "words", "sentence"),
    [
        ("ucir+bdr", ["--seed", "7"], "seed is 1993 there and 7 here"),
        ("ucir+bdr", ["--memory", "4/class"], "memory is 3/class there and 4/class here"),
        ("ucir+la", [], "belongs to another configuration"),
        ("ucir+bdr", ["--set", "bdr.m=0.5"], "belongs to another configuration"),
    ],
)
@pytest.mark.parametrize("manner", [[], ["--dry-run"]])
def test_the_directory_of_another_run_is_left_alone(refused, made, what, words, sentence, manner):
    before = everything_in(made)
    assert sentence in refused(USAGE, "run", what, *SHORT, *words, *manner, "--out", made)
    assert everything_in(made) == before


@pytest.mark.parametrize("manner", [[], ["--dry-run"]])
def test_a_file_is_no_folder_for_runs(refused, tmp_path, manner):
    (tmp_path / "notes").write_text("mine")
    words, sweep = (["run", "ucir", *SHORT, *manner], ["sweep", "ucir", *SHORT, *manner])
    assert "notes is a file; a run needs a folder" in refused(USAGE, *words, "--out", "notes")
    assert "notes is a file; a run needs a folder" in refused(USAGE, *words, "--runs", "notes")
    assert "notes is a file; a run needs a folder" in refused(USAGE, *sweep, "--runs", "notes")


@contextlib.contextmanager
def files_no_larger_than(size):
    """A disk without room for larger files, for root too."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_named_and_the_run_goes_on_once_there_is_room(tmp_path):
    path = tmp_path / "run"
    with files_no_larger_than(40_000):
        said = typed("run", "ucir", *SHORT, "--no-share", "--out", path)
    assert said.code == FAILURE
    assert f"cannot write {path}" in said.err
    assert "File too large" in said.err
    assert "Traceback" not in said.err
    assert not list(tmp_path.rglob("*.partial"))
    assert not Run.open(path).done
    assert typed("resume", path).code == 0
    assert Run.open(path).done


def test_a_full_disk_from_the_start_leaves_no_run(tmp_path):
    with files_no_larger_than(100):
        said = typed("run", "ucir", *SHORT, "--no-share", "--out", tmp_path / "run")
    assert said.code == FAILURE
    assert "cannot write" in said.err
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


# Runs that are none, or not whole


@pytest.mark.parametrize("command", ["resume", "show", "evaluate", "report"])
def test_a_folder_that_is_no_run_is_told(refused, tmp_path, command):
    (tmp_path / "empty").mkdir()
    said = refused(USAGE, command, "empty")
    assert "is not a run" in said or "there is no run in empty" in said
    assert "nowhere" in refused(USAGE, command, "nowhere")


def test_a_folder_of_runs_that_is_none_is_told(refused):
    assert "nowhere" in refused(USAGE, "list", "runs", "--runs", "nowhere")
    assert "there is no folder 'nowhere'" in refused(USAGE, "clean", "--runs", "nowhere", "--yes")


def test_a_model_that_was_not_kept_is_told_which_were(refused, made):
    said = refused(USAGE, "evaluate", made, "--phase", "0")
    assert "keeps no model of phase 0, only of 1; run with --keep all" in said
    with pytest.raises(UsageError, match="keeps no model of phase 7"):
        bdr.load(made, phase=7)


def test_a_readout_that_does_not_exist_is_told_what_there_is(refused, made):
    assert "no readout 'knn'; there are cnn, nme" in refused(USAGE, "show", made, "--readout", "knn")


def test_a_damaged_record_is_named(refused, tmp_path, made):
    shutil.copytree(made, tmp_path / "run")
    (tmp_path / "run" / "run.json").write_text('{"title": ')
    for command in ("show", "resume", "evaluate"):
        said = refused(FAILURE, command, "run")
        assert "run.json is damaged" in said
        assert "put back a copy of it, or train the run again into another folder" in said


def test_a_damaged_model_is_named(refused, tmp_path, made):
    shutil.copytree(made, tmp_path / "run")
    model = tmp_path / "run" / "phase-01" / "model" / "tensors.safetensors"
    model.write_bytes(model.read_bytes()[:-1] + b"!")
    advice = "put back a copy of run/phase-01/model, or train anew: remove or rename run, and type bdr run ucir+bdr"
    said = refused(FAILURE, "evaluate", "run")
    assert f"tensors.safetensors is damaged: its checksum is wrong; {advice}" in said
    model.unlink()
    assert f"tensors.safetensors is missing; {advice}" in refused(FAILURE, "evaluate", "run")
    shutil.copytree(model.parent, tmp_path / "run" / "phase-00" / "model")
    assert "use that of another phase with --phase (0)" in refused(FAILURE, "evaluate", "run")


def test_a_run_without_a_finished_phase_says_how_to_go_on(refused, tmp_path, made):
    for name, typed_name in (("run", "run"), ("a run", "'a run'")):
        shutil.copytree(made, tmp_path / name)
        (tmp_path / name / "phases.jsonl").write_text("")
        (tmp_path / name / "DONE").unlink()
        assert f"no finished phase yet; go on with: bdr resume {typed_name}" in refused(FAILURE, "show", name)


def test_what_is_to_be_trained_anew_goes_where_the_run_is_now(refused, tmp_path, made):
    shutil.copytree(made, tmp_path / "copied run")
    shutil.rmtree(tmp_path / "copied run" / "phase-01" / "model")
    said = refused(USAGE, "evaluate", "copied run")
    command = said.partition("remove or rename copied run, and type ")[2]
    shutil.rmtree(tmp_path / "copied run")
    assert shlex.split(command)[-4:] == ["--seed", "1993", "--out", "copied run"]
    assert command.count("--out") == 1
    assert typed(*shlex.split(command)[1:]).code == 0
    assert Run.open(tmp_path / "copied run").fingerprint == Run.open(made).fingerprint


def test_a_word_that_is_empty_is_refused(refused):
    said = "--out is followed by an empty word, as from a variable that is not set: type a value"
    assert said in refused(USAGE, "run", "ucir", *SHORT, "--out", "")
    assert "show is followed by an empty word" in refused(USAGE, "show", "")


@pytest.mark.parametrize(
    ("words", "text", "said"),
    [
        (["sweep", "a.yaml"], "runs: [ucir]\ngrid:\n  bdr.m: [0.5]\n  bdr.m: [0.8]\n", "line 4, column 3: 'bdr.m'"),
        (["run", "ucir", "--config", "a.yaml"], "base: 4\nstep: 2\nbase: 6\n", "line 3, column 1: 'base'"),
    ],
)
def test_a_key_that_stands_twice_is_refused_with_its_place(refused, tmp_path, words, text, said):
    (tmp_path / "a.yaml").write_text(text)
    expected = f"a.yaml, {said} stands here for the second time: leave one of the two"
    assert expected in refused(USAGE, *words, "--dry-run")


def test_a_failure_is_not_a_usage_error():
    assert (BdrError.exit_code, UsageError.exit_code) == (FAILURE, USAGE)


@pytest.mark.parametrize(("count", "said"), [(1, "0"), (3, "0, 1, 2"), (4, "0, 1, 2, 3"), (5, "0, 1, 2 and 2 more")])
def test_a_long_list_in_a_message_is_cut_and_counted(count, said):
    assert shortened(range(count), 3) == said
