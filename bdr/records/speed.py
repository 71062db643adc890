"""How fast runs were, by what they recorded: what others like them will take."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bdr.errors import BdrError
from bdr.records.folders import is_done, run_folders
from bdr.records.reader import Run
from bdr.records.work import MAIN, epochs_told, stages_planned


@dataclass(frozen=True)
class Speed:
    """Images a second of a run on a kind of device, in the first phase and, with a teacher, in later ones."""

    first: float
    later: float
    records: int
    of: str  # what was run there
    device: str  # the name of where they were made
    beside: int | None  # how many runs shared it, itself included; None: nobody wrote it down

    @property
    def circumstances(self) -> str:
        if self.beside is None:
            return "one after the other, if those that were measured had the device to themselves"
        return "one after the other" if self.beside == 1 else f"{self.beside} side by side (--jobs {self.beside})"

    @property
    def told(self) -> str:
        return f"{self.records} record{'' if self.records == 1 else 's'} of {self.of} on {self.device}"

    def seconds(self, images: Sequence[int]) -> float:
        """Of a run that passes so many images through training in each of its phases."""
        first, *later = images
        return first / self.first + sum(later) / self.later


class Setup(NamedTuple):
    """What decides how long a step takes, the method aside; None: whatever it is."""

    net: str
    device: str  # its kind
    image: tuple[int, ...] | None = None  # channels, height, width
    precision: str | None = None

    def is_of(self, run: Run) -> bool:
        facts = kind_of(run), as_fast(str(run.protocol.get("net")))
        image, precision = tuple(run.info.get("image", ())), run.protocol.get("precision")
        return (
            facts == (self.device, as_fast(self.net))
            and self.image in (None, image)
            and self.precision in (None, precision)
        )


def finished_runs(folder: Path) -> list[Run]:
    """Those below a folder that can be read, as far as their speed needs it: a folder may hold thousands."""
    found = []
    for path, _ in run_folders(folder):
        with suppress(BdrError, OSError):
            found += [Run.open(path)] if is_done(path) else []
    return found


def measured(runs: Iterable[Run], spec: str, setup: Setup, jobs: int = 1, any_method: bool = True) -> Speed | None:
    """The speed that records of such a setup show, if there are any.

    A method may run several networks at once, and so may a plug-in: records of the same run are the best, then those of
    the same method, whatever its plug-ins, then those of any, where these count at all.
    """
    fitting, method = [run for run in runs if setup.is_of(run)], spec.split("+")[0]
    same_run = [run for run in fitting if run.title == spec]
    same_method = [run for run in fitting if run.title.split("+")[0] == method]
    others = fitting if any_method else []
    nearness = ((same_run, spec), (same_method, f"{method} with any plug-ins"), (others, "other methods"))
    return next((speed for near, of in nearness if (speed := side_by_side(near, of, jobs))), None)


def side_by_side(runs: Sequence[Run], of: str, jobs: int) -> Speed | None:
    """Runs side by side slow each other down, so records of as many side by side as are asked for now are the best.

    Then those of runs alone, then of the most side by side, and last those of which it is not known.
    """
    known = sorted({beside for run in runs if (beside := run.info.get("side_by_side"))}, reverse=True)
    alike = (([run for run in runs if run.info.get("side_by_side") == n], n) for n in (jobs, 1, *known, None))
    return next((speed for each, n in alike if (speed := speed_of(each, of, n))), None)


def speed_of(runs: Sequence[Run], of: str, beside: int | None) -> Speed | None:
    """The median of runs, not of all their epochs: some may have had much more company on the device than others."""
    first, later = ([speed for run in runs if (speed := pace(run, later))] for later in (False, True))
    if not first or not later:
        return None
    names = sorted({str(run.info["device"].get("name")) for run in runs})
    return Speed(median(first), median(later), len(runs), of, ", ".join(names), beside)


def pace(run: Run, later: bool) -> float | None:
    """Images a second of the main stage, in the first phase or later; turns of what alternates with it take time too.

    Stages that follow it do not count: they may have less to do.
    """
    others = stages_planned(run.info.get("work") or []) - {MAIN}
    lines = (line for line in run.epochs if (line["phase"] > 0) is later and line.get("stage", MAIN) not in others)
    told = [images / seconds for images, seconds in epochs_told(lines, {MAIN})]
    return median(told) if told else None


def as_fast(net: str) -> str:
    """The network, however it starts: `resnet18-der` is as fast as `resnet18`."""
    return net.removesuffix("-der")


def kind_of(run: Run) -> str | None:
    return (run.info.get("device") or {}).get("type")
