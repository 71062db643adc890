"""The report is made of run directories alone: tables in four forms, plots, one page."""

import io
import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from bdr.errors import BdrError, UsageError
from bdr.metrics import by_phase, moving_mean, old_and_new, per_class, top_k
from bdr.records import Run, RunWriter, find_runs
from bdr.report import (
    as_json,
    as_markdown,
    as_rich,
    as_text,
    compare,
    comparison_sheet,
    run_sheet,
    write_figures,
    write_page,
)
from bdr.report import plots as drawings
from bdr.report.groups import group_runs

PHASES = [[0, 4], [4, 6], [6, 8], [8, 10]]
CLASSES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
PROTOCOL = {"data": "digits", "order": "seed1993", "base": 4, "step": 2, "memory": "3 per class", "readout": "cnn"}


def draw_predictions(rng, phase, skill):
    """Labels (N,) and ids (N, 5) best first, of a model that is right with a chance of `skill` on old classes."""
    old, seen = PHASES[phase]
    labels = np.repeat(np.arange(seen), 20)
    scores = rng.random((len(labels), seen))
    right = rng.random(len(labels)) < np.where(labels < old, skill, 0.97)
    scores[np.arange(len(labels)), labels] = np.where(right, 2.0, scores[np.arange(len(labels)), labels])
    return labels, np.argsort(-scores, axis=1)[:, :5]


def phase_line(phase, labels, ids):
    old, seen = PHASES[phase]
    on_old, on_new = old_and_new(labels, ids, old)
    return {
        "phase": phase,
        "old": old,
        "seen": seen,
        "accuracy": {"cnn": float(np.mean(ids[:, 0] == labels) * 100)},
        "top5": {"cnn": top_k(labels, ids)},
        "accuracy_old": None if on_old is None else {"cnn": on_old},
        "accuracy_new": {"cnn": on_new},
        "by_phase": {"cnn": by_phase(labels, ids, PHASES[: phase + 1])},
        "parameters": 1000 + phase,
        "seconds": 12.5,
        "steps_per_epoch": 10,
    }


def destruction_series(rng, height, steps=200):
    time = np.arange(steps) / 20
    return 0.2 + height * time * np.exp(1 - time) + 0.1 * rng.random(steps)


def make_run(folder, title="ucir", seed=1993, skill=0.8, height=1.0, phases=4, done=True, **changes):
    """A run directory as the engine would leave it."""
    rng = np.random.default_rng([seed, int(skill * 100)])
    info = {
        "title": title,
        "seed": seed,
        "fingerprint": "3fa9c1",
        "protocol": PROTOCOL,
        "classes": CLASSES,
        "phases": PHASES,
        "distillation": "less_forget",
        "config": {"stage": {"epochs": 20}},
        "command": f"bdr run {title} --seed {seed}",
        "versions": {"bdr": "0.1", "python": "3.11"},
        "device": "cpu",
        "created": "2024-01-01T00:00:00",
        **changes,
    }
    writer = RunWriter.create(Path(folder) / f"{title}-{seed}", info)
    for phase in range(phases):
        labels, ids = draw_predictions(rng, phase, skill)
        writer.predictions(phase, labels, {"cnn": (ids, np.full(ids.shape, 0.2))})
        empty = np.full(200, np.nan)
        ce_old = destruction_series(rng, height) if phase else empty
        writer.steps(phase, 0, ce_old, ce_old / 10)
        writer.phase(phase_line(phase, labels, ids))
    if done:
        writer.finish()
    return Run.open(writer.path)


@pytest.fixture
def runs(tmp_path):
    plain = [make_run(tmp_path, "ucir", seed, skill=0.6, height=1.5) for seed in (1993, 1994, 1995)]
    return plain + [make_run(tmp_path, "ucir+bdr", seed, skill=0.8, height=0.7) for seed in (1993, 1994, 1995)]


class Outline(HTMLParser):
    """Tags and attributes of a page, and whether every tag that opens is closed."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.attributes, self.unbalanced = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, key, value) for key, value in attrs]
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.unbalanced.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, key, value) for key, value in attrs]


def outline(text):
    parser = Outline()
    parser.feed(text)
    return parser


def test_runs_are_grouped_by_title_over_seeds(runs):
    groups = group_runs(runs)
    assert [(group.label, len(group.runs)) for group in groups] == [("ucir", 3), ("ucir+bdr", 3)]


def test_the_difference_is_paired_over_common_seeds(runs):
    comparison = compare(runs[:5])
    ours, theirs = comparison.groups[1].summaries, comparison.groups[0].summaries
    gains = [a["average"] - b["average"] for a, b in zip(ours, theirs, strict=False)]
    found = comparison.differences[1]["average"]
    assert found == (pytest.approx(np.mean(gains)), pytest.approx(np.std(gains, ddof=1) / np.sqrt(2)), 2)
    assert comparison.differences[0] is None


def test_a_protocol_that_differs_is_said(tmp_path, runs):
    other = make_run(tmp_path, "icarl", 1993, protocol={**PROTOCOL, "memory": "20 per class"})
    assert "All methods share one protocol." in compare(runs).notes
    said = "The protocols differ beyond the method: memory is 3 per class for ucir and 20 per class for icarl."
    assert compare([runs[0], other]).notes[0] == said


def test_one_title_under_two_protocols_is_two_groups(tmp_path):
    few = make_run(tmp_path / "few")
    many = make_run(tmp_path / "many", protocol={**PROTOCOL, "memory": "20 per class"}, fingerprint="beef00")
    labels = [group.label for group in group_runs([few, many])]
    assert labels == ["ucir (memory 3 per class)", "ucir (memory 20 per class)"]


def test_one_title_with_hidden_settings_is_two_groups(tmp_path):
    both = [make_run(tmp_path / "a"), make_run(tmp_path / "b", fingerprint="beef00")]
    assert [group.label for group in group_runs(both)] == ["ucir [3fa9c1]", "ucir [beef00]"]


def test_class_orders_of_one_method_stay_together(tmp_path):
    orders = [
        make_run(tmp_path, seed=seed, protocol={**PROTOCOL, "order": str(seed)}, fingerprint=str(seed))
        for seed in (1, 2)
    ]
    assert [len(group.runs) for group in group_runs(orders)] == [2]


def test_unfinished_runs_are_left_out_by_name(tmp_path, runs):
    young = make_run(tmp_path, "ucir", 7, phases=2, done=False)
    comparison = compare([*runs, young])
    assert len(comparison.groups[0].runs) == 3
    assert "Left out: ucir-7 of ucir, not finished (2 of 4 phases)." in comparison.notes
    assert any(note.startswith("Not finished: ucir-7") for note in compare([young]).notes)


def test_a_repeated_seed_counts_once(tmp_path):
    first = make_run(tmp_path / "first", created="2024-01-01")
    again = make_run(tmp_path / "again", created="2024-02-01")
    comparison = compare([again, first])
    assert [run.path for run in comparison.groups[0].runs] == [again.path]
    assert any("run again later" in note for note in comparison.notes)


def test_all_forms_of_the_table_say_the_same(runs):
    from rich.console import Console

    comparison = compare(runs)
    sheet = comparison_sheet(comparison)
    mean = f"{comparison.values[1]['average'].mean:.2f}"
    console = Console(width=140, file=io.StringIO())
    console.print(as_rich(sheet))
    for text in (as_text(sheet), as_markdown(sheet), console.file.getvalue()):
        assert mean in text
        assert "ucir+bdr" in text
    data = json.loads(json.dumps(as_json(comparison), allow_nan=False))
    assert data["groups"][1]["values"]["average"]["mean"] == comparison.values[1]["average"].mean
    assert data["groups"][1]["difference_to_first"]["average"]["n"] == 3


def test_one_seed_has_no_spread_and_says_so(runs):
    sheet = comparison_sheet(compare(runs[:1]))
    assert "±" not in "".join(sheet.rows[0])
    assert "One seed only, so without a spread: ucir." in sheet.notes


def test_a_run_has_a_row_a_phase_with_its_new_classes(runs):
    sheet = run_sheet(runs[0])
    assert [row[-1] for row in sheet.rows] == ["zero, one, two, three", "four, five", "six, seven", "eight, nine"]
    assert sheet.rows[0][4] == "–"  # noqa: RUF001
    assert as_rich(sheet).row_count == 4


def test_comparing_nothing_is_a_usage_error():
    with pytest.raises(UsageError, match="no run to compare"):
        compare([])


@pytest.mark.parametrize("name", ["accuracy", "destruction", "matrix", "bars"])
def test_plots_are_svg_that_takes_the_colour_of_the_page(runs, name):
    groups = group_runs(runs)
    svg = {
        "accuracy": lambda: drawings.accuracy_curve(groups),
        "destruction": lambda: drawings.destruction_curve(groups, 1),
        "matrix": lambda: drawings.accuracy_matrix(groups[0]),
        "bars": lambda: drawings.class_bars(groups[0]),
    }[name]()
    root = ElementTree.fromstring(svg)
    assert root.tag.endswith("svg")
    assert root.get("role") == "img"
    assert "currentColor" in svg
    assert drawings.INK not in svg
    assert svg == svg.replace("<metadata", "")


def painted(monkeypatch, draw):
    """The axes that a plot is painted on."""
    figure = pytest.importorskip("matplotlib.figure").Figure()
    axes = figure.subplots()
    with monkeypatch.context() as patch:
        patch.setattr(drawings, "_draw", lambda size, paint, name: paint(axes) or "")
        draw()
    return axes


@pytest.mark.parametrize("name", ["ce_old", "distillation"])
def test_the_destruction_curve_starts_at_the_first_step_on_a_logarithmic_axis(runs, monkeypatch, name):
    groups = group_runs(runs[:1])
    axes = painted(monkeypatch, lambda: drawings.destruction_curve(groups, 1, name))
    series, window = runs[0].steps(1)[name], runs[0].phases[1]["steps_per_epoch"]
    (line,) = axes.get_lines()
    x, y = (np.asarray(values, float) for values in line.get_data())
    steps = np.round(x * window).astype(int)
    assert axes.get_xscale() == "log"
    assert (steps[0], steps[-1], window) == (1, 200, 10)
    assert set(range(1, 2 * window)) <= set(steps.tolist())
    np.testing.assert_allclose(y[0], series[0])
    for step, value in zip(steps, y, strict=True):  # all steps so far, then those of one epoch
        np.testing.assert_allclose(value, series[max(0, step - window) : step].mean(), rtol=1e-6)
    np.testing.assert_allclose(y[steps >= window], moving_mean(series, window)[steps[steps >= window] - window])


def test_figures_are_files_that_stand_alone(tmp_path, runs):
    written = write_figures(runs, tmp_path / "a" / "figures")
    panels = [f"{series}-phase-0{phase}" for phase in (1, 2, 3) for series in ("ce-old", "distillation")]
    assert [path.name for path in written] == [f"{name}.svg" for name in ("accuracy", *panels, "matrix-0", "matrix-1")]
    assert set(written) == set((tmp_path / "a" / "figures").iterdir())
    for path in written:
        root = ElementTree.fromstring(path.read_text())
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert "color: #" in root.get("style")
        assert root[0].attrib == {"width": "100%", "height": "100%", "fill": "#ffffff"}
        assert root.findtext("{http://www.w3.org/2000/svg}title")


def test_a_series_that_no_run_recorded_has_no_figure(tmp_path):
    run = make_run(tmp_path, phases=1)
    assert [path.name for path in write_figures([run], tmp_path / "figures")] == ["accuracy.svg", "matrix-0.svg"]


def test_many_phases_get_five_panels_with_the_first_and_the_last(runs):
    lines = [{"phase": phase} for phase in range(26)]
    group = group_runs(runs)[0]
    object.__setattr__(group.runs[0], "phases", lines)
    shown = drawings.shown_phases([group])
    assert (len(shown), shown[0], shown[-1]) == (5, 1, 25)


def test_bars_are_the_accuracies_of_the_stored_predictions(runs):
    group = group_runs(runs[:1])[0]
    stored = runs[0].predictions(3)
    np.testing.assert_allclose(drawings.last_per_class(group), per_class(stored["labels"], stored["cnn_ids"], 10))


def test_plots_without_matplotlib_say_what_to_install(runs, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UsageError, match=re.escape("pip install 'bdr[report]'")):
        drawings.accuracy_curve(group_runs(runs[:1]))


def test_the_page_needs_nothing_but_itself(tmp_path, runs):
    text = write_page(runs, tmp_path / "page.html", "Digits").read_text()
    found = outline(text)
    assert found.unbalanced == found.open == []
    assert not {"script", "link", "img", "iframe", "object"} & set(found.tags)
    links = [value for _, key, value in found.attributes if key in ("src", "href", "xlink:href", "action", "data")]
    assert all(value.startswith("#") for value in links)
    assert "@import" not in text
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", text))
    assert [value for _, key, value in found.attributes if key.startswith("on")] == []


def test_ids_on_the_page_are_its_own(tmp_path, runs):
    found = outline(write_page(runs, tmp_path / "page.html", "Digits").read_text())
    defined = {value for _, key, value in found.attributes if key == "id"}
    used = {value[1:] for _, key, value in found.attributes if key == "xlink:href"}
    assert used <= defined


def test_the_page_says_what_was_run_and_how(tmp_path, runs):
    text = write_page(runs, tmp_path / "page.html", "Digits").read_text()
    for part in ("3 per class", "bdr run ucir --seed 1993", "eight, nine", "prefers-color-scheme: dark", "less_forget"):
        assert part in text


def test_the_page_escapes_names_from_outside(tmp_path):
    classes = ["<script>alert(1)</script>", "$x", "a&b", '"><img src=x>', *CLASSES[4:]]
    run = make_run(tmp_path, classes=classes, command="bdr run '<b>'", device="<i>gpu</i>", versions={"</style>": "1"})
    text = write_page([run], tmp_path / "page.html", "<script>title</script>").read_text()
    found = outline(text)
    assert not {"script", "img", "b", "i"} & set(found.tags)
    assert found.unbalanced == found.open == []
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text


def test_a_page_of_one_phase_or_of_a_run_under_way_is_still_a_page(tmp_path):
    run = make_run(tmp_path, phases=1, done=False)
    assert "Not finished" in write_page([run], tmp_path / "page.html", "Young").read_text()


def test_lost_predictions_cost_their_plot_and_not_the_page(tmp_path, runs):
    (runs[0].path / "phase-03/predictions.npz").write_bytes(b"")
    assert "predictions.npz is damaged" in write_page(runs, tmp_path / "page.html", "Digits").read_text()


def test_damaged_runs_do_not_stop_a_report(tmp_path, runs):
    (runs[0].path / "run.json").write_text("{")
    found, warnings = find_runs(tmp_path)
    assert [runs[0].path.name in warning for warning in warnings] == [True]
    assert write_page(found, tmp_path / "page.html", "Digits").exists()


def test_a_page_that_cannot_be_written_names_the_file(tmp_path, runs):
    with pytest.raises(BdrError, match=r"cannot write .*nowhere.page\.html"):
        write_page(runs[:1], tmp_path / "nowhere" / "page.html", "Digits")
