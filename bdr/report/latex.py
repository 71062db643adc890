"""Tables as LaTeX: floats with booktabs, and notes below the table."""

from __future__ import annotations

from collections.abc import Sequence

from bdr.report.protocols import file_name
from bdr.report.sheets import Sheet
from bdr.report.tables import NOTHING

SPECIAL = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "|": r"\textbar{}",
    "[": "{[}",  # at the beginning of a row, LaTeX would take it for an option of the line before
    "*": "{*}",
    "±": r"$\pm$",
    "−": "$-$",  # noqa: RUF001
    NOTHING: r"\textendash{}",
    "β": r"$\beta$",
    "✓": r"$\surd$",
}
TWO_HYPHENS = "-{}-"  # in the name of an option; plain hyphens would be set as a dash
WIDE = 4  # columns of numbers; a table with more spans the page and is scaled to it


def escaped(text: str) -> str:
    return "".join(SPECIAL.get(sign, sign) for sign in text).replace("--", TWO_HYPHENS)


def in_a_float(tabular: Sequence[str], caption: str, label: str, notes: Sequence[str], wide: bool) -> str:
    """A table environment around the lines of a tabular; caption and notes are LaTeX already."""
    environment = "table*" if wide else "table"
    scaled = [r"\resizebox{\linewidth}{!}{%", *tabular[:-1], f"{tabular[-1]}}}"]
    lines = [
        f"% needs \\usepackage{{booktabs{',graphicx' if wide else ''}}}",
        f"\\begin{{{environment}}}[t]",
        "\\centering",
        f"\\caption{{{caption}.}}",
        f"\\label{{tab:{label}}}",
        r"\par\smallskip",
        *(scaled if wide else [r"\footnotesize", *tabular]),
        *(below(notes) if notes else []),
        f"\\end{{{environment}}}",
    ]
    return "\n".join(lines) + "\n"


def below(notes: Sequence[str]) -> list[str]:
    told = [f"{text}\\par" for text in notes]
    return [r"\par\smallskip", r"\begin{minipage}{\linewidth}\footnotesize\raggedright", *told, r"\end{minipage}"]


def row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def as_latex(sheet: Sheet) -> str:
    """The sheet as a float whose caption and label are made from its title."""
    columns = "".join("l" if column in sheet.texts else "r" for column in range(len(sheet.header)))
    tabular = [
        f"\\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        row([escaped(cell) for cell in sheet.header]),
        r"\midrule",
        *(row([escaped(cell) for cell in cells]) for cells in sheet.rows),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    wide = columns.count("r") > WIDE
    return in_a_float(
        tabular, escaped(sheet.title), file_name(sheet.title), [escaped(note) for note in sheet.notes], wide
    )
