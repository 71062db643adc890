"""The paper's numbers are all there, each asks for a run or has a reason, and only the very same run answers it."""

import json
import re
import shlex
from collections import Counter
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bdr import terminal
from bdr.commands import training as commands
from bdr.configuration.config import changed
from bdr.configuration.overrides import parse_setting, with_settings
from bdr.configuration.recipes import PRUNED, RECIPES, configure
from bdr.display import duration
from bdr.errors import BdrError, UsageError
from bdr.methods import METHODS
from bdr.paper import reproduce as paper
from bdr.paper.beyond import beside
from bdr.paper.cells import DATA, SPECS, Cell, cells_of, load_cells, load_tables
from bdr.paper.cost import workload
from bdr.paper.found import gather
from bdr.paper.mapping import DER_NOTE, EXTRACTOR, Reason, Wanted, addition, as_printed, mapped, pruning
from bdr.paper.only import parse_only
from bdr.paper.reproduce import RUNS, Asked, chosen, train_missing, wish_of
from bdr.paper.schedule import counted_seeds
from bdr.paper.sheets import as_plain, gain_lines
from bdr.paper.table import write_table
from bdr.paper.verdicts import base_of, judged
from bdr.planning.parts import device_type
from bdr.plugins import PLUGINS
from bdr.records import RunWriter, find_runs
from bdr.records.speed import Setup, measured, pace, speed_of
from bdr.scenario import Protocol, class_order
from bdr.sweep.plan import configuration
from bdr.terminal import Conditions, Manner

MANNER = ("check", "dry_run", "as_json", "markdown")


def reproduce(tables, only=None, runs=RUNS, jobs=1, **told):
    """As it is typed."""
    manner = Manner(**{name: told.pop(name) for name in MANNER if name in told})
    paper.reproduce(tables, only, Asked(**told), Conditions(runs, jobs, None), manner)


RESULTS = Path(__file__).parent.parent / "results"
PHASE_2 = {
    "accuracy_old": {"cnn": 66.0},
    "accuracy_new": {"cnn": 82.0},
    "losses": {"initial_old": 0.03, "initial_new": 11.0, "final_old": 0.005, "final_new": 0.09},
}


def cell(table, method, only="S=10 & R=20 & cifar100 & metric=avg_acc_top1"):
    found = [one for one in chosen([table], only) if one.method == method]
    assert len(found) == 1
    return found[0]


def record(folder, config, accuracy=66.0, created="2026-01-01T00:00:00+00:00", done=True, speed=1, **further):
    """A run directory as if the configuration had been trained, with the same accuracy after every phase."""
    phases = list(Protocol(class_order(config.order, 100), config.base, config.step))
    protocol = {"net": config.net, "order": config.order, "memory": config.memory}
    info = {"title": config.title, "seed": config.seed, "fingerprint": "0", "protocol": protocol, "created": created}
    info |= {"classes": list(range(100)), "phases": [[p.old, p.seen] for p in phases]}
    info |= {"config": config.model_dump(mode="json"), "device": {"type": "cpu", "name": "a CPU"}, **further}
    writer = RunWriter.create(folder, info)
    for phase in phases:
        line = {"phase": phase.index, "old": phase.old, "seen": phase.seen, "accuracy": {"cnn": accuracy}}
        line |= {"top5": {"cnn": 90.0}, "parameters": 11_220_033}
        pace = speed * (100.0 if phase.first else 50.0)
        writer.epoch({"phase": phase.index, "epoch": 0, "seconds": 1.0, "images_per_second": pace})
        writer.phase(line | (PHASE_2 if phase.index == 2 else {}))
    if done:
        writer.finish()
    return folder


def trained(folder, cell_, accuracy, seed=1993, formula="corrected", changes=None, settings=(), **kwargs):
    config, _ = with_settings(changed(mapped(cell_, formula).config(seed), changes or {}), settings)
    return record(folder, config, accuracy, **kwargs)


def judge_one(folder, cell_, tolerance=0.5, formula="corrected"):
    return judged(cell_, gather([folder]), formula, tolerance)


@pytest.mark.parametrize(
    ("balanced", "said"), [(66.0, ""), (68.0, ", which had another first phase: 66.00 after it, here 68.00")]
)
def test_a_gain_over_a_run_of_another_first_phase_says_so(balanced, said, tmp_path):
    trained(tmp_path / "plain", cell("T8", "CwD"), 66.0)
    trained(tmp_path / "balanced", cell("T8", "CwD w BDR"), balanced)
    (line,) = gain_lines(judge_one(tmp_path, cell("T8", "CwD w BDR")))
    assert line == f"{balanced - 66:+.2f} over 66.00 from {tmp_path / 'plain'}{said}"


# The tables


def test_every_table_has_as_many_cells_as_it_says():
    counts = Counter(one.table for one in load_cells())
    assert counts == {name.partition("_")[0]: about["n_rows"] for name, about in load_tables()["tables"].items()}


def test_every_cell_asks_for_a_run_or_has_a_reason():
    found = [mapped(one) for one in load_cells()]
    assert len(found) == 472
    assert all(isinstance(each, Wanted) or (each.kind in ("paper", "data", "version") and each.text) for each in found)


def test_what_is_asked_for_is_known_and_can_be_configured():
    runs = {each for one in load_cells() if isinstance(each := mapped(one), Wanted)}
    assert len(runs) > 40
    for each in runs:
        config = each.config(1994)
        assert config.seed == 1994
        assert config.method in METHODS
        assert set(config.plugins) <= set(PLUGINS)


@pytest.mark.parametrize(
    ("table", "count"), {"T1": 12, "T2": 12, "T3": 0, "T4": 12, "T5": 0, "T6": 24, "T7": 8, "T8": 12, "T9": 18}.items()
)
def test_so_many_cells_of_each_table_can_be_run_with_ucir_cwd_bdr_and_la(table, count):
    """Later methods add to these; nothing may be lost."""
    assert sum(isinstance(mapped(one), Wanted) for one in cells_of([table])) >= count


def test_spellings_of_one_method_are_one_method():
    assert cell("T4", "CwD + BDR").parts == cell("T8", "CwD w BDR").parts == ["CwD", "BDR"]
    assert mapped(cell("T4", "CwD + BDR")) == mapped(cell("T8", "CwD w BDR"))


def test_two_numbers_for_one_setting_are_two_protocols():
    ours, theirs = (mapped(cell(table, "UCIR")).config(1993) for table in ("T4", "T2"))
    assert (ours.base, ours.step, ours.memory) == (theirs.base, theirs.step, theirs.memory) == (50, 10, "20/class")
    assert (ours.order, ours.herding, ours.statistics, ours.stage.epochs) == ("seed-1993", "distance", "default", 160)
    assert (theirs.order, theirs.herding, theirs.statistics, theirs.stage.epochs) == ("der-2", "dot", "der", 170)
    assert (theirs.stage.warmup, theirs.stage.drops) == (10, (110, 130))
    assert theirs.augment == {"brightness": 63 / 255}
    assert (ours.settings, theirs.settings) == ({}, {"ucir": {"imprint": True}})


def test_the_recipe_of_ucir_in_ders_frame_is_its_row_of_table_2():
    assert RECIPES["ucir-der"]().model_copy(update={"seed": 1994}) == mapped(cell("T2", "UCIR")).config(1994)


# What to type for the rows of two tables, but for the protocol that a cell says and the settings of its plug-ins.
NAMES = {
    "T2": {"UCIR": "ucir-der", "WA": "wa-der", "RPSNet": "rpsnet-original", "DyTox": "dytox-original"}
    | {"DyTox+": "dytox-plus", "iCaRL": "icarl", "BiC": "bic", "PODNet": "podnet", "Bound": "joint"}
    | {"DER": "der-pruned", "DER w/o P": "der"},
    "T4": {"UCIR": "ucir", "CwD": "cwd", "AANet": "aanet-resnet18", "AANet+CwD": "aanet-resnet18+cwd"},
}


@pytest.mark.parametrize("table", NAMES)
def test_what_is_run_for_a_table_is_what_a_named_recipe_gives(table):
    cells = [one for one in cells_of([table]) if isinstance(as_printed(one), Wanted)]
    assert {one.base for one in cells} == set(NAMES[table])
    for one in cells:
        what = "+".join([NAMES[table][one.base], *(addition(part)[0] for part in one.parts[1:])])
        memory = "all" if one.base == "Bound" else one.memory
        fields = {"base": one.B, "step": one.S, "memory": memory, "seed": 1994}
        named = configure(what, None if what.partition("+")[0] in RECIPES else "cifar100", fields=fields)[0]
        assert as_printed(one).config(1994) == named


def test_the_note_of_table_2_says_how_ours_differ_from_the_runs_that_are_quoted():
    for said in ("UCIR with imprinted embeddings (probably", "order der-0", "unaligned weights", "quasi-Newton"):
        assert said in DER_NOTE


def test_memory_is_a_total_where_the_paper_says_so():
    only = "S=10 & B=0 & metric=avg_acc_top1"
    assert mapped(cell("T2", "UCIR", only)).config(0).memory == "2000"


def test_pruned_der_keeps_as_much_of_an_extractor_as_its_printed_size_says():
    found = {}
    for one in chosen(["T2"], "cifar100 & metric=params_avg_M"):
        if one.method in ("DER", "DER w BDR", "DER w/o P"):
            wanted = mapped(one)
            keep = dict(wanted.settings).get("der.keep", 1.0)
            phases = 100 // one.S if one.B == 0 else 1 + 50 // one.S
            assert keep * 11.17 * (phases + 1) / 2 == pytest.approx(one.value, rel=4e-3)
            found.setdefault(one.method, {})[one.B, one.S] = wanted.spec, keep
    assert {method: len(cells) for method, cells in found.items()} == {"DER": 6, "DER w BDR": 6, "DER w/o P": 6}
    assert found["DER w/o P"][50, 10] == ("der", 1.0)
    assert found["DER w BDR"][50, 10] == ("der+bdr", found["DER"][50, 10][1])


def test_the_page_of_der_and_its_recipe_have_what_is_kept_at_every_protocol_of_table_2():
    kept = {(one.B, one.S): dict(pruning(one))["der.keep"] for one in chosen(["T2"], "cifar100 & method=der")}
    page = (Path(__file__).parent.parent / "docs" / "methods" / "der.md").read_text()
    rows = re.findall(r"^\| (\d+) \| (\d+) \| (0\.\d+) \| (\d\.\d\d) M \|$", page, re.MULTILINE)
    assert {(int(base), int(step)): float(keep) for base, step, keep, _ in rows} == kept == PRUNED
    assert all(float(size) == pytest.approx(float(keep) * EXTRACTOR, abs=0.006) for *_, keep, size in rows)


def test_default_momentum_is_the_run_of_table_4():
    runs = {one.get("beta"): mapped(one) for one in chosen(["T7"], "cifar100")}
    assert runs[0.99] == mapped(cell("T4", "CwD + BDR"))
    assert dict(runs[0.0].settings) == {"bdr.beta": 0.0}


def test_constant_rebalancing_is_bdr_without_the_rest():
    wanted = mapped(chosen(["T1"], "cr")[0])
    assert (wanted.spec, dict(wanted.settings)) == ("ucir+cwd+bdr", {"bdr.components": "cr"})


@pytest.mark.parametrize(
    ("table", "only", "said"),
    [
        ("T4", "cwd & imagenet & !aanet", "not at hand"),
        ("T3", "simple-der & subset & top5", "repeat those of E2E"),
        ("T5", "der", "captioned ImageNet-Subset"),
        ("T2", "rpsnet & S=2 & B=0 & avg_acc_top1", "dash"),
    ],
)
def test_what_cannot_be_reproduced_as_printed_says_why(table, only, said):
    reasons = [mapped(one) for one in chosen([table], only)]
    assert all(isinstance(reason, Reason) and said in reason.text for reason in reasons)


@pytest.mark.parametrize(
    ("row", "spec"), {"LA": "la", "reweighting": "reweight", "bal. sampling": "resample", "BDR": "bdr"}.items()
)
def test_the_rows_of_table_8_are_cwd_with_a_plug_in(row, spec):
    found = [mapped(one) for one in chosen(["T8"], "cifar100") if one.parts == ["CwD", row]]
    assert len(found) == 4
    assert {each.spec for each in found} == {f"ucir+cwd+{spec}"}
    assert {dict(each.fields)["step"] for each in found} == {10, 5}
    base = mapped(cell("T8", "CwD"))
    assert (found[0].fields, found[0].settings) == (base.fields, base.settings)


def test_that_balanced_sampling_is_printed_too_low_is_said(folders, capsys):
    reproduce(["T8"], "cifar100 & sampling", check=True)
    assert "is implausible" in " ".join(capsys.readouterr().out.split())


def test_that_aanets_own_code_has_another_network_and_memory_is_said(folders, capsys):
    reproduce(["T4"], "cifar100 & aanet", check=True)
    assert "the recipes aanet and aanet-readme have those" in " ".join(capsys.readouterr().out.split())


def test_what_was_run_all_the_same_is_shown_beside_the_reason(tmp_path):
    one = cell("T2", "RPSNet", "cifar100 & B=0 & S=5 & metric=avg_acc_top1")
    record(tmp_path / "run", as_printed(one).config(1993), 66.5)
    found = judge_one(tmp_path, one)
    assert found.values == {1993: pytest.approx(66.5)}
    assert (found.verdict, found.wanted, found.reason) == ("not run", None, mapped(one))


def test_a_method_becomes_runnable_when_it_is_there(monkeypatch):
    one = Cell("T2", "WA", "CIFAR-100", 0, 10, None, "2000", "avg_acc_top1", 69.46, None)
    monkeypatch.delitem(METHODS, "wa", raising=False)
    assert mapped(one) == Reason("version", "WA is not in this version")
    monkeypatch.setitem(METHODS, "wa", METHODS["ucir"])
    assert mapped(one).spec == SPECS["WA"] == "wa"


def test_the_command_by_hand_is_the_same_run(monkeypatch):
    said = shlex.split(mapped(cell("T2", "UCIR")).command(1994, {}))
    made = {}

    def plan_run(config, *_, **__):
        made["config"] = config
        return SimpleNamespace(notes=())

    monkeypatch.setattr(commands, "plan_run", plan_run)
    monkeypatch.setattr(commands, "train", lambda *_: SimpleNamespace(path=None))
    from typer.testing import CliRunner

    from bdr.cli import app

    assert CliRunner().invoke(app, said[1:]).exit_code == 0
    assert made["config"] == mapped(cell("T2", "UCIR")).config(1994)


def test_values_are_typed_as_they_are_read():
    settings = (("stage.clip", None), ("stage.lr", 1e-5), ("stage.drops", (80, 120)), ("wa.reset_after_warmup", True))
    words = shlex.split(Wanted("wa", "cifar100", (), settings).command(1993, {}))
    typed = [parse_setting(word) for option, word in pairwise(words) if option == "--set"]
    assert typed == [(name, [80, 120] if name == "stage.drops" else value) for name, value in settings]


# --only


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("cifar100 & (ucir|cwd)", 18),
        ("cifar-100 & !aanet", 12),
        ("CIFAR100 & cwd+bdr & !aanet", 3),
        ("S=10 & cifar100", 8),
        ("s=10 & method=cwd", 2),
        ("dataset=imagenet", 16),
        ("((ucir)) & !(!(S=5))", 4),
        ("T4 & B=500 & S=50", 8),
        ("memory=20/class", 64),
    ],
)
def test_words_choose_cells(text, count):
    assert len(chosen(["T4"], text)) == count


def test_and_binds_tighter_than_or():
    assert chosen(["T4"], "ucir | cwd & S=10") == chosen(["T4"], "ucir | (cwd & S=10)")
    assert chosen(["T4"], "ucir | cwd & S=10") != chosen(["T4"], "(ucir | cwd) & S=10")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a & & b", r"character 5 \('&'\): a word should"),
        ("ucir cwd", r"character 6 \('cwd'\): '&' or '\|' is missing"),
        ("(ucir", r"at its end: a '\)' should"),
        ("(ucir cwd)", r"character 7 \('cwd'\)"),
        ("ucir)", r"character 5 \('\)'\)"),
        ("", "at its end: a word"),
        ("ucir & !", "at its end: a word"),
        ("S=", "value is missing"),
        ("Q=3", "no 'Q'; there are table"),
        ("(" * 2000 + "ucir", "nested deeper"),
    ],
)
def test_a_bad_expression_is_refused_with_the_place(text, said):
    with pytest.raises(UsageError, match=said):
        parse_only(text)


def test_an_expression_that_fits_nothing_is_refused():
    with pytest.raises(UsageError, match="no cell of T4 fits --only 'podnet'"):
        chosen(["T4"], "podnet")


WORDS = ("ucir", "cwd", "bdr", "cifar100", "S=10", "B=500", "aanet")


def joined(sign, parts):
    meaning = any if sign == "|" else all
    text = "(" + f" {sign} ".join(part[0] for part in parts) + ")"
    return text, lambda one: meaning(part[1](one) for part in parts)


EXPRESSIONS = st.recursive(
    st.sampled_from([(word, parse_only(word)) for word in WORDS]),
    lambda inner: st.one_of(
        st.builds(joined, st.sampled_from("&|"), st.lists(inner, min_size=1, max_size=3)),
        inner.map(lambda part: (f"!{part[0]}", lambda one: not part[1](one))),
    ),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(EXPRESSIONS)
def test_parentheses_mean_what_they_group(expression):
    text, meaning = expression
    picks = parse_only(text)
    assert [picks(one) for one in cells_of(["T4"])] == [meaning(one) for one in cells_of(["T4"])]


def refusal_of(text):
    try:
        parse_only(text)
    except UsageError as error:
        return str(error)
    return ""


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(["(", ")", "&", "|", "!", "ucir", "S=10", " "]), max_size=12).map("".join))
def test_any_text_is_read_or_refused_with_a_place(text):
    said = refusal_of(text)
    assert re.search(r"at its end|at character \d+", said) if said else text.count("(") == text.count(")")


# Finding results


def test_the_records_of_the_repository_are_found():
    if not RESULTS.is_dir():
        pytest.skip("results/ is not part of this copy")
    results = gather([RESULTS])
    values = {one.method: judged(one, results, "corrected", 0.5).values for one in chosen(["T4"], "S=10 & cifar100")}
    assert values["UCIR"][1993] == pytest.approx(66.44, abs=0.005)
    assert values["CwD"][1993] == pytest.approx(66.74, abs=0.005)
    assert values["CwD + BDR"][1993] == pytest.approx(68.84, abs=0.005)
    released = judged(cell("T4", "CwD + BDR"), results, "released", 0.5)
    assert released.values[1993] == pytest.approx(68.99, abs=0.005)


def test_any_seed_counts_and_the_newest_record_of_each(tmp_path):
    one = cell("T4", "CwD")
    trained(tmp_path / "old", one, 60.0, created="2026-01-01T12:00:00+00:00")
    trained(tmp_path / "new", one, 67.0, created="2026-01-01T12:30:00-05:00")
    trained(tmp_path / "other", one, 68.0, seed=7)
    found = judge_one(tmp_path, one)
    assert found.values == {7: 68.0, 1993: 67.0}
    assert [run.path.name for run in found.runs.values()] == ["other", "new"]


@pytest.mark.parametrize(
    ("changes", "settings_"),
    [
        ({"memory": "5/class"}, ()),
        ({"memory": "2000"}, ()),
        ({"order": "der-2"}, ()),
        ({"step": 5}, ()),
        ({"net": "resnet32"}, ()),
        ({"herding": "dot"}, ()),
        ({"val": 0.1}, ()),
        ({"phases": 3}, ()),
        ({"statistics": "der"}, ()),
        ({"plugins": ("bdr",)}, ()),
        ({}, [("stage.epochs", 80)]),
        ({}, [("augment.brightness", 0.2)]),
        ({}, [("bdr.formula", "released")]),
        ({}, [("bdr.m", 1.0)]),
        ({}, [("ucir.eta", 10.0)]),
    ],
)
def test_another_configuration_is_not_taken(tmp_path, changes, settings_):
    one = cell("T4", "CwD + BDR")
    trained(tmp_path / "run", one, 69.0, changes=changes, settings=settings_)
    assert judge_one(tmp_path, one).verdict == "no result yet"


@pytest.mark.parametrize(
    ("changes", "settings_"),
    [
        ({"precision": "fp32", "engine": "eager", "device": "cpu", "keep": "none", "root": "elsewhere"}, ()),
        (
            {"order": "der-1", "phases": 6, "plugins": ("bdr", "cwd")},
            [("bdr.beta", 0.99), ("bdr.formula", "corrected")],
        ),
    ],
)
def test_the_same_configuration_told_otherwise_is_taken(tmp_path, changes, settings_):
    one = cell("T4", "CwD + BDR")
    trained(tmp_path / "run", one, 69.0, changes=changes, settings=settings_)
    assert judge_one(tmp_path, one).values == {1993: 69.0}


def test_an_unfinished_run_and_a_strange_one_are_not_taken(tmp_path):
    one = cell("T4", "UCIR")
    trained(tmp_path / "unfinished", one, 69.0, done=False)
    path = trained(tmp_path / "strange", one, 69.0)
    info = json.loads((path / "run.json").read_text())
    info["config"]["invented"] = 1
    (path / "run.json").write_text(json.dumps(info))
    assert judge_one(tmp_path, one).values == {}


# Verdicts


@pytest.mark.parametrize(
    ("accuracy", "verdict"),
    [(67.05, "reached"), (66.55, "reached"), (66.54, "missed by 0.51"), (67.55, "reached"), (67.6, "above")],
)
def test_a_verdict_keeps_to_its_tolerance(tmp_path, accuracy, verdict):
    one = cell("T4", "CwD")
    trained(tmp_path / "run", one, accuracy)
    found = judge_one(tmp_path, one)
    assert (found.verdict, found.tolerance, found.few_seeds) == (verdict, 0.5, True)
    assert found.difference == pytest.approx(accuracy - 67.05)


def test_a_wider_tolerance_reaches_more(tmp_path):
    one = cell("T4", "CwD")
    trained(tmp_path / "run", one, 66.0)
    assert judge_one(tmp_path, one, tolerance=2).verdict == "reached"


def test_mean_and_spread_are_over_seeds(tmp_path):
    one = cell("T4", "CwD")
    for seed, accuracy in {1993: 66.0, 1994: 67.0, 1995: 68.0}.items():
        trained(tmp_path / str(seed), one, accuracy, seed)
    found = judge_one(tmp_path, one)
    assert found.ours == (67.0, 1.0, 3)
    assert not found.few_seeds


def test_a_gain_is_paired_over_common_seeds(tmp_path):
    bare, with_bdr = cell("T4", "CwD"), cell("T4", "CwD + BDR")
    for seed, accuracy in {1993: 66.0, 1994: 67.0, 7: 10.0}.items():
        trained(tmp_path / f"bare{seed}", bare, accuracy, seed)
    for seed, accuracy in {1993: 68.0, 1994: 69.2, 8: 99.0}.items():
        trained(tmp_path / f"bdr{seed}", with_bdr, accuracy, seed)
    found = judge_one(tmp_path, with_bdr)
    gain = found.gain
    assert gain.paper == pytest.approx(2.21)
    # 2.0 and 2.2: their standard deviation is 0.14, the standard error of their mean 0.1
    assert as_plain(found)["gain"]["ours"] == pytest.approx({"mean": 2.1, "standard_error": 0.1, "n": 2})
    assert (gain.ours.n, gain.verdict, [run.path.name for run in gain.runs.values()]) == (
        2,
        "reached",
        ["bare1993", "bare1994"],
    )


@pytest.mark.parametrize(("accuracy", "verdict"), [(67.0, "missed by 1.21"), (68.0, "reached"), (69.0, "above")])
def test_a_gain_has_a_verdict_of_its_own(tmp_path, accuracy, verdict):
    trained(tmp_path / "bare", cell("T4", "CwD"), 66.0)
    trained(tmp_path / "bdr", cell("T4", "CwD + BDR"), accuracy)
    assert judge_one(tmp_path, cell("T4", "CwD + BDR")).gain.verdict == verdict


def test_every_row_with_bdr_has_its_base_row():
    rows = [
        one for one in load_cells() if one.balanced and one.value is not None and one.metric.startswith(("avg", "last"))
    ]
    bases = {(one.table, one.method): base_of(one) for one in rows}
    assert None not in bases.values()
    assert (bases["T2", "DER w BDR"].method, bases["T3", "DyTox+ w BDR"].method) == ("DER", "DyTox+*")
    assert bases["T7", "CwD + BDR"].table == "T4"
    assert base_of(cell("T4", "CwD")) is None


def test_every_answer_to_imbalance_is_compared_with_cwd():
    rows = [one for one in load_cells() if one.table == "T8" and one.metric.startswith(("avg", "last"))]
    bases = {one: base_of(one) for one in rows if one.method != "CwD"}
    assert {(base.method, base.table) for base in bases.values()} == {("CwD", "T8")}
    assert all((one.S, one.metric) == (base.S, base.metric) for one, base in bases.items())


# Beyond the paper


def test_a_row_with_a_plug_in_is_the_papers_where_it_has_one_and_else_a_new_one():
    t2 = "cifar100 & B=0 & S=10"
    rows = beside(chosen(["T2"], f"{t2} & (method=DER | iCaRL)"), ["bdr", "la"])
    told = [(one.method, one.printed) for one in rows if one.is_accuracy]
    assert told[:3] == [("iCaRL", True), ("iCaRL + BDR", False), ("iCaRL + LA", False)]
    assert told[3:6] == [("DER", True), ("DER w BDR", True), ("DER + LA", False)]
    every = chosen(["T2"], t2)
    assert [one for one in every if one not in beside(every, ["bdr"])] == []
    assert len(set(beside(every, ["bdr"]))) == len(beside(every, ["bdr"]))


def test_a_new_row_is_its_base_row_with_the_plug_in_and_nothing_else():
    base = cell("T2", "WA", "cifar100 & B=0 & S=10 & metric=avg_acc_top1")
    bare, asked = mapped(base), mapped(base.adding("BDR"))
    assert (asked.spec, asked.fields, asked.settings) == ("wa+bdr", bare.fields, bare.settings)
    assert mapped(base.adding("ldam")).spec == "wa+ldam"
    assert mapped(base.adding("BDR"), "released").settings[-1] == ("bdr.formula", "released")


@pytest.mark.parametrize(
    ("table", "only"), [("T2", "bound"), ("T4", "cifar100 & bdr"), ("T5", "aanet"), ("T7", "cifar100"), ("T1", "cwd")]
)
def test_rows_that_cannot_have_a_plug_in_get_none(table, only):
    cells = chosen([table], only)
    assert beside(cells, ["la"]) == cells


def test_a_new_row_has_a_gain_and_nothing_to_reach(folders, capsys):
    only = "cifar100 & B=0 & S=10 & wa"
    base = cell("T2", "WA", f"{only} & metric=avg_acc_top1")
    trained(folders / "results" / "bare", base, 70.0)
    trained(folders / "results" / "with", base.adding("BDR"), 71.5)
    reproduce(["T2"], only, added="bdr", check=True)
    said = " ".join(capsys.readouterr().out.split())
    assert re.search(r"WA \+ BDR B0 S10 M2000 avg \S 71.50 1\* \S \S \+1.50 not in the paper", said)
    assert "its gain is over the row without it" in said
    reproduce(["T2"], only, added="bdr", check=True, as_json=True)
    row = next(one for one in json.loads(capsys.readouterr().out)["cells"] if not one["printed"])
    assert (row["method"], row["value"], row["verdict"], row["gain"]["paper"]) == (
        "WA + BDR",
        None,
        "not in the paper",
        None,
    )
    assert row["gain"]["ours"]["mean"] == pytest.approx(1.5)


def test_nothing_is_added_to_a_dash():
    dashes = [one for one in chosen(["T2"], "cifar100 & rpsnet & avg_acc_top1") if one.value is None]
    assert dashes
    assert beside(dashes, ["bdr", "la"]) == dashes


def test_times_by_different_records_are_summed(folders, capsys):
    base = cell("T2", "WA", "cifar100 & B=0 & S=10 & metric=avg_acc_top1")
    trained(folders / "results" / "wa", base, 70.0, seed=7)
    trained(folders / "results" / "ucir", cell("T4", "UCIR"), 66.0, seed=7, speed=2)
    seconds = 0.0
    for name, speed in (("WA", 1), ("UCIR", 2)):
        first, *later = workload(mapped(cell("T2", name, "cifar100 & B=0 & S=10 & metric=avg_acc_top1")).config(0))
        seconds += first / (100 * speed) + sum(later) / (50 * speed)
    reproduce(["T2"], "cifar100 & B=0 & S=10 & (wa|ucir)", seeds="1", dry_run=True, device="cpu")
    assert f"On cpu about {duration(seconds)} together." in " ".join(capsys.readouterr().out.split())


def test_side_by_side_the_longest_begins(folders, capsys):
    only = "cifar100 & B=0 & S=10 & (icarl|bic)"
    for jobs, order in ((1, ["icarl", "bic"]), (2, ["bic", "icarl"])):
        reproduce(["T2"], only, seeds="1", jobs=jobs, dry_run=True)
        assert re.findall(r"bdr run (\w+)", capsys.readouterr().out) == order


def test_losses_and_accuracies_of_old_and_new_come_from_phase_2(tmp_path):
    cells = chosen(["T9"], "!(bdr|cr)")
    trained(tmp_path / "run", cells[0], 50.0)
    found = {(one.get("split"), one.metric): judge_one(tmp_path, one) for one in cells}
    assert found["old", "final_accuracy"].verdict == "missed by 1.20"
    assert found["new", "final_accuracy"].verdict == "reached"
    assert found["new", "initial_loss"].verdict == "reached"
    assert found["old", "initial_loss"].verdict == "off: 0.0333 times"
    assert found["new", "convergence_loss"].values == {1993: 0.09}


def test_last_accuracy_and_size_are_read_too(tmp_path):
    last, size = chosen(["T8"], "method=cwd & S=10 & last")[0], chosen(["T2"], "ucir & S=25 & params")[0]
    trained(tmp_path / "last", last, 58.0)
    trained(tmp_path / "size", size, 67.0)
    assert judge_one(tmp_path, last).values == {1993: 58.0}
    assert judge_one(tmp_path, size).values[1993] == pytest.approx(11.22, abs=0.001)
    assert judge_one(tmp_path, size).verdict == "reached"


# Time and seeds


def test_time_is_images_over_measured_speed(tmp_path):
    one = cell("T4", "CwD")
    trained(tmp_path / "run", one, 66.0)
    runs, config = list(gather([tmp_path])), mapped(one).config(0)
    assert workload(config)[:2] == [50 * 500 * 160, (10 * 500 + 50 * 20) * 160]
    speed = measured(runs, "ucir+cwd", Setup("resnet18", "cpu"))
    assert (speed.first, speed.later) == (100.0, 50.0)
    assert speed.seconds(workload(config)) == pytest.approx(workload(config)[0] / 100 + sum(workload(config)[1:]) / 50)
    others = Setup("resnet18", "cuda"), Setup("resnet32", "cpu"), Setup("resnet18", "cpu", (3, 224, 224))
    assert [measured(runs, "ucir+cwd", other) for other in others] == [None] * 3


def test_speed_is_of_the_same_run_else_of_the_same_method_else_of_the_same_network(tmp_path):
    def first_and_of(spec):
        speed = measured(list(gather([tmp_path])), spec, Setup("resnet18", "cpu"))
        return speed.first, speed.of

    trained(tmp_path / "wa", cell("T2", "WA"), 66.0, speed=2)  # its network starts otherwise, and is as fast
    assert first_and_of("ucir+cwd") == first_and_of("der") == (200.0, "other methods")
    trained(tmp_path / "bare", cell("T4", "UCIR"), 66.0, speed=3)
    assert first_and_of("ucir+cwd") == (300.0, "ucir with any plug-ins")
    trained(tmp_path / "same", cell("T4", "CwD"), 66.0, speed=1)
    assert (first_and_of("ucir+cwd"), first_and_of("ucir")) == ((100.0, "ucir+cwd"), (300.0, "ucir"))


def run_of_epochs(*epochs, stages=("main",)):
    """Of two phases; an epoch is its stage, images and seconds."""
    lines = [{"phase": p, "stage": s, "seconds": t, "images_per_second": n / t} for p in (0, 1) for s, n, t in epochs]
    work = [[{"stage": stage, "images": 1, "epochs": 1} for stage in stages]] * 2
    return SimpleNamespace(epochs=lines, info={"device": {"name": "CPU"}, "work": work})


def test_what_alternates_with_the_main_stage_takes_of_its_speed_and_what_follows_does_not():
    alternating = run_of_epochs(("main", 600, 2), ("aggregation", 100, 1))
    following = run_of_epochs(("main", 600, 2), ("balanced", 100, 1), stages=("main", "balanced"))
    assert (pace(alternating, True), pace(following, True)) == (200, 300)


def test_speed_is_the_median_of_runs_however_many_epochs_each_has():
    runs = [run_of_epochs(*[("main", speed, 1)] * epochs) for speed, epochs in ((10, 1), (20, 1), (90, 9))]
    assert speed_of(runs, "ucir", 4).later == 20


def test_speed_is_of_runs_that_had_as_many_beside_them_as_are_asked_for(tmp_path):
    def first_and_beside(jobs):
        speed = measured(list(gather([tmp_path])), "ucir+cwd", Setup("resnet18", "cpu"), jobs)
        return speed.first, speed.beside

    one = cell("T4", "CwD")
    trained(tmp_path / "silent", one, 66.0, seed=1, speed=0.5)
    assert first_and_beside(1) == (50.0, None)
    trained(tmp_path / "three", one, 66.0, seed=2, speed=0.4, side_by_side=3)
    trained(tmp_path / "four", one, 66.0, seed=3, speed=0.3, side_by_side=4)
    assert [first_and_beside(jobs) for jobs in (1, 3)] == [(30.0, 4), (40.0, 3)]
    trained(tmp_path / "alone", one, 66.0, seed=4, side_by_side=1)
    assert [first_and_beside(jobs) for jobs in (1, 2, 4)] == [(100.0, 1), (100.0, 1), (30.0, 4)]


def test_runs_side_by_side_take_their_share_of_the_time(folders, capsys):
    trained(folders / "results" / "beside", cell("T4", "CwD"), 66.9, seed=1994, speed=0.25, side_by_side=4)
    trained(folders / "results" / "alone", cell("T4", "CwD"), 66.9, seed=1995, speed=0.5, side_by_side=1)
    asked = cell("T4", "CwD + BDR")
    first, *later = workload(mapped(asked).config(0))
    for jobs, speed, how in ((1, 0.5, "one after the other"), (4, 0.25, "4 side by side (--jobs 4)")):
        reproduce(["T4"], "cifar100 & S=10 & cwd & bdr & !aanet", seeds="1", jobs=jobs, dry_run=True, device="cpu")
        seconds = (first / (100 * speed) + sum(later) / (50 * speed)) / jobs
        assert f"about {duration(seconds)} {how}, from 1 record" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("text", "seeds"), [("3", [1993, 1994, 1995]), ("1", [1993]), ("1994", [1994]), ("7,", [7]), ("5,3,5", [5, 3])]
)
def test_seeds_are_a_number_or_a_list(text, seeds):
    assert counted_seeds(text) == seeds


@pytest.mark.parametrize("text", ["4", "0", "", "a,b", "-1,2", ","])
def test_other_seeds_are_refused(text):
    with pytest.raises(UsageError, match="neither a number from 1 to 3"):
        counted_seeds(text)


# The command


@pytest.fixture
def folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(terminal.out, "_width", 100)
    (tmp_path / "results").mkdir()
    trained(tmp_path / "results" / "bare", cell("T4", "CwD"), 66.9)
    return tmp_path


S10 = "cifar100 & S=10 & cwd & !aanet"


def test_check_judges_names_the_records_and_runs_nothing(folders, capsys, monkeypatch):
    monkeypatch.setattr(commands, "train", None)
    reproduce(["T4"], S10, check=True)
    said = capsys.readouterr().out
    assert re.search(r"CwD +B50 S10 R20 +67.05±0.08 +66.90 +1\* +−0.15 .*reached", said)  # noqa: RUF001
    assert re.search(r"CwD \+ BDR .*\+2.21 .*no result yet", said)
    assert "Formula of BDR in all our cells: corrected" in said
    assert f"avg: 66.90 from {Path('results/bare')}" in said
    assert "2 cells: 1 reached, 1 no result yet" in said


def test_where_there_is_no_folder_to_look_in_a_line_says_so_beside_the_output(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    reproduce(["T4"], S10, check=True, as_json=True)
    said = capsys.readouterr()
    assert said.err == "note: there is neither results/ nor runs/ here; name folders with --results DIR\n"
    assert json.loads(said.out)["warnings"] == []
    write_table("T4", only=S10)
    assert "name folders as in: bdr table T4 DIR" in capsys.readouterr().err
    (tmp_path / "runs").mkdir()
    reproduce(["T4"], S10, check=True)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("table", ["T2", "T3", "T4", "T6", "T7", "T8", "T9"])
def test_every_table_fits_a_hundred_columns(folders, capsys, table):
    reproduce([table], check=True)
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in lines if " from " not in line) <= 100
    assert not any("…" in line for line in lines)


def test_nothing_is_cut_off_or_broken_on_a_narrow_terminal(folders, capsys, monkeypatch):
    monkeypatch.setattr(terminal.out, "_width", 80)
    reproduce(["T4"], "cifar100 & (ucir|cwd) & !aanet", check=True, device="cpu")
    said = capsys.readouterr().out
    assert {"missing", "seed-1993", "resnet18"} <= set(said.split())
    assert "row, ours over common seeds; same tolerance, 0.5 points." in " ".join(said.split())
    assert max(map(len, said.partition("Records behind")[0].splitlines())) <= 80


def test_a_dry_run_lists_commands_and_reasons(folders, capsys):
    reproduce(["T4"], "cifar100 & S=10", seeds="1", dry_run=True)
    said = capsys.readouterr().out
    assert said.count("bdr run ") == 7
    assert "bdr run ucir+cwd+bdr --data cifar100 --base 50 --step 10 --memory 20/class" in said
    assert "bdr run ucir+aanet --data cifar100 --base 50 --step 10 --memory 20/class" in said
    assert "7 missing runs of resnet18: about" in said
    assert "if those that were measured had the device to themselves" in " ".join(said.split())


def test_the_commands_of_a_dry_run_say_where_the_images_and_the_runs_are(folders, capsys, tmp_path):
    (tmp_path / "cifar").mkdir()
    reproduce(
        ["T4"], "cifar100 & S=10", tmp_path / "my runs", seeds="1", dry_run=True, root=tmp_path / "cifar", device="cpu"
    )
    (command, *_) = [line for line in capsys.readouterr().out.splitlines() if "bdr run " in line]
    words = shlex.split(command)
    for option, value in (("--root", tmp_path / "cifar"), ("--runs", tmp_path / "my runs"), ("--device", "cpu")):
        assert words[words.index(option) + 1] == str(value)
    with pytest.raises(UsageError, match="there is no folder 'nowhere'"):
        reproduce(["T4"], "cifar100 & S=10", dry_run=True, root=Path("nowhere"))


class Left:
    """What a sweep says of its runs at its end: a crew that has one of them, in one state."""

    def __init__(self, state):
        self.runs, self.state = [SimpleNamespace(name="ucir+cwd seed 1994")], state

    def of_state(self, *states):
        return self.runs if self.state in states else []

    def last_words(self, run):
        return "bdr: out of memory"

    def log_of(self, run):
        return Path("runs/sweep-logs/one.log")


@pytest.fixture
def swept(folders, monkeypatch):
    """Sweeps that are acted, and the configurations asked for; where runs fail, those of one seed are there."""
    asked, crew = [], Left("failed")

    def train_all(planned, conditions, end):
        for config in planned:
            asked.append(config)
            if crew.state == "done" or config.seed == 1993:
                record(folders / "runs" / f"run{len(asked)}", config, 69.0)
        return crew, ""

    monkeypatch.setattr(paper, "plan_sweep", lambda wishes, runs: [configuration(wish)[0] for wish in wishes])
    monkeypatch.setattr(paper, "said", lambda planned: planned)
    monkeypatch.setattr(paper, "train_all", train_all)
    return SimpleNamespace(asked=asked, crew=crew)


def test_what_is_missing_is_run_once_and_judged(swept, capsys):
    swept.crew.state = "done"
    reproduce(["T4", "T8"], f"{S10} & (t4|bdr)", seeds="2", root=Path("data"))
    assert [(config.title, config.seed, config.root) for config in swept.asked] == [
        ("ucir+cwd", 1994, "data"),
        ("ucir+cwd+bdr", 1993, "data"),
        ("ucir+cwd+bdr", 1994, "data"),
    ]
    assert "gain missed by 1.16" in re.sub(r"\s+", " ", capsys.readouterr().out)


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_run_that_fails_keeps_no_verdict_from_being_said(swept, capsys, jobs):
    with pytest.raises(BdrError, match="1 of 1 runs failed; mend what their logs say, and go on by typing the same"):
        reproduce(["T4", "T8"], f"{S10} & (t4|bdr)", seeds="2", jobs=jobs)
    said = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert said.index("Runs behind these cells") < said.index("4 cells: 3 reached") < said.index("out of memory")


DIGITS = Wanted("ucir", "digits", (("base", 4), ("step", 3), ("memory", "3/class")), (("stage.epochs", 1),))


def test_a_run_is_really_trained_and_what_was_adapted_is_said(folders, capsys):
    crew, reason = train_missing([(DIGITS, 7)], Conditions(Path("runs"), 1, None), {"device": "cpu"})
    runs, _ = find_runs(Path("runs"))
    assert [(run.seed, run.done, run.info["config"]["device"]) for run in runs] == [(7, True, "cpu")]
    assert (len(crew.of_state("done")), reason) == (1, "")
    assert "main.drops scaled with the epochs" in capsys.readouterr().err


def test_what_a_sweep_trains_are_the_runs_that_are_looked_for():
    one = mapped(cell("T2", "UCIR"))
    for wanted, seed in ((DIGITS, 7), (one, 1994)):
        made, _ = configuration(wish_of(wanted, seed, {"root": "data"}))
        assert made == wanted.config(seed, root="data")


@pytest.mark.parametrize(
    ("jobs", "until", "said"), [(0, None, "--jobs 0 is not allowed: it is 1 or more"), (1, "soon", "--until 'soon' is")]
)
def test_how_it_is_run_is_checked_before_anything_is_planned(monkeypatch, jobs, until, said):
    monkeypatch.setattr(paper, "plan_sweep", None)
    with pytest.raises(UsageError, match=said):
        train_missing([(DIGITS, 7)], Conditions(Path("runs"), jobs, until), {})


def test_the_kind_of_a_device_is_found_without_a_context_on_it(monkeypatch):
    def allocate(*_, **__):
        raise RuntimeError("no such device")

    monkeypatch.setattr("torch.empty", allocate)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert [device_type(name) for name in ("auto", "cuda", "cuda:1")] == ["cuda"] * 3
    with pytest.raises(UsageError, match="device 'cuda:2' cannot be used"):
        device_type("cuda:2")


def test_json_holds_every_number_and_its_record(folders, capsys):
    reproduce(["T4", "T5"], f"({S10}) | (t5 & der)", check=True, as_json=True)
    found = json.loads(capsys.readouterr().out)
    first = found["cells"][0]
    assert (first["value"], first["verdict"], first["tolerance"]) == (67.05, "reached", 0.5)
    assert first["ours"]["mean"] == pytest.approx(66.9)
    assert first["records"]["1993"]["path"] == str(Path("results/bare"))
    assert (found["formula"], found["runs"][0]["missing"]) == ("corrected", [1994, 1995])
    assert found["cells"][-1]["reason"]["kind"] == "paper"


def test_markdown_is_a_table(folders, capsys):
    reproduce(["T4"], S10, check=True, markdown=True)
    assert "| CwD | B50 S10 R20 | 67.05 ± 0.08 | 66.90 |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        ({"tables": ["T10"]}, "no table 'T10'"),
        ({"formula": "corect"}, "did you mean 'corrected'"),
        ({"tolerance": -1.0}, "0 or more"),
        ({"check": True, "dry_run": True}, "exclude each other"),
        ({"as_json": True}, "runs are missing"),
        ({"results": [Path("nowhere")], "check": True}, "nowhere is not a folder"),
        ({"jobs": 0}, "1 or more"),
        ({"added": "bdr,lla"}, "did you mean 'la'"),
    ],
)
def test_what_cannot_be_is_refused(folders, given_, said):
    with pytest.raises(UsageError, match=said):
        reproduce(**({"tables": ["T4"], "only": S10} | given_))


def test_every_data_set_of_a_runnable_cell_is_there():
    from bdr.data import DATASETS

    assert set(DATA.values()) <= set(DATASETS)
