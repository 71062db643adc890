"""The door for Python: what all its functions have in common, and what `evaluate` hands back."""

import inspect
from pathlib import Path

import numpy as np
import pytest
from runs import train

import bdr
from bdr.errors import UsageError
from bdr.records import Run

OF_A_RUN = {"evaluate": [], "export": ["file"], "extend": [], "load": [], "predict": ["images"], "resume": []}


@pytest.mark.parametrize(("name", "wanted"), OF_A_RUN.items())
def test_what_takes_a_run_calls_it_so_and_takes_options_by_name_alone(name, wanted):
    parameters = inspect.signature(getattr(bdr, name)).parameters.values()
    assert [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD] == ["run", *wanted]


def test_data_is_named_wherever_it_is_handed_over():
    takers = (bdr.evaluate, bdr.extend, bdr.resume, bdr.run)
    found = [inspect.signature(taker).parameters["data"] for taker in takers]
    assert all(each.kind is each.KEYWORD_ONLY for each in found)


def test_an_evaluation_says_its_phase_and_what_was_measured(tmp_path):
    path = train(tmp_path / "run", "ucir", net="runs:flat", phases=2, keep="all")
    last = bdr.evaluate(path)
    assert last.phase == 1
    assert last.measured["accuracy"] == Run.open(path).phases[1]["accuracy"]
    phase, measured = bdr.evaluate(path, phase=0)
    assert phase == 0
    assert measured["accuracy"] == Run.open(path).phases[0]["accuracy"]


@pytest.mark.parametrize(
    ("chosen", "mean"), [("default", (0.1, 0.2, 0.3)), ("half", (0.5,) * 3), ("der", (0.5071, 0.4867, 0.4408))]
)
def test_colour_images_are_normalised_as_the_setting_says(tmp_path, chosen, mean):
    x, y = np.random.default_rng(0).integers(0, 256, (24, 8, 8, 3), np.uint8), np.arange(24) % 4
    data = bdr.from_arrays(x, y, x, y, mean=(0.1, 0.2, 0.3), std=(1.0, 1.0, 1.0))
    common = {"base": 2, "step": 2, "memory": "0", "net": "runs:flat", "phases": 1, "set": {"stage.epochs": 1}}
    path = bdr.run("finetune", data=data, statistics=chosen, out=tmp_path / "run", **common).path
    assert bdr.load(path).mean == pytest.approx(mean)


@pytest.mark.parametrize("data", [Path("images"), np.zeros(3), (np.zeros(3), np.zeros(3)), 5])
def test_data_of_another_kind_is_refused_and_not_taken_for_the_default(tmp_path, data):
    with pytest.raises(UsageError, match=f"data is a {type(data).__name__}, and must be a bdr.DataSet"):
        bdr.run("ucir", data=data, runs=tmp_path)
    for given in (bdr.resume, bdr.extend, bdr.evaluate):
        with pytest.raises(UsageError, match="must be a bdr"):
            given(train(tmp_path / "run", "ucir", net="runs:flat", phases=1), data=data)


def test_settings_that_are_no_mapping_are_told_what_one_looks_like(tmp_path):
    with pytest.raises(UsageError, match="set is a str, and must be a mapping such as"):
        bdr.run("ucir", set="stage.epochs=2", runs=tmp_path)
    with pytest.raises(UsageError, match=r"set=\{'stage.epochs': VALUE\} in Python"):
        bdr.run("ucir", epochs=2, runs=tmp_path)
