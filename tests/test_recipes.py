"""A run is the same however it is spelled, and what is printed of it is the same run again."""

from dataclasses import fields, replace
from pathlib import Path

import pytest
import yaml

from bdr.commands.training import configurations
from bdr.configuration.config import from_yaml, to_yaml
from bdr.configuration.frames import BRINGS, FRAMES, PLUGINS_ON_DIGITS, Brings, OnDigits, cifar100
from bdr.configuration.recipes import RECIPES, configure
from bdr.errors import UsageError
from bdr.methods import METHODS
from bdr.plugins import PLUGINS
from bdr.types import Stage

# Recipes that are nothing but a method with plug-ins in the frame of a data set.
SPELLED = {
    "aanet": ("ucir+aanet", "cifar100"),
    "cwd": ("ucir+cwd", "cifar100"),
    "cwd-bdr": ("ucir+cwd+bdr", "cifar100"),
    "digits-cwd": ("ucir+cwd", "digits"),
    "digits-cwd-bdr": ("ucir+cwd+bdr", "digits"),
}
FURTHER = ("", "+bdr", "+la", "+paco", "+aanet")
EVERY = [f"{name}{further}" for name in RECIPES for further in FURTHER if further[1:] not in name.split("-")]


@pytest.mark.parametrize("further", FURTHER)
@pytest.mark.parametrize("name", SPELLED)
def test_a_recipe_with_a_further_plug_in_is_what_is_spelled_out(name, further):
    spelled, data = SPELLED[name]
    assert configure(f"{name}{further}") == configure(f"{spelled}{further}", data)


@pytest.mark.parametrize("what", EVERY)
def test_a_printed_configuration_is_read_as_the_same_one(what, tmp_path):
    config, _ = configure(what, fields={"seed": 7})
    file = tmp_path / "printed.yaml"
    file.write_text(to_yaml(config))
    assert configurations(None, {}, file, [None]) == ([config], [])


@pytest.mark.parametrize("data", ["cifar10", "cifar100", "digits", "imagefolder"])
@pytest.mark.parametrize("method", ["bic", "der", "e2e", "l2p", "ucir+aanet", "ucir+paco"])
def test_so_is_that_of_a_method_in_any_frame(method, data, tmp_path):
    config, _ = configure(method, data)
    file = tmp_path / "printed.yaml"
    file.write_text(to_yaml(config))
    assert configurations(None, {}, file, [None]) == ([config], [])


def test_what_a_whole_file_does_not_set_is_not_set():
    whole = from_yaml(to_yaml(configure("ucir+paco", "digits")[0]), "a file")
    bare = whole | {"settings": {}, "stages": {}, "augment": {}}
    of_a_file = {name: value for name, value in bare.items() if name not in ("method", "plugins")}
    config, _ = configure("ucir+paco", file=of_a_file)
    assert (config.settings, config.stages, config.augment) == ({}, {}, {})


def test_what_is_typed_changes_a_whole_file_too():
    whole = yaml.safe_load(to_yaml(configure("bic", "digits")[0]))
    config, _ = configure("bic", settings=[("stage.correction.lr", 0.5), ("augment.pad", 2)], file=whole)
    assert (config.stages["correction"]["lr"], config.stages["correction"]["epochs"]) == (0.5, 200)
    assert config.augment == {"pad": 2}


def test_a_part_of_a_file_changes_what_it_names():
    config, _ = configure("wa", file={"data": "cifar100", "augment": {"pad": 2}})
    assert config.augment == {"brightness": 63 / 255, "pad": 2}


def test_the_frame_of_aanet_is_there_however_it_is_asked_for():
    for what in ("ucir+cwd+aanet", "cwd+aanet", "aanet+cwd", "ucir-der+aanet", "cwd-bdr+aanet"):
        config, _ = configure(what, "cifar100")
        assert (config.net, config.herding, config.settings) == ("resnet32", "dot", {"ucir": {"imprint": True}})


def test_pruned_der_has_the_size_of_the_base_and_step_that_are_asked_for():
    def kept(**fields):
        return configure("der-pruned+bdr", fields=fields)[0].settings["der"]["keep"]

    assert (kept(), kept(base=0), kept(base=10), kept(step=25)) == (0.1568, 0.0807, 0.0807, 0.1746)
    assert configure("der-pruned", settings=[("base", 0)], file={"step": 5})[0].settings == {"der": {"keep": 0.0615}}


def test_a_size_that_is_set_stays_what_it_is():
    for given in ({"settings": [("der.keep", 0.3)]}, {"file": {"settings": {"der": {"keep": 0.3}}}}):
        config, notes = configure("der-pruned", fields={"base": 0}, **given)
        assert (config.settings, notes) == ({"der": {"keep": 0.3}}, [])


def test_where_table_2_has_no_size_it_is_said():
    config, notes = configure("der-pruned", fields={"base": 40, "step": 20})
    assert config.settings == {"der": {"keep": 0.1568}}
    assert [note.partition(":")[0] for note in notes] == ["table 2 has no size for --base 40 --step 20"]


def test_every_method_says_what_it_brings_and_no_other_does():
    assert list(BRINGS) == list(METHODS)
    assert set(PLUGINS_ON_DIGITS) <= set(PLUGINS)
    with pytest.raises(UsageError, match=r"no row 'mine' in BRINGS of bdr/configuration/frames\.py: add one"):
        cifar100("mine")


@pytest.mark.parametrize("kind", [Brings, OnDigits])
def test_all_that_a_method_can_bring_stands_on_the_page(kind):
    page = (Path(__file__).parent.parent / "docs" / "add-a-method.md").read_text()
    rows = page.partition(f"The fields of `{kind.__name__}`:\n\n")[2].partition("\n\n")[0].splitlines()[2:]
    named = [name for row in rows for name in row.split("|")[1].split("`")[1::2]]
    assert sorted(named) == sorted(field.name for field in fields(kind))


@pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES)
def test_a_method_of_ones_own_has_the_frame_of_ucir_without_its_settings(frame):
    own, ucir = dict(frame("mine:Method", "bdr")), dict(frame("ucir", "bdr"))
    assert own == ucir | {"method": "mine:Method", "settings": {}}


@pytest.mark.parametrize("in_paper_frame", [True, False])
def test_what_a_method_brings_holds_in_every_frame(in_paper_frame, monkeypatch):
    stage = Stage(epochs=7)
    there = Brings("all", in_paper_frame, "rps", stage, "half", {"weight": 2.0}, {"order": "natural", "base": 20})
    monkeypatch.setitem(BRINGS, "replay", replace(there, digits=OnDigits("rps-small", {"lr": 0.5})))
    for data in ("cifar10", "cifar100", "imagefolder"):
        found = FRAMES[data]("replay")
        assert (found.memory, found.net, found.stage, found.statistics) == ("all", "rps", stage, "half")
        assert found.settings == {"replay": {"weight": 2.0}}
    found = FRAMES["cifar100"]("replay")
    assert (found.order, found.base, found.step) == ("natural", 20, 10)
    found = FRAMES["digits"]("replay")
    assert (found.memory, found.net, found.stage.lr, found.settings) == ("all", "rps-small", 0.5, {})


@pytest.mark.parametrize(
    ("what", "settings", "drops"),
    [
        ("bic", {"stage.correction.epochs": 20}, (6, 12, 16, 18)),  # the frame has 60, 120, 160 and 180 of 200
        ("der", {"stage.balanced.epochs": 20}, (10,)),
        ("der", {"stage.balanced.epochs": 20, "stage.balanced.drops": [3]}, (3,)),
        ("der", {"stage.balanced.lr": 0.2}, (50,)),
    ],
)
def test_drops_of_a_named_stage_keep_their_place_in_its_epochs(what, settings, drops):
    config, notes = configure(what, "digits", settings.items())
    (stage,) = config.stages.values()
    assert tuple(stage["drops"]) == drops
    scaled = [note for note in notes if "drops scaled with the epochs" in note]
    assert len(scaled) == ("stage.balanced.drops" not in settings and any("epochs" in name for name in settings))


def test_a_named_stage_is_scaled_once_from_the_epochs_its_drops_were_given_for():
    file = {"stages": {"balanced": {"epochs": 3}}}
    config, _ = configure("der", "digits", {"stage.balanced.epochs": 50}.items(), file=file)
    assert config.stages["balanced"] == {"epochs": 50, "drops": (25,)}


def test_a_warm_up_from_a_rate_of_its_own_is_never_that_rate_alone():
    config, notes = configure("dytox", "cifar100", [("stage.epochs", 100)])
    assert config.stage.warmup == 2  # of 5 in 500
    assert "main.warmup scaled with the epochs: 5 -> 2" in notes
