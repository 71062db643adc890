"""A comparison of one's own in the forms that papers and programs want."""

import csv
import io
import json
import os
import re
from dataclasses import replace

import pytest
from directories import make_run, read_by, with_protocol
from test_cli import typed
from test_table import latex_rows, table_rows

from bdr.report import compare, comparison_as
from bdr.report.latex import as_latex, escaped
from bdr.report.sheets import Sheet


@pytest.fixture
def runs(tmp_path):
    """Two seeds of a method with and without BDR; their folder."""
    for seed in (1993, 1994):
        make_run(tmp_path / "runs", "my_ucir", seed, skill=0.6)
        make_run(tmp_path / "runs", "my_ucir+bdr", seed, skill=0.8)
    return tmp_path / "runs"


def shown(runs, *words):
    said = typed("show", runs, *words)
    assert said.code == 0, said.err
    return said.out


def groups(runs):
    return json.loads(shown(runs, "--json"))["groups"]


def test_a_form_that_there_is_not_is_told_in_words(tmp_path):
    said = typed("show", tmp_path, "--format", "markdwn")
    assert said.code == 2
    assert "'markdwn' is not one of" in said.err
    assert "Value error" not in said.err


def test_latex_is_whole_and_names_are_escaped(runs):
    text = shown(runs, "--format", "latex")
    assert text.startswith("% needs \\usepackage{booktabs,graphicx}\n\\begin{table*}")
    assert r"\caption{digits B4 S2, 3 per class.}" in text
    rows = [[cell.strip() for cell in row] for row in latex_rows(text)]
    columns = re.search(r"\\begin\{tabular\}\{(\w+)\}", text)[1]
    assert {len(row) for row in rows} == {len(columns)}
    assert [row[0] for row in rows] == ["method", r"my\_ucir", r"my\_ucir+bdr"]
    mean = groups(runs)[1]["values"]["average"]
    assert rows[2][2] == f"{mean['mean']:.2f} $\\pm$ {mean['spread']:.2f}"
    assert text.isascii()
    unescaped = re.sub(r"\\[{}]", "", text)
    assert unescaped.count("{") == unescaped.count("}")
    assert sorted(re.findall(r"\\begin\{([\w*]+)\}", text)) == sorted(re.findall(r"\\end\{([\w*]+)\}", text))


def test_markdown_says_the_same_as_the_terminal(runs):
    rows = table_rows(shown(runs, "--format", "markdown"))
    gain = groups(runs)[1]["difference_to_reference"]["average"]
    assert rows[2][:2] == ["my_ucir+bdr", "2"]
    assert rows[2][3] == f"+{gain['mean']:.2f} ± {gain['standard_error']:.2f}"


def test_csv_has_bare_numbers_and_says_where_from(runs):
    base, better = csv.DictReader(io.StringIO(shown(runs, "--format", "csv")))
    group = groups(runs)[1]
    gain = group["difference_to_reference"]["average"]
    assert (better["method"], better["readout"], better["seeds"]) == ("my_ucir+bdr", "cnn", "2")
    assert float(better["average"]) == pytest.approx(group["values"]["average"]["mean"], abs=1e-4)
    assert float(better["last_std"]) == pytest.approx(group["values"]["last"]["spread"], abs=1e-4)
    assert float(better["gain_standard_error"]) == pytest.approx(gain["standard_error"], abs=1e-4)
    assert (better["gain_n"], better["reference"], base["gain"], base["reference"]) == ("2", "my_ucir", "", "")
    assert better["runs"].split(";") == group["runs"]


def test_for_programs_methods_go_by_their_names_and_readouts_stand_beside_them(tmp_path):
    mixed = compare([read_by(with_protocol(tmp_path, "icarl", readout="nme")), with_protocol(tmp_path, "wa")])
    rows = list(csv.DictReader(io.StringIO(comparison_as("csv", mixed))))
    groups = json.loads(comparison_as("json", mixed))["groups"]
    for found in (rows, groups):
        assert [(row["method"], row["readout"]) for row in found] == [("icarl", "nme"), ("wa", "cnn")]


def test_one_run_is_a_row_a_phase(runs):
    run = runs / "my_ucir-1993"
    rows = list(csv.DictReader(io.StringIO(shown(run, "--format", "csv"))))
    assert [(row["phase"], row["seen"]) for row in rows] == [("0", "4"), ("1", "6"), ("2", "8"), ("3", "10")]
    assert rows[0]["old"] == ""
    assert len(list(latex_rows(shown(run, "--format", "latex")))) == 5


@pytest.mark.parametrize(
    ("name", "form"),
    [("t.tex", "latex"), ("t.md", "markdown"), ("t.csv", "csv"), ("t.json", "json"), ("t.txt", "text"), ("t", "text")],
)
def test_the_name_of_a_file_says_the_form(name, form, runs, tmp_path):
    assert shown(runs, "-o", tmp_path / name) == f"written: {tmp_path / name}\n"
    shown(runs, "--format", form, "-o", tmp_path / "asked")
    assert (tmp_path / name).read_text() == (tmp_path / "asked").read_text()
    if form != "text":
        assert (tmp_path / name).read_text() == shown(runs, "--format", form)


def test_what_is_written_into_a_pipe_is_told_beside_it(runs, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    ear = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        said = typed("show", runs, "--format", "csv", "-o", pipe)
        assert os.read(ear, 100_000).decode() == shown(runs, "--format", "csv")
    finally:
        os.close(ear)
    assert (said.code, said.out, said.err) == (0, "", f"written: {pipe}\n")


def test_what_cannot_be_is_refused(runs, tmp_path):
    for words, told in (
        (("--json", "--format", "csv"), "--json and --format csv exclude each other"),
        (("-o", tmp_path / "no" / "t.tex"), f"there is no folder {tmp_path / 'no'}"),
        (("-o", "."), "cannot write .: it is a folder"),
    ):
        said = typed("show", runs, *words)
        assert said.code != 0
        assert told in said.err


def test_what_latex_would_take_for_its_own_at_the_beginning_of_a_row_or_in_an_option_is_escaped():
    assert escaped("[a] --readout * –") == r"{[}a] -{}-readout {*} \textendash{}"  # noqa: RUF001


def test_a_table_without_notes_has_no_room_for_them():
    sheet = Sheet("One of two", ["method", "average"], [["ucir", "60.00"]])
    assert "minipage" not in as_latex(sheet)
    assert as_latex(replace(sheet, notes=["In percent."])).count("minipage") == 2
