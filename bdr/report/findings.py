"""What the numbers say, in words, at the top of the page: one finding for each protocol and readout."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from bdr.metrics import OverSeeds, over_seeds
from bdr.report.groups import Group
from bdr.report.html import Html, join, tag
from bdr.report.pairing import all_alike, common_seeds
from bdr.report.plots.choice import has_own_settings
from bdr.report.significance import paired_p, told_p
from bdr.report.tables import Comparison, number

# Names as their papers write them; any other name stays as it was typed
NAMES = {
    "aanet": "AANet",
    "bcl": "BCL",
    "bdr": "BDR",
    "bic": "BiC",
    "cwd": "CwD",
    "der": "DER",
    "dualprompt": "DualPrompt",
    "dytox": "DyTox",
    "e2e": "E2E",
    "ewc": "EWC",
    "icarl": "iCaRL",
    "l2p": "L2P",
    "la": "LA",
    "ldam": "LDAM",
    "lwf": "LwF",
    "paco": "PaCo",
    "podnet": "PODNet",
    "rpsnet": "RPSNet",
    "rwalk": "RWalk",
    "si": "SI",
    "simple-der": "simple-DER",
    "tade": "TADE",
    "ucir": "UCIR",
    "wa": "WA",
}
CHANGES = {"last": "last", "forgetting_max": "forgetting", "destruction_peak": "destruction peak"}


@dataclass(frozen=True)
class Row:
    """A row of the comparison, with the row that it is compared with."""

    group: Group
    values: dict[str, OverSeeds]
    gains: dict[str, OverSeeds] | None
    base: Group | None

    @property
    def average(self) -> float:
        return self.values["average"].mean or 0.0

    @property
    def gain(self) -> OverSeeds | None:
        found = self.gains["average"] if self.gains else None
        return found if found and found.mean is not None else None


def proper(label: str) -> str:
    """A label with names as in their papers, `UCIR+CwD+BDR` for ucir+cwd+bdr; settings stay as they are."""
    title, *rest = label.split()
    return " ".join(["+".join(NAMES.get(part, part) for part in title.split("+")), *rest])


def rows_of(comparison: Comparison, protocol: str) -> list[Row]:
    lines = zip(comparison.groups, comparison.values, comparison.differences, comparison.references, strict=True)
    return [Row(*line) for line in lines if line[0].protocol == protocol]


def chosen(rows: Sequence[Row]) -> Row:
    """The row that the finding is about: the best without settings of its own, as one of many variants is best by luck.

    If all rows of a method have settings, its rows with a gain take part, since a gain is over a row with the same
    settings. This is decided for each method alone: one that was trained in only one way names no settings, which makes
    it no plainer than another. If two rows remain, the one that is built on the other is chosen.
    """
    of_method: dict[str, list[Row]] = {}
    for row in rows:
        of_method.setdefault(re.split(r"[+ ]", row.group.label, maxsplit=1)[0], []).append(row)
    likely = [row for mine in of_method.values() for row in eligible(mine)]
    built = [row for row in likely if row.gain]
    return built[0] if len(likely) == 2 and len(built) == 1 else max(likely, key=lambda row: row.average)


def eligible(rows: Sequence[Row]) -> list[Row]:
    """From the rows of one method, those without settings of their own, else those with a gain, else all."""
    plain = [row for row in rows if not has_own_settings(row.group)]
    return plain or [row for row in rows if row.gain] or list(rows)


def findings(comparison: Comparison) -> Html:
    """A list with one finding per protocol, or one per readout if the rows of a protocol differ in their readouts."""
    protocols = list(dict.fromkeys(group.protocol for group in comparison.groups))
    found = [_finding(*part) for protocol in protocols for part in parted(rows_of(comparison, protocol), protocol)]
    return tag("ul", *found, class_="findings")


def parted(rows: Sequence[Row], protocol: str) -> list[tuple[list[Row], str]]:
    """Rows grouped by readout, each group with a name for what it shares: a better readout is not a better method."""
    readouts = list(dict.fromkeys(row.group.told_readout for row in rows))
    if len(readouts) == 1:
        return [(list(rows), protocol)]
    alike = {readout: [row for row in rows if row.group.told_readout == readout] for readout in readouts}
    return [(some, f"{protocol}, read by {readout}") for readout, some in alike.items()]


def _finding(rows: Sequence[Row], where: str) -> Html:
    row = chosen(rows)
    place = tag("p", where, class_="where")
    return tag("li", place, tag("p", headline(row, rows), class_="what"), tag("p", evidence(row), class_="why"))


def headline(row: Row, rows: Sequence[Row]) -> Html:
    """The headline of a finding: `UCIR+CwD+BDR: 68.84, +2.10 over UCIR+CwD`"""
    start = f"{proper(row.group.label)}: {number(row.average)}"
    if row.gain and row.base and row.gain.mean is not None:
        worse = row.gain.mean < 0
        amount = tag("b", number(row.gain.mean, sign=True), **({"class_": "worse"} if worse else {}))
        return join(f"{start}, ", amount, f" {'against' if worse else 'over'} {proper(row.base.label)}")
    best = len(rows) > 1 and max(rows, key=lambda each: each.average) is row
    # a row that was trained longer than another of its method, or with other settings, has not won
    fair = all_alike([each.group for each in rows])
    return join(f"{start}, the highest of {len(rows)} methods" if best and fair else start)


def evidence(row: Row) -> str:
    """The text below a headline: how many seeds support it, and what else changed with the gain."""
    phases = len(row.group.runs[0].phases)
    sentences = [f"Average accuracy over {phases} {'phase' if phases == 1 else 'phases'}, {_seeds(row)}."]
    if changes := _changes(row):
        sentences.append(f"{changes[0].upper()}{changes[1:]}.")
    return " ".join(sentences)


def _seeds(row: Row) -> str:
    count = len(row.group.runs)
    if row.gain is None:
        return "one seed" if count == 1 else f"mean of {count} seeds"
    if row.gain.n == 1:
        return "one common seed, so without a spread"
    p = told_p(paired_p(row.gain))
    tested = f", p {p if p.startswith('<') else f'= {p}'}" if p else ""
    return f"gain ± {number(row.gain.spread)} (standard error) over {row.gain.n} common seeds{tested}"


def _changes(row: Row) -> str:
    if not row.base or not row.gain:
        return ""
    mine, theirs = (over_seeds(each) for each in zip(*common_seeds(row.group, row.base), strict=True))
    pairs = {told: (theirs[key].mean, mine[key].mean) for key, told in CHANGES.items()}
    return ", ".join(
        f"{told} {number(a)} → {number(b)}" for told, (a, b) in pairs.items() if a is not None and b is not None
    )
