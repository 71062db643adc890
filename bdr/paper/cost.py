"""How long missing runs take: images that pass through training, over a speed that was measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from bdr.config import Config
from bdr.data.memory import Quota
from bdr.paper.mapping import CLASSES, IMAGES
from bdr.records import Run
from bdr.scenario import Protocol, class_order


@dataclass(frozen=True)
class Speed:
    """Images a second of a network on a kind of device, in the first phase and, with a teacher, in later ones."""

    first: float
    later: float
    records: int
    device: str  # where they were made, in words: its name, and whether each run had it to itself

    def seconds(self, config: Config) -> float:
        first, *later = workload(config)
        return first / self.first + sum(later) / self.later


def workload(config: Config) -> list[int]:
    """Images x epochs of every phase, as one stage over new images and exemplars."""
    quota, each = Quota.parse(config.memory), IMAGES[config.data]
    phases = Protocol(class_order(config.order, CLASSES[config.data]), config.base, config.step)
    drawn = [each * phase.new + (min(each, quota.each(phase.old)) * phase.old if phase.old else 0) for phase in phases]
    return [images * config.stage.epochs for images in drawn]


def measured(runs: Iterable[Run], net: str, device: str) -> Speed | None:
    """The speed that records of the same network and kind of device show, if there are any.

    Runs side by side slow each other down, so those that say they ran alone are preferred to all.
    """
    fitting = [run for run in runs if kind_of(run) == device and net_of(run) == net.split("-")[0]]
    alone = [run for run in fitting if run.info.get("side_by_side") == 1]
    return speed_of(alone, "each run alone") or speed_of(fitting, "some of them perhaps of runs side by side")


def speed_of(runs: Sequence[Run], circumstances: str) -> Speed | None:
    lines = [line for run in runs for line in run.epochs if line.get("images_per_second")]
    lines = [line for line in lines if line.get("stage", "main") == "main"]  # what follows it may have less to do
    first = [line["images_per_second"] for line in lines if line["phase"] == 0]
    later = [line["images_per_second"] for line in lines if line["phase"] > 0]
    if not first or not later:
        return None
    names = sorted({str(run.info["device"].get("name")) for run in runs})
    return Speed(median(first), median(later), len(runs), f"{', '.join(names)}, {circumstances}")


def net_of(run: Run) -> str:
    """The network, however it starts: `resnet18-der` is as fast as `resnet18`."""
    return str(run.protocol.get("net")).split("-")[0]


def kind_of(run: Run) -> str | None:
    return (run.info.get("device") or {}).get("type")
