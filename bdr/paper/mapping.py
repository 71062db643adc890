"""From a printed number to the configuration that it asks for, or to the reason why it is not run."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from bdr.configuration.config import Config
from bdr.configuration.frames import cifar100
from bdr.configuration.overrides import as_typed, flattened
from bdr.configuration.recipes import RECIPES, configure
from bdr.paper.cells import DATA, SPECS, Cell, load_cells

Settings = tuple[tuple[str, Any], ...]

SAMPLING = "bal. sampling"  # as the paper prints it
ADDITIONS: dict[str, tuple[str, Settings]] = {
    "BDR": ("bdr", ()),
    "CR": ("bdr", (("bdr.components", "cr"),)),
    "LA": ("la", ()),
    "PaCo": ("paco", ()),
    "BCL": ("bcl", ()),
    "TADE": ("tade", ()),
    "reweighting": ("reweight", ()),
    SAMPLING: ("resample", ()),
}
SWITCHES = {  # CR, DC, momentum in table 5
    (True, False, False): "cr",
    (True, True, False): "cr+dc",
    (True, True, True): "cr+dc+momentum",
}
CLASSES = {"cifar100": 100}
IMAGES = {"cifar100": 500}  # training images of each class

# Rows of table 2 that are run by a recipe, and not with the training defaults of their method.
RERUN = {
    "rpsnet": "rpsnet-original",
    # The paper has random new embeddings in the CwD and BDR experiments only; this table quotes re-runs by others.
    "ucir": "ucir-der",
    "wa": "wa-der",
}
NAMED = ("order", "herding", "net")  # fields that every command names, even if they are defaults
DER_NOTE = (
    "T2 in DER's frame: order der-2, dot herding, brightness 63/255, its statistics; 170 epochs, warm-up 10, drops at "
    "110 and 130, unless a method brings its own training; UCIR with imprinted embeddings (probably: the re-run is not "
    "documented); WA with its classifier drawn anew after the warm-up, as in the re-run that is quoted; RPSNet in "
    "natural order, its exemplars by chance. That re-run of WA has the order der-0 in its released configuration, "
    "where all rows here have der-2, and goes on from unaligned weights, where ours goes on from aligned ones. That of "
    "BiC has sigmoid distillation of weight 1 and finds its correction by a quasi-Newton method; ours is the paper's "
    "algorithm. The paper's ± there is over class orders, ours over training seeds of one order. DyTox's numbers there "
    "are of a memory spread over two GPUs, herded on each; with one memory, as here, others found 3 to 5 points less."
)
ANSWERS_NOTE = (
    "Other answers to imbalance than BDR: the paper's finding is that but for LA none improves on CwD, and how they "
    "were put on it is not told; so look at the gain, and a result above the paper's is no success but another finding."
)
SAMPLING_NOTE = (
    "Balanced sampling: what the paper prints (22 and 15 %) is implausible, any usual way of doing it lands far "
    "higher; so a result above it is expected there, and says nothing."
)
# The paper prints R exemplars a class; AANet's README has a fixed total instead, which would be "{total}".
AANET_MEMORY = "{R}/class"
AANET_NOTE = (
    "AANet on CIFAR-100 is run with two ResNet-18, the network of the other rows, and the printed R exemplars a class. "
    "The paper does not name the network: this one fits its numbers. AANet's own code has two ResNet-32, and its "
    "README a fixed total of 100 R: the recipes aanet and aanet-readme have those."
)
SETTING = ("dataset", "B", "S", "R", "memory", "metric")  # equal in rows that are compared
EXTRACTOR = 11.17  # million parameters of a ResNet-18: one extractor of DER before pruning
LIMIT = {"B": 50, "S": 10, "memory": "20/class"}  # for tables 1 and 9, which do not say: the setting of all the others


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a cell is not run: because of the paper's number ("paper"), the data ("data") or the method ("version").

    `wanted`, if given, is what the cell asks for as printed; its finished runs are shown all the same.
    """

    kind: str
    text: str
    wanted: Wanted | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """A configuration without its seed; equal values mean the same runs."""

    spec: str
    data: str
    fields: Settings
    settings: Settings

    def config(self, seed: int, **fields: Any) -> Config:
        return configure(self.spec, self.data, self.settings, {**dict(self.fields), **fields, "seed": seed})[0]

    def command(self, seed: int, here: Mapping[str, str]) -> str:
        """The command line that makes the same run, with further options for what is `here`: folders, a device."""
        options = [text for name, value in (*self.fields, *here.items()) for text in (f"--{name}", str(value))]
        changes = [text for name, value in self.settings for text in ("--set", f"{name}={as_typed(value)}")]
        return shlex.join(["bdr", "run", self.spec, "--data", self.data, *options, *changes, "--seed", str(seed)])


DASHED = "the paper prints a dash"
AS_PRINTED: tuple[tuple[Callable[[Cell], bool], str], ...] = (
    (lambda cell: cell.value is None and cell.printed, DASHED),
    (
        lambda cell: cell.table == "T5" and cell.base == "DER",
        "captioned ImageNet-Subset, but 72.05 and 74.13 are the CIFAR-100 B=0 S=2 cells of T2: which data is unclear",
    ),
    (
        lambda cell: cell.base == "simple-DER" and cell.dataset == "ImageNet-Subset",
        "simple-DER's ImageNet-Subset cells repeat those of E2E: a copying error",
    ),
)


def mapped(cell: Cell, formula: str = "corrected") -> Wanted | Reason:
    """What a cell asks for with this formula of BDR, or the reason why it is not run."""
    asked = as_printed(cell, formula)
    for applies, text in AS_PRINTED:
        if applies(cell):
            return Reason("paper", text, asked if isinstance(asked, Wanted) else None)
    return asked


def as_printed(cell: Cell, formula: str = "corrected") -> Wanted | Reason:
    """What a cell asks for, even if its number is in doubt; a Reason only if the data or the method is missing."""
    if cell.dataset not in DATA:
        return Reason("data", f"{cell.dataset} is not at hand: this version has no data set of that name")
    added = [addition(part) for part in cell.parts[1:]]
    if cell.base not in SPECS or None in added:
        return missing_method(cell)
    spec = "+".join([SPECS[cell.base], *(each[0] for each in added if each)])
    if not known(spec):
        return missing_method(cell)
    settings = [setting for each in added if each for setting in each[1]] + pruning(cell)
    return wanted(cell, *with_switches(cell, spec, settings), formula)


def addition(part: str) -> tuple[str, Settings] | None:
    """Plug-in and settings for a part as the paper prints it, or for a plug-in by its own name; None if unknown."""
    from bdr.plugins import PLUGINS

    return ADDITIONS.get(part, (part, ()) if part in PLUGINS else None)


def pruning(cell: Cell) -> list[tuple[str, Any]]:
    """The setting `der.keep` for rows of pruned DER, from their printed size, which is averaged over phases."""
    sizes = [one.value for one in load_cells() if row_of(one) == row_of(cell) and one.metric == "params_avg_M"]
    if cell.base != "DER" or cell.B is None or cell.S is None or not sizes or sizes[0] is None:
        return []
    phases = (CLASSES[DATA[cell.dataset]] - cell.B) // cell.S + (cell.B > 0)
    extractors = (1 + phases) / 2  # the average over phases
    return [("der.keep", round(sizes[0] / extractors / EXTRACTOR, 4))]


def row_of(cell: Cell) -> tuple[Any, ...]:
    return cell.table, cell.method, cell.dataset, cell.B, cell.S


def missing_method(cell: Cell) -> Reason:
    return Reason("version", f"{' + '.join(cell.parts)} is not in this version")


def known(spec: str) -> bool:
    from bdr.methods import METHODS
    from bdr.plugins import PLUGINS

    method, *plugins = spec.split("+")
    return method in METHODS and all(name in PLUGINS for name in plugins)


def with_switches(cell: Cell, spec: str, settings: list[tuple[str, Any]]) -> tuple[str, list[tuple[str, Any]]]:
    """Add the components of BDR that table 5 names by columns, and the momentum that table 7 names."""
    components = SWITCHES.get((bool(cell.get("CR")), bool(cell.get("DC")), bool(cell.get("momentum"))))
    if components:
        spec, settings = f"{spec}+bdr", [*settings, ("bdr.components", components)]
    if cell.get("beta") is not None:
        settings = [*settings, ("bdr.beta", cell.get("beta"))]
    return spec, settings


def wanted(cell: Cell, spec: str, settings: list[tuple[str, Any]], formula: str) -> Wanted:
    """The configuration of a cell in the protocol of its own table."""
    if "bdr" in spec.split("+"):
        settings = [*settings, ("bdr.formula", formula)]
    base, step = (LIMIT["B"], LIMIT["S"]) if cell.B is None else (cell.B, cell.S)
    scenario = (("base", base), ("step", step), ("memory", memory_of(cell)))
    fields, training = frame_of(cell.table, SPECS[cell.base], spec)
    return Wanted(spec, DATA[cell.dataset], (*scenario, *fields), (*training, *without_defaults(settings)))


def memory_of(cell: Cell) -> Any:
    if cell.base == "Bound":
        return "all"
    if is_aanet(cell) and cell.R is not None:
        return AANET_MEMORY.format(R=cell.R, total=cell.R * CLASSES[DATA[cell.dataset]])
    return LIMIT["memory"] if cell.B is None else cell.memory


def is_aanet(cell: Cell) -> bool:
    """Whether a cell is of AANet, with or without CwD."""
    return cell.base.partition("+")[0] == "AANet"


@cache
def frame_of(table: str, row: str, spec: str) -> tuple[Settings, Settings]:
    """Fields and training settings of the recipe of a bare row; of the settings, only those that are not defaults."""
    recipe, *plugins = recipe_of(table, row)
    made = RECIPES[recipe](*plugins) if recipe in RECIPES else cifar100(recipe, *plugins)
    by_itself = written_out(cifar100(*spec.split("+")))
    training = tuple((name, value) for name, value in written_out(made).items() if by_itself.get(name) != value)
    return tuple((name, getattr(made, name)) for name in NAMED), training


def recipe_of(table: str, spec: str) -> list[str]:
    """The recipe of a row, or its method if it is run with its own defaults, followed by its plug-ins."""
    method, *plugins = spec.split("+")
    if "aanet" in plugins:
        return ["aanet-resnet18", *(name for name in plugins if name != "aanet")]
    return [RERUN.get(method, method) if table == "T2" else method, *plugins]


def written_out(config: Config) -> dict[str, Any]:
    """All settings that a configuration is trained with, by the names that --set takes."""
    training = {"statistics": config.statistics, "augment": config.augment, "stage": asdict(config.stage)}
    return dict(flattened([*training.items(), ("stages", config.stages), ("settings", config.settings)]))


def without_defaults(settings: list[tuple[str, Any]]) -> Settings:
    """The settings except defaults of BDR, so that all cells that ask for the same run have equal settings."""
    from bdr.planning.settings import Part
    from bdr.plugins import PLUGINS

    defaults = {f"bdr.{name}": default for name, default in Part("bdr", PLUGINS["bdr"]).defaults().items()}
    return tuple((name, value) for name, value in settings if defaults.get(name) != value)
