"""Who may import whom, what the engine may name, and what starting the command line may cost."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import bdr as package
from bdr.methods import METHODS
from bdr.plugins import PLUGINS

HOME = Path(package.__file__).parent
HEAVY = {"torch", "numpy", "matplotlib", "sklearn"}
FREE = {"bdr.errors", "bdr.fusing", "bdr.seeding", "bdr.version"}  # small things that anyone may use

MATHEMATICS = {"bdr.types", "bdr.losses", "bdr.schedules", "bdr.data", "bdr.nets"}

# What each part may import of the package, besides itself and FREE; a name covers all that is below it.
RULES = {
    "errors": set(),
    "fusing": set(),
    "seeding": set(),
    "version": set(),
    "types": set(),
    "losses": {"bdr.types"},
    "balance": set(),
    "scenario": {"bdr.types"},
    "schedules": {"bdr.types"},
    "data": {"bdr.types"},
    "nets": {"bdr.types"},
    "methods": MATHEMATICS,
    "plugins": {"bdr.types", "bdr.losses", "bdr.balance", "bdr.data", "bdr.nets"},
    "engine": MATHEMATICS | {"bdr.records", "bdr.metrics", "bdr.methods.base", "bdr.plugins.base"},
    "records": set(),
    "metrics": set(),
    "report": {"bdr.records", "bdr.metrics"},
    "watch": {"bdr.records", "bdr.metrics", "bdr.report"},
    "trackers": {"bdr.records", "bdr.metrics", "bdr.types", "bdr.engine.listen"},
    # from names and settings to an experiment, and what a finished run is good for
    "configuration": {"bdr.types", "bdr.schedules", "bdr.data", "bdr.methods", "bdr.plugins"},
    "planning": {
        *MATHEMATICS,
        *{"bdr.scenario", "bdr.methods", "bdr.plugins", "bdr.engine", "bdr.records", "bdr.trackers"},
        "bdr.configuration",
    },
    "trained": {
        *{"bdr.types", "bdr.data", "bdr.methods", "bdr.engine.evaluate", "bdr.engine.step", "bdr.records"},
        *{"bdr.configuration", "bdr.planning"},
    },
    # what is said on a terminal
    "terminal": {"bdr.report"},
    "display": {"bdr.types", "bdr.engine.listen", "bdr.records"},
    "doctor": set(),
    "dryrun": {"bdr.engine", "bdr.records", "bdr.planning", "bdr.display", "bdr.types"},
    # the doors: they may know much, and nothing above may know them
    "api": {
        *{"bdr.types", "bdr.data", "bdr.methods", "bdr.engine", "bdr.records", "bdr.metrics", "bdr.trackers"},
        *{"bdr.configuration", "bdr.planning", "bdr.trained"},
        "bdr.display",  # from Python, a log has the lines of a terminal
    },
    "__init__": {"bdr.api", "bdr.balance", "bdr.data", "bdr.methods", "bdr.plugins", "bdr.trained.keeping"},
    "commands": {
        *{"bdr.api", "bdr.types", "bdr.data", "bdr.nets", "bdr.methods", "bdr.plugins", "bdr.records", "bdr.report"},
        *{"bdr.trackers", "bdr.configuration", "bdr.planning", "bdr.trained"},
        *{"bdr.terminal", "bdr.display", "bdr.doctor", "bdr.dryrun"},
    },
    "sweep": {
        *{"bdr.data", "bdr.records", "bdr.report", "bdr.configuration", "bdr.planning"},
        *{"bdr.terminal", "bdr.display"},
    },
    "paper": {
        *{"bdr.api", "bdr.scenario", "bdr.balance", "bdr.data", "bdr.nets", "bdr.methods", "bdr.plugins"},
        *{"bdr.records", "bdr.metrics", "bdr.report", "bdr.configuration", "bdr.planning"},
        *{"bdr.terminal", "bdr.display", "bdr.commands", "bdr.sweep"},
    },
    "bench": {
        *{"bdr.api", "bdr.types", "bdr.data", "bdr.nets", "bdr.methods", "bdr.engine", "bdr.records"},
        *{"bdr.configuration", "bdr.planning", "bdr.terminal"},
    },
    "cli": {
        *{"bdr.bench", "bdr.commands", "bdr.configuration", "bdr.paper", "bdr.sweep", "bdr.terminal", "bdr.watch"},
    },
}
# Inside these each imports from those before it alone: in the engine from what a step is to what a run is.
IN_ORDER = {
    "configuration": ("config", "frames", "overrides", "recipes"),
    "planning": (
        *("own_code", "refusals", "parts", "settings", "loading", "plan", "checked", "describe", "assemble"),
        *("host_reads", "rehearsal", "begun", "rereading", "extension"),
    ),
    "engine": (
        *("listen", "objective"),
        *(
            "step.precision",
            "step.optimizer",
            "step.eager",
            "step.compiled",
            "step.paired",
            "step.resting",
            "step.captured",
        ),
        *("step.engines", "step"),
        *("fit", "checkpoint", "analyse", "evaluate"),
        *("learner", "saving", "inherit", "experiment", "recording", "course", "run"),
    ),
}
LOOKING = ("bdr.records", "bdr.metrics", "bdr.report", "bdr.watch.board", "bdr.commands.looking", "bdr.paper.printed")


def files_of(part: str) -> list[Path]:
    return sorted((HOME / part).rglob("*.py")) if (HOME / part).is_dir() else [HOME / f"{part}.py"]


@cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def is_module(name: str) -> bool:
    path = HOME.parent / name.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").is_file()


def imports_of(file: Path) -> Iterator[str]:
    """Every module that a file imports, wherever in it the import stands."""
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} imports relatively, which this test does not follow"
            below = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if covers("bdr", name) and is_module(name) else node.module for name in below)


def covers(allowed: str, name: str) -> bool:
    return name == allowed or name.startswith(f"{allowed}.")


@pytest.mark.parametrize("part", RULES)
def test_each_part_imports_only_what_the_table_allows(part):
    allowed = RULES[part] | FREE | {f"bdr.{part}"}
    for file in files_of(part):
        own = [name for name in imports_of(file) if covers("bdr", name)]
        strangers = [name for name in own if not any(covers(one, name) for one in allowed)]
        assert not strangers, f"{file.relative_to(HOME.parent)} imports {strangers}"


def name_in(part: str, file: Path) -> str:
    """`step.eager` for engine/step/eager.py, `step` for what that folder shows to others."""
    return ".".join(each for each in file.relative_to(HOME / part).with_suffix("").parts if each != "__init__")


@pytest.mark.parametrize("part", IN_ORDER)
def test_inside_some_parts_imports_go_one_way(part):
    files = {name_in(part, file): file for file in files_of(part) if file != HOME / part / "__init__.py"}
    assert set(files) == set(IN_ORDER[part])
    for place, name in enumerate(IN_ORDER[part]):
        own = {found for found in imports_of(files[name]) if covers(f"bdr.{part}", found)}
        assert own <= {f"bdr.{part}.{before}" for before in IN_ORDER[part][:place]}, name


def test_every_file_and_every_folder_of_the_library_is_in_the_table():
    parts = {file.relative_to(HOME).parts[0].removesuffix(".py") for file in HOME.rglob("*.py")}
    assert parts == set(RULES)


def test_every_file_and_every_folder_of_the_library_is_in_the_tree_of_the_documents():
    text = (HOME.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    tree = text.partition("## The tree")[2].partition("\n## ")[0]
    named = {name for row in tree.splitlines() if row.startswith("|") for name in row.split("|")[1].split("`")[1::2]}
    assert named == {f"{part}/" if (HOME / part).is_dir() else f"{part}.py" for part in RULES}


def test_every_file_of_the_library_that_it_or_a_document_names_is_there():
    documents = [HOME.parent / "README.md", *(HOME.parent / "docs").rglob("*.md"), *HOME.rglob("*.py")]
    named = {name for file in documents for name in re.findall(r"\bbdr/[\w/]+\.\w+", file.read_text(encoding="utf-8"))}
    assert not [name for name in sorted(named) if not (HOME.parent / name).exists()]
    assert named


def test_a_name_of_a_package_beside_one_of_its_modules_counts_as_the_package(tmp_path):
    file = tmp_path / "both.py"
    file.write_text(
        "from bdr.methods import METHODS, base\nfrom bdr import api\nfrom bdr.configuration.config import Config\n"
    )
    assert list(imports_of(file)) == ["bdr.methods", "bdr.methods.base", "bdr.api", "bdr.configuration.config"]


@pytest.mark.parametrize("part", ["records", "metrics", "report"])
def test_records_metrics_and_report_do_without_torch(part):
    roots = {name.partition(".")[0] for file in files_of(part) for name in imports_of(file)}
    assert "torch" not in roots


def test_importing_what_looks_at_runs_leaves_torch_out():
    code = f"import sys, {', '.join(LOOKING)}; print('torch' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert said.stdout.strip() == "False", said.stderr


@pytest.mark.parametrize("part", ["types", "losses", "balance"])
def test_the_values_and_the_mathematics_need_torch_alone(part):
    roots = {name.partition(".")[0] for file in files_of(part) for name in imports_of(file)}
    assert roots - set(sys.stdlib_module_names) <= {"torch", "bdr"}


def words_of(file: Path) -> Iterator[str]:
    """Identifiers, string literals and imported files of a file; where these lie is the table's business.

    Docstrings are nobody's.
    """
    tree = tree_of(file)
    documents = (ast.Module, ast.ClassDef, ast.FunctionDef)
    has_one = [node for node in ast.walk(tree) if isinstance(node, documents) and ast.get_docstring(node)]
    spoken = {id(node.body[0].value) for node in has_one}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in spoken:
            yield from node.value.replace("+", " ").split()
        for field in ("id", "attr", "arg", "name", "asname"):
            if isinstance(word := getattr(node, field, None), str) and not word.startswith("bdr."):
                yield word
        if isinstance(node, ast.ImportFrom) and "." in (node.module or ""):
            yield str(node.module).rpartition(".")[2]


def forbidden_names() -> set[str]:
    tables = {**METHODS, **PLUGINS}
    return set(tables) | {kind.__name__ for kind in tables.values()}


COMMAND = {"extend", "resume", "run"}  # what a message tells the user to type begins with the package's own name
WORDS = {"replay", "joint"}  # which mean other things too: a captured graph is replayed


@pytest.mark.parametrize("file", files_of("engine"), ids=lambda file: file.name)
def test_the_engine_names_no_method_and_no_plug_in(file):
    words = list(words_of(file))
    found = {
        word
        for word, after in zip(words, [*words[1:], ""], strict=True)
        if word in forbidden_names() - WORDS and not (word == "bdr" and after in COMMAND)
    }
    assert not found


def test_such_names_would_be_found():
    found = {word for part in ("methods", "plugins") for file in files_of(part) for word in words_of(file)}
    assert forbidden_names() <= found


def changed_in(tree: ast.Module) -> set[str]:
    """By what name the things go that an attribute of is assigned to."""
    stored = (node for node in ast.walk(tree) if isinstance(getattr(node, "ctx", None), ast.Store))
    return {ast.unparse(node.value).rpartition(".")[2] for node in stored if isinstance(node, ast.Attribute)}


def test_a_plan_that_is_made_is_changed_by_nobody():
    found = {file.relative_to(HOME).as_posix(): changed_in(tree_of(file)) for file in HOME.rglob("*.py")}
    assert not {file: owners for file, owners in found.items() if owners & {"plan", "experiment"}}


def test_such_a_change_would_be_found():
    assert changed_in(ast.parse("course.plan.seed = 1\nfor experiment.path in (): pass")) == {"plan", "experiment"}


def test_help_imports_nothing_heavy():
    code = (
        "import sys; sys.argv = ['bdr', '--help']\n"
        "from bdr.cli import main\n"
        "try: main()\n"
        f"finally: print('HEAVY', *sorted({HEAVY!r} & set(sys.modules)))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert said.returncode == 0, said.stderr
    assert "bdr demo" in said.stdout
    assert said.stdout.splitlines()[-1] == "HEAVY"


def test_the_public_names_can_be_seen_before_any_of_them_is_imported():
    code = "import sys, bdr; print(set(bdr.__all__) - set(dir(bdr)), 'torch' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert said.stdout.strip() == "set() False", said.stderr


def is_printed_by_hand(call: ast.Call) -> bool:
    """A sentence, or anything with the options that say and tell give."""
    if ast.unparse(call.func) not in ("out.print", "err.print", "console.print"):
        return False
    options = {option.arg for option in call.keywords}
    return isinstance(call.args[0], ast.Constant | ast.JoinedStr) or bool(options & {"markup", "soft_wrap"})


def test_sentences_go_to_a_terminal_by_say_and_tell_alone():
    calls = {
        file: [node for node in ast.walk(tree_of(file)) if isinstance(node, ast.Call)] for file in HOME.rglob("*.py")
    }
    assert {file.name for file, found in calls.items() if any(map(is_printed_by_hand, found))} == {"terminal.py"}


def test_nothing_is_unpickled_but_by_the_restricted_reader():
    sources = {file.relative_to(HOME).as_posix(): file.read_text(encoding="utf-8") for file in HOME.rglob("*.py")}
    calls = ("pickle.load", "torch.load", "allow_pickle=True", "cloudpickle", "dill")
    assert not [(file, call) for file, source in sources.items() for call in calls if call in source]
    readers = [file for file in sources if "pickle" in {name.partition(".")[0] for name in imports_of(HOME / file)}]
    assert readers == ["data/published.py"]
    source = sources["data/published.py"]
    assert source.count("pickle.") == source.count("pickle.Unpickler") == 1
