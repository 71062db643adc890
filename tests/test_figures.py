"""The paper's figures are drawn from run directories alone, with their numbers and captions beside them."""

import csv
import shlex
import sys
from dataclasses import replace

import numpy as np
import pytest
import typer
from analysed import EPOCH, make_run
from directories import PROTOCOL
from directories import make_run as plain_run
from matplotlib.figure import Figure

from bdr.cli import app, main
from bdr.configuration.config import fields_of
from bdr.errors import BdrError, UsageError
from bdr.metrics import first_stage
from bdr.paper.printed import printed
from bdr.plugins import PLUGINS
from bdr.report import compare
from bdr.report.paper_figures import FIGURES, Asked, contents, gradients, style, write_figure
from bdr.report.paper_figures.embedding import Cloud, embedded, scatter
from bdr.report.paper_figures.figure5_momenta import DEFAULTS
from bdr.report.paper_figures.files import as_csv, place_of
from bdr.report.paper_figures.pairs import pairs_of, panel_titles
from bdr.report.plots import PALETTE

BOTH = ("ucir+cwd", "ucir+cwd+bdr")
PRINTED = printed()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A method without and with BDR, analysed, at two memories and two seeds, and a grid of m and m'."""
    folder = tmp_path_factory.mktemp("runs")
    found = [make_run(folder, title, seed, 70 + seed % 2) for title in BOTH for seed in (1993, 1994)]
    found += [make_run(folder, title, memory="5/class", average=75) for title in BOTH]
    grid = [(0.2, 0.2, 60), (0.2, 0.8, 61), (1.0, 0.2, 64)]
    settings = [({"bdr": {"m": m, "m_prime": other}}, average) for m, other, average in grid]
    return found + [make_run(folder, BOTH[1], settings=each, average=a, analyse=False) for each, a in settings]


def draw(name, runs, out, formats="svg", **asked):
    """The files by their names' endings, and the rows of the first table."""
    files, _ = write_figure(name, Asked(list(runs), printed=PRINTED, **asked), out, formats)
    return files, table(next(file for file in files if file.suffix == ".csv"))


def table(file):
    with file.open() as lines:
        return list(csv.DictReader(lines))


def typed(*words, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["bdr", *map(str, words)])
    with pytest.raises(SystemExit) as left:
        main()
    return left.value.code


# Files


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_pictures_numbers_and_a_caption(name, runs, tmp_path):
    files, rows = draw(name, runs, tmp_path)
    stem = f"figure-{name}" if name.isdigit() else name
    assert {file.name for file in files} >= {f"{stem}.svg", f"{stem}.csv", f"{stem}.txt"}
    assert len(rows) > 3
    caption = (tmp_path / f"{stem}.txt").read_text()
    for part in ("Seeds: n = ", "Protocol:\n- digits B4 S2, 3/class", "Differs from the paper:", "Runs:\n- "):
        assert part in caption


def test_the_same_runs_give_the_same_files_of_each_format_with_their_letters_inside(runs, tmp_path):
    first, second = (draw("5", runs, tmp_path / name, None)[0] for name in ("once", "again"))
    assert [file.read_bytes() for file in first] == [file.read_bytes() for file in second]
    pdf, png, svg = (file.read_bytes() for file in first[:3])
    assert [pdf[:5], png[1:4], svg[:5]] == [b"%PDF-", b"PNG", b"<?xml"]
    assert b"FontFile2" in pdf
    assert b"<text" not in svg


def test_a_file_name_tells_its_format_and_anything_else_is_a_folder(tmp_path):
    assert place_of(tmp_path / "a.pdf", "4", None) == (tmp_path / "a", ("pdf",))
    assert place_of(tmp_path / "a.pdf", "4", "svg,pdf") == (tmp_path / "a", ("svg", "pdf"))
    with pytest.raises(UsageError, match=r"--format svg,png and '.*a.pdf' do not agree: .* type --out .*a.svg$"):
        place_of(tmp_path / "a.pdf", "4", "svg,png")
    assert place_of(tmp_path / "v1.2", "4", "png") == (tmp_path / "v1.2" / "figure-4", ("png",))
    for out, formats, message in (("a.jpg", None, "no format 'jpg'"), ("b", "pdf,gif", "no format 'gif'")):
        with pytest.raises(UsageError, match=message):
            place_of(tmp_path / out, "4", formats)
    with pytest.raises(UsageError, match="names no format"):
        place_of(tmp_path / "c", "4", ",")
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(UsageError, match="is a file and no picture"):
        place_of(tmp_path / "notes", "4", None)


def test_a_table_has_nothing_where_there_is_no_number():
    assert as_csv([{"a": np.float64(1 / 3), "b": None}, {"a": float("nan"), "b": "x"}]) == "a,b\n0.333333,\n,x\n"


# Numbers


def test_boxes_are_quartiles_of_all_iterations_of_all_seeds(runs, tmp_path):
    files, rows = draw("3", runs, tmp_path)
    row = next(row for row in rows if (row["method"], row["phase"], row["panel"][-5:]) == ("CwD", "2", "R = 3"))
    values = np.concatenate([first_stage(run, 2, "distillation") for run in runs[:2]])
    assert float(row["median"]) == pytest.approx(np.median(values), rel=1e-4)
    assert float(row["quartile_3"]) == pytest.approx(np.quantile(values, 0.75), rel=1e-4)
    reach = float(row["quartile_3"]) + 1.5 * (float(row["quartile_3"]) - float(row["quartile_1"]))
    assert int(row["outliers"]) == (values > reach).sum()
    assert int(row["outliers"]) > 0
    extremes = table(next(file for file in files if file.name == "figure-3-extremes.csv"))
    assert float(extremes[0]["max"]) >= float(extremes[0]["min"]) > 0


def test_curves_are_of_the_second_phase_by_epoch_with_its_extremes(runs, tmp_path):
    _, rows = draw("4", runs[4:6], tmp_path)
    assert {row["phase"] for row in rows} == {"2"}
    first = first_stage(runs[4], 2, "distillation")[:EPOCH]
    found = [float(rows[0][name]) for name in ("mean", "min", "max")]
    assert found == pytest.approx([first.mean(), first.min(), first.max()], rel=1e-4)
    assert {row["phase"] for row in draw("4", runs[4:6], tmp_path, phase=1)[1]} == {"1"}


def test_the_rise_within_the_first_epoch_is_drawn_step_by_step(runs, tmp_path):
    files, rows = draw("4", runs[:4], tmp_path)
    steps = table(next(file for file in files if file.name == "figure-4-steps.csv"))
    mine = {float(row["epoch"]): float(row["moving_mean"]) for row in steps if row["method"] == "CwD"}
    begun = np.mean([first_stage(run, 2, "distillation")[0] for run in runs[:2]])
    assert min(mine) == pytest.approx(1 / EPOCH, rel=1e-4)
    assert mine[min(mine)] == pytest.approx(begun, rel=1e-4)
    assert mine[1.0] == pytest.approx(float(rows[0]["mean"]), rel=1e-4)


def test_the_heat_map_marks_the_best_cell_and_those_without_a_run(runs, tmp_path):
    _, rows = draw("5", [*runs[:1], *runs[6:]], tmp_path)
    cells = {(row["m"], row["m_prime"]): row for row in rows}
    assert [key for key, row in cells.items() if row["best"] == "1"] == [("1", "0.2")]
    assert (cells["1", "0.8"]["mean"], cells["1", "0.8"]["n"]) == ("", "0")


def test_cells_of_the_heat_map_are_of_the_same_seeds(runs, tmp_path):
    _, rows = draw("5", runs, tmp_path)
    found = {(row["m"], row["m_prime"]): (float(row["mean"]), row["n"]) for row in rows if row["mean"]}
    assert found["0.8", "0.8"] == (pytest.approx(71), "1")
    assert {n for _, n in found.values()} == {"1"}
    assert "runs of other seeds, 1 in all" in (tmp_path / "figure-5.txt").read_text()
    other = make_run(tmp_path, BOTH[1], 1995, settings={"bdr": {"m": 0.0}}, analyse=False)
    draw("5", [*runs, other], tmp_path)
    assert "No seed is common to all cells" in (tmp_path / "figure-5.txt").read_text()


def test_constant_rebalancing_is_the_corner_of_the_heat_map_unless_that_was_run_by_its_numbers(runs, tmp_path):
    constant = make_run(tmp_path, BOTH[1], settings={"bdr": {"components": "cr"}}, average=62, analyse=False)
    corner = make_run(tmp_path, BOTH[1], settings={"bdr": {"m": 1.0, "m_prime": 1.0}}, average=63, analyse=False)
    for number, (further, mean) in enumerate((([constant], 62), ([constant, corner], 63), ([corner, constant], 63))):
        _, rows = draw("5", [*runs[6:], *further], tmp_path / str(number))
        cells = {(row["m"], row["m_prime"]): row for row in rows}
        assert float(cells["1", "1"]["mean"]) == pytest.approx(mean)


def test_what_was_not_set_counts_as_the_plug_in_has_it():
    assert {name: fields_of(PLUGINS["bdr"])[name.removeprefix("bdr.")][1] for name in DEFAULTS} == DEFAULTS


def test_accuracies_stand_beside_those_of_the_paper(tmp_path):
    facts = {"data": "cifar100", "base": 50, "step": 10}
    made = [make_run(tmp_path, t, memory=m, analyse=False, **facts) for t in BOTH for m in ("5/class", "20/class")]
    _, rows = draw("6", made, tmp_path / "out")
    printed = {(row["method"], row["exemplars"]): float(row["mean"]) for row in rows if row["from"] == "paper"}
    assert printed["CwD", "5"] == 56.32
    assert printed["CwD + BDR", "5"] == 63.33
    assert printed["CwD", "20"] == 67.05
    assert printed["CwD + BDR", "40"] == 70.53
    assert sum(row["from"] == "runs" for row in rows) == 4
    for run in made:
        run.info.update(classes=[*run.info["classes"], "one to come"])
    _, rows = draw("6", made, tmp_path / "first phases")
    assert {row["from"] for row in rows} == {"runs"}  # an average over the first phases has no like in the paper


def test_a_scenario_of_one_memory_is_no_panel_and_is_named(tmp_path):
    facts = {"data": "cifar100", "base": 50, "analyse": False}
    made = [make_run(tmp_path, t, memory=m, step=10, **facts) for t in BOTH for m in ("5/class", "20/class")]
    alone = [make_run(tmp_path, t, memory="20/class", step=5, **facts) for t in BOTH]
    files, rows = draw("6", [*made, *alone], tmp_path / "out")
    assert {row["panel"] for row in rows} == {"CwD, S = 10"}
    assert "no other memory to set them against: ucir+cwd (CIFAR-100 B50 S5, 20/class)" in files[-1].read_text()
    apart = [run for run in made if run.protocol["memory"] == "5/class"]
    with pytest.raises(UsageError, match=r"needs runs at two or more memories .* ucir.* differs in step, too"):
        draw("6", [*apart, *alone], tmp_path / "out")


def test_accuracies_have_their_spread_over_seeds(runs, tmp_path):
    _, rows = draw("6", runs, tmp_path)
    found = {(row["method"], row["exemplars"]): row for row in rows}
    assert float(found["CwD", "3"]["mean"]) == 70.5
    assert float(found["CwD", "3"]["spread"]) == pytest.approx(0.5**0.5)
    assert found["CwD", "5"]["spread"] == ""


def test_gradients_are_balanced_with_bdr_and_batches_without_new_images_are_left_out(runs, tmp_path):
    _, rows = draw("gradients", runs, tmp_path)
    medians = {(row["method"], row["phase"]): float(row["median"]) for row in rows}
    assert medians["CwD", "1"] == pytest.approx(6, rel=0.2)
    assert medians["CwD + BDR", "1"] == pytest.approx(1.5, rel=0.2)


def test_gradients_of_one_phase_have_its_number_below_them_and_no_other(runs, monkeypatch):
    monkeypatch.setattr(gradients, "phases_with", lambda run: [1])
    axes = Figure().subplots()
    gradients.over_phases(axes, pairs_of(runs, "gradients")[0][0], Asked(runs, printed=PRINTED))
    low, high = axes.get_xlim()
    assert [tick for tick in axes.get_xticks() if low <= tick <= high] == [1]


def test_the_moments_of_a_phase_share_one_embedding_of_the_same_images(runs):
    cloud = embedded(runs[0], 1, ("start", "peak", "end"), background=5)
    assert {points.shape for points in cloud.points.values()} == {(4 * (3 + 5), 2)}
    assert cloud.exemplar.sum() == 12
    assert cloud.steps["peak"] == 12
    centres = {m: np.array([p[cloud.labels == c].mean(0) for c in range(4)]) for m, p in cloud.points.items()}
    assert np.std(centres["start"]) > np.std(centres["peak"])


# Which runs


def test_many_exemplars_are_smaller_dots_and_larger_than_the_images_behind_them():
    def sizes(exemplars):
        labels = np.zeros(2 * exemplars, int)
        cloud = Cloud({"end": np.zeros((len(labels), 2))}, labels, np.arange(len(labels)) < exemplars, {})
        axes = style.blank(style.COLUMN, 2).subplots()
        scatter(axes, cloud, "end", {0: "#000000"})
        return [float(dots.get_sizes()[0]) for dots in axes.collections]

    (behind, few), (_, many) = sizes(20), sizes(200)
    assert behind < many < few / 2


@pytest.mark.parametrize("name", ["1", "7"])
def test_a_caption_says_over_how_long_the_mean_is_that_peaks(name, runs, tmp_path):
    draw(name, runs, tmp_path)
    caption = (tmp_path / f"figure-{name}.txt").read_text()
    assert "The peak is where the mean over a quarter of an epoch is highest" in caption


def test_plain_bdr_is_the_pair_of_a_method_and_other_settings_are_named(runs):
    pairs, notes = pairs_of(runs, "4")
    assert [len(pair.balanced.runs) for pair in pairs] == [2, 1]
    assert "bdr.m=0.2 bdr.m_prime=0.8" in notes[0]
    assert panel_titles([pair.run for pair in pairs], PRINTED) == ["CwD, S = 2, R = 3", "CwD, S = 2, R = 5"]
    assert [side.colour for side in pairs[0].sides()] == [style.WITHOUT, style.BALANCED] == list(PALETTE[:2])


def test_bdr_that_is_not_as_it_is_is_named_with_its_settings(tmp_path):
    grid = [{"stage": {"epochs": 2}, "settings": {"bdr": {"m": m}}} for m in (0.1, 0.4)]
    alone = plain_run(tmp_path / "alone", "ucir+cwd", config={"stage": {"epochs": 2}})
    runs = [plain_run(tmp_path / str(number), "ucir+cwd+bdr", config=config) for number, config in enumerate(grid)]
    _, (told,) = pairs_of([alone, runs[0]], "4")
    assert told.startswith("Shown is BDR with settings of its own: ucir+cwd with bdr.m = 0.1 (")
    _, (_, others) = pairs_of([alone, *runs], "4")
    assert others == "Left out, since one setting of BDR is drawn: ucir+cwd+bdr bdr.m=0.4."


def test_the_halves_of_a_pair_are_of_the_same_seeds(tmp_path):
    alone = make_run(tmp_path / "a", "ucir+cwd", 1994, analyse=False)
    both = [make_run(tmp_path / "b", title, 1993, analyse=False) for title in BOTH]
    (pair,), notes = pairs_of([alone, *both], "4")
    assert [run.seed for run in pair.runs] == [1993, 1993]
    assert notes[0].endswith(": 1 run.")
    (apart,), notes = pairs_of([alone, both[1]], "4")  # better than no figure
    assert [run.seed for run in apart.runs] == [1994, 1993]
    assert notes[0].startswith("No seed is common to ucir+cwd and ucir+cwd+bdr (")


def without_distillation(run, monkeypatch):
    """The run as one of a method that has no such term."""
    steps = run.steps
    nothing = np.full(len(steps(1)["ce_old"]), np.nan)
    monkeypatch.setitem(vars(run), "steps", lambda phase: steps(phase) | {"distillation": nothing})
    return run


def test_a_run_that_lost_its_steps_is_not_told_to_be_made_with_another_method(tmp_path):
    made = [make_run(tmp_path, title, analyse=False) for title in BOTH]
    lost = [made[0], replace(made[1], steps_lost=True)]
    with pytest.raises(UsageError, match=r"steps\.npz is damaged: put back a copy of the file, or leave the run out"):
        draw("3", lost, tmp_path / "out")


def test_a_method_without_distillation_is_drawn_by_its_loss_on_old_classes(tmp_path, monkeypatch):
    made = [make_run(tmp_path, title, analyse=False) for title in ("replay", "replay+bdr")]
    files, _ = draw("4", [without_distillation(run, monkeypatch) for run in made], tmp_path / "out")
    assert "not all of these methods have such a term" in files[-1].read_text()


@pytest.mark.parametrize("name", ["3", "4"])
def test_a_method_without_distillation_changes_no_other_panel_and_is_named(name, runs, tmp_path, monkeypatch):
    made = [make_run(tmp_path, title, analyse=False) for title in ("replay", "replay+bdr")]
    _, alone = draw(name, runs[:4], tmp_path / "alone")
    asked = Asked([*runs[:4], *(without_distillation(run, monkeypatch) for run in made)], printed=PRINTED)
    files, notes = write_figure(name, asked, tmp_path / "both", "svg")
    rows = table(files[1])
    assert [row for row in rows if row["loss"] == "distillation"] == alone
    assert {row["panel"] for row in rows if row["loss"] == "ce_old"} == {"replay, S = 2"}
    assert notes[0] == "Shown by the cross-entropy of old classes, since there is no distillation term: replay."


@pytest.mark.parametrize(
    ("limits", "shown"),
    [((0.11, 6), [0.2, 0.5, 1, 2, 5]), ((0.5, 3e4), [1, 10, 100, 1000, 10000]), ((0.018, 160), [0.1, 1, 10, 100])],
)
def test_a_logarithmic_axis_has_several_numbers_and_not_too_many(limits, shown):
    axes = style.blank(style.COLUMN, 2).subplots()
    axes.set(yscale="log", ylim=limits)
    style.log_ticks(axes.yaxis, limits)
    inside = [tick for tick in axes.get_yticks() if limits[0] <= tick <= limits[1]]
    assert inside == pytest.approx(shown)


def test_the_title_of_a_panel_ends_before_the_next_one():
    title = "PODNet, B = 50, S = 10, R = 2000, resnet18-der"
    lines = style.wrapped(title, style.PAGE / 3).split("\n")
    assert " ".join(lines) == title
    assert len(lines) == 2
    assert all(style.inches(line) < style.PAGE / 3 for line in lines)
    assert style.wrapped(title, style.PAGE) == title


def test_many_boxes_stand_side_by_side(tmp_path):
    made = [make_run(tmp_path, title, step=step) for title in BOTH for step in range(1, 8)]
    files, rows = draw("3", made, tmp_path / "out", "png")
    width, height = (int.from_bytes(files[0].read_bytes()[place : place + 4], "big") for place in (16, 20))
    assert len({row["panel"] for row in rows}) == 7
    assert height < 1.3 * width


# Refusals


def hint(error):
    """The command that a message ends with."""
    return shlex.split(str(error.value).rsplit("with: bdr ", 1)[1])


@pytest.mark.parametrize("name", ["1", "7", "gradients"])
def test_runs_that_were_not_analysed_are_named_with_what_to_type(name, tmp_path):
    made = [make_run(tmp_path, title, analyse=False) for title in BOTH]
    with pytest.raises(UsageError, match=f"figure {name} needs .* has none") as error:
        draw(name, made, tmp_path / "out")
    assert str(made[0].path) in str(error.value)
    words = hint(error)
    assert words[:2] == ["run", "ucir+cwd"]
    assert "--analyse" in words
    typer.main.get_command(app).commands["run"].make_context("bdr", words[1:])
    assert not (tmp_path / "out").exists()


def test_a_method_alone_names_its_other_half(runs, tmp_path):
    with pytest.raises(UsageError, match="there is only ucir") as error:
        draw("3", runs[:2], tmp_path)
    assert hint(error)[:2] == ["run", "ucir+cwd+bdr"]


def pair_of(folder, *etas, command="bdr run {} --set ucir.eta={} --set stage.epochs=2 --runs mine"):
    """A method without and with BDR, at the same or at another eta."""
    given = [{"stage": {"epochs": 2}, "settings": {"ucir": {"eta": eta}}} for eta in etas]
    commands = [command.format(title, eta) for title, eta in zip(BOTH, etas, strict=True)]
    return [
        plain_run(folder, title, config=config, command=typed)
        for title, config, typed in zip(BOTH, given, commands, strict=True)
    ]


def test_pairs_of_one_method_are_told_apart_by_their_settings(tmp_path):
    one, other = pair_of(tmp_path / "one", 5, 5)[0], pair_of(tmp_path / "other", 20, 20)[0]
    assert [title.split(", ")[-1] for title in panel_titles([one, other], PRINTED)] == ["ucir.eta = 5", "ucir.eta = 20"]
    again = pair_of(tmp_path / "again", 5, 5)[0]
    assert all(title.endswith(f"[{one.fingerprint}]") for title in panel_titles([one, again], PRINTED))


def test_figures_pair_what_tables_have_a_gain_for(tmp_path):
    alike, other = pair_of(tmp_path / "alike", 20, 20), pair_of(tmp_path / "other", 5, 20)
    for runs in (alike, other):
        gains = [difference is not None for difference in compare(runs).differences]
        assert any(gains) == (runs is alike)
    assert len(pairs_of(alike, "4")[0]) == 1
    with pytest.raises(UsageError, match=r"bdr ucir.eta=20 differs from ucir\+cwd ucir.eta=5 in ucir.eta \(") as error:
        pairs_of(other, "4")
    assert hint(error) == shlex.split("run ucir+cwd+bdr --set ucir.eta=5 --set stage.epochs=2 --runs mine")


@pytest.mark.parametrize("command", ["python mine.py", "bdr run digits-cwd --out here"])
def test_a_command_that_cannot_be_typed_again_is_made_of_protocol_and_settings(tmp_path, command):
    with pytest.raises(UsageError) as error:
        pairs_of(pair_of(tmp_path, 5, 20, command=command), "4")
    assert hint(error)[:2] == ["run", "ucir+cwd+bdr"]
    assert hint(error)[-4:] == ["--set", "ucir.eta=5", "--set", "stage.epochs=2"]


def alone(folder, title, command, memory="3/class", **changes):
    """What to type for the other half of a run."""
    run = plain_run(folder, title, command=command, protocol=PROTOCOL | {"memory": memory}, **changes)
    with pytest.raises(UsageError) as error:
        pairs_of([run], "4")
    return error


@pytest.mark.parametrize("out", ["--out runs/first", "--out=runs/first"])
def test_the_other_half_of_a_run_goes_into_another_folder_with_all_else_that_was_typed(out, tmp_path):
    command = f"bdr run ucir --data imagefolder --root birds --net small {out} --set stage.epochs=2"
    expected = "run ucir+bdr --data imagefolder --root birds --net small --set stage.epochs=2"
    assert hint(alone(tmp_path, "ucir", command)) == shlex.split(expected)


def test_the_other_half_without_bdr_has_none_of_its_settings(tmp_path):
    command = "bdr run ucir+bdr --set bdr.m=0.5 --set=bdr.m_prime=1 --set ucir.eta=5 --uneven"
    assert hint(alone(tmp_path, "ucir+bdr", command)) == shlex.split("run ucir --set ucir.eta=5 --uneven")


def test_a_run_that_was_made_in_python_is_typed_by_what_its_record_has(tmp_path):
    config = {"data": "imagefolder", "root": "birds", "size": 48, "base": 2, "step": 2, "order": "natural"}
    config |= {"phases": None, "val": 0.0, "herding": "dot", "net": "small", "uneven": True, "augment": {"pad": 2}}
    config |= {"statistics": "half", "settings": {"small": {"width": 8}}, "stage": {"epochs": 3, "batch": 16}}
    words = hint(alone(tmp_path, "ucir", "bdr.run('ucir')", config=config, root="/data/birds"))
    expected = "run ucir+bdr --data imagefolder --root /data/birds --size 48 --base 2 --step 2 --order natural"
    expected += " --memory 3/class --herding dot --net small --uneven --set statistics=half --set augment.pad=2"
    expected += " --set small.width=8 --set stage.epochs=3 --set stage.batch=16"
    assert words == shlex.split(expected)
    typer.main.get_command(app).commands["run"].make_context("bdr", words[1:])


@pytest.mark.parametrize(("memory", "changes"), [("0/class", {}), ("all", {}), ("3/class", {"extends": {}})])
def test_a_run_that_bdr_cannot_be_added_to_is_given_no_such_command(memory, changes, tmp_path):
    error = alone(tmp_path, "finetune", "bdr run finetune --memory 0", memory, **changes)
    assert hint(error) == ["compare", "ucir+cwd", "--with", "none,bdr"]


def test_of_several_runs_one_is_named_that_bdr_can_be_added_to_and_each_under_its_protocol(tmp_path):
    none = plain_run(tmp_path / "none", "finetune", protocol=PROTOCOL | {"memory": "0/class"})
    some = plain_run(tmp_path / "some", "ucir", protocol=PROTOCOL | {"memory": "3/class"})
    with pytest.raises(
        UsageError, match=r"only finetune \(digits B4 S2, 0/class\); ucir \(digits B4 S2, 3/class\)"
    ) as error:
        pairs_of([none, some], "4")
    assert hint(error)[:2] == ["run", "ucir+bdr"]


OF_PICTURES = {"data": "imagefolder", "root": "birds", "size": 48, "base": 2, "step": 2, "net": "small"}
TYPED_OF_PICTURES = "--data imagefolder --root birds --size 48 --base 2 --step 2"


def pair_of_pictures(folder, memory="5/class", seeds=(1, 2), **facts):
    """With and without BDR on a folder of pictures, of a small network and few epochs."""
    protocol = PROTOCOL | OF_PICTURES | {"memory": memory} | facts
    config = OF_PICTURES | {"memory": memory, "herding": "dot", "stage": {"epochs": 3}} | facts
    settings = [{"ucir": {"eta": 5}}, {"ucir": {"eta": 5}, "bdr": {"m": 0.5, "beta": 0.3}}]
    made = [(title, mine, seed) for title, mine in zip(BOTH, settings, strict=True) for seed in seeds]
    return [
        plain_run(folder, title, seed, protocol=protocol, config=config | {"settings": mine}, command="bdr run mine")
        for title, mine, seed in made
    ]


def of_sweep(error):
    """The words of a hint, which is a sweep that can be typed."""
    words = hint(error)
    typer.main.get_command(app).commands["sweep"].make_context("bdr", words[1:])
    return words


def test_a_single_memory_is_told_with_the_sweep_of_another(tmp_path):
    with pytest.raises(UsageError, match="has only 5 a class; make others with") as error:
        draw("6", pair_of_pictures(tmp_path), tmp_path)
    expected = f"sweep ucir+cwd ucir+cwd+bdr {TYPED_OF_PICTURES} --order seed1993 --herding dot --net small"
    expected += " --set ucir.eta=5 --set bdr.m=0.5 --set bdr.beta=0.3 --set stage.epochs=3"
    expected += " --memory 20/class --seeds 1,2"
    assert of_sweep(error) == shlex.split(expected)


def test_a_memory_in_total_is_told_with_the_sweeps_of_two_a_class(tmp_path):
    with pytest.raises(UsageError, match="of 200; make others, the second time with --memory 20/class, with") as error:
        draw("6", pair_of_pictures(tmp_path, "200"), tmp_path)
    assert " ".join(of_sweep(error)).endswith("--memory 5/class --seeds 1,2")


def test_runs_of_several_memories_that_differ_in_more_are_told_by_what_it_is(tmp_path):
    made = [*pair_of_pictures(tmp_path / "one"), *pair_of_pictures(tmp_path / "other", "9/class", net="resnet18")]
    with pytest.raises(UsageError, match=r"ucir\+cwd at 5/class and at 9/class differs in net, too; make others with"):
        draw("6", made, tmp_path)


@pytest.mark.parametrize("given", [slice(0, 2), slice(2, 4)])
def test_a_single_cell_of_the_heat_map_is_told_with_the_sweep_of_others_on_the_same_data(given, tmp_path):
    with pytest.raises(UsageError, match=r"'runs: \[ucir\+cwd\+bdr\]' and 'grid: .* into grid.yaml, and") as error:
        draw("5", pair_of_pictures(tmp_path)[given], tmp_path)
    words = " ".join(of_sweep(error))
    assert words.startswith(f"sweep grid.yaml {TYPED_OF_PICTURES} --order seed1993 --memory 5/class --herding dot")
    assert words.endswith("--set stage.epochs=3 --seeds 1,2")
    assert "bdr.m" not in words


@pytest.mark.parametrize(
    ("name", "asked", "message"),
    [
        ("2", {}, "a drawing of the method"),
        ("8", {}, "no figure '8'; there are 1, 3, 4, 5, 6, 7, gradients"),
        ("4", {"phase": 9}, "no incremental phase 9, its last one is 2: use --phase 2"),
        ("1", {"phase": 9}, "no snapshots of phase 9; there are those of 1, 2"),
        ("gradients", {"phase": 9}, "not all runs have gradients of phase 9"),
        ("5", {}, "several values of m and m', and there is m = 0.8, m' = 0.8"),
        ("6", {}, "only 3 a class"),
    ],
)
def test_what_cannot_be_drawn_is_said(name, asked, message, runs, tmp_path):
    with pytest.raises(UsageError, match=message):
        draw(name, runs[:4], tmp_path, **asked)


@pytest.mark.parametrize(("missing", "name"), [("matplotlib", "4"), ("sklearn.manifold", "1")])
def test_what_is_not_installed_is_named(missing, name, runs, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(UsageError, match=r"not installed: pip install 'bdr\[figures\]'"):
        draw(name, runs, tmp_path)


def test_a_run_without_a_finished_phase_is_named(runs, tmp_path):
    begun = make_run(tmp_path, analyse=False, phases=[])
    with pytest.raises(UsageError, match="has no finished phase yet"):
        draw("4", [*runs, begun], tmp_path / "out")


def test_damaged_snapshots_are_named(tmp_path):
    run = make_run(tmp_path)
    (run.path / "phase-01" / "snapshots.npz").write_bytes(b"half")
    with pytest.raises(BdrError, match=r"snapshots.npz is damaged"):
        draw("1", [run], tmp_path / "out")


# The command


def test_the_command_writes_and_lists(runs, tmp_path, monkeypatch, capsys):
    folder = runs[0].path.parent
    assert typed("figure", "4", folder, "-o", tmp_path / "curves.svg", monkeypatch=monkeypatch) == 0
    said = capsys.readouterr()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "curves-steps.csv",
        "curves.csv",
        "curves.svg",
        "curves.txt",
    ]
    assert "curves.svg" in said.out
    assert "note: Left out" in said.err
    assert typed("figure", "--list", monkeypatch=monkeypatch) == 0
    assert "--analyse" in capsys.readouterr().out
    assert typed("figure", "4", monkeypatch=monkeypatch) == 2
    assert "bdr figure 4 runs" in capsys.readouterr().err


def test_the_list_has_every_figure():
    assert [name for name, _, _ in contents()] == list(FIGURES)
