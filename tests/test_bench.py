"""The benchmarks run at small sizes on a CPU and say what they measured; how fast it was is nobody's failure."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest
import torch

from bdr import api
from bdr.bench.cases import (
    Shape,
    Timing,
    Told,
    configuration,
    fits_of,
    flops_of_step,
    learner_of,
    of_a_step,
    random_images,
)
from bdr.bench.growth import bench_growth, check_phases, line_through, show_growth
from bdr.bench.kernels import Kernel, bench_kernels, show_kernels, summed
from bdr.bench.parts import bench_augment, bench_herding, bench_scaling
from bdr.bench.run import bench_steps
from bdr.bench.start import bench_start, summary
from bdr.bench.tables import ratios, show_measured
from bdr.errors import UsageError
from bdr.methods import METHODS

BRIEF = Told(device="cpu", batch=8, steps=1)
TINY = Shape(classes=8, base=4, step=2, images=8, pixels=8, memory="2/class")


def tiny(what: str, **fields):
    return configuration(what, TINY, {"device": "cpu", "stage": {"batch": 8}} | fields)


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


def test_nothing_is_compared_across_networks_or_batches() -> None:
    plain = replace(timing("ucir", "graph", "later", 400.0), net="resnet18")
    other = replace(timing("ucir+aanet", "graph", "later", 200.0), net="resnet32")
    larger = replace(timing("ucir+bdr", "graph", "later", 200.0), net="resnet18", batch=256)
    assert ratios([plain, other, larger], "ucir") == {}


@pytest.mark.parametrize(
    ("what", "net", "batch"), [("ucir+bdr", "resnet18", 128), ("ucir+aanet", "resnet32", 128), ("dytox", "convit", 256)]
)
def test_a_case_can_be_timed_as_it_is_trained(what, net, batch) -> None:
    made = configuration(what, TINY, Told(device="cpu", as_trained=True).fields(what))
    assert (made.net, made.stage.batch) == (net, batch) == (cifar_run(what).net, cifar_run(what).stage.batch)
    usual = Told(device="cpu").fields(what)
    assert (usual["net"], usual["stage"]) == ({"dytox": "convit-small"}.get(what, "small"), {"batch": 32})
    told = Told(device="cpu", net="small", batch=8, as_trained=True).fields(what)
    assert (told["net"], told["stage"]) == ("small", {"batch": 8})


def cifar_run(what):
    config, _ = api.configure(what, "cifar100", [], {})
    return config


def test_a_row_says_which_network_and_batch_it_had(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    bench_steps(["finetune"], ["eager"], BRIEF, tmp_path / "bench.json", baseline=False)
    kept = json.loads((tmp_path / "bench.json").read_text())["timings"]
    assert {(each["net"], each["batch"]) for each in kept} == {("small", 8)}
    said = " ".join(capsys.readouterr().out.split())
    assert "case net batch engine phase images/s ms/step step s GiB of peak" in said
    assert "finetune small 8 eager" in said


def test_a_later_step_counts_the_teacher() -> None:
    config, data = tiny("ucir", net="small"), random_images(TINY)
    first, later = (flops_of_step(config, data, phase) for phase in (0, 1))
    assert 1.2 < later / first < 1.6  # one more forward beside forward and twice that backward


def test_an_analysed_step_counts_what_is_looked_at() -> None:
    data = random_images(TINY)
    plain, analysed = (flops_of_step(tiny("ucir", net="small", analyse=looked), data, 1) for looked in (False, True))
    assert analysed > plain


@pytest.mark.parametrize("what", ["ucir+aanet", "wa+tade"])
def test_a_teacher_has_grown_from_the_third_phase_on(what) -> None:
    config, data = tiny(what, net="small"), random_images(TINY)
    second, third = (flops_of_step(config, data, phase) for phase in (1, 2))
    assert third > 1.05 * second


def test_every_phase_of_der_rests_one_more_extractor() -> None:
    config, data = tiny("der", net="small"), random_images(TINY)
    first, second, third = (flops_of_step(config, data, phase) for phase in (0, 1, 2))
    assert 1.2 < second / first < 1.6
    assert third - second == pytest.approx(second - first, rel=0.1)


def test_what_alternates_with_a_stage_is_timed_by_the_epoch() -> None:
    """An epoch of both, over the steps of the first: 4 steps of 2 s and 2 of 3 s are 14 s, 3.5 s a step."""
    main, aside = fits_of(learner_of(tiny("ucir+aanet", net="small"), random_images(TINY)), 1)
    assert (main.stage.name, aside.stage.name) == ("main", "aggregation")
    main.steps, aside.steps = 4, 2
    assert of_a_step([main, aside], {main: 2.0, aside: 3.0}.__getitem__) == 3.5


def test_pruning_leaves_extractors_of_the_wanted_size_where_nothing_was_trained() -> None:
    learner = learner_of(tiny("simple-der", net="small"), random_images(TINY))
    fits_of(learner, 1)
    before, newest = learner.method.net.backbone.extractors()
    share = sum(p.numel() for p in before.parameters()) / sum(p.numel() for p in newest.parameters())
    assert 0.3 < share <= 0.46


@pytest.mark.parametrize("name", METHODS)
def test_any_method_can_be_timed_in_any_phase(name) -> None:
    assert flops_of_step(tiny(f"{name}+cwd"), random_images(TINY), 2) > 0


def test_a_phase_of_any_number_can_be_timed() -> None:
    assert TINY.up_to(2) == TINY
    assert TINY.up_to(9).classes == 4 + 9 * 2
    with pytest.raises(UsageError, match="--phase 0"):
        bench_steps(["ucir"], ["eager"], BRIEF, phase=0)


def test_growth_is_measured_phase_by_phase_and_drawn_out(tmp_path, capsys) -> None:
    measured = bench_growth("der", 4, BRIEF)
    show_growth(measured, 50, tmp_path / "growth.json")
    kept = json.loads((tmp_path / "growth.json").read_text())
    assert [row["phase"] for row in kept["rows"]] == [0, 1, 2, 3]
    lines = {line["what"]: line for line in kept["lines"]}
    assert set(lines) == {"ms/step", "parameters"}  # memory is measured on a GPU alone
    assert 3.9 < lines["parameters"]["last_over_first"] < 4.2
    assert 49 < lines["parameters"]["extrapolated_over_first"] < 53
    assert "phase 49 is extrapolated, not measured" in capsys.readouterr().out


@pytest.mark.parametrize(("what", "settings"), [("der", [("der.keep", 0.3)]), ("der-pruned", [("der.keep", 0.3)])])
def test_extractors_of_a_growth_are_as_small_as_pruning_leaves_them(what, settings) -> None:
    measured = bench_growth(what, 4, BRIEF, settings)
    sizes = [row["parameters"] for row in measured.rows]
    more = [after - before for before, after in itertools.pairwise(sizes)]
    assert [each / sizes[0] for each in more] == pytest.approx([0.3] * 3, abs=0.06)
    assert "der.keep=0.3" in measured.title


def test_a_recipe_keeps_its_settings_on_the_bench() -> None:
    made = configuration("der-pruned", TINY, Told(device="cpu").fields("der-pruned"))
    assert made.settings["der"]["keep"] == 0.1568
    with pytest.raises(UsageError, match="is for digits"):
        Told(device="cpu").fields("digits-cwd")


def test_kernels_are_summed_by_kind_and_all_are_kept(tmp_path, capsys) -> None:
    measured, kernels = bench_kernels("ucir+bdr", 1, BRIEF)
    show_kernels(measured, kernels, 3, tmp_path / "kernels.json")
    kept, said = json.loads((tmp_path / "kernels.json").read_text()), capsys.readouterr().out
    *kinds, everything = kept["rows"]
    assert {"convolution", "batch norm"} <= {row["kind"] for row in kinds}
    assert sum(row["us/step"] for row in kinds) == pytest.approx(everything["us/step"])
    assert len(kept["kernels"]) == len(kernels) > 3
    assert "A step of ucir+bdr in phase 1" in said
    assert "The 3 longest" in said


def test_a_kernel_is_of_the_first_kind_that_its_name_tells() -> None:
    named = {
        "sm90_xmma_fprop_implicit_gemm_bf16bf16": "convolution",
        "triton_poi_fused__native_batch_norm_legit_relu_4": "compiled (Triton)",
        "void cutlass::Kernel2<cutlass_80_simt_sgemm_64x64>": "matrix product",
        "void at::native::multi_tensor_apply_kernel<...>": "optimiser and lists of tensors",
        "Memset (Device)": "copying and filling",
        "index_elementwise_kernel": "other",
    }
    assert {name: Kernel(name, 1, 1).kind for name in named} == named
    assert summed([("a", 1.0), ("b", 5.0), ("a", 3.0)], 2) == [Kernel("b", 0.5, 2.5), Kernel("a", 1.0, 2.0)]


def test_a_line_leaves_out_the_phases_in_which_not_all_has_grown() -> None:
    line = line_through("ms/step", [2.0, 9.0, 4.0, 5.0, 6.0], 49)
    assert (line.at_zero, line.slope, line.off_percent) == pytest.approx((2.0, 1.0, 0.0), abs=1e-9)
    assert (line.last_over_first, line.extrapolated) == pytest.approx((3.0, 51.0))
    assert line.extrapolated_over_first == pytest.approx(25.5)


@pytest.mark.parametrize(("phases", "extrapolate", "said"), [(3, 50, "--phases 3"), (5, 4, "--extrapolate 4")])
def test_too_few_phases_are_refused_before_anything_is_timed(phases, extrapolate, said) -> None:
    with pytest.raises(UsageError, match=said):
        check_phases(phases, extrapolate)


@pytest.mark.slow
def test_steps_are_timed_and_kept(tmp_path, capsys) -> None:
    out = tmp_path / "bench.json"
    bench_steps(["ucir", "ucir+bdr"], ["eager"], replace(BRIEF, steps=2), out, phase=2)
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
    assert {each["number"] for each in kept["timings"] if each["phase"] == "later"} == {2}
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


@pytest.mark.parametrize(("as_trained", "pixels"), [(False, TINY.pixels), (True, 32)])
def test_a_step_that_is_timed_as_it_is_trained_has_images_as_large_as_those_of_cifar(as_trained, pixels):
    shape = TINY.seen(as_trained)
    assert random_images(shape).train.pixels.shape[1:] == (pixels, pixels, 3)
    assert shape.images_told == f"images of {pixels} x {pixels}"
