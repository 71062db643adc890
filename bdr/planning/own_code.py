"""The source that a run is made of: this package, and the user's own modules that the run names."""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

LIBRARY = __name__.partition(".")[0]
HOME = Path(__file__).parents[1]
PYTHON = Path(sysconfig.get_path("stdlib"))
SHORT = 12  # digits of a hash in a record
INSTALLED = {"site-packages", "dist-packages"}  # packages there have versions; they are not the user's own


def code_version(*names: str) -> str:
    """A hash of this package's source and of the user's own code in `names`: a changed line may change a result."""
    own = {file for module in own_modules(*names) for file in own_files(module)}
    return library_version() + hash_of(map(meaning_of, sorted(own)))


@cache
def library_version() -> str:
    """A hash of this package's source, read only once because a process goes on with what it has imported."""
    return hash_of(file.read_bytes() for file in sorted(HOME.rglob("*.py")))[:SHORT]


def own_versions(*names: str) -> dict[str, str]:
    """The user's own modules in `names`, each with a hash of its source and of all own modules that it imports."""
    found = {module: sorted(own_files(module)) for module in own_modules(*names)}
    return {module: hash_of(map(meaning_of, files))[:SHORT] for module, files in found.items() if files}


def own_modules(*names: str) -> list[str]:
    return sorted({name.partition(":")[0] for name in names if ":" in name})


def hash_of(contents: Iterable[bytes]) -> str:
    total = hashlib.sha256()
    for content in contents:
        total.update(content)
    return total.hexdigest()


def meaning_of(file: Path) -> bytes:
    """The source of a file without comments and spacing, which change no result."""
    source = file.read_bytes()
    try:
        return ast.unparse(ast.parse(source)).encode()
    except (SyntaxError, ValueError):  # a template, or for another Python
        return source


def own_files(module: str) -> set[Path]:
    """The files of a module, of its whole package and of all own modules that these import; none of this package."""
    importlib.import_module(module)
    first = module.partition(".")[0]
    found = unread = {file for place in places_of(first) for file in files_at(place)}
    seen = {first}
    while unread:
        names = {name for file in unread if not is_installed(file) for name in imports_of(file)} - seen
        seen |= names
        places = {place for name in names for place in places_of(name) if not is_installed(place)}
        unread = {file for place in places for file in files_at(place)}
        found = found | unread
    return {file for file in found if not file.is_relative_to(HOME)}


def places_of(name: str) -> list[Path]:
    """The folders of a package, or the file of a module; none if it does not exist or is built in."""
    try:
        spec = importlib.util.find_spec(name)
    except ValueError:  # the program itself, which was not imported by name
        file = vars(sys.modules[name]).get("__file__")
        return [Path(file)] if file else []
    if spec is None:
        return []
    if spec.submodule_search_locations is not None:
        return [Path(place) for place in spec.submodule_search_locations]
    return [Path(spec.origin)] if spec.has_location and spec.origin else []


def files_at(place: Path) -> list[Path]:
    return list(place.rglob("*.py")) if place.is_dir() else [place]


def is_installed(file: Path) -> bool:
    return not INSTALLED.isdisjoint(file.parts)


def is_own_file(file: Path) -> bool:
    """Whether a file is the user's own: not installed, not of Python, not of this package."""
    return file.is_file() and not is_installed(file) and not any(map(file.is_relative_to, (PYTHON, HOME)))


def told_with_place(error: Exception) -> str:
    """`AttributeError in own.py, line 3: ...`: an error, with the last line of the user's own code that led to it."""
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__} in {error.filename}, line {error.lineno}: {error.msg}"
    places = [place for place in traceback.extract_tb(error.__traceback__) if is_own_file(Path(place.filename))]
    place = f" in {places[-1].filename}, line {places[-1].lineno}" if places else ""
    return f"{type(error).__name__}{place}: {error}"


def imports_of(file: Path) -> Iterator[str]:
    """The top-level names of what a file imports, without those of Python and of this package."""
    for name in absolute_imports(file):
        first = name.partition(".")[0]
        if first not in sys.stdlib_module_names and first != LIBRARY:
            yield first


def absolute_imports(file: Path) -> Iterator[str]:
    """The modules that a file imports by absolute name; relative imports stay in its package, which is read anyway."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # a template, or for another Python: it cannot have been imported
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
