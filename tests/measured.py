"""What the pages of methods and plug-ins say under "Measured", and the table of digits, from what is in `results/`.

`python tests/measured.py` writes it into the pages; tests/test_docs.py checks that it is there.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bdr.methods import METHODS
from bdr.metrics import OverSeeds, spread, summary
from bdr.paper.beyond import beside
from bdr.paper.cells import load_cells
from bdr.paper.found import Results, gather
from bdr.paper.mapping import recipe_of
from bdr.paper.sheets import setting_of
from bdr.paper.verdicts import Judged, judge
from bdr.records import Run
from bdr.report.tables import number, with_spread

HOME = Path(__file__).resolve().parents[1]
RECORDS = HOME / "results"
DIGITS = RECORDS / "digits" / "methods.json"  # what `bdr show runs --json` printed of them
AGAIN = {"ucir+cwd+bcl": RECORDS / "digits" / "bcl.json"}  # run anew on another CPU, beside others that were, too
SMALL = RECORDS / "cifar100-b50s10-resnet32-cpu-table-8"  # table 8 with a smaller network, in an eighth of the epochs
TABLES = ("T2", "T3", "T4", "T6", "T8")
HEADING = "\n## Measured\n"
SHOWN = {
    "T2": "the methods of the field, and BDR on DER and DyTox",
    "T4": "BDR on UCIR, CwD and AANet",
    "T6": "numbers of exemplars",
    "T7": "the momentum",
    "T8": "other answers to imbalance",
    "T9": "losses of old and new classes",
}


@functools.cache
def records() -> Results:
    return gather([RECORDS])


@functools.cache
def reached() -> list[Judged]:
    """The cells of average accuracy that there are runs for, and what BDR does where the paper did not try it."""
    cells = [cell for cell in load_cells() if cell.table in TABLES and cell.metric.startswith("avg_acc")]
    return [each for each in judge(beside(cells, ["bdr"]), records(), "corrected", 0.5) if each.values]


def concerns(spec: str, name: str) -> bool:
    """A method's page has it alone and with BDR, mixed or not; that of a plug-in all that it is part of."""
    method, *plugins = spec.split("+")
    return method == name and {"bdr", "mixup"}.issuperset(plugins) if name in METHODS else name in plugins


def typed(each: Judged) -> str:
    """What to type for it: in the tables some have another training than by themselves, as a recipe of its own."""
    assert each.wanted is not None
    recipe, *plugins = recipe_of(each.cell.table, each.wanted.spec)
    if "der.keep" in dict(each.wanted.settings):
        recipe = "der-pruned"
    return f"`{'+'.join([recipe, *plugins])}`"


def row_of(each: Judged) -> str:
    run, cell = typed(each), each.cell
    figures = number(cell.value), with_spread(each.ours), str(len(each.values)), number(each.difference, sign=True)
    return "| " + " | ".join([run, cell.table, cell.dataset, setting_of(cell), *figures]) + " |"


def on_cifar(name: str) -> list[str]:
    rows = [row_of(each) for each in reached() if each.wanted and concerns(each.wanted.spec, name)]
    if not rows:
        return in_no_table(name) or without_a_gpu(name) or ["On CIFAR-100 not yet."]
    head = "Average incremental accuracy, mean ± standard deviation over n training seeds, beside the paper's number:"
    columns = "| run | table | data | setting | paper | ours | n | difference |"
    return [head, "", columns, "|---|---|---|---|---:|---:|---:|---:|", *rows]


def in_no_table(name: str) -> list[str]:
    """What was run in a way that no cell of the paper has."""
    groups = [list(by_seed.values()) for by_seed in records().runs.values()]
    groups = [runs for runs in groups if SMALL not in runs[0].path.parents]
    rows = [apart_row(runs) for runs in sorted(groups, key=lambda runs: runs[0].title) if concerns(runs[0].title, name)]
    head = "The paper has no number for it as it was run here. Average incremental accuracy, mean ± standard deviation"
    columns = "| run | data | setting | epochs | ours | n |"
    told = [f"{head} over n training seeds:", "", columns, "|---|---|---|---:|---:|---:|", *rows]
    return told if rows else []


@functools.cache
def small() -> dict[str, Run]:
    """Table 8 without a GPU, by title: the base, BDR, and the others from the best one on."""
    runs = sorted(gather([SMALL]).runs.values(), key=lambda by_seed: -average(*by_seed.values()))
    titled = {run.title: run for by_seed in runs for run in by_seed.values()}
    return {title: titled[title] for title in ("ucir+cwd", "ucir+cwd+bdr")} | titled


def average(run: Run) -> float:
    return summary(run, "cnn")["average"]


def small_table() -> list[str]:
    return [
        "| run | average | gain | last | old | new | destruction peak |",
        f"|---|{'---:|' * 6}",
        *map(small_row, small()),
    ]


def small_row(title: str) -> str:
    told = summary(small()[title], "cnn")
    gain = number(told["average"] - average(small()["ucir+cwd"]), sign=True) if title != "ucir+cwd" else ""
    figures = [number(told[name]) for name in ("last", "old", "new", "destruction_peak")]
    return "| " + " | ".join([f"`{title}`", number(told["average"]), gain, *figures]) + " |"


def without_a_gpu(name: str) -> list[str]:
    """A plug-in beside what it was added to, and beside BDR."""
    titles = ["ucir+cwd", f"ucir+cwd+{name}", "ucir+cwd+bdr"]
    if titles[1] not in small():
        return []
    head = (
        "On CIFAR-100 with ResNet-32 and 20 epochs, one seed ([all of them](../imbalance.md#measured-without-a-gpu)):"
    )
    return [head, ", ".join(f"`{title}` {number(average(small()[title]))}" for title in titles) + "."]


def apart_row(runs: list[Run]) -> str:
    config, ours = runs[0].info["config"], spread([summary(run, run.readout)["average"] for run in runs])
    setting = f"B{config['base']} S{config['step']}, {config['memory']} exemplars"
    cells = [f"`{runs[0].title}`", "CIFAR-100", setting, config["stage"]["epochs"], with_spread(ours), ours.n]
    return "| " + " | ".join(map(str, cells)) + " |"


def at_a_glance() -> list[str]:
    columns = "table", "what it has", "cells on CIFAR-100", "measured", "within 0.5 of the paper, or above"
    head = "| " + " | ".join([*columns, "gains of BDR", "reached"]) + " |"
    return [head, "|---|---|---:|---:|---:|---:|---:|", *map(glance_row, SHOWN)]


def glance_row(table: str) -> str:
    cells = [cell for cell in load_cells() if cell.table == table and cell.dataset == "CIFAR-100"]
    judged = [each for each in judge(cells, records(), "corrected", 0.5) if each.reason is None]
    verdicts = [each.verdict for each in judged if each.values]
    gains = [each.gain.verdict for each in judged if each.gain and each.gain.ours.n]
    counts = len(judged), len(verdicts), reached_of(verdicts), len(gains), reached_of(gains)
    return "| " + " | ".join([table[1:], SHOWN[table], *map(str, counts)]) + " |"


def answers_table() -> list[str]:
    """Table 8, a row a plug-in: what the paper has and what we have, at both steps."""
    rows: dict[str, list[str]] = {}
    for each in reached_or_not("T8"):
        assert each.wanted is not None
        paper, ours = number(each.cell.value), with_spread(each.ours)
        gains = ["", ""]
        if each.gain is not None:
            gains = [number(each.gain.paper, sign=True), with_spread(each.gain.ours, sign=True)]
        rows.setdefault(f"`{each.wanted.spec}`", []).extend([paper, ours, *gains])
    figures = "paper | ours | gain: paper | ours"
    head = f"| run | S=10: {figures} | S=5: {figures} |"
    return [head, "|---|" + "---:|" * 8, *("| " + " | ".join([run, *row]) + " |" for run, row in rows.items())]


def reached_or_not(table: str) -> list[Judged]:
    """The average accuracies of a table on CIFAR-100, whether there are runs for them or not."""
    cells = [cell for cell in load_cells() if cell.table == table and cell.dataset == "CIFAR-100"]
    return judge([cell for cell in cells if cell.metric.startswith("avg_acc")], records(), "corrected", 0.5)


def reached_of(verdicts: list[str]) -> int:
    return sum(verdict in ("reached", "above") for verdict in verdicts)


def frame_row(each: Judged) -> str:
    """With what BDR adds, which the paper has of DER and DyTox alone."""
    gain = number(each.gain.ours.mean, sign=True) if each.gain else ""
    figures = number(each.cell.value), with_spread(each.ours), number(each.difference, sign=True), gain
    return "| " + " | ".join([typed(each), setting_of(each.cell), *figures]) + " |"


def frame_table() -> list[str]:
    head = "| run | setting | paper | ours | difference | gain of BDR |"
    rows = [frame_row(each) for each in reached() if each.cell.table == "T2" and each.wanted]
    return [head, "|---|---|---:|---:|---:|---:|", *rows]


Groups = dict[str, dict[str, Any]]


@functools.cache
def groups_in(file: Path) -> Groups:
    return {group["method"].split(" ")[0]: group for group in json.loads(file.read_text())["groups"]}


def beside_it(spec: str) -> Groups:
    """What was measured of a method or plug-in, and of others on the same machine, by name."""
    return groups_in(AGAIN.get(spec, DIGITS))


def values_of(group: dict[str, Any], *names: str) -> list[str]:
    """`68.37 ± 0.21` for each."""
    found = [group["values"][name] for name in names]
    return [with_spread(OverSeeds(each["mean"], each["spread"], each["n"])) for each in found]


def digits_row(spec: str) -> str:
    """Its gain is over the row without the last plug-in, ± the standard error."""
    group = beside_it(spec)[spec]
    gain = (group["difference_to_reference"] or {}).get("average") if "+" in spec else None
    gained = "" if gain is None else with_spread(OverSeeds(*gain.values()), sign=True)
    kept, figures = group["protocol"].split(", ")[1], values_of(group, "average", "old", "new", "destruction_peak")
    return "| " + " | ".join([f"`{spec}`", kept, figures[0], gained, *figures[1:]]) + " |"


def digits_table() -> list[str]:
    head = "| run | exemplars | average | gain | old | new | destruction peak |"
    return [head, "|---|---|---:|---:|---:|---:|---:|", *map(digits_row, groups_in(DIGITS))]


def on_digits(name: str) -> list[str]:
    """A method alone and with BDR; a plug-in beside what it was added to."""
    base = name if name in METHODS else f"ucir+cwd+{name}" if name != "aanet" else "ucir+aanet"
    compared = [base, f"{base}+bdr"] if name in METHODS or name == "aanet" else ["ucir+cwd", base, "ucir+cwd+bdr"]
    told = beside_it(base)
    found = [f"`{spec}` {values_of(told[spec], 'average')[0]}" for spec in compared if spec in told]
    if base not in told:
        return []
    head = "On handwritten digits, five seeds ([all methods](../reproduction.md#every-method-on-digits)):"
    return ["", head, ", ".join(found) + "."]


def section(name: str) -> str:
    return "\n".join(["", *on_cifar(name), *on_digits(name), ""])


def pages() -> dict[str, Path]:
    found = [*(HOME / "docs" / "methods").glob("*.md"), *(HOME / "docs" / "plugins").glob("*.md")]
    return {page.stem: page for page in sorted(found)}


def parted(page: Path) -> tuple[str, str]:
    """A page before the section and the section, which is its last."""
    before, _, after = page.read_text().partition(HEADING)
    return before, after


def table_in(page: Path, heading: str) -> list[str]:
    """Up to the next heading, of whatever level."""
    text = page.read_text().partition(f"\n## {heading}\n")[2].partition("\n#")[0]
    return [line for line in text.splitlines() if line.startswith("|")]


BELOW: dict[str, tuple[str, Callable[[], list[str]]]] = {  # a heading: its page, and the table that stands there
    "At a glance": ("reproduction.md", at_a_glance),
    "The frame of DER (table 2)": ("reproduction.md", frame_table),
    "Every method on digits": ("reproduction.md", digits_table),
    "Measured on CIFAR-100": ("imbalance.md", answers_table),
    "Measured without a GPU": ("imbalance.md", small_table),
}


def write() -> None:
    for name, page in pages().items():
        page.write_text(parted(page)[0] + HEADING + section(name))
    for heading, (name, made) in BELOW.items():
        page = HOME / "docs" / name
        before = "\n".join(table_in(page, heading))
        page.write_text(page.read_text().replace(before, "\n".join(made())))


if __name__ == "__main__":
    write()
