"""How many images a configuration trains on, computed without its data from the known sizes of data sets."""

from __future__ import annotations

from bdr.configuration.config import Config
from bdr.data.memory import Quota
from bdr.paper.mapping import CLASSES, IMAGES
from bdr.scenario import Protocol, class_order


def workload(config: Config) -> list[int]:
    """Images x epochs of every phase, counted as one stage over new images and exemplars."""
    quota, each = Quota.parse(config.memory), IMAGES[config.data]
    phases = Protocol(class_order(config.order, CLASSES[config.data]), config.base, config.step)
    drawn = [each * phase.new + (min(each, quota.each(phase.old)) * phase.old if phase.old else 0) for phase in phases]
    return [images * config.stage.epochs for images in drawn]
