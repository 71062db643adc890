"""The commands `bdr bench herding`, `bdr bench augment` and `bdr bench scaling`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from bdr.bench.cases import Shape, configuration, learner_of, random_images, seconds_of, time_case
from bdr.bench.tables import Measured
from bdr.bench.untrained import begun
from bdr.data.memory import HERDINGS
from bdr.errors import UsageError
from bdr.planning.describe import describe_device
from bdr.planning.parts import choose_device
from bdr.types import Stage


def bench_herding(device: str, classes: int, images: int, quota: int) -> Measured:
    """Time every herding on random features of ResNet-18's width, all classes at once and one by one."""
    where = choose_device(device)
    features = torch.nn.functional.normalize(torch.randn(classes, images, 512, device=where).double(), dim=2)
    present = torch.ones(classes, images, dtype=torch.bool, device=where)
    measured = Measured(
        f"Herding {quota} of {images} images, {classes} classes, {describe_device(where)['name']}", where
    )
    picking = {name: herding.pick for name, herding in HERDINGS.items() if herding and herding.gpus == 1}
    for name, herd in picking.items():
        herd(features[:1], present[:1], quota)
        together = seconds_of(lambda herd=herd: herd(features, present, quota), where)  # type: ignore[misc]
        singly = seconds_of(
            lambda herd=herd: [herd(features[k : k + 1], present[k : k + 1], quota) for k in range(classes)],  # type: ignore[misc]
            where,
        )
        measured.add(
            {"herding": name, "all at once ms": 1e3 * together, "one by one ms": 1e3 * singly}
            | {"factor": singly / together}
        )
    return measured


def bench_augment(device: str, batch: int, steps: int) -> Measured:
    """Time batched augmentation on the device against Pillow in one process."""
    from bdr.bench.baseline import Pictures

    where = choose_device(device)
    shape = Shape(classes=10, base=5, step=5, images=100)
    data = random_images(shape)
    learner = learner_of(configuration("ucir", shape, {"device": str(where), "net": "small"}), data)
    _, pool = begun(learner, 0)
    epoch = pool.epoch(Stage(batch=batch), 0, 0)
    pool.store.augmented(epoch.rows[0], epoch.draws.at(0))
    ours = seconds_of(lambda: [pool.store.augmented(epoch.rows[0], epoch.draws.at(0)) for _ in range(steps)], where)
    pictures = Pictures(data, shape.classes)
    theirs = seconds_of(lambda: [pictures[row % len(pictures)] for row in range(200)], torch.device("cpu"))
    batched, single = steps * epoch.rows.shape[1] / ours, 200 / theirs
    name = describe_device(where)["name"]
    measured = Measured(f"Crop, mirror and normalise, {name}, batch {epoch.rows.shape[1]}", where)
    measured.add({"batched images/s": batched, "Pillow, one process, images/s": single, "factor": batched / single})
    return measured


def bench_scaling(device: str, classes: Sequence[int], memories: Sequence[int], steps: int | None) -> Measured:
    """Measure how the time of a later step grows with the number of classes and with the memory."""
    where = choose_device(device)
    gpu = where.type == "cuda"
    if min(classes) < 4:
        raise UsageError(f"--classes {min(classes)}: a later phase needs 4 classes or more")
    measured = Measured(f"A later step of ucir+bdr, {describe_device(where)['name']}", where)
    for count in classes:
        for memory in memories:
            shape = Shape(count, count // 2, count // 2, max(4, memory), 32 if gpu else 8, f"{memory}/class")
            fields: dict[str, Any] = {"device": str(where)}
            fields["stage"] = {"batch": 128 if gpu else 32}
            timing = time_case("ucir+bdr", 1, shape, random_images(shape), steps or (200 if gpu else 3), fields)
            speed = {"ms/step": timing.ms_per_step, "images/s": timing.images_per_second}
            measured.add({"classes": count, "memory": f"{memory}/class"} | speed)
    return measured
