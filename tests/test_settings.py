"""A run says all settings that it was made with, and whoever changes a default is told."""

import inspect
import json

import pytest
from directories import make_run
from runs import Position, plan, train, train_until
from small import Flat
from test_cli import typed

from bdr import api
from bdr.configuration.recipes import configure
from bdr.errors import UsageError
from bdr.methods.ucir import UCIR
from bdr.paper.found import essence_of_run
from bdr.planning.settings import as_recorded, in_full, recorded, without_defaults
from bdr.plugins import PLUGINS
from bdr.plugins.bdr import BDRPlugin
from bdr.records import Run
from bdr.report import compare
from bdr.report.protocols import settings_of
from bdr.sweep.plan import facts

SHORT = {"what": "ucir+bdr", "net": "runs:flat", "phases": 2}
WORDS = ("run", "ucir+bdr", "--net=runs:flat", "--phases=1", "--set=stage.epochs=1", "--val=0.8", "--out")


@pytest.fixture
def set_default(monkeypatch):
    """Gives a parameter of a class another default, as a later version might."""

    def change(kind, name, value):
        parameters = inspect.signature(kind.__init__).parameters.values()
        named = [p.name for p in parameters if p.default is not p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
        found = list(kind.__init__.__defaults__)
        found[named.index(name)] = value
        monkeypatch.setattr(kind.__init__, "__defaults__", tuple(found))

    return change


def info_of(path):
    return json.loads((path / "run.json").read_text())


def without_settings(path):
    """As versions of before recorded a run."""
    info = info_of(path)
    del info["settings"]
    (path / "run.json").write_text(json.dumps(info))


def fingerprint(path, *settings, **fields):
    return plan(path / "run", settings=settings, **SHORT | fields).info["fingerprint"]


# What is recorded


def test_a_run_records_all_settings_of_its_parts_with_defaults_written_out(tmp_path):
    info = plan(tmp_path / "run", settings=[("bdr.m", 0.5)], **SHORT).info
    assert list(info["settings"]) == ["ucir", "bdr", "flat"]
    assert info["settings"]["bdr"]["m"] == 0.5
    assert info["settings"]["bdr"]["beta"] == inspect.signature(BDRPlugin).parameters["beta"].default
    assert "make" not in info["settings"]["ucir"]
    assert info["settings"]["flat"] == {}
    assert info["config"]["settings"]["bdr"] == {"m": 0.5}


def test_a_default_that_json_cannot_hold_is_left_to_the_code(monkeypatch):
    def odd(shape, act=len, sizes=(1, 2), limit=float("inf")):
        raise NotImplementedError

    monkeypatch.setattr("runs.flat", odd)
    config = configure("ucir", "digits", fields={"net": "runs:flat"})[0]
    assert recorded(config)["flat"] == {"sizes": [1, 2]}


# Fingerprints


def test_typing_a_default_changes_nothing(tmp_path):
    plain = fingerprint(tmp_path)
    assert fingerprint(tmp_path, ("bdr.m", 0.8), ("bdr.tau", 1), ("ucir.imprint", False)) == plain
    assert fingerprint(tmp_path, ("bdr.m", 0.5)) != plain
    assert fingerprint(tmp_path, ("ucir.eta", 1)) != plain  # the recipe for digits has another than the default
    told = plan(tmp_path / "run", settings=[("bdr.m", 0.8)], **SHORT)
    assert "bdr" not in told.config.settings
    assert settings_of(Run(tmp_path, told.info, [], False)) == settings_of(
        Run(tmp_path, plan(tmp_path / "run", **SHORT).info, [], False)
    )


def test_typing_a_default_of_a_net_changes_nothing(tmp_path, monkeypatch):
    def wide(shape, last_relu=True, width: int = 8):
        return Flat(64 * shape.channels, width)

    monkeypatch.setattr("runs.flat", wide)
    assert fingerprint(tmp_path, ("flat.width", 8)) == fingerprint(tmp_path) != fingerprint(tmp_path, ("flat.width", 9))


def test_a_setting_that_is_added_changes_no_fingerprint(tmp_path, monkeypatch):
    before = fingerprint(tmp_path)

    class More(BDRPlugin):
        def __init__(self, m: float = 0.8, further: int = 3) -> None:
            super().__init__(m)

    monkeypatch.setitem(PLUGINS, "bdr", More)
    assert fingerprint(tmp_path) == before


def test_a_setting_that_is_typed_and_no_default_keeps_its_place_in_the_configuration():
    config = configure("ucir+bdr", "digits", [("bdr.m", 0.5), ("bdr.beta", 0.99)])[0]
    assert without_defaults(config).settings == {"ucir": {"eta": 20.0}, "bdr": {"m": 0.5}}


# A default that has changed


def test_a_finished_run_of_other_defaults_is_not_shown_as_done(tmp_path, set_default):
    assert typed(*WORDS, tmp_path / "run").code == 0
    set_default(BDRPlugin, "m", 0.5)
    said = typed(*WORDS, tmp_path / "run")
    assert (said.code, "already done" in said.out) == (2, False)
    assert "was made with other defaults: bdr.m was 0.8 and is 0.5 now" in said.err
    assert "type --set bdr.m=0.8" in said.err
    assert "another folder with --runs or --out" in said.err
    assert "bdr resume" not in said.err


def test_a_begun_run_of_other_defaults_goes_on_by_resume_alone_and_as_it_was_begun(tmp_path, set_default):
    path = train_until(Position(1), tmp_path / "run", **SHORT)
    whole = train(tmp_path / "whole", **SHORT)
    set_default(BDRPlugin, "m", 0.0)
    with pytest.raises(UsageError, match=r"bdr.m was 0.8 and is 0.0 now; go on as it was begun with bdr resume"):
        api.execute(plan(path, **SHORT))
    assert api.resume(path).accuracies == api.Result.of(whole).accuracies
    assert info_of(path)["settings"]["bdr"]["m"] == 0.8


def test_the_old_value_typed_is_another_run_than_the_new_default(tmp_path, set_default):
    before = fingerprint(tmp_path)
    set_default(BDRPlugin, "m", 0.5)
    assert fingerprint(tmp_path, ("bdr.m", 0.8)) != fingerprint(tmp_path) == before


def test_a_value_that_was_typed_and_became_the_default_leaves_its_run_as_it_was(tmp_path, set_default):
    path = train_until(Position(1), tmp_path / "run", settings=[("bdr.m", 0.5)], **SHORT)
    set_default(BDRPlugin, "m", 0.5)
    assert api.resume(path).path == path


def test_a_run_of_before_whose_fingerprint_has_a_typed_default_goes_on(tmp_path, monkeypatch):
    with monkeypatch.context() as before:
        before.setattr("bdr.planning.assemble.without_defaults", lambda config: config)
        path = train_until(Position(1), tmp_path / "run", settings=[("bdr.m", 0.8)], **SHORT)
    without_settings(path)
    assert Run.open(path).fingerprint != fingerprint(tmp_path, ("bdr.m", 0.8))
    assert api.resume(path).path == path


def test_a_record_of_before_is_done_whatever_a_default_is_now(tmp_path, set_default):
    path = train(tmp_path / "run", **SHORT)
    without_settings(path)
    set_default(BDRPlugin, "m", 0.5)
    assert api.execute(plan(path, **SHORT)).path == path


def test_a_model_is_loaded_with_the_settings_that_it_was_trained_with(tmp_path, set_default):
    path = train(tmp_path / "run", "ucir", net="runs:flat", phases=1)
    set_default(UCIR, "negatives", 5)
    assert api.load(path).negatives == info_of(path)["settings"]["ucir"]["negatives"] == 2


def test_a_sweep_refuses_a_run_of_other_defaults_before_anything_trains(tmp_path, set_default):
    planned = plan(None, runs=tmp_path / "runs", **SHORT)
    api.execute(planned)
    set_default(BDRPlugin, "m", 0.5)
    with pytest.raises(UsageError, match=r"bdr.m was 0.8 and is 0.5 now"):
        facts(planned.config, tmp_path / "runs", None)


# What a cell of the paper asks for


def recorded_run(folder, *settings, **changes):
    config = configure("ucir+bdr", "cifar100", settings)[0]
    kept = {"config": config.model_dump(mode="json"), "settings": recorded(config)} | changes
    return make_run(folder, "ucir+bdr", **kept)


def test_a_record_counts_with_its_own_settings_and_not_with_the_defaults_of_today(tmp_path, set_default):
    run, now = recorded_run(tmp_path / "a"), recorded_run(tmp_path / "b", ("bdr.m", 0.5))
    assert essence_of_run(run) != essence_of_run(now)
    before = essence_of_run(run)
    set_default(BDRPlugin, "m", 0.5)
    assert essence_of_run(run) == before
    assert essence_of_run(recorded_run(tmp_path / "c")) == essence_of_run(now)


def test_settings_that_a_record_does_not_have_are_those_of_today(tmp_path, set_default):
    run, old = recorded_run(tmp_path / "a"), recorded_run(tmp_path / "b", settings={})
    without = recorded_run(tmp_path / "c")
    del without.info["settings"]["bdr"]["m"]
    set_default(BDRPlugin, "m", 0.5)
    for each in (old, without):
        assert in_full(as_recorded(each.info))["bdr"]["m"] == 0.5
        assert essence_of_run(each) != essence_of_run(run)


def test_settings_that_are_gone_since_are_passed_over(tmp_path):
    run = recorded_run(tmp_path)
    before = essence_of_run(run)
    run.info["settings"]["bdr"]["gone"] = 1
    assert essence_of_run(run) == before is not None


# What a report compares


def made(folder, m, seed=1993, told=False, **changes):
    config = {"settings": {"bdr": {"m": m}} if told else {}, "stage": {"epochs": 20}}
    return make_run(
        folder, "ucir+bdr", seed, config=config, **{"settings": {"ucir": {"k": 2}, "bdr": {"m": m}}} | changes
    )


def labels(*runs):
    return {group.label: len(group.runs) for group in compare(list(runs)).groups}


def test_runs_of_two_defaults_are_two_rows_that_name_it(tmp_path):
    before, after = made(tmp_path / "a", 0.8), made(tmp_path / "b", 0.5, seed=1994)
    assert labels(before, after) == {"ucir+bdr bdr.m=0.8": 1, "ucir+bdr bdr.m=0.5": 1}


def test_a_record_that_does_not_say_goes_with_the_first_that_does(tmp_path):
    old = made(tmp_path / "a", 0.8, settings={})
    before = made(tmp_path / "b", 0.8, seed=1994, created="2024-02-01T00:00:00")
    after = made(tmp_path / "c", 0.5, seed=1995, created="2024-03-01T00:00:00")
    assert labels(old, before) == {"ucir+bdr": 2}
    assert labels(after, old, before) == {"ucir+bdr bdr.m=0.5": 1, "ucir+bdr bdr.m=0.8": 2}


def test_a_typed_value_and_the_same_default_are_one_row(tmp_path):
    assert labels(made(tmp_path / "a", 0.5, told=True), made(tmp_path / "b", 0.5, seed=1994)) == {"ucir+bdr": 2}


def test_a_setting_that_was_added_between_two_runs_does_not_part_them(tmp_path):
    later = made(tmp_path / "b", 0.8, seed=1994, settings={"ucir": {"k": 2}, "bdr": {"m": 0.8, "further": 3}})
    assert labels(made(tmp_path / "a", 0.8), later) == {"ucir+bdr": 2}


def test_a_record_whose_settings_are_no_settings_is_damaged_by_name(tmp_path):
    made(tmp_path, 0.8, settings={"bdr": 3})
    said = typed("show", tmp_path)
    assert said.code == 1
    assert "settings are those of each part" in said.err
