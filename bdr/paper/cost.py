"""How long missing runs take: images that pass through training, over a speed that was measured."""

from __future__ import annotations

from collections.abc import Iterable
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
    device: str

    def seconds(self, config: Config) -> float:
        first, *later = workload(config)
        return first / self.first + sum(later) / self.later


def workload(config: Config) -> list[int]:
    """Images x epochs of every phase, as one stage over new images and exemplars."""
    quota, each = Quota.parse(config.memory), IMAGES[config.data]
    phases = Protocol(class_order(config.order, CLASSES[config.data]), config.base, config.step)
    drawn = [each * phase.new + (quota.each(phase.old) * phase.old if phase.old else 0) for phase in phases]
    return [images * config.stage.epochs for images in drawn]


def measured(runs: Iterable[Run], net: str, device: str) -> Speed | None:
    """The speed that records of the same network and kind of device show, if there are any."""
    fitting = [run for run in runs if run.protocol.get("net") == net and kind_of(run) == device]
    lines = [line for run in fitting for line in run.epochs if line.get("images_per_second")]
    first = [line["images_per_second"] for line in lines if line["phase"] == 0]
    later = [line["images_per_second"] for line in lines if line["phase"] > 0]
    if not first or not later:
        return None
    names = sorted({str(run.info["device"].get("name")) for run in fitting})
    return Speed(median(first), median(later), len(fitting), ", ".join(names))


def kind_of(run: Run) -> str | None:
    return (run.info.get("device") or {}).get("type")
