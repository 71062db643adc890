"""How fast runs were, from their records; used to estimate how long similar runs will take."""

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
    """Images a second on a kind of device, in the first phase and in later ones, which have a teacher."""

    first: float
    later: float
    records: int  # how many runs were measured
    of: str  # which runs these were, in words
    device: str  # the names of the devices they ran on
    beside: int | None  # how many runs shared the device, this one included; None: not recorded

    @property
    def circumstances(self) -> str:
        if self.beside is None:
            return "one after the other, if those that were measured had the device to themselves"
        return "one after the other" if self.beside == 1 else f"{self.beside} side by side (--jobs {self.beside})"

    @property
    def told(self) -> str:
        return f"{self.records} record{'' if self.records == 1 else 's'} of {self.of} on {self.device}"

    def seconds(self, images: Sequence[int]) -> float:
        """The seconds of a run that trains on so many images in each of its phases."""
        first, *later = images
        return first / self.first + sum(later) / self.later


class Setup(NamedTuple):
    """What decides how long a step takes, apart from the method; None matches anything."""

    net: str
    device: str  # cpu or cuda
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
    """The readable finished runs below a folder; only what speeds need is read, as there may be thousands."""
    found = []
    for path, _ in run_folders(folder):
        with suppress(BdrError, OSError):
            found += [Run.open(path)] if is_done(path) else []
    return found


def measured(runs: Iterable[Run], spec: str, setup: Setup, jobs: int = 1, any_method: bool = True) -> Speed | None:
    """The speed that the runs of this setup show; None if there are none.

    Methods and plug-ins may run several networks at once, so runs with the same title are the best guide, then those of
    the same method with any plug-ins, then (with `any_method`) those of other methods.
    """
    fitting, method = [run for run in runs if setup.is_of(run)], spec.split("+")[0]
    same_run = [run for run in fitting if run.title == spec]
    same_method = [run for run in fitting if run.title.split("+")[0] == method]
    others = fitting if any_method else []
    nearness = ((same_run, spec), (same_method, f"{method} with any plug-ins"), (others, "other methods"))
    return next((speed for near, of in nearness if (speed := side_by_side(near, of, jobs))), None)


def side_by_side(runs: Sequence[Run], of: str, jobs: int) -> Speed | None:
    """The speed of those runs that shared their device in the way most like `jobs` runs side by side.

    Runs side by side slow each other down. The best guide are runs of which as many shared a device, then runs that had
    it alone, then those with the most company, and last those that did not record it.
    """
    known = sorted({beside for run in runs if (beside := run.info.get("side_by_side"))}, reverse=True)
    alike = (([run for run in runs if run.info.get("side_by_side") == n], n) for n in (jobs, 1, *known, None))
    return next((speed for each, n in alike if (speed := speed_of(each, of, n))), None)


def speed_of(runs: Sequence[Run], of: str, beside: int | None) -> Speed | None:
    """The median speed of some runs; None if they show none for the first phase or for later ones.

    It is taken over runs, not over all their epochs: some may have had much more company on the device than others.
    """
    first, later = ([speed for run in runs if (speed := pace(run, later))] for later in (False, True))
    if not first or not later:
        return None
    names = sorted({str(run.info["device"].get("name")) for run in runs})
    return Speed(median(first), median(later), len(runs), of, ", ".join(names), beside)


def pace(run: Run, later: bool) -> float | None:
    """Images a second of a run's main stage, in the first phase or in later ones; None if no epoch tells.

    The time of a stage that alternates with it is included. Other stages do not count: they may have less to do.
    """
    others = stages_planned(run.info.get("work") or []) - {MAIN}
    lines = (line for line in run.epochs if (line["phase"] > 0) is later and line.get("stage", MAIN) not in others)
    told = [images / seconds for images, seconds in epochs_told(lines, {MAIN})]
    return median(told) if told else None


def as_fast(net: str) -> str:
    """The name of a network without its kind of initial weights: `resnet18-der` is as fast as `resnet18`."""
    return net.removesuffix("-der")


def kind_of(run: Run) -> str | None:
    return (run.info.get("device") or {}).get("type")
