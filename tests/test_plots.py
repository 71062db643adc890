"""Plots are SVG that takes the colours of its page; what they show is what was recorded."""

import csv
import io
import itertools
import json
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import directories
import numpy as np
import pytest
from directories import make_run, with_protocol
from matplotlib.figure import Figure

from bdr.metrics import destruction, forgetting_max, matrix, moving_mean, per_class, smoothed
from bdr.records import Run
from bdr.report import plots, write_figures
from bdr.report.colours import DARK_PAGE, DARK_PALETTE, DARKER_FROM, LIGHT_PAGE, PALETTE, SHADES
from bdr.report.groups import group_runs
from bdr.report.paper_figures.embedding import Cloud
from bdr.report.paper_figures.figure1_destruction import MOMENTS, paint_curve
from bdr.report.paper_figures.series import few_points
from bdr.report.parts import parts_of, plots_of
from bdr.report.plots.boxes import box_of
from bdr.report.plots.choice import evenly, short_names, shown_groups
from bdr.report.plots.curves import Curves, _places
from bdr.report.plots.destruction import course_of
from bdr.report.plots.frame import frame
from bdr.report.plots.marks import DASHES, OUTLINES, SHAPES, heights, names, spread_out
from bdr.report.plots.scale import PERCENT, Scale, limits, thinned
from bdr.watch.curves import destruction_curve as watched_curve
from bdr.watch.epochs import columns

SVG = "{http://www.w3.org/2000/svg}"
KINDS = ("border", "line")  # of paths


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    heights = {"ucir": 1.5, "ucir+bdr": 0.7}
    return [make_run(folder, title, seed, height=height) for title, height in heights.items() for seed in (1993, 1994)]


@pytest.fixture(scope="module")
def groups(runs):
    return group_runs(runs)


def rows_of(plot):
    return list(csv.DictReader(io.StringIO(plot.csv)))


def test_every_plot_is_svg_that_is_named_and_has_no_colours_of_its_own(groups):
    for plot in plots_of(groups, points=50):
        root = ElementTree.fromstring(plot.svg)
        assert (root.tag, root.get("role"), root.get("class")) == (f"{SVG}svg", "img", "plot")
        assert root.findtext(f"{SVG}title") == plot.title
        assert not re.search(r"#[0-9a-f]{6}|style=|NaN|nan|inf", plot.svg)
        assert rows_of(plot), plot.name


def test_all_that_is_drawn_lies_on_the_paper(groups):
    for plot in plots_of(groups, points=50):
        width, height = plot.size
        for x, y in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", re.sub(r'd="[^"]*" transform', "", plot.svg)):
            assert -0.1 <= float(x) <= width + 0.1, plot.name
            assert -0.1 <= float(y) <= height + 0.1, plot.name


def test_the_curve_of_accuracy_is_that_of_the_records(runs, groups):
    rows = rows_of(plots.accuracy_curve(groups))
    first = [line["accuracy"]["cnn"] for line in runs[0].phases]
    second = [line["accuracy"]["cnn"] for line in runs[1].phases]
    of_ucir = [float(row["mean"]) for row in rows if row["method"] == "ucir"]
    np.testing.assert_allclose(of_ucir, np.mean([first, second], axis=0), rtol=1e-3)
    assert [row["classes_seen"] for row in rows[:4]] == ["4", "6", "8", "10"]


def test_old_classes_begin_with_the_second_phase_and_forgetting_ends_with_that_of_the_summary(groups):
    assert [row["classes_seen"] for row in rows_of(plots.part_curve(groups[:1], "old"))] == ["6", "8", "10"]
    wanted = np.mean([forgetting_max(matrix(each["matrix"])) for each in groups[0].summaries])
    assert float(rows_of(plots.forgetting_curve(groups[:1]))[-1]["mean"]) == pytest.approx(wanted, rel=1e-3)


@pytest.mark.parametrize("name", ["ce_old", "distillation"])
def test_a_destruction_curve_is_the_moving_mean_and_its_peak_is_the_metric(runs, name):
    group = group_runs(runs[:1])[0]
    course = course_of(group, 1, name, points=50)
    series, window = runs[0].steps(1)[name], runs[0].phases[1]["steps_per_epoch"]
    np.testing.assert_allclose(course.mean[window - 1 :], moving_mean(series, window))
    np.testing.assert_allclose(course.mean[:window], [series[:end].mean() for end in range(1, window + 1)], rtol=1e-5)
    wanted = destruction(series, window)
    assert (course.peak, course.top) == (pytest.approx(wanted.peak), wanted.step)


def test_a_page_and_what_watches_show_the_same_curve_and_figure_1_one_that_is_less_smooth(runs, monkeypatch):
    run, plain = Run.open(runs[0].path), Run.steps

    def with_gaps(self, phase):
        found = plain(self, phase)
        gaps = np.random.default_rng(phase).random(len(found["ce_old"])) < 0.4
        return found | {"ce_old": np.where(gaps, np.nan, found["ce_old"])}

    monkeypatch.setattr(Run, "steps", with_gaps)
    wanted = smoothed(run.steps(1)["ce_old"], 10)
    np.testing.assert_array_equal(course_of(group_runs([run])[0], 1, "ce_old", points=50).mean, wanted)
    cloud = Cloud({}, np.zeros(0), np.zeros(0), dict.fromkeys(MOMENTS, 1))
    rows = paint_curve(Figure().subplots(), run, 1, "ce_old", cloud)
    shorter = smoothed(run.steps(1)["ce_old"], 5)
    np.testing.assert_array_equal([row["moving_mean"] for row in rows], shorter[few_points(len(shorter))])
    watched = watched_curve(run, columns(run.epochs), 1)
    places = np.array(watched["epochs"]) * 10 - 1
    np.testing.assert_allclose(np.array(watched["loss"], float), wanted[places.round().astype(int)], rtol=1e-3)


def test_the_peak_of_every_method_is_marked_with_its_height(groups):
    plot = plots.destruction_curve(groups, 2)
    peaks = [row["peak"] for row in rows_of(plot) if row["peak"]]
    told = [text.text for text in ElementTree.fromstring(plot.svg).iter(f"{SVG}text") if "peak" in text.get("class")]
    assert len(peaks) == 2
    assert sorted(told) == sorted(f"+{float(peak):.2f}" for peak in peaks)


def test_the_mark_is_the_highest_point_of_what_is_drawn_in_full(groups):
    course = course_of(groups[0], 1, "ce_old", points=50)
    whole = course.mean[course.full :]
    assert course.epochs[course.full] == 1.0
    assert course.mean[course.top] == whole.max()
    drawn = [
        each.get("class") for each in ElementTree.fromstring(plots.destruction_curve(groups, 1).svg).iter(f"{SVG}path")
    ]
    assert (drawn.count("line early"), drawn.count("line")) == (2, 2)


def test_a_box_is_of_all_steps_of_a_phase():
    box = box_of(np.array([0.0, 1.0, 2.0, 3.0, 4.0, 20.0, np.nan]))
    assert (box.first, box.median, box.third) == (1.25, 2.5, 3.75)
    assert (box.least, box.low, box.high, box.most) == (0.0, 0.0, 4.0, 20.0)
    assert box_of(np.array([np.nan])) is None


def test_boxes_are_per_phase_and_method(groups):
    rows = rows_of(plots.box_plot(groups, [1, 2, 3], "distillation"))
    assert [(row["method"], row["phase"]) for row in rows[:4]] == [
        ("ucir", "1"),
        ("ucir", "2"),
        ("ucir", "3"),
        ("ucir+bdr", "1"),
    ]


@pytest.mark.parametrize(
    ("last", "shown"),
    [
        (60, ["10", "20", "30", "40", "50", "60"]),
        (100, ["10", "40", "70", "100"]),
        (110, ["10", "30", "50", "70", "90", "110"]),
        (80, ["10", "20", "40", "50", "70", "80"]),  # seven steps cannot be shared out evenly
    ],
)
def test_numbers_below_an_axis_are_evenly_apart_where_they_can_be(last, shown):
    seen = np.arange(10.0, last + 1, 10)
    assert [text for _, text in _places([Curves(seen, seen[None])])] == shown


@pytest.mark.parametrize("name", ["la", "my.module:Prior"])
def test_offsets_are_drawn_of_whichever_plug_in_tells_of_them(name, tmp_path, monkeypatch):
    told = {"cwd": {"loss": 1.0}, name: {"offset_old": -1.0, "offset_new": 2.0}, "late": {"offset_old": 5.0}}
    monkeypatch.setattr("directories.epoch_line", lambda title, phase, epoch: {"phase": phase, "plugins": told})
    groups = group_runs([make_run(tmp_path, "ucir+la")])
    rows = rows_of(plots.offset_plot(groups))
    assert {(row["classes"], float(row["mean"])) for row in rows} == {("old", -1.0), ("new", 2.0)}
    assert "How classes are balanced" in [part.heading for part in parts_of(groups, 50)]


def test_offsets_are_those_that_bdr_logged_and_only_of_runs_with_bdr(groups):
    rows = rows_of(plots.offset_plot(groups))
    assert {row["method"] for row in rows} == {"ucir+bdr"}
    new = [float(row["mean"]) for row in rows if row["classes"] == "new"]
    assert new == pytest.approx([1.6] * 3 + [1.7] * 3 + [1.8] * 3)
    assert plots.offset_plot(groups[:1]) is None


def test_offsets_that_a_phase_begins_with_stand_at_its_border(tmp_path, monkeypatch):
    start = {"bdr": {"offset_old": -3.0, "offset_new": 3.0}}
    plain = directories.phase_line
    monkeypatch.setattr(directories, "phase_line", lambda *told: plain(*told) | {"plugins_at_start": start})
    rows = rows_of(plots.offset_plot(group_runs([make_run(tmp_path, "ucir+bdr")])))
    new = [(float(row["epoch"]), float(row["mean"])) for row in rows if row["classes"] == "new"]
    assert new[:5] == [(0.5, 3.0), (1, 1.6), (2, 1.6), (3, 1.6), (3.5, 3.0)]
    assert len(new) == 12


def test_offsets_of_methods_with_phases_of_different_lengths_lie_phase_on_phase(tmp_path):
    runs = [make_run(tmp_path, title) for title in ("ucir+bdr", "wa+bdr")]
    log = runs[1].path / "epochs.jsonl"
    log.write_text("".join(2 * line for line in log.read_text().splitlines(keepends=True)))
    plot = plots.offset_plot(group_runs(runs))
    assert max(float(row["epoch"]) for row in rows_of(plot)) == 18
    drawn = ElementTree.fromstring(plot.svg)
    assert [each.text for each in drawn.iter(f"{SVG}text") if each.get("class").startswith("axis")][-1] == "phase"
    paths = {kind: [each.get("d") for each in drawn.iter(f"{SVG}path") if each.get("class") == kind] for kind in KINDS}
    border, further = (float(each) for each in re.findall(r"M([\d.]+)", paths["border"][0]))
    for of_a_phase, line in zip((3, 3, 6, 6), paths["line"], strict=True):
        places = np.array(re.findall(r"[ML]([\d.]+)", line), float)
        assert [(places < border).sum(), (places > further).sum()] == [of_a_phase, of_a_phase]


def test_a_seed_that_told_nothing_of_offsets_keeps_none_of_the_others_from_being_drawn(tmp_path):
    silent, telling = (make_run(tmp_path, "ucir+bdr", seed) for seed in (1, 2))
    log = silent.path / "epochs.jsonl"
    lines = [{**json.loads(line), "plugins": {}} for line in log.read_text().splitlines()]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (both,) = group_runs([Run.open(silent.path), telling])
    assert [run.seed for run in both.runs] == [1, 2]
    assert rows_of(plots.offset_plot([both])) == rows_of(plots.offset_plot(group_runs([telling])))


def test_the_ratio_of_gradients_is_drawn_where_a_run_was_analysed(tmp_path):
    run = make_run(tmp_path)
    assert plots.ratio_plot(group_runs([run]), 1) is None
    old = np.full(200, 0.5, np.float32)
    old[7] = np.nan  # a batch without old classes
    new = np.full(200, 2.0, np.float32)
    series = {"phase-01/gradient_old": old, "phase-01/gradient_new": new, "phase-01/ce_new": new}
    np.savez(run.path / "analysis.npz", **series)
    rows = rows_of(plots.ratio_plot(group_runs([Run.open(run.path)]), 1))
    assert {row["ratio"] for row in rows} == {"4"}


def test_the_heat_map_holds_every_accuracy_below_the_diagonal(groups):
    plot = plots.accuracy_matrix(groups[0])
    assert len(rows_of(plot)) == 10
    assert "classes of phase" in plot.svg


def test_bars_are_the_accuracies_of_the_stored_predictions(runs):
    group = group_runs(runs[:1])[0]
    stored = runs[0].predictions(3)
    np.testing.assert_allclose(plots.last_per_class(group), per_class(stored["labels"], stored["cnn_ids"], 10))


def test_a_thinned_series_keeps_its_ends_and_extremes():
    values = np.sin(np.arange(5000) / 300)
    values[1234], values[3456] = 9.0, -9.0
    for log in (False, True):
        kept = thinned(values, 100, log)
        assert len(kept) <= 102
        assert {0, 1234, 3456, 4999} <= set(kept.tolist())
    assert thinned(values[:50], 100).tolist() == list(range(50))


def test_ticks_are_round_and_inside():
    assert Scale(48.2, 83.1, 0, 1).ticks() == [50, 60, 70, 80]
    assert Scale(0.02, 160, 0, 1, log=True).ticks() == [0.1, 1, 10, 100]
    assert Scale(0.12, 6, 0, 1, log=True).ticks() == [0.2, 0.5, 1, 2, 5]
    assert float(Scale(1, 100, 0, 300, log=True)(10.0)) == pytest.approx(150)


def test_names_at_the_ends_of_lines_do_not_stand_on_each_other():
    moved = spread_out([50, 51, 52, 200], 0, 300, gap=15)
    assert np.diff(moved).min() >= 14.9
    assert moved[3] == 200
    assert spread_out([298, 299, 300], 0, 300, gap=15)[-1] <= 300.1


def test_heights_of_peaks_at_the_end_leave_the_names_of_the_lines_free():
    values = [1.0, 1.1, 3.0, 3.2, 5.0]
    paper = frame((0.1, 2.0), (0.0, 6.0), ["ucir+reweight"], log_x=True)
    ends = [(index, value, f"+{index}") for index, value in enumerate(values)]
    tops = [(index, 2.0, value, f"+{value:.2f}") for index, value in enumerate(values)]
    told = [text_places(drawn) for drawn in (names(paper, ends), heights(paper, tops, ends))]
    assert all(x + 19 <= left or abs(y - other) >= 13 for x, y in told[1] for left, other in told[0])
    assert all(abs(a - c) >= 38 or abs(b - d) >= 13 for (a, b), (c, d) in itertools.combinations(told[1], 2))


def text_places(drawn):
    return [(float(x), float(y)) for x, y in re.findall(r'<text x="([\d.]+)" y="([\d.]+)"', drawn)]


def test_many_rows_are_cut_to_the_best_without_settings(tmp_path):
    plain = [with_protocol(tmp_path, title) for title in ("ucir", "ucir+bdr")]
    tried = [with_protocol(tmp_path, "ucir+bdr", settings={"bdr": {"beta": beta / 10}}) for beta in range(8)]
    found = group_runs([*plain, *tried])
    assert [group.label for group in shown_groups(found)] == ["ucir", "ucir+bdr"]
    assert len(shown_groups(found[1:])) == 8
    assert short_names(found[:3]) == ["ucir", "+bdr", "beta=0.0"]
    both = [
        replace(group, label=f"{title} stage.epochs=2")
        for group, title in zip(found, ("ucir", "ucir+bdr"), strict=False)
    ]
    assert short_names(both) == ["ucir epochs=2", "+bdr epochs=2"]


def test_a_row_that_is_among_the_best_is_shown_with_what_it_is_built_on_or_not_at_all(tmp_path):
    skills = {"podnet": 0.1, "podnet+cwd": 0.2, "podnet+cwd+bdr": 0.9, "ucir": 0.3, "ucir+bdr": 0.8, "replay": 0.7}
    found = group_runs([make_run(tmp_path, title, skill=skill) for title, skill in skills.items()])
    labels = {most: [group.label for group in shown_groups(found, most)] for most in (3, 4, 5, 6)}
    assert labels[3] == ["podnet", "podnet+cwd", "podnet+cwd+bdr"]
    assert labels[4] == [*labels[3], "replay"]  # better than ucir; ucir+bdr would be alone
    assert labels[5] == [*labels[3], "ucir", "ucir+bdr"]
    assert labels[6] == list(skills)


def test_phases_are_chosen_with_the_first_and_the_last():
    assert evenly(list(range(1, 26)), 4) == [1, 9, 17, 25]
    assert evenly([1, 2], 4) == [1, 2]
    assert evenly([], 4) == []


# Colours


def contrast(one, other):
    """As WCAG defines it."""

    def luminance(colour):
        parts = np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)]) / 255
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return linear @ [0.2126, 0.7152, 0.0722]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("page", [LIGHT_PAGE, DARK_PAGE], ids=["light", "dark"])
def test_text_has_the_contrast_that_wcag_asks_for(page):
    for ground in ("page", "card", "hover"):
        for ink in ("text", "soft", "accent", "good", "bad"):
            assert contrast(page[ink], page[ground]) >= 4.5, (ink, ground)
    assert contrast(page["text"], page["alert"]) >= 4.5


@pytest.mark.parametrize(("lines", "page"), [(PALETTE, LIGHT_PAGE), (DARK_PALETTE, DARK_PAGE)], ids=["light", "dark"])
def test_the_names_of_lines_have_the_contrast_of_text(lines, page):
    assert min(contrast(line, page["card"]) for line in lines) >= 4.5


def test_numbers_on_a_heat_map_can_be_read():
    css = (Path(plots.__file__).parents[1] / "assets" / "plot.css").read_text()
    inks = [re.search(rf"\.{name} {{ fill: (#\w+)", css)[1] for name in ("on-light", "on-dark")]
    for place, shade in enumerate(SHADES):
        assert contrast(shade, inks[place >= DARKER_FROM]) >= 4.5, place


def test_lines_differ_in_dashes_and_shapes_too():
    assert len(set(DASHES)) == len(set(SHAPES)) == len(PALETTE) == len(DARK_PALETTE)
    assert set(SHAPES) == set(OUTLINES)


# Files


def test_figures_are_files_that_stand_alone(tmp_path, runs):
    written = write_figures(runs, tmp_path / "a" / "figures")
    assert set(written) == set((tmp_path / "a" / "figures").iterdir())
    names = {path.stem for path in written}
    assert names >= {
        "accuracy",
        "accuracy-old",
        "forgetting",
        "ce-old-phase-01",
        "boxes-distillation",
        "offsets",
        "matrix-1",
    }
    assert {path.suffix for path in written} == {".svg", ".csv"}
    for path in (path for path in written if path.suffix == ".svg"):
        root = ElementTree.fromstring(path.read_text())
        assert [child.tag for child in root][:3] == [f"{SVG}title", f"{SVG}style", f"{SVG}rect"]
        assert "var(" not in path.read_text()  # drawing programs know no variables
        assert root.get("width")


def test_figures_of_several_protocols_have_its_name_before_theirs(tmp_path):
    both = [with_protocol(tmp_path, step=step) for step in (2, 3)]
    names = [path.name for path in write_figures(both, tmp_path / "figures")]
    assert {"digits-b4-s2-3-per-class-accuracy.svg", "digits-b4-s3-3-per-class-accuracy.svg"} <= set(names)
    assert len(names) == len(set(names))


def test_a_series_that_no_run_recorded_has_no_figure(tmp_path):
    run = make_run(tmp_path, phases=1)
    names = [path.stem for path in write_figures([run], tmp_path / "figures") if path.suffix == ".svg"]
    assert names == ["accuracy", "matrix-0", "classes-0"]


def test_a_name_that_a_spreadsheet_would_compute_is_text(tmp_path):
    run = make_run(tmp_path, classes=["=1+1", "a,b", 'c"d', *"defghij"])
    classes = [row["class"] for row in rows_of(plots.class_bars(group_runs([run])[0]))]
    assert classes[:3] == ["'=1+1", "a,b", 'c"d']


def test_an_axis_of_percent_has_no_place_for_less_than_none_or_more_than_all():
    assert limits([np.zeros(3)], within=PERCENT) == (0.0, 0.5)
    assert limits([np.array([90.0, 100.0])], within=PERCENT) == (90 - 0.6, 100.0)
    assert limits([np.array([95.0, 103.0])], within=PERCENT)[1] == 103.0  # a band of spread stays whole
    assert limits([np.array([40.0, 60.0])], within=PERCENT) == limits([np.array([40.0, 60.0])])


def test_classes_of_runs_under_way_are_of_the_last_phase_that_all_have(tmp_path):
    whole, shorter = (make_run(tmp_path, seed=seed, phases=phases, done=False) for seed, phases in ((1, 4), (2, 3)))
    (group,) = group_runs([whole, shorter])
    stored = [run.predictions(2) for run in group.runs]
    expected = np.mean([per_class(each["labels"], each["cnn_ids"], 8) for each in stored], axis=0)
    np.testing.assert_allclose(plots.last_per_class(group), expected)
    (border,) = re.findall(r'<path d="([^"]*)" class="border"', plots.class_bars(group).shapes)
    assert border.count("M") == 2  # between three phases, none where only the whole run has gone on
