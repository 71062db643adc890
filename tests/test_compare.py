"""`bdr compare` as it is typed: what is there is read, what is missing is run, and one table says what each adds."""

import json
import os

import pytest
from directories import make_run
from runs import plan
from test_cli import typed

from bdr.metrics import summary
from bdr.records import Run
from bdr.report import as_json, compare

FLAT = ("--base", "4", "--step", "3", "--memory", "3/class", "--device", "cpu", "--net", "runs:flat")
BRIEF = (*FLAT, "--set", "stage.epochs=1", "--set", "stage.batch=64", "--phases", "2", "--keep", "none")
SEEDS = ("--seeds", "1993,1994")


@pytest.fixture(scope="module")
def there(tmp_path_factory):
    """A folder with the runs of a method as it is and with two plug-ins, two seeds each."""
    runs = tmp_path_factory.mktemp("compare")
    for what in ("replay", "replay+la", "replay+focal+bdr"):
        assert typed("run", what, *BRIEF, *SEEDS, "--runs", runs).code == 0
    return runs


def compared(runs, *words, added="none,la,focal+bdr"):
    return typed("compare", "replay", "--with", added, *BRIEF, *SEEDS, "--runs", runs, *words)


def test_what_is_there_is_read_and_nothing_is_run(there):
    said = compared(there)
    assert said.code == 0
    for word in ("average", "gain", "last", "old", "new", "destruction peak", "All methods share one protocol."):
        assert word in said.out
    assert "difference in average to replay" in said.out
    assert not (there / "sweep-logs").exists()


def work(draw="all", views=0):
    later = {"stage": "main", "images": 9, "epochs": 1, "draw": draw, "views": views}
    return [[later | {"draw": "all", "views": 0}], [later]]


def told_of(folder, **rows):
    """The notes and facts of rows beside a plain one, from their records alone."""
    runs = [make_run(folder / "plain", "ucir", work=work())]
    runs += [make_run(folder / name, f"ucir+{name}", **told) for name, told in rows.items()]
    told = as_json(compare(runs, reference="ucir"))
    notes = [note for note in told["notes"] if "in more than its loss" in note]
    return notes, {group["method"]: group["conditions"] for group in told["groups"]}


def test_what_rows_differ_in_beside_their_plug_in_is_said(tmp_path):
    notes, facts = told_of(
        tmp_path,
        bdr={"work": work()},
        resample={"work": work("uniform")},
        paco={"work": work(views=1)},
        bcl={"work": work(views=2)},
        la={"work": work(), "corrected_by": ["la"]},
    )
    same = "differs from ucir in more than its loss:"
    assert notes == [
        f"ucir+resample {same} stage main draws classes equally often, not all images.",
        f"ucir+paco {same} training sees 1 further view of every image, not none.",
        f"ucir+bcl {same} training sees 2 further views of every image, not none.",
        f"ucir+la {same} scores are corrected by la when they are read.",
    ]
    assert facts["ucir+resample"]["draws"] == {"main": "uniform"}
    assert facts["ucir+bcl"]["views"] == 2
    assert facts["ucir+la"]["corrected_by"] == ["la"]


def test_a_larger_network_is_said_and_a_record_that_tells_nothing_says_nothing(tmp_path):
    for name, count in {"ucir": 100, "ucir+tade": 2500, "ucir+la": None}.items():
        path = make_run(tmp_path, name).path / "phases.jsonl"
        lines = [json.loads(line) | {"parameters": count} for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    told = typed("show", tmp_path, "--reference", "ucir")
    said = " ".join(told.out.split())
    assert "ucir+tade differs from ucir in more than its loss: 2,500 parameters at the end, not 100." in said
    assert said.count("in more than its loss") == 1


def test_a_run_records_what_its_stages_draw_and_what_corrects_its_scores(tmp_path):
    def planned(what, *settings):
        return plan(tmp_path / "run", what, net="runs:flat", settings=settings).info

    later = {what: planned(what)["work"][1][0] for what in ("replay", "replay+resample", "replay+bcl+paco")}
    assert [(stage["draw"], stage["views"]) for stage in later.values()] == [("all", 0), ("uniform", 0), ("all", 3)]
    assert "corrected_by" not in planned("replay+la")
    assert planned("replay+la", ("la.when", "testing"))["corrected_by"] == ["la"]


def test_gains_are_over_the_method_as_it_is(there):
    groups = json.loads(compared(there, "--json").out)["groups"]
    assert [group["method"] for group in groups] == ["replay", "replay+la", "replay+focal+bdr"]
    assert [group["seeds"] for group in groups] == [[1993, 1994]] * 3
    assert {group["reference"] for group in groups} == {"replay"}
    averages = [[summary(Run.open(path), "cnn")["average"] for path in group["runs"]] for group in groups]
    for group, mine in zip(groups[1:], averages[1:], strict=True):
        gain = sum(a - b for a, b in zip(mine, averages[0], strict=True)) / 2
        assert group["difference_to_reference"]["average"]["mean"] == pytest.approx(gain)


def test_the_method_as_it_is_belongs_to_it_whether_named_or_not(there):
    assert compared(there, "--json", added="la").out == compared(there, "--json", added="none,la").out


def test_markdown_is_the_same_table(there):
    said = compared(there, "--markdown", added="la")
    assert "| replay+la |" in said.out


def test_a_check_names_what_is_missing_and_runs_nothing(there):
    said = compared(there, "--check", added="la,reweight")
    assert said.code == 0
    assert "Not there yet: replay+reweight seed 1993, replay+reweight seed 1994." in " ".join(said.out.split())
    assert not (there / "sweep-logs").exists()
    assert json.loads(compared(there, "--check", "--json", added="reweight").out)["missing"] == [
        "replay+reweight seed 1993",
        "replay+reweight seed 1994",
    ]


def test_a_dry_run_lists_all_runs(there):
    said = compared(there, "--dry-run", added="la,reweight")
    assert said.out.count("replay+reweight") == 2
    assert said.out.count("done") >= 4


@pytest.mark.parametrize(
    ("words", "added", "said"),
    [
        ((), "la,,bdr", "--with 'la,,bdr' is not like none,la,focal+bdr"),
        ((), "none,ls", "no plug-in 'ls'"),
        ((), "none,resample+bdr", "replay+resample+bdr: plug-in 'bdr' would act in no stage of this run"),
        (("--json",), "reweight", "2 runs are missing, and their display would be mixed with the output of --json"),
        (("--check", "--dry-run"), "la", "--check and --dry-run exclude each other"),
        (("--dry-run", "--json"), "la", "--dry-run lists runs and prints no table"),
        (("--set", "reweight.beta=0.9"), "la", "no part of any run with settings 'reweight'"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(there, words, added, said):
    found = compared(there, *words, added=added)
    assert found.code == 2
    assert said in found.err
    assert found.err.splitlines()[-1].startswith("bdr: ")


def test_a_check_of_nothing_says_how_to_begin(tmp_path):
    found = compared(tmp_path, "--check")
    assert found.code == 1
    assert f"none of the 6 runs is there yet, in {tmp_path}; make them" in found.err


def test_several_methods_are_sent_to_a_sweep(tmp_path):
    found = typed("compare", "ucir", "icarl", "--with", "bdr", "--runs", tmp_path)
    assert found.code == 2
    assert "to one method, and ucir, icarl are 2; for several: bdr sweep ucir icarl" in found.err


@pytest.mark.parametrize("typed_apart", [("none,", "la,", "bdr"), ("none", ",la,bdr")])
def test_plug_ins_with_spaces_between_them_are_told_to_have_none(typed_apart, tmp_path):
    added, *rest = typed_apart
    found = typed("compare", "ucir", "--with", added, *rest, "--runs", tmp_path)
    assert (found.code, found.err) == (
        2,
        "bdr: --with takes names without spaces between them: type --with none,la,bdr\n",
    )


def test_a_recipe_can_be_compared_too(tmp_path):
    words = ("--phases", "1", "--set", "stage.epochs=1", "--net", "runs:flat", "--device", "cpu", "--runs", tmp_path)
    for what in ("digits-cwd", "digits-cwd+la"):
        assert typed("run", what, *words).code == 0
    groups = json.loads(typed("compare", "digits-cwd", "--with", "la", *words, "--json").out)["groups"]
    assert [(group["method"], group["reference"]) for group in groups] == [
        ("ucir+cwd",) * 2,
        ("ucir+cwd+la", "ucir+cwd"),
    ]


@pytest.mark.slow
def test_what_is_missing_is_run(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.path.dirname(__file__), prepend=os.pathsep)
    said = typed("compare", "replay", "--with", "reweight", *BRIEF, "--runs", tmp_path, "--jobs", "2")
    assert said.code == 0, said
    assert "replay+reweight" in said.out
    assert "gain" in said.out
    assert len(list(tmp_path.rglob("DONE"))) == 2


def test_the_method_may_be_named_by_base():
    said = typed("compare", "--base", "ucir+cwd", "--with", "la", "--step", "2", "--dry-run")
    assert said.code == 0, said.err
    assert "ucir+cwd+la" in said.out


@pytest.mark.parametrize(
    ("words", "wrong"),
    [((), "name the method"), (("ucir", "--base", "replay"), "names a method, and so does ucir")],
)
def test_one_method_is_named(words, wrong):
    said = typed("compare", *words, "--with", "la")
    assert said.code == 2
    assert wrong in said.err
