"""The report is made of run directories alone: tables in four forms, plots, one page."""

import io
import json
import re
import subprocess
import sys
from dataclasses import asdict, dataclass, replace

import numpy as np
import pytest
from directories import PROTOCOL, make_run, read_by, with_protocol
from rich.console import Console

from bdr import api, metrics, terminal
from bdr.commands.looking import gathered, show_runs
from bdr.errors import UsageError
from bdr.planning import describe
from bdr.planning.assemble import plan_run
from bdr.planning.describe import told
from bdr.report import (
    as_json,
    as_markdown,
    as_rich,
    as_rich_tables,
    as_text,
    compare,
    comparison_sheets,
    natural_order,
    run_sheet,
)
from bdr.report.cost import cost
from bdr.report.groups import group_runs, protocol_notes
from bdr.report.protocols import BEFORE_TOLD, FIRST_FIELDS, cut_short
from bdr.report.tables import number
from bdr.terminal import print_comparison
from bdr.types import Stage


@pytest.fixture
def runs(tmp_path):
    plain = [make_run(tmp_path, "ucir", seed, skill=0.6, height=1.5) for seed in (1993, 1994, 1995)]
    return plain + [make_run(tmp_path, "ucir+bdr", seed, skill=0.8, height=0.7) for seed in (1993, 1994, 1995)]


def test_runs_are_grouped_by_title_over_seeds(runs):
    groups = group_runs(runs)
    assert [(group.label, len(group.runs)) for group in groups] == [("ucir", 3), ("ucir+bdr", 3)]


def test_what_takes_long_is_computed_once_a_run(runs, tmp_path, monkeypatch):
    read, destructions = [], metrics.destructions
    monkeypatch.setattr(
        metrics, "destructions", lambda run, name: read.append((run.path, name)) or destructions(run, name)
    )
    found = gathered([tmp_path])
    compare(found)
    run_sheet(found[0])
    assert sorted(read) == sorted((run.path, name) for run in runs for name in ("ce_old", "distillation"))
    assert replace(found[0], phases=[]).computed == {}


def test_what_rounds_to_nothing_has_no_minus():
    assert [number(value, sign=True) for value in (-0.004, 0.004, -0.006)] == ["+0.00", "+0.00", "−0.01"]  # noqa: RUF001
    assert number(-0.004) == "0.00"


def test_the_difference_is_paired_over_common_seeds(runs):
    comparison = compare(runs[:5])
    ours, theirs = comparison.groups[1].summaries, comparison.groups[0].summaries
    gains = [a["average"] - b["average"] for a, b in zip(ours, theirs, strict=False)]
    found = comparison.differences[1]["average"]
    assert found == (pytest.approx(np.mean(gains)), pytest.approx(np.std(gains, ddof=1) / np.sqrt(2)), 2)
    assert comparison.differences[0] is None


@pytest.fixture
def two_protocols(tmp_path):
    """Two methods under two protocols, one of them also with settings."""
    steps = [with_protocol(tmp_path, title, step=step) for title in ("ucir", "ucir+bdr") for step in (2, 3)]
    tried = [with_protocol(tmp_path, "ucir+bdr", settings={"bdr": {"beta": beta}}, step=2) for beta in (0.5, 0.0)]
    return [*steps, *tried]


def test_each_protocol_has_a_table_of_its_own_with_its_facts_in_the_title(two_protocols):
    sheets = comparison_sheets(compare(two_protocols))
    assert [sheet.title for sheet in sheets] == ["digits B4 S2, 3 per class", "digits B4 S3, 3 per class"]
    labels = [[row[0] for row in sheet.rows] for sheet in sheets]
    assert labels == [["ucir", "ucir+bdr", "ucir+bdr bdr.beta=0.5", "ucir+bdr bdr.beta=0.0"], ["ucir", "ucir+bdr"]]


def test_one_protocol_needs_no_title_of_its_own(runs):
    assert [sheet.title for sheet in comparison_sheets(compare(runs))] == ["Comparison"]


def test_notes_are_said_once_and_name_no_long_list_of_methods(two_protocols):
    *others, last = comparison_sheets(compare(two_protocols))
    assert all(not sheet.notes for sheet in others)
    assert "Each table has a protocol of its own; they differ in step." in last.notes
    assert "One seed only, so without a spread: all methods." in last.notes
    assert max(map(len, last.notes)) < 100


def test_a_single_seed_among_several_is_named(tmp_path, runs):
    single = make_run(tmp_path, "icarl")
    assert "One seed only, so without a spread: icarl." in compare([*runs, single]).notes
    assert "All methods share one protocol." in compare(runs).notes


def titles(folder, *protocols):
    runs = [with_protocol(folder, **facts) for facts in protocols]
    return [group.protocol for group in group_runs(runs)]


def test_a_title_names_further_facts_that_differ(tmp_path):
    assert titles(tmp_path, {"net": "resnet18"}, {"net": "resnet32"}) == [
        "digits B4 S2, 3 per class, net resnet18",
        "digits B4 S2, 3 per class, net resnet32",
    ]


def test_a_title_says_that_runs_were_cut_short(tmp_path):
    whole, cut = {"classes": 10, "phases": 4}, {"classes": 10, "phases": 2}
    assert titles(tmp_path, whole, cut) == [
        "digits B4 S2, 3 per class, phases 4",
        "digits B4 S2, 3 per class, first 2 of 4 phases",
    ]
    alone = comparison_sheets(compare([with_protocol(tmp_path / "alone", **cut)]))
    assert [sheet.title for sheet in alone] == ["Comparison, first 2 of 4 phases"]
    assert cut_short({"classes": 10, "base": 0, "step": 3, "phases": 4}) == []
    assert cut_short({"classes": 10, "base": 0, "step": 3, "phases": 3}) == ["first 3 of 4 phases"]
    assert cut_short({"classes": 10, "base": 4, "step": 2, "phases": 1, "extends": "x"}) == []


def test_a_title_leaves_out_what_its_other_facts_decide(tmp_path):
    assert titles(tmp_path, {"step": 2, "phases": 4}, {"step": 3, "phases": 3})[0] == "digits B4 S2, 3 per class"
    cifar = {"data": "cifar100", "net": "resnet18", "epochs": 160}
    assert titles(tmp_path, {"net": "small", "epochs": 20}, cifar) == [
        "digits B4 S2, 3 per class",
        "CIFAR-100 B4 S2, 3 per class",
    ]


def test_a_title_names_phases_that_the_step_does_not_decide(tmp_path):
    assert titles(tmp_path, {"phases": 4}, {"phases": 2})[1] == "digits B4 S2, 3 per class, phases 2"


FOLDER = {"data": "imagefolder", "classes": 6, "net": "resnet18", "normalise": "mean (0.5,), std (0.2,)"}


def test_a_title_has_nothing_that_only_runs_of_other_data_differ_in(tmp_path):
    small = FOLDER | {"source": "a1", "size": 8, "augment": "pad 1, flip False, brightness 0"}
    large = FOLDER | {"source": "b2", "size": 32, "augment": "pad 4, flip False, brightness 0"}
    assert titles(tmp_path, {"net": "small", "source": "c3"}, small, large) == [
        "digits B4 S2, 3 per class",
        "imagefolder B4 S2, 3 per class, size 8",
        "imagefolder B4 S2, 3 per class, size 32",
    ]


def test_a_title_says_what_differs_without_the_words_of_a_program(tmp_path):
    given = [("flip True", 0), ("flip False", 0.2)]
    flips = [{"augment": f"pad 1, {flip}, brightness 0", "held_out": share} for flip, share in given]
    assert titles(tmp_path, *flips) == [
        "digits B4 S2, 3 per class, augment pad 1, flip, held out 0",
        "digits B4 S2, 3 per class, augment pad 1, no flip, held out 0.2",
    ]


def test_protocols_that_differ_in_their_images_alone_are_named_after_the_folder_or_counted(tmp_path):
    stage = {"stage": {"epochs": 20}}
    runs = [
        make_run(tmp_path / name, protocol={**PROTOCOL, "source": name}, config=stage | root)
        for name, root in {"a1": {"root": "pictures/cats"}, "b2": {"root": "dogs"}, "c3": {}, "d4": {}}.items()
    ]
    start = "digits B4 S2, 3 per class"
    assert [group.protocol for group in group_runs(runs)] == [
        f"{start}, from cats",
        f"{start}, from dogs",
        f"{start} (1)",
        f"{start} (2)",
    ]
    assert protocol_notes(group_runs(runs), runs)[0] == "Each table has a protocol of its own; they differ in images."


def test_a_gain_is_over_the_method_without_its_last_plug_in(tmp_path):
    titles = ["wa", "wa+bdr", "icarl", "icarl+cwd+bdr", "ucir+bdr"]
    comparison = compare([with_protocol(tmp_path, title) for title in titles])
    over = {group.label: base.label for group, base in zip(comparison.groups, comparison.references, strict=True)}
    assert over == {"wa": "wa", "wa+bdr": "wa", "icarl": "icarl", "icarl+cwd+bdr": "icarl", "ucir+bdr": "ucir+bdr"}
    gains = {row[0]: row[3] for row in comparison_sheets(comparison)[0].rows}
    assert [name for name, gain in gains.items() if gain == "–"] == ["wa", "icarl", "ucir+bdr"]  # noqa: RUF001


def test_a_method_gains_nothing_over_itself_with_plug_ins_whichever_is_named_first(runs):
    comparison = compare([*runs[3:], *runs[:3]])
    assert [pairs is None for pairs in comparison.differences] == [False, True]
    assert comparison_sheets(comparison)[0].notes[1] == "gain: difference in average to ucir, ± its standard error."


def test_a_gain_is_over_a_row_of_the_same_protocol(two_protocols):
    comparison = compare(two_protocols)
    assert [group is base for group, base in zip(comparison.groups, comparison.references, strict=True)] == [
        *(True, False, False, False),
        *(True, False),
    ]
    assert [pairs is None for pairs in comparison.differences] == [True, False, False, False, True, False]


def test_another_method_or_row_can_be_the_reference(two_protocols):
    by_method = compare(two_protocols, reference="ucir+bdr")
    assert [base.label for base in by_method.references] == ["ucir+bdr"] * 6
    assert by_method.differences[1] is by_method.differences[5] is None
    assert "gain: difference in average to ucir+bdr of its table" in comparison_sheets(by_method)[-1].notes[1]
    by_row = compare(two_protocols, reference="ucir+bdr bdr.beta=0.5")
    assert [base and base.label for base in by_row.references] == ["ucir+bdr bdr.beta=0.5"] * 4 + [None] * 2
    assert [row[3] for row in comparison_sheets(by_row)[1].rows] == ["–", "–"]  # noqa: RUF001


def test_a_method_in_several_rows_is_no_reference_unless_one_has_the_defaults(tmp_path):
    tried = [with_protocol(tmp_path, settings={"ucir": {"margin": margin}}) for margin in (0.1, 0.2)]
    with pytest.raises(UsageError, match=r"no row 'ucir'; there are ucir ucir.margin=0.1, ucir ucir.margin=0.2"):
        compare(tried, reference="ucir")


def test_a_reference_that_is_not_there_is_refused_with_those_that_are(two_protocols):
    with pytest.raises(UsageError, match=r"no row 'ucir\+bd'; there are ucir, .*did you mean 'ucir\+bdr'"):
        compare(two_protocols, reference="ucir+bd")


def test_json_says_what_each_difference_is_to(two_protocols):
    groups = as_json(compare(two_protocols, reference="ucir+bdr"))["groups"]
    assert groups[0]["reference"] == "ucir+bdr"
    assert groups[1]["difference_to_reference"] is None
    assert groups[0]["difference_to_reference"]["average"]["n"] == 1
    assert (groups[0]["protocol"], groups[-1]["protocol"]) == ("digits B4 S2, 3 per class", "digits B4 S3, 3 per class")


def in_natural_order(runs):
    backwards = list(reversed(runs))
    return sorted(backwards, key=natural_order)


def test_runs_are_read_with_fewer_plug_ins_first_and_defaults_before_settings(tmp_path):
    wanted = ["ucir", "ucir+bdr", "ucir+cwd", "ucir+cwd+bdr", "ucir+cwd+bdr 0.5", "ucir+cwd+bdr 0.9"]
    parts = [label.partition(" ") for label in wanted]
    runs = [with_protocol(tmp_path, t, settings={"bdr": {"beta": float(b)}} if b else None) for t, _, b in parts]
    assert in_natural_order(runs) == runs


def test_protocols_are_read_with_larger_steps_first_and_memories_by_size(tmp_path):
    facts = [{"step": 10, "memory": "5/class"}, {"step": 10, "memory": "20/class"}, {"step": 5, "memory": "5/class"}]
    runs = [with_protocol(tmp_path, title, **each) for each in facts for title in ("icarl", "ucir")]
    assert in_natural_order(runs) == runs


def test_folders_keep_the_order_in_which_they_were_named(tmp_path):
    plain, both, cwd = (make_run(tmp_path / "runs" / name, name) for name in ("ucir", "ucir+cwd+bdr", "ucir+cwd"))
    assert [run.title for run in gathered([tmp_path])] == ["ucir", "ucir+cwd", "ucir+cwd+bdr"]
    named = [both.path, plain.path.parent, cwd.path]
    assert [run.title for run in gathered(named)] == ["ucir+cwd+bdr", "ucir", "ucir+cwd"]


def test_show_prints_the_tables_and_then_the_notes(tmp_path, two_protocols, capsys, monkeypatch):
    monkeypatch.setattr("bdr.terminal.out", Console(width=80))
    show_runs([tmp_path], as_json=False, readout=None, reference="ucir+bdr")
    said = capsys.readouterr().out
    places = [said.index(text) for text in ("digits B4 S3", "digits B4 S2", "Accuracies", "to ucir+bdr", "One seed")]
    assert places == sorted(places)
    assert "bdr.beta=0.5" in said.split()


def drawn(sheets, width):
    console = Console(width=width, file=io.StringIO())
    for table in as_rich_tables(sheets, width):
        console.print(table, crop=False)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [40, 80, 200])
def test_no_name_or_number_is_broken_on_a_narrow_terminal(two_protocols, width):
    sheets = comparison_sheets(compare(two_protocols))
    words = drawn(sheets, width).split()
    cells = [word for sheet in sheets for row in sheet.rows for cell in row for word in cell.split()]
    assert set(cells) <= set(words)


def test_tables_that_are_read_together_have_one_form(two_protocols):
    first, second = comparison_sheets(compare(two_protocols))
    alone = drawn([second], 70)
    together = drawn([first, second], 70)
    assert re.search(r"method +ucir +ucir\+bdr", alone)
    assert not re.search(r"method +ucir +ucir\+bdr", together)
    assert max(map(len, together.splitlines())) <= 70


def test_spreads_stand_below_their_means_where_many_methods_do_not_fit(tmp_path, runs):
    many = [make_run(tmp_path, f"ucir+{name}", seed) for name in ("cwd", "la", "paco", "bcl") for seed in (1, 2)]
    sheet = comparison_sheets(compare([*runs, *many]))[0]
    text = drawn([replace(sheet, notes=[])], 80)
    mean, _, deviation = sheet.rows[0][2].partition(" ± ")
    assert max(map(len, text.splitlines())) <= 80
    assert mean in text.split()
    assert f"±{deviation}" in text.split()


def test_two_class_orders_of_one_name_are_two_groups(tmp_path):
    both = [make_run(tmp_path / "a", order=[0, 1]), make_run(tmp_path / "b", order=[1, 0], fingerprint="beef00")]
    assert [group.label for group in group_runs(both)] == ["ucir [3fa9c1]", "ucir [beef00]"]


def test_a_field_that_stages_got_later_parts_no_seeds_of_a_table(tmp_path):
    later = {"stage": {"epochs": 20, "floor": 0.0, "repeat": 1, "alternate": None}}
    both = [make_run(tmp_path / "a", seed=1), make_run(tmp_path / "b", seed=2, config=later, fingerprint="beef00")]
    assert [(group.label, len(group.runs)) for group in group_runs(both)] == [("ucir", 2)]


@dataclass(frozen=True)
class StageOfTomorrow(Stage):
    """With a field that stages do not have yet."""

    patience: int = 3


def seeds_of_two_versions(folder, monkeypatch, **changed):
    """Records of the same settings: before stages told what they are given, with that, and with a field more."""
    plain = Stage(epochs=20)
    first = {name: value for name, value in asdict(plain).items() if name in (*FIRST_FIELDS, *BEFORE_TOLD)}
    runs = [make_run(folder / "old", seed=1, config={"stage": first})]
    runs += [make_run(folder / "new", seed=2, config={"stage": asdict(plain)}, told_stage=told(plain))]
    monkeypatch.setattr(describe, "Stage", StageOfTomorrow)
    later = StageOfTomorrow(epochs=20, **changed)
    return [*runs, make_run(folder / "later", seed=3, config={"stage": asdict(later)}, told_stage=told(later))]


def test_a_field_added_to_stages_with_its_default_parts_nothing(tmp_path, monkeypatch):
    found = group_runs(seeds_of_two_versions(tmp_path, monkeypatch))
    assert [(group.label, len(group.runs)) for group in found] == [("ucir", 3)]


def test_a_field_added_to_stages_that_is_used_parts_those_that_use_it(tmp_path, monkeypatch):
    found = group_runs(seeds_of_two_versions(tmp_path, monkeypatch, patience=5))
    assert [(group.label, len(group.runs)) for group in found] == [("ucir", 2), ("ucir stage.patience=5", 1)]


def test_a_run_tells_what_of_its_stage_is_not_plain(tmp_path):
    config, _ = api.configure("ucir", "digits", [("stage.repeat", 2)], {"device": "cpu"})
    info = plan_run(config, None, tmp_path).info
    assert info["told_stage"]["repeat"] == 2
    assert info["told_stage"] == told(config.stage)


def test_one_title_with_settings_and_several_class_orders_is_two_groups(tmp_path):
    given = [None, {"ucir": {"margin": 0.1}}]
    runs = [with_protocol(tmp_path, seed=s, settings=each, order=str(s)) for each in given for s in (1, 2)]
    groups = group_runs(runs)
    assert [(group.label, len(group.runs)) for group in groups] == [("ucir", 2), ("ucir ucir.margin=0.1", 2)]


def test_class_orders_that_differ_between_methods_are_said(tmp_path):
    one, other = with_protocol(tmp_path, "ucir", order="a"), with_protocol(tmp_path, "ucir+bdr", order="b")
    comparison = compare([one, other])
    assert comparison.notes[0].startswith("The class orders are not the same for all methods")
    assert comparison.differences[1]["average"].n == 0


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
    assert f"Left out: {young.path} of ucir, not finished (2 of 4 phases)." in comparison.notes
    assert any(note.startswith(f"Not finished: {young.path} of ucir") for note in compare([young]).notes)


def test_a_repeated_seed_counts_once(tmp_path):
    first = make_run(tmp_path / "first", created="2024-01-01")
    again = make_run(tmp_path / "again", created="2024-02-01")
    comparison = compare([again, first])
    assert [run.path for run in comparison.groups[0].runs] == [again.path]
    again_later = f"the same seed was run again later, in {again.path}, which is counted"
    assert f"Left out: {first.path} of ucir, {again_later}." in comparison.notes


def test_each_run_that_is_left_out_is_told_by_its_path_and_on_the_terminal_in_one_piece(tmp_path, monkeypatch):
    deep = tmp_path / "-".join(["runs"] * 20)
    made = [make_run(deep / name, created=f"2024-0{month}-01") for month, name in enumerate("abc", 1)]
    comparison = compare(made)
    assert len(set(comparison.notes)) == len(comparison.notes)
    monkeypatch.setattr("bdr.terminal.out", Console(file=io.StringIO(), width=60, highlight=False))
    print_comparison(comparison)
    said = terminal.out.file.getvalue()
    assert all(str(run.path) in said for run in made)


def test_all_forms_of_the_table_say_the_same(runs):
    comparison = compare(runs)
    sheet = comparison_sheets(comparison)[0]
    mean = f"{comparison.values[1]['average'].mean:.2f}"
    console = Console(width=140, file=io.StringIO())
    console.print(as_rich(sheet))
    for text in (as_text(sheet), as_markdown(sheet), console.file.getvalue()):
        assert mean in text
        assert "ucir+bdr" in text
    data = json.loads(json.dumps(as_json(comparison), allow_nan=False))
    assert data["groups"][1]["values"]["average"]["mean"] == comparison.values[1]["average"].mean
    assert data["groups"][1]["difference_to_reference"]["average"]["n"] == 3


def test_one_seed_has_no_spread_and_says_so(runs):
    sheet = comparison_sheets(compare(runs[:1]))[0]
    assert "±" not in "".join(sheet.rows[0])
    assert "One seed only, so without a spread: ucir." in sheet.notes


def test_a_run_has_a_row_a_phase_with_its_new_classes(runs):
    sheet = run_sheet(runs[0])
    assert [row[-1] for row in sheet.rows] == ["zero, one, two, three", "four, five", "six, seven", "eight, nine"]
    assert sheet.rows[0][4] == "–"  # noqa: RUF001
    assert as_rich(sheet).row_count == 4


def test_the_size_of_the_network_stands_in_the_row_of_a_phase(runs):
    sheet = run_sheet(runs[0])
    at = sheet.header.index("parameters")
    assert [row[at] for row in sheet.rows] == ["1,000", "1,001", "1,002", "1,003"]


def test_the_cost_of_a_network_that_grows_has_its_average_beside_its_end(runs):
    assert re.search("parameters.*on average.*1,003.*1,002", cost(group_runs(runs[:1])), re.DOTALL)


def test_comparing_nothing_is_a_usage_error():
    with pytest.raises(UsageError, match="no run to compare"):
        compare([])


def test_methods_of_one_table_may_train_in_their_own_ways_and_a_note_says_so(tmp_path):
    alike = [with_protocol(tmp_path, "wa", epochs=170), with_protocol(tmp_path, "icarl", epochs=70)]
    comparison = compare(alike)
    assert len(comparison_sheets(comparison)) == 1
    assert "Their training is their own: they differ in epochs." in comparison.notes


def held_against(comparison):
    pairs = zip(comparison.groups, comparison.references, comparison.differences, strict=True)
    return {group.label: None if gains is None else base.label for group, base, gains in pairs}


def test_a_method_trained_for_longer_is_no_base_of_its_plug_ins_and_labels_tell_the_epochs(tmp_path):
    comparison = compare([with_protocol(tmp_path, "ucir", epochs=20), with_protocol(tmp_path, "ucir+cwd", epochs=2)])
    assert held_against(comparison) == {"ucir stage.epochs=20": None, "ucir+cwd stage.epochs=2": None}
    assert "gain" not in comparison_sheets(comparison)[0].header
    assert any(note.startswith("Rows of ucir differ in their training") for note in comparison.notes)


def test_a_gain_is_over_the_row_of_the_same_training(tmp_path):
    given = [("ucir", 20), ("ucir", 2), ("ucir+cwd", 20), ("ucir+cwd+bdr", 2)]
    comparison = compare([with_protocol(tmp_path, title, epochs=epochs) for title, epochs in given])
    assert held_against(comparison) == {
        "ucir stage.epochs=20": None,
        "ucir stage.epochs=2": None,
        "ucir+cwd stage.epochs=20": "ucir stage.epochs=20",
        "ucir+cwd+bdr stage.epochs=2": "ucir stage.epochs=2",
    }


ETAS = {"ucir": {"eta": 5}}, {"ucir": {"eta": 20}}


def with_settings(folder, title, given, defaults):
    """A run that was given settings, and records those that it was not given too."""
    recorded = {owner: mine | given.get(owner, {}) for owner, mine in defaults.items()}
    config = {"settings": given, "stage": {"epochs": 20}}
    return make_run(folder / f"{title}{given}", title, config=config, settings=recorded)


def test_a_changed_setting_of_the_method_is_no_gain_of_the_plug_in(tmp_path):
    few, many = ETAS
    comparison = compare(
        [with_protocol(tmp_path, "ucir", settings=few), with_protocol(tmp_path, "ucir+bdr", settings=many)]
    )
    assert held_against(comparison) == {"ucir ucir.eta=5": None, "ucir+bdr ucir.eta=20": None}
    assert "ucir+bdr ucir.eta=20 has no gain: ucir ucir.eta=5 differs from it in ucir.eta." in comparison.notes


def test_of_rows_of_a_method_the_one_of_the_same_settings_is_the_base_and_they_have_no_gain_themselves(tmp_path):
    few, many = ETAS
    given = [("ucir", few), ("ucir", many), ("ucir+bdr", many)]
    comparison = compare([with_protocol(tmp_path, title, settings=settings) for title, settings in given])
    assert held_against(comparison) == {
        "ucir ucir.eta=5": None,
        "ucir ucir.eta=20": None,
        "ucir+bdr ucir.eta=20": "ucir ucir.eta=20",
    }
    assert not any("has no gain" in note for note in comparison.notes)


def test_a_gain_of_several_plugins_together_is_told_as_theirs(tmp_path):
    runs = [with_protocol(tmp_path, title) for title in ("ucir", "ucir+cwd+bdr", "ucir+cwd")]
    together = "The gain of ucir+cwd+bdr is over ucir, that of cwd and bdr together."
    assert together in compare([*runs[:2], with_protocol(tmp_path, "wa")]).notes
    assert not any("together" in note for note in compare(runs).notes)


def test_a_default_is_named_where_rows_with_other_plug_ins_share_no_value(tmp_path):
    defaults = {"ucir": {"eta": 1.0}}
    set_, plain, balanced = (
        with_settings(tmp_path, title, given, defaults)
        for title, given in (("ucir", ETAS[0]), ("ucir", {}), ("ucir+bdr", {}))
    )
    assert [group.label for group in group_runs([set_, balanced])] == ["ucir ucir.eta=5", "ucir+bdr ucir.eta=1.0"]
    comparison = compare([set_, plain, balanced])
    assert held_against(comparison) == {"ucir ucir.eta=5": None, "ucir": None, "ucir+bdr": "ucir"}


def test_settings_of_a_plug_in_that_both_have_must_be_the_same_and_those_of_the_last_one_need_not(tmp_path):
    cwd, bdr = {"cwd": {"eta": 2}}, {"bdr": {"beta": 0.5}}
    given = [("ucir", None), ("ucir+cwd", cwd), ("ucir+cwd+bdr", bdr), ("ucir+cwd+bdr", cwd | bdr)]
    comparison = compare([with_protocol(tmp_path, title, settings=settings) for title, settings in given])
    assert held_against(comparison) == {
        "ucir": None,
        "ucir+cwd cwd.eta=2": "ucir",
        "ucir+cwd+bdr": "ucir",
        "ucir+cwd+bdr cwd.eta=2": "ucir+cwd cwd.eta=2",
    }


def test_a_method_and_a_plug_in_of_ones_own_are_paired_by_the_same_rule(tmp_path):
    given = [("mine:Own", 2), ("mine:Own+mine:Kind", 4), ("mine:Own+mine:Kind", 2)]
    runs = [
        with_protocol(tmp_path, title, settings={"Own": {"temperature": temperature}, "Kind": {"strength": 1}})
        for title, temperature in given
    ]
    assert list(held_against(compare(runs)).values()) == [None, None, "mine:Own Own.temperature=2"]


def test_rows_side_by_side_are_not_built_on_each_other(tmp_path):
    settings = [("ucir+la", None), ("ucir+bdr", None), ("ucir+bdr", {"bdr": {"beta": 0.5}})]
    comparison = compare([with_protocol(tmp_path, title, settings=given) for title, given in settings])
    assert set(held_against(comparison).values()) == {None}


def test_many_rows_without_a_gain_are_counted(tmp_path):
    titles = [f"ucir+{name}" for name in ("la", "bdr", "focal", "cwd", "ldam")]
    base = with_protocol(tmp_path, "ucir", settings=ETAS[0])
    comparison = compare([base, *(with_protocol(tmp_path, title, settings=ETAS[1]) for title in titles)])
    assert "5 rows have no gain: those without their plug-ins differ in ucir.eta." in comparison.notes


def test_a_table_of_rows_that_train_in_other_ways_says_that_training_is_aside(tmp_path):
    runs = [with_protocol(tmp_path, "ucir", epochs=epochs) for epochs in (2, 4)]
    assert "All methods share one protocol, training aside." in compare(runs).notes


def test_a_label_leaves_out_drops_that_were_scaled_with_the_epochs(tmp_path):
    stages = [{"epochs": 20, "drops": [12, 17]}, {"epochs": 2, "drops": [1, 2]}, {"epochs": 2, "drops": [1, 1]}]
    runs = [make_run(tmp_path / str(i), "ucir", config={"stage": stage}) for i, stage in enumerate(stages)]
    assert [group.label for group in group_runs(runs[:2])] == ["ucir stage.epochs=20", "ucir stage.epochs=2"]
    assert group_runs(runs)[2].label == "ucir stage.drops=[1, 1] stage.epochs=2"


def test_a_note_says_that_gains_are_over_common_seeds_and_how_many_where_these_are_fewer(tmp_path, runs):
    assert comparison_sheets(compare(runs))[0].notes[2] == "Gains are over the seeds that both have."
    fewer = comparison_sheets(compare(runs[2:]))[0].notes[2]
    assert fewer == "Gains are over the seeds that both have; of ucir+bdr, 1 of 3."


def labels_of(runs, readout=None):
    return [group.label for group in group_runs(runs, readout)]


def about_readouts(runs, readout=None):
    return [note for note in compare(runs, readout).notes if "eadout" in note or "cosine scale" in note]


def test_rows_name_their_readouts_where_one_is_not_the_usual_one(tmp_path):
    icarl, wa = read_by(with_protocol(tmp_path, "icarl", readout="nme")), read_by(with_protocol(tmp_path, "wa"))
    assert labels_of([wa, icarl]) == ["wa (cnn)", "icarl (nme)"]
    assert labels_of([wa, icarl], "cnn") == ["wa", "icarl"]
    assert labels_of([icarl]) == ["icarl (nme)"]
    assert labels_of([wa, with_protocol(tmp_path, "ucir")]) == ["wa", "ucir"]
    # what was not read cannot be what a table tells
    assert labels_of([with_protocol(tmp_path, "icarl", seed=1, readout="nme"), wa]) == ["icarl", "wa"]


def test_a_note_says_that_readouts_differ_and_how_to_set_one(tmp_path):
    given = {"icarl": "nme", "wa": "cnn", "ucir": "cnn"}
    icarl, wa, ucir = (read_by(with_protocol(tmp_path, title, readout=name)) for title, name in given.items())
    instead = "; --readout cnn or nme of bdr show and bdr report sets one for all."
    assert about_readouts([icarl, wa]) == [f"Readouts differ (icarl: nme, wa: cnn){instead}"]
    assert about_readouts([icarl, wa, ucir]) == [f"Readouts differ (icarl: nme, others: cnn){instead}"]
    assert about_readouts([icarl, wa], "cnn") == about_readouts([wa, ucir]) == []
    bare = with_protocol(tmp_path, "finetune")
    assert "; --readout cnn of bdr show" in about_readouts([icarl, bare])[0]
    assert [group["readout"] for group in as_json(compare([icarl, bare]))["groups"]] == ["nme", "cnn"]


def test_a_note_says_where_another_readout_is_far_better(tmp_path):
    wa, ucir = read_by(with_protocol(tmp_path, "wa"), nme=30.0), read_by(with_protocol(tmp_path, "ucir"), nme=19.0)
    last = wa.phases[-1]["accuracy"]["cnn"]
    told = "After the last phase nme is far more accurate than the readout shown here"
    assert about_readouts([wa, ucir]) == [f"{told}: wa {last + 30:.0f} % (cnn {last:.0f} %)."]
    assert about_readouts([wa, ucir], "cnn") == []
    many = [read_by(with_protocol(tmp_path, f"own{i}"), nme=30.0) for i in range(5)]
    assert about_readouts([ucir, *many]) == [f"{told} in 5 of 6 rows."]


def test_a_note_says_where_a_cosine_scale_has_not_grown_and_what_to_do(tmp_path):
    def run(title, start, end, nme=30.0):
        it = read_by(with_protocol(tmp_path, title, seed=int(start)), nme=nme)
        it.info.update(settings={"ucir": {"eta": start}}, scale_setting="ucir.eta")
        it.phases[-1]["method_at_end"] = {"eta": end}
        return it

    small, other = run("ucir", 1.0, 1.31), run("ucir+bdr", 1.0, 2.5)
    told = "There the cosine scale of ucir has grown to {} by the end: train longer, or let it start higher, with "
    assert about_readouts([small])[1:] == [told.format("1.3") + "--set ucir.eta=20."]
    assert about_readouts([small, other])[1:] == [told.format("1.3 to 2.5") + "--set ucir.eta=20."]
    fine = run("ucir", 20.0, 19.0), run("ucir", 2.0, 21.0), run("ucir+bdr", 1.0, 1.3, nme=1.0)
    extending = run("ucir", 1.0, 1.3)
    extending.info["extends"] = {}
    assert not any("scale" in note for each in (*fine, extending) for note in about_readouts([each]))
    unknown = run("ucir", 1.0, None)
    assert about_readouts([unknown])[1].startswith("There the cosine scale of ucir may not have grown: train longer")


def test_a_reference_is_found_without_the_readout_that_its_row_names(tmp_path):
    settings = [None, {"ucir": {"eta": 20}}]
    ucirs = [with_protocol(tmp_path, "ucir", settings=each) for each in settings]
    runs = [*ucirs, read_by(with_protocol(tmp_path, "icarl", readout="nme"))]
    for named in ("ucir", "ucir (cnn)"):
        assert {base.label for base in compare(runs, reference=named).references} == {"ucir (cnn)"}


def test_a_row_with_settings_is_held_against_the_row_with_the_same_ones(tmp_path):
    settings = [None, {"ucir": {"eta": 20}}]
    runs = [with_protocol(tmp_path, title, settings=each) for title in ("ucir", "ucir+bdr") for each in settings]
    comparison = compare(runs)
    held = {group.label: base.label for group, base in zip(comparison.groups, comparison.references, strict=True)}
    assert held["ucir+bdr ucir.eta=20"] == "ucir ucir.eta=20"
    assert held["ucir+bdr"] == "ucir"


@pytest.mark.parametrize("command", ["show", "report"])
def test_looking_at_runs_needs_no_torch(tmp_path, command):
    run = make_run(tmp_path / "runs")
    words = ["bdr", command, str(run.path)] + (["-o", str(tmp_path / "page.html")] if command == "report" else [])
    code = f"import sys; sys.modules['torch'] = None; sys.argv = {words!r}; from bdr.cli import main; main()"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert said.returncode == 0, said.stderr
