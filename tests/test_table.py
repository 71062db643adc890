"""The paper's tables with ours under them: every table in every form, and nothing that a form would break on."""

import csv
import io
import re

import pytest
from test_reproduce import cell, trained

from bdr.errors import UsageError
from bdr.paper.cells import TABLES, cells_of
from bdr.paper.table import write_table
from bdr.report.latex import escaped


@pytest.fixture
def told(tmp_path, capsys):
    """What the command prints of a table, with the runs of a folder."""

    def tell(table, form, folder=None, **options):
        write_table(table, [folder or tmp_path], form, **options)
        return capsys.readouterr().out

    return tell


@pytest.fixture
def two_seeds(tmp_path):
    """CwD at 66 and 67, with BDR at 68 and 70."""
    for seed, plain, balanced in ((1993, 66.0, 68.0), (1994, 67.0, 70.0)):
        trained(tmp_path / f"plain-{seed}", cell("T4", "CwD"), plain, seed)
        trained(tmp_path / f"balanced-{seed}", cell("T4", "CwD + BDR"), balanced, seed)
    return tmp_path


def table_rows(text):
    """The cells of a Markdown table, row by row, without its rule."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    rows = [[part.strip() for part in line.strip("|").split("|")] for line in lines]
    return [row for row in rows if not set("".join(row)) <= set(":- ")]


def latex_rows(text):
    """The cells of a LaTeX table, a spanning one as often as it spans."""
    body = text.split(r"\toprule")[1].split(r"\bottomrule")[0]
    for line in body.splitlines():
        if line.endswith(r"\\"):
            cells = re.split(r"(?<!\\)&", line.removesuffix(r"\\"))
            spans = [re.match(r" *\\multicolumn\{(\d+)\}", each) for each in cells]
            yield [each for each, span in zip(cells, spans, strict=True) for _ in range(int(span[1]) if span else 1)]


@pytest.mark.parametrize("table", TABLES)
def test_every_table_is_whole_in_latex(table, told):
    text = told(table, "latex")
    columns = re.search(r"\\begin\{tabular\}\{(\w+)\}", text)[1]
    assert {len(row) for row in latex_rows(text)} == {len(columns)}
    unescaped = re.sub(r"\\[{}]", "", text)
    assert unescaped.count("{") == unescaped.count("}")
    assert sorted(re.findall(r"\\begin\{([\w*]+)\}", text)) == sorted(re.findall(r"\\end\{([\w*]+)\}", text))
    assert text.isascii()
    assert re.sub(r"\\\$", "", text).count("$") % 2 == 0


@pytest.mark.parametrize("table", TABLES)
def test_every_table_is_whole_in_markdown_and_holds_every_number(table, told):
    rows = table_rows(told(table, "markdown"))
    assert len({len(row) for row in rows}) == 1
    printed = [number for row in rows if "paper" in row for number in row]
    for one in cells_of([table]):
        if one.value is not None:
            digits = 5 if one.metric.endswith("loss") else 2
            assert any(text.startswith(f"{one.value:.{digits}f}") for text in printed), one


def test_all_tables_as_csv_are_a_row_a_cell(told):
    rows = list(csv.DictReader(io.StringIO(told("all", "csv"))))
    assert len(rows) == len(cells_of(["all"]))
    settings = ("table", "method", "dataset", "B", "S", "memory", "metric", "beta", "CR", "DC", "momentum", "split")
    assert len({tuple(row[name] for name in settings) for row in rows}) == len(rows)


def test_ours_stands_under_the_paper_with_spread_seeds_difference_and_gain(two_seeds, told):
    rows = table_rows(told("T4", "markdown", two_seeds, only="cifar100 & S=10 & cwd & !aanet"))
    assert [row[-1] for row in rows[1:]] == [
        *("67.05 ± 0.08", "66.50 ± 0.71 (2)", "−0.55"),  # noqa: RUF001
        *("69.26 ± 0.09", "69.00 ± 1.41 (2)", "−0.26", "+2.21", "+2.50 ± 0.50 (2)"),  # noqa: RUF001
    ]
    assert [row[0] for row in rows[1:] if row[0]] == ["CwD", "CwD + BDR"]
    assert rows[0][-1] == "CIFAR-100 (B=50) Avg (S=10)"


def test_a_gain_is_called_by_what_was_added(told):
    rows = table_rows(told("T8", "markdown", only="cifar100 & S=10"))
    gains = [row[1] for row in rows if row[1].startswith("gain")]
    assert [gains[0], gains[-1]] == ["gain of PaCo, paper", "gain of BDR, paper"]


def test_latex_says_the_same(two_seeds, told):
    text = told("T4", "latex", two_seeds, only="cifar100 & S=10 & cwd & !aanet")
    assert r"$69.00_{\pm 1.41}$\,(2)" in text
    assert r"gain of BDR, ours & $+2.50_{\pm 0.50}$\,(2) \\" in text
    assert r"difference & $-0.26$ \\" in text
    assert r"ours is paired over common seeds, $\pm$ its standard error.\par" in text


def test_csv_says_the_same_and_where_from(two_seeds, told):
    rows = list(csv.DictReader(io.StringIO(told("T4", "csv", two_seeds, only="cifar100 & S=10 & cwd+bdr & !aanet"))))
    assert len(rows) == 1
    found = {name: rows[0][name] for name in ("paper", "ours", "n", "difference", "gain_paper", "gain_ours")}
    assert found == dict(zip(found, ["69.26", "69.0", "2", "-0.26", "2.21", "2.5"], strict=True))
    assert (rows[0]["gain_standard_error"], rows[0]["gain_n"]) == ("0.5", "2")
    assert rows[0]["records"].split(";") == [str(two_seeds / f"balanced-{seed}") for seed in (1993, 1994)]


def test_what_cannot_be_run_as_printed_carries_its_reason(told):
    text = told("T5", "markdown")
    marks = dict(re.findall(r"^- (\w): (.*)$", text, re.MULTILINE))
    assert any("which data is unclear" in reason for reason in marks.values())
    ours = [row[-1] for row in table_rows(text) if "ours" in row]
    assert set(ours) == {f"– [{mark}]" for mark in marks}  # noqa: RUF001


def test_a_printed_dash_is_a_dash_without_a_reason(told):
    text = told("T2", "markdown", only="rpsnet & S=2")
    assert [row[-1] for row in table_rows(text)[1:]] == ["–", "–"]  # noqa: RUF001
    assert "prints a dash" not in text


def test_columns_of_a_group_stand_together(told):
    header = table_rows(told("T7", "markdown"))[0]
    assert header[2:] == [f"β {beta}" for beta in ("0", "0.3", "0.5", "0.7", "0.9", "0.99", "0.999", "1")]


@pytest.mark.parametrize(("name", "start"), [("t.tex", "% needs"), ("t.md", "### Table 4"), ("t.csv", "table,method")])
def test_the_name_of_a_file_says_the_form(name, start, tmp_path, told):
    assert told("T4", None, file=tmp_path / name) == f"written: {tmp_path / name}\n"
    assert (tmp_path / name).read_text().startswith(start)


def test_a_wrong_table_or_formula_is_refused_with_what_there_is(tmp_path):
    with pytest.raises(UsageError, match=r"T10.*T1, T2"):
        write_table("T10", [tmp_path])
    with pytest.raises(UsageError, match=r"corected.*corrected"):
        write_table("T4", [tmp_path], formula="corected")


def test_signs_that_latex_would_take_for_its_own_are_escaped():
    assert escaped("50% of #p & a_b {x} ~ \\ <") == (
        r"50\% of \#p \& a\_b \{x\} \textasciitilde{} \textbackslash{} $<$"
    )
