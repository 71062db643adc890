"""The documentation is true: its code runs, its commands parse, its tables are the tables, its links lead somewhere."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import sys
from pathlib import Path

import measured
import numpy as np
import pytest
import typer
from small import OWN_MAKERS
from test_engine import World, one_block

import bdr
from bdr.cli import app
from bdr.configuration.config import DECLARED, fields_of
from bdr.configuration.frames import FRAMES
from bdr.configuration.recipes import RECIPES
from bdr.data import DATASETS
from bdr.data.augment import Augment
from bdr.methods import METHODS
from bdr.nets import NETS
from bdr.paper.mapping import recipe_of
from bdr.paper.table import write_table
from bdr.planning.checked import stages_of
from bdr.plugins import PLUGINS
from bdr.types import Phase, Stage

HOME = Path(__file__).resolve().parents[1]
DOCS = HOME / "docs"
PAGES = [HOME / "README.md", *sorted(DOCS.rglob("*.md"))]
WITH_CODE = [
    *("README.md", "docs/analyse.md", "docs/the-module.md", "docs/add-a-method.md", "docs/add-a-data-set.md"),
    "docs/add-a-network.md",
]
TOP = typer.main.get_command(app)
records_are_here = pytest.mark.skipif(not (HOME / "results").is_dir(), reason="the records are not here")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def name_of(page):
    return str(page.relative_to(HOME))


def fenced(page, language):
    return [body for found, body in FENCE.findall(page.read_text()) if found == language]


def section(page, heading):
    """The text below a heading, up to the next one."""
    after = page.read_text().split(f"\n{heading}\n", 1)
    assert len(after) == 2, f"{name_of(page)} has no '{heading}'"
    return re.split(r"^#+ ", after[1], maxsplit=1, flags=re.MULTILINE)[0]


def first_cells(text):
    """The names in backticks in the first column of the tables of a text, row by row."""
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| ")]
    return [name for cell in rows for name in re.findall(r"`([^`]+)`", cell)]


def table_after(text, line):
    """The first table below a line."""
    return re.search(r"^\|.*?(?=\n\n|\Z)", text.split(line, 1)[1], re.MULTILINE | re.DOTALL)[0]


# Code


@pytest.fixture
def own_modules(tmp_path, monkeypatch):
    """A folder to work in, from which modules can be imported; none of them is remembered."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def execute(page, folder):
    """All Python blocks of a page, one after the other; one that begins with `# name.py` is a module of that name."""
    values = {"__name__": "__main__"}
    for block in fenced(page, "python"):
        file = re.match(r"# (\w+)\.py\n", block)
        if file:
            (folder / f"{file[1]}.py").write_text(block)
            importlib.import_module(file[1])
        else:
            exec(compile(block, f"{page.name}, a block", "exec"), values)
    return values


@pytest.mark.parametrize("page", WITH_CODE)
def test_the_code_of_a_page_runs_as_it_stands(page, own_modules, capsys):
    if not fenced(HOME / page, "python"):
        pytest.skip(f"{page} has no Python block")
    execute(HOME / page, own_modules)
    said = capsys.readouterr().out
    if page == "docs/the-module.md":
        plain, balanced = (float(value) for value in re.findall(r"old ([\d.]+) %", said))
        assert balanced > plain + 5, said


MODULE_BLOCKS = fenced(HOME / "docs/the-module.md", "python")[1:]  # the first has nothing before it


@pytest.mark.parametrize("block", [block for block in MODULE_BLOCKS if not block.startswith("# train.py")])
def test_a_block_on_the_module_can_be_pasted_alone(block, own_modules):
    exec(compile(block, "the-module.md, a block", "exec"), {"__name__": "__main__"})


# Commands


def command_lines(page):
    """Every `bdr ...` of a page: (line, whether it stands in a block, where it must be whole)."""
    text = page.read_text()
    blocks = [line for language, body in FENCE.findall(text) if not language for line in body.splitlines()]
    mentioned = re.findall(r"`([^`\n]+)`", FENCE.sub("", text))
    for lines, whole in ((blocks, True), (mentioned, False)):
        for line in lines:
            if found := re.match(r"(?:\w+=\S+ )*bdr ((?:[a-z]|--).*)", line):
                yield found[1], whole


def alternatives(words):
    """`list methods|nets` is `list methods` and `list nets`."""
    several = next((word for word in words if "|" in word), None)
    if several is None:
        return [words]
    return [[one if word == several else word for word in words] for one in several.split("|")]


def command_of(words):
    """The command that the first words name, and what is left for it to parse."""
    command, rest = TOP, list(words)
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        assert rest[0] in command.commands, f"there is no command '{rest[0]}'"
        command = command.commands[rest.pop(0)]
    return command, rest


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_command_line_parses(page):
    for line, whole in command_lines(page):
        words = shlex.split(line.split(" > ")[0].replace(" ...", ""), comments=True)
        for each in alternatives(words):
            command, rest = command_of(each)
            if rest or (whole and command is not TOP):
                try:
                    command.make_context("bdr", rest)
                except Exception as error:
                    pytest.fail(f"{name_of(page)} says 'bdr {line}': {error}")


def every_command():
    """(page, command) of all that can be typed."""
    for name, command in TOP.commands.items():
        yield from ((name, inner) for inner in getattr(command, "commands", {"": command}).values())


def options_of(name):
    params = [param for page, command in every_command() if page == name for param in command.params]
    return {text for param in params for text in (*param.opts, *param.secondary_opts) if text.startswith("-")}


def test_every_command_has_a_page_and_every_page_a_command():
    assert {page.stem for page in (DOCS / "commands").glob("*.md")} == set(TOP.commands)


@pytest.mark.parametrize("name", TOP.commands)
def test_a_page_has_a_row_for_each_option_of_its_command_and_no_other(name):
    described = {cell for cell in first_cells((DOCS / "commands" / f"{name}.md").read_text()) if cell.startswith("-")}
    described = {cell for cell in described if " " not in cell}  # those with a blank are messages
    assert described == options_of(name) - {"--help"}


# Tables


@pytest.mark.parametrize(
    ("heading", "table"),
    [("Methods", METHODS), ("Plug-ins", PLUGINS), ("Data", DATASETS), ("Nets", NETS), ("Recipes", RECIPES)],
)
def test_the_lists_are_the_tables(heading, table):
    assert sorted(first_cells(section(DOCS / "commands" / "list.md", f"## {heading}"))) == sorted(table)


@pytest.mark.parametrize("owner", ["stage", "augment", *METHODS, *PLUGINS])
def test_the_page_of_run_names_every_setting(owner):
    target = {"stage": Stage, "augment": Augment, **METHODS, **PLUGINS}[owner]
    text = section(DOCS / "commands" / "run.md", "### --set")
    row = next(line for line in text.splitlines() if line.startswith("| ") and f"`{owner}`" in line.split("|")[1])
    missing = [name for name in fields_of(target, ["make", *DECLARED]) if f"`{name}`" not in row]
    assert not missing


HEADINGS = ["Objective", "Settings", "Training", "Where this differs from the paper", "Measured"]


def rows_below(page, heading):
    """The cells of the tables below a heading, without backticks; heads and rules left out."""
    lines = [line for line in section(page, heading).splitlines() if line.startswith("| ")]
    cells = [[cell.strip().replace("`", "") for cell in line.split("|")[1:-1]] for line in lines]
    return [row for row in cells if row[0] not in ("setting", "data", "term", "here")]


def test_the_page_of_reproduce_names_the_recipe_that_aanets_rows_are_run_by():
    rows = {row[0]: row[1] for row in rows_below(DOCS / "commands" / "reproduce.md", "## Protocols")}
    assert rows["AANet in these"].startswith(f"the recipe {recipe_of('T4', 'ucir+aanet')[0]}:")


def test_the_index_names_all_that_take_no_mixtures():
    (told,) = re.findall(r"^`mixup` mixes .*?\n\n", (DOCS / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    refusing = {name for table in (METHODS, PLUGINS) for name, part in table.items() if not part.soft_targets}
    assert set(re.findall("`(.*?)`", told)) == {"mixup", *refusing}


def test_the_readme_names_every_network_but_those_that_stand_in_for_one():
    (row,) = re.findall(r"^\| networks \|.*$", (HOME / "README.md").read_text(), re.MULTILINE)
    stand_ins = {"convit-small", "resnet18-der", "rps-small", "vit-tiny"}
    assert set(NETS) - stand_ins <= set(re.findall("`([^`:]+)`", row))


def training(name, data):
    """The training of a method in a frame, as its page has it: a row for each stage of a later phase."""
    config, method = FRAMES[data](name), METHODS[name](OWN_MAKERS.get(name, one_block))
    kept = [config.memory, config.herding if config.memory not in ("0", "all") else "none"]
    (first, *further), _ = stages_of(config, method, [], Phase(1, 50, 60))
    titled = [(data, first), *((f"{data}, {stage.name}", stage) for stage in further)]
    return [[title, *rates(stage), *kept] for title, stage in titled]


def rates(stage):
    drops = ", ".join(map(str, stage.drops))
    schedule = {"steps": f"steps {drops} x {stage.drop:g}"}.get(stage.schedule, stage.schedule)
    return [str(stage.epochs), str(stage.batch), f"{stage.lr:g}", schedule, f"{stage.weight_decay:g}"]


def terms_of(name):
    """All terms of all stages of a later phase; those that a setting brings in, too."""
    world, found = World(name, (), 1, make=one_block, **{"der": {"keep": 0.5}}.get(name, {})), set()
    for number, stage in enumerate(world.stages(Stage())):
        world.begin(stage, number)
        found |= world.objective(stage).terms(world.batch(draw=stage.draw, number=number))[0].keys()
    return found


def method_page(name):
    return DOCS / "methods" / f"{name}.md"


def test_every_method_has_a_page_and_every_page_a_method():
    assert {page.stem for page in (DOCS / "methods").glob("*.md")} == set(METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_the_page_of_a_method_has_its_parts_in_order(name):
    found = re.findall(r"^## (.*)$", method_page(name).read_text(), re.MULTILINE)
    assert [heading for heading in found if heading in HEADINGS] == HEADINGS


@pytest.mark.parametrize("name", METHODS)
def test_the_page_of_a_method_has_its_settings_with_their_defaults(name):
    settings = {field: str(default) for field, (_, default) in fields_of(METHODS[name], ["make"]).items()}
    assert {row[0]: row[1] for row in rows_below(method_page(name), "## Settings")} == settings


@pytest.mark.parametrize("data", ["cifar100", "digits"])
@pytest.mark.parametrize("name", METHODS)
def test_the_page_of_a_method_has_its_training_stage_by_stage(name, data):
    rows = [row for row in rows_below(method_page(name), "## Training") if row[0].split(", ")[0] == data]
    assert rows == training(name, data)


@pytest.mark.parametrize("name", METHODS)
def test_the_page_of_a_method_has_its_terms_and_no_others(name):
    tables = section(method_page(name), "## Objective").split("\n\n")
    named = [term for table in tables if "| term |" in table for term in first_cells(table)]
    assert set(named) == terms_of(name)


@pytest.mark.parametrize("page", sorted((DOCS / "plugins").glob("*.md")), ids=name_of)
def test_the_page_of_a_plug_in_has_its_settings_with_their_defaults(page):
    settings = {field: str(default) for field, (_, default) in fields_of(PLUGINS[page.stem]).items()}
    assert {row[0]: row[1] for row in rows_below(page, "## Settings")} == settings


@pytest.mark.parametrize("name", measured.pages())
def test_a_page_has_what_was_measured(name):
    assert measured.parted(measured.pages()[name])[1] == measured.section(name), "type: python tests/measured.py"


@pytest.mark.parametrize("heading", measured.BELOW)
def test_a_table_is_what_was_measured(heading):
    page, made = measured.BELOW[heading]
    assert measured.table_in(DOCS / page, heading) == made(), "type: python tests/measured.py"


@records_are_here
def test_the_page_of_analysis_says_what_was_timed():
    timed = json.loads((HOME / "results" / "bench" / "analyse.json").read_text())["timings"]
    later = {row["case"]: row["ms_per_step"] for row in timed if row["phase"] == "later"}
    rows = [
        f"| `{case}` | {later[case]:.3f} | {later[looked]:.3f} | {100 * (later[looked] / later[case] - 1):.1f} % |"
        for case, looked in (("ucir", "ucir --analyse"), ("ucir+bdr", "ucir+bdr --analyse"))
    ]
    assert table_after((DOCS / "analyse.md").read_text(), "## What it costs").splitlines()[2:] == rows


@records_are_here
def test_the_page_of_table_shows_what_the_command_prints(tmp_path):
    page = DOCS / "commands" / "table.md"
    name, _, only = shlex.split(re.search(r"the table of `bdr table (.+?)`:", page.read_text())[1])
    write_table(name, [HOME / "results"], None, only, "corrected", tmp_path / "table.md")
    rows = [line for line in (tmp_path / "table.md").read_text().splitlines() if line.startswith("|")]
    assert fenced(page, "text")[0].splitlines() == rows


@pytest.mark.parametrize("name", FRAMES)
def test_the_frames_are_as_described(name):
    text = section(DOCS / "commands" / "run.md", "## What to run")
    row = next(line for line in text.splitlines() if line.startswith(f"| `{name}`") and "/class" in line)
    frame = FRAMES[name]()
    drops = ", ".join(map(str, frame.stage.drops))
    schedule = [f"{frame.stage.epochs} ({drops})", str(frame.stage.batch)]
    given = [str(frame.base), str(frame.step), frame.memory, f"`{frame.net}`", *schedule]
    assert [cell.strip() for cell in row.split("|")[2:-1]] == given


@pytest.fixture(scope="module")
def short_run(tmp_path_factory):
    fields = {"phases": 2, "val": 0.2, "analyse": True, "set": {"stage.epochs": 1, "stage.batch": 64}}
    return bdr.run("ucir+cwd+bdr", out=tmp_path_factory.mktemp("docs") / "run", **fields).path


def described(line, page="commands/run.md"):
    return set(first_cells(table_after((DOCS / page).read_text(), line)))


def last_line(file):
    return json.loads(file.read_text().splitlines()[-1])


def test_a_run_directory_holds_what_the_page_says(short_run):
    fields = described("Fields of `phases.jsonl`")
    assert fields == set(last_line(short_run / "phases.jsonl"))
    assert described("Fields of `epochs.jsonl`") == set(last_line(short_run / "epochs.jsonl"))
    with np.load(short_run / "steps.npz") as steps:
        assert described("Arrays of `steps.npz`") == set(steps)
    with np.load(short_run / "analysis.npz") as analysis:
        assert described("Arrays of `analysis.npz`") == set(analysis)
    with np.load(short_run / "phase-01" / "snapshots.npz") as snapshots:
        assert described("Arrays of `snapshots.npz`", "analyse.md") == set(snapshots)
    with np.load(short_run / "phase-01" / "predictions.npz") as predictions:
        assert described("Arrays of `predictions.npz`") == set(predictions)
    names = {name.replace("phase-03", "phase-01").rstrip("/") for name in described("## The run directory")}
    there = {str(path.relative_to(short_run)) for path in short_run.rglob("*")}
    assert names - there == {"log.txt"}  # nothing was noted


# Links


def anchors(page):
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_relative_link_leads_somewhere(page):
    links = re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page.read_text()))
    for link in links:
        if re.match(r"\w+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file) if file else page
        assert target.exists(), f"{name_of(page)} links to {link}"
        if anchor:
            assert anchor in anchors(target), f"{name_of(page)} links to {link}, which is no heading there"


def test_the_index_links_every_page():
    links = set(re.findall(r"\]\(([^)#\s]+)\)", (DOCS / "README.md").read_text()))
    assert links >= {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} - {"README.md"}
