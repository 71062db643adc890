"""The page: all that the issue of a comparison needs, in one file that asks nothing of any network."""

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from directories import CLASSES, make_run, read_by, with_protocol

from bdr.errors import BdrError, UsageError
from bdr.records import Run, find_runs
from bdr.report import compare, gather, write_page
from bdr.report.findings import chosen, evidence, findings, headline, proper, rows_of
from bdr.report.page import page, points_of_a_curve
from bdr.report.results import sheets_with_p

SEEDS = (1993, 1994, 1995)
VOID = {"meta", "link", "wbr"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    plain = [make_run(folder, "ucir", seed, skill=0.6, height=1.5) for seed in SEEDS]
    return plain + [make_run(folder, "ucir+bdr", seed, skill=0.8, height=0.7) for seed in SEEDS]


@pytest.fixture(scope="module")
def two_protocols(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    return [with_protocol(folder, title, step=step) for title in ("ucir", "ucir+bdr") for step in (2, 3)]


@pytest.fixture(scope="module")
def text(runs):
    return page(runs, "Digits")


class Outline(HTMLParser):
    """Tags and attributes of a page, and whether every tag that opens is closed."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.attributes, self.unbalanced = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, key, value) for key, value in attrs]
        if tag not in VOID:
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


def test_the_page_needs_nothing_but_itself(text):
    found = outline(text)
    assert found.unbalanced == found.open == []
    assert not {"img", "iframe", "object"} & set(found.tags)
    assert found.tags.count("script") == 1
    links = [value for _, key, value in found.attributes if key in ("src", "href", "xlink:href", "action", "data")]
    assert all(value.startswith("#") or value == "data:," for value in links)
    assert "@import" not in text
    assert "url(" not in text
    assert "default-src &#x27;none&#x27;" in text
    assert [value for _, key, value in found.attributes if key.startswith("on")] == []


def test_every_link_on_the_page_leads_somewhere(text):
    found = outline(text)
    there = {value for _, key, value in found.attributes if key == "id"}
    assert {value[1:] for _, key, value in found.attributes if key == "href" and value != "data:,"} <= there


def test_the_page_says_what_was_run_and_how(text):
    wanted = ["3 per class", "bdr run ucir --seed 1993", "eight, nine", "prefers-color-scheme: dark", "less_forget"]
    wanted += ["3fa9c1", "stage.epochs: 20", "Speed and cost", "12.5", "1,001"]
    assert [part for part in wanted if part not in text] == []


def test_the_page_has_a_plot_of_everything(text):
    names = set(re.findall(r'data-name="([^"]*)"', text))
    losses = {f"{series}-phase-0{phase}" for series in ("ce-old", "distillation") for phase in (1, 2, 3)}
    others = {"accuracy", "accuracy-old", "accuracy-new", "forgetting", "boxes-distillation", "offsets"}
    assert names == losses | others | {f"{kind}-{place}" for kind in ("matrix", "classes") for place in (0, 1)}


def test_the_headline_is_computed_from_the_runs(runs):
    comparison = compare(runs)
    rows = rows_of(comparison, comparison.groups[0].protocol)
    best, gain = comparison.values[1]["average"].mean, comparison.differences[1]["average"]
    told = re.sub("<[^>]*>", "", headline(chosen(rows), rows))
    assert told == f"UCIR+BDR: {best:.2f}, +{gain.mean:.2f} over UCIR"
    assert f"± {gain.spread:.2f} (standard error) over 3 common seeds, p " in evidence(chosen(rows))


def test_a_plug_in_that_costs_is_said_to_cost(runs):
    swapped = [
        *runs[3:],
        *(Run(run.path, run.info | {"title": "ucir+bdr+la"}, run.phases, run.done) for run in runs[:3]),
    ]
    comparison = compare(swapped)
    rows = rows_of(comparison, comparison.groups[0].protocol)
    assert re.search(r'<b class="worse">−[\d.]+</b> against UCIR\+BDR', headline(chosen(rows), rows))  # noqa: RUF001


def test_nothing_is_the_highest_where_a_method_was_trained_in_two_ways(tmp_path):
    given = [("ucir", 20), ("ucir+cwd", 2), ("wa", 20)]
    fair = compare([with_protocol(tmp_path, title) for title, _ in given])
    mixed = compare([with_protocol(tmp_path, title, epochs=epochs) for title, epochs in given])
    for comparison, words in ((fair, True), (mixed, False)):
        rows = rows_of(comparison, comparison.groups[0].protocol)
        best = max(rows, key=lambda row: row.average)
        assert ("the highest of 3 methods" in headline(best, rows)) == words


def test_a_finding_compares_rows_of_one_readout(tmp_path):
    icarl = [read_by(with_protocol(tmp_path, title, readout="nme"), nme=90.0) for title in ("icarl", "icarl+bdr")]
    others = [read_by(with_protocol(tmp_path, title)) for title in ("wa", "ucir", "bic")]
    mixed, by_cnn = (re.sub("<[^>]*>", "|", findings(compare([*icarl, *others], name))) for name in (None, "cnn"))
    assert mixed.count("read by nme") == mixed.count("read by cnn") == 1
    assert "the highest of 3 methods" in mixed
    assert "the highest of 6 methods" not in mixed
    assert "read by" not in by_cnn


def test_where_all_rows_have_settings_the_finding_is_a_gain_at_the_same_ones(tmp_path):
    few, many = {"ucir": {"eta": 5}}, {"ucir": {"eta": 20}}
    given = [("ucir", few), ("ucir", many), ("ucir+bdr", many)]
    runs = [with_protocol(tmp_path, title, settings=settings) for title, settings in given]
    rows = rows_of(compare(runs), compare(runs).groups[0].protocol)
    assert chosen(rows).group.label == "ucir+bdr ucir.eta=20"
    alone = rows_of(compare([runs[0], runs[2]]), compare(runs).groups[0].protocol)
    assert "the highest" not in headline(max(alone, key=lambda row: row.average), alone)


def test_a_method_that_was_trained_in_one_way_is_not_above_a_better_one_that_was_in_two(tmp_path):
    given = [("ucir", 5, 0.5), ("ucir", 10, 0.8), ("ucir+bdr", 10, 0.9), ("wa", 5, 0.4)]
    made = [
        make_run(
            tmp_path / str(epochs), title, skill=skill, config={"stage": {"epochs": epochs}}, fingerprint=f"f{epochs}"
        )
        for title, epochs, skill in given
    ]
    comparison = compare(made)
    assert [group.label for group in comparison.groups][-1] == "wa"
    assert chosen(rows_of(comparison, comparison.groups[0].protocol)).group.label == "ucir+bdr stage.epochs=10"


def test_names_are_written_as_in_their_papers():
    assert proper("icarl+cwd+mine bdr.beta=0.5") == "iCaRL+CwD+mine bdr.beta=0.5"


def test_a_gain_has_a_p_value_from_three_common_seeds_on_with_their_number(runs):
    sheet = sheets_with_p(compare(runs))[0]
    place = sheet.header.index("p of the gain")
    assert sheet.rows[0][place] == "–"  # noqa: RUF001
    assert re.fullmatch(r"(< 0\.001|0\.\d+) \(n = 3\)", sheet.rows[1][place])
    few = sheets_with_p(compare([*runs[:2], *runs[3:]]))[0]
    assert "p of the gain" not in few.header
    assert any("from 3 common seeds on" in note for note in few.notes)


def test_protocols_side_by_side_are_warned_of_with_what_differs(two_protocols, text):
    both = page(two_protocols, "Digits")
    assert "2 protocols stand side by side" in both
    assert "They differ in step (2 or 3)." in both
    assert "stand side by side" not in text
    assert "2 methods, 2 protocols, 1 seed, 4 runs" in both
    assert both.count("<h2>digits B4 S2, 3 per class</h2>") == 1
    assert outline(both).unbalanced == []


def test_the_warning_of_protocols_has_neither_checksums_nor_the_words_of_a_program(tmp_path):
    facts = [("c9d8e7", "pad 1, flip False", "(0.3,)"), ("f6a5b4", "pad 1, flip True", "(0.5,)")]
    runs = [
        with_protocol(tmp_path, source=source, augment=augment, normalise=f"mean {mean}", size=None if place else 8)
        for place, (source, augment, mean) in enumerate(facts)
    ]
    told = page(runs, "Digits").partition("stand side by side")[2].partition("</aside>")[0]
    assert "They differ in size (8 or –)." in told  # noqa: RUF001


def test_what_was_run_is_told_in_words_that_are_no_code(tmp_path):
    facts = {"augment": "pad 1, flip False, brightness 0", "normalise": "mean (0.3054,), std (0.3762,)"}
    told = page([with_protocol(tmp_path, **facts)], "Digits").partition("What was run")[2]
    assert "pad 1, no flip<" in told
    assert "mean (0.3054), std (0.3762)<" in told


def test_the_page_escapes_names_from_outside(tmp_path):
    classes = ["<script>alert(1)</script>", "$x", "a&b", '"><img src=x>', *CLASSES[4:]]
    run = make_run(tmp_path, classes=classes, command="bdr run '<b>'", device="<i>gpu</i>", versions={"</style>": "1"})
    text = page([run], "<script>title</script>", skipped=["skipped </template><img src=x>"])
    found = outline(text)
    assert not {"img", "b", "i"} & set(found.tags)
    assert found.tags.count("script") == 1
    assert found.unbalanced == found.open == []
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text


def test_a_page_of_one_phase_or_of_a_run_under_way_is_still_a_page(tmp_path):
    run = make_run(tmp_path, phases=1, done=False)
    assert "Not finished" in page([run], "Young")


def test_runs_under_way_may_have_come_to_different_phases(tmp_path):
    young = [
        make_run(tmp_path, "ucir+bdr", seed, phases=phases, done=False) for seed, phases in ((1, 2), (2, 4), (3, 1))
    ]
    text = page(young, "Young")
    assert text.count("Not finished") == 3
    assert "ce-old-phase-03" in text


def test_predictions_of_another_kind_cost_their_plot_alone(tmp_path):
    run = make_run(tmp_path)
    np.savez(run.path / "phase-03/predictions.npz", something=np.zeros(3))
    assert "are not as bdr writes them" in page([run], "Digits")


def test_lost_predictions_cost_their_plot_and_not_the_page(tmp_path):
    run = make_run(tmp_path)
    (run.path / "phase-03/predictions.npz").write_bytes(b"")
    assert "predictions.npz is damaged" in page([run], "Digits")


def test_a_page_that_cannot_be_written_names_the_file(tmp_path, runs):
    with pytest.raises(BdrError, match=r"cannot write .*nowhere.page\.html"):
        write_page(runs[:1], tmp_path / "nowhere" / "page.html", "Digits")


# Folders that may hold anything


def copies(run, folder, *names):
    return [Path(shutil.copytree(run.path, folder / name)) for name in names]


@pytest.fixture
def junk(runs, tmp_path):
    """A good run among damaged, empty, half-written and foreign ones."""
    _, torn, empty, foreign, odd, half = copies(runs[0], tmp_path, "good", "torn", "empty", "foreign", "odd", "half")
    (torn / "run.json").write_text('{"title": ')
    (empty / "phases.jsonl").write_text("")
    (foreign / "run.json").write_text(json.dumps({"name": "of another program"}))
    lines = [json.loads(line) for line in (odd / "phases.jsonl").read_text().splitlines()]
    (odd / "phases.jsonl").write_text("".join(json.dumps(line | {"accuracy": {}}) + "\n" for line in lines))
    with (half / "phases.jsonl").open("a") as file:
        file.write('{"phase": 4, "se')
    (tmp_path / "nothing").mkdir()
    return tmp_path


def test_whatever_cannot_be_read_is_skipped_by_name(junk):
    found, skipped = gather([junk])
    assert {run.path.name for run in found} == {"good", "half"}
    assert sorted(Path(re.match(r"skipped ([^:]*):", each)[1]).name for each in skipped) == [
        "empty",
        "foreign",
        "odd",
        "torn",
    ]


def test_a_folder_that_is_named_for_nothing_is_said(junk):
    assert gather([junk / "good", junk / "nothing"])[1] == [f"skipped {junk / 'nothing'}: there is no run in it"]
    with pytest.raises(UsageError, match="is not a folder"):
        gather([junk / "missing"])


def test_skipped_folders_are_on_the_page_and_on_the_terminal(junk, capsys):
    from bdr.commands.looking import report_runs

    report_runs([junk], junk / "page.html", "Digits")
    said, written = capsys.readouterr().err, (junk / "page.html").read_text()
    for name in ("torn", "empty", "foreign", "odd"):
        assert f"warning: skipped {junk / name}" in said
        assert f"skipped {junk / name}" in written
    assert "4 folders were skipped" in written


def test_one_damaged_run_alone_is_an_error_that_names_it(junk, capsys):
    from bdr.commands.looking import report_runs

    with pytest.raises(BdrError, match="can be read"):
        report_runs([junk / "torn"], junk / "page.html", "Digits")
    assert "run.json is damaged" in capsys.readouterr().err
    assert not (junk / "page.html").exists()
    with pytest.raises(UsageError, match="there is no run in"):
        report_runs([junk / "nothing"], junk / "page.html", "Digits")


def test_a_run_that_was_stopped_in_its_first_phase_is_listed_with_what_to_type(tmp_path, capsys):
    from bdr.commands.looking import report_runs, show_runs
    from bdr.commands.upkeep import list_things

    run = make_run(tmp_path / "runs", phases=0, done=False)
    list_things("runs", tmp_path / "runs")
    said = capsys.readouterr()
    assert said.out.startswith(f"{run.path}  ucir seed 1993: stopped in phase 0, or still in it; ")
    assert said.out.endswith(f"go on with: bdr resume {run.path}\n")
    assert said.err == ""
    to_type = f"no run in {tmp_path / 'runs'} has a finished phase yet; go on with: bdr resume {run.path}"
    with pytest.raises(BdrError, match=to_type):
        report_runs([tmp_path / "runs"], tmp_path / "page.html", "Digits")
    with pytest.raises(BdrError, match=to_type):
        show_runs([tmp_path / "runs"], as_json=False, readout=None)


def test_damaged_runs_do_not_stop_those_who_read_them_all(junk):
    found, warnings = find_runs(junk)
    assert len(found) == 3
    assert len(warnings) == 3


# Many runs


def many(run, folder, count):
    """Copies under ten methods, two protocols, and as many seeds as it takes."""
    for place in range(count):
        copy = Path(shutil.copytree(run.path, folder / str(place)))
        facts = {
            "title": f"method{place % 10}",
            "seed": place // 20,
            "protocol": run.protocol | {"step": 2 + place % 20 // 10},
        }
        (copy / "run.json").write_text(json.dumps(run.info | facts))
    return find_runs(folder)[0]


def test_a_hundred_runs_fit_into_two_megabytes(runs, tmp_path):
    text = page(many(runs[-1], tmp_path, 100), "A hundred")
    assert "10 methods, 2 protocols, 5 seeds, 100 runs" in text
    assert len(text.encode()) < 1_000_000


def test_many_curves_have_fewer_points_each(runs):
    few = compare(runs[:1]).groups
    assert points_of_a_curve(few) == 240
    assert points_of_a_curve(few * 200) < 60
