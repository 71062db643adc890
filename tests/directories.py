"""Run directories as the engine would leave them, made in milliseconds."""

from pathlib import Path

import numpy as np

from bdr.metrics import by_phase, old_and_new, top_k
from bdr.records import Run, RunWriter

PHASES = [[0, 4], [4, 6], [6, 8], [8, 10]]
CLASSES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
PROTOCOL = {"data": "digits", "order": "seed1993", "base": 4, "step": 2, "memory": "3 per class", "readout": "cnn"}


def gone_on(path, offsets):
    """The writer of a run that goes on where a checkpoint stands, which takes it up as the engine does."""
    writer = RunWriter.alone(path)
    with writer.closed_on_failure():
        writer.refuse_lost(offsets)
        writer.cut_back(offsets)
    return writer


def draw_predictions(rng, phase, skill):
    """Labels (N,) and ids (N, 5) best first, of a model that is right with a chance of `skill` on old classes."""
    old, seen = PHASES[phase]
    labels = np.repeat(np.arange(seen), 20)
    scores = rng.random((len(labels), seen))
    right = rng.random(len(labels)) < np.where(labels < old, skill, 0.97)
    scores[np.arange(len(labels)), labels] = np.where(right, 2.0, scores[np.arange(len(labels)), labels])
    return labels, np.argsort(-scores, axis=1)[:, :5]


def phase_line(phase, labels, ids):
    old, seen = PHASES[phase]
    on_old, on_new = old_and_new(labels, ids, old)
    return {
        "phase": phase,
        "old": old,
        "seen": seen,
        "accuracy": {"cnn": float(np.mean(ids[:, 0] == labels) * 100)},
        "top5": {"cnn": top_k(labels, ids)},
        "accuracy_old": None if on_old is None else {"cnn": on_old},
        "accuracy_new": {"cnn": on_new},
        "by_phase": {"cnn": by_phase(labels, ids, PHASES[: phase + 1])},
        "parameters": 1000 + phase,
        "seconds": 12.5,
        "steps_per_epoch": 10,
    }


def epoch_line(title, phase, epoch):
    line = {"phase": phase, "stage": "main", "epoch": epoch, "images_per_second": 1000.0 + epoch}
    if "bdr" in title and phase:
        line["plugins"] = {"bdr": {"offset_old": -1.0 - epoch / 10, "offset_new": 1.5 + phase / 10}}
    return line


def destruction_series(rng, height, steps=200):
    time = np.arange(steps) / 20
    return 0.2 + height * time * np.exp(1 - time) + 0.1 * rng.random(steps)


def make_run(folder, title="ucir", seed=1993, skill=0.8, height=1.0, phases=4, done=True, **changes):
    """A run directory as the engine would leave it."""
    rng = np.random.default_rng([seed, int(skill * 100)])
    info = {
        "title": title,
        "seed": seed,
        "fingerprint": "3fa9c1",
        "protocol": PROTOCOL,
        "classes": CLASSES,
        "phases": PHASES,
        "distillation": "less_forget",
        "config": {"stage": {"epochs": 20}},
        "command": f"bdr run {title} --seed {seed}",
        "versions": {"bdr": "0.1", "python": "3.11"},
        "device": "cpu",
        "created": "2024-01-01T00:00:00",
        **changes,
    }
    writer = RunWriter.create(Path(folder) / f"{title}-{seed}", info)
    for phase in range(phases):
        labels, ids = draw_predictions(rng, phase, skill)
        writer.predictions(phase, labels, {"cnn": (ids, np.full(ids.shape, 0.2))})
        empty = np.full(200, np.nan)
        ce_old = destruction_series(rng, height) if phase else empty
        writer.steps(phase, 0, ce_old, ce_old / 10)
        writer.phase(phase_line(phase, labels, ids))
        for epoch in range(3):
            writer.epoch(epoch_line(title, phase, epoch))
    if done:
        writer.finish()
    return Run.open(writer.path)


def read_by(run, nme=5.0):
    """The run, read by nearest means too, which are right so many points more often."""
    phases = [{**line, "accuracy": {**line["accuracy"], "nme": line["accuracy"]["cnn"] + nme}} for line in run.phases]
    return Run(run.path, run.info, phases, run.done)


def with_protocol(folder, title="ucir", seed=1993, settings=None, **facts):
    """A run under a protocol that is changed in some facts, or with settings of its own."""
    changed = {"protocol": {**PROTOCOL, **facts}, "fingerprint": f"{sorted(facts.items())}{settings}"}
    config = {"settings": settings or {}, "stage": {"epochs": facts.get("epochs", 20)}}
    return make_run(Path(folder) / str(changed["fingerprint"]), title, seed, config=config, **changed)
