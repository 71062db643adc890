"""The benchmarks run at small sizes on a CPU and say what they measured; how fast it was is nobody's failure."""

from __future__ import annotations

import json

import pytest
import torch

from bdr.bench.cases import Shape, Timing, configuration, flops_of_step, random_images
from bdr.bench.parts import bench_augment, bench_herding, bench_scaling
from bdr.bench.run import bench_steps
from bdr.bench.start import bench_start, summary
from bdr.bench.tables import ratios, show_measured
from bdr.methods import METHODS

TINY = Shape(classes=8, base=4, step=2, images=8, pixels=8, memory="2/class")


def timing(case: str, engine: str, phase: str, speed: float) -> Timing:
    return Timing(case, engine, phase, 32, speed, 32_000 / speed, 0.1, None, 0.0)


def test_ratios_compare_plug_ins_engines_and_the_plain_loop() -> None:
    measured = [
        timing("ucir", "graph", "first", 400.0),
        timing("ucir+cwd", "graph", "first", 200.0),
        timing("ucir", "eager", "first", 100.0),
        timing("a plain loop", "plain", "first", 50.0),
    ]
    found = ratios(measured, "ucir")
    assert found["time of ucir+cwd over ucir, first phase, graph"] == 2.0
    assert found["speed of graph over eager, ucir, first phase"] == 4.0
    assert found["speed of graph over a plain loop, ucir, first phase"] == 8.0


def test_a_later_step_counts_the_teacher(tmp_path) -> None:
    config = configuration("ucir", TINY, {"device": "cpu", "net": "small", "stage": {"batch": 8}})
    data = random_images(TINY)
    first, later = flops_of_step(config, data, later=False), flops_of_step(config, data, later=True)
    assert 1.2 < later / first < 1.6  # one more forward beside forward and twice that backward


@pytest.mark.parametrize("name", METHODS)
def test_any_method_can_be_timed(name) -> None:
    config = configuration(f"{name}+cwd", TINY, {"device": "cpu", "stage": {"batch": 8}})
    assert flops_of_step(config, random_images(TINY), later=True) > 0


@pytest.mark.slow
def test_steps_are_timed_and_kept(tmp_path, capsys) -> None:
    out = tmp_path / "bench.json"
    bench_steps(["ucir", "ucir+bdr"], ["eager"], "cpu", None, 8, 2, True, out)
    kept = json.loads(out.read_text())
    cases = {(each["case"], each["phase"]) for each in kept["timings"]}
    assert cases == {
        ("ucir", "first"),
        ("ucir+bdr", "first"),
        ("ucir", "later"),
        ("ucir+bdr", "later"),
        ("a plain loop", "first"),
    }
    assert all(each["images_per_second"] > 0 for each in kept["timings"])
    assert "Ratios" in capsys.readouterr().out


def test_herding_augmentation_and_scaling_are_sheets(tmp_path, capsys) -> None:
    torch.manual_seed(0)
    assert len(bench_augment("cpu", 16, 1).rows) == 1
    assert [row["classes"] for row in bench_scaling("cpu", [4, 8], [2], 1).rows] == [4, 8]
    show_measured(bench_herding("cpu", 3, 10, 2), tmp_path / "kept" / "herding.json")
    kept = json.loads((tmp_path / "kept" / "herding.json").read_text())
    assert [row["herding"] for row in kept["rows"]] == ["distance", "dot"]
    assert kept["device"]["name"] == "CPU"
    assert "torch" in kept["versions"]
    assert kept["command"].startswith("bdr")
    assert "one by one ms" in capsys.readouterr().out


def test_a_phase_change_is_what_lies_between_two_phases_less_training() -> None:
    """Phase 0 steps from 104 on; epochs of 2 s; the first of a phase waits 1 s, 3 s and 1 s more for its step."""
    epochs = [(0, 106.0, 6.0), (0, 108.0, 2.0), (1, 114.0, 5.0), (1, 116.0, 2.0), (2, 119.5, 3.0), (2, 121.5, 2.0)]
    assert summary(100.0, epochs) == {"start": 4.0, "first_change": 4.0, "change": 1.5}


@pytest.mark.slow
def test_a_run_is_started_twice_with_the_compile_cache_empty_and_filled() -> None:
    assert [row["compile cache"] for row in bench_start("ucir+bdr", "cpu").rows] == ["empty", "filled"]
