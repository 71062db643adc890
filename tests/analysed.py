"""Small run directories as `bdr run --analyse` leaves them, made without training."""

from pathlib import Path

import numpy as np

from bdr.records import Run, RunWriter
from bdr.records.files import to_npz

PHASES = [[0, 4], [4, 6], [6, 8]]
CLASSES = ["zero", "one", "two", "three", "four", "five", "six", "seven"]
PROTOCOL = {"data": "digits", "order": "seed-1993", "base": 4, "step": 2, "memory": "3/class", "readout": "cnn"}
STEPS, EPOCH = 120, 6  # of a phase, and of an epoch


def make_run(folder, title="ucir+cwd", seed=1993, average=70.0, analyse=True, settings=None, phases=PHASES, **protocol):
    """A finished run; with BDR its losses and gradients are half as high."""
    facts = PROTOCOL | protocol
    info = {
        "title": title,
        "seed": seed,
        "fingerprint": "3fa9c1",
        "protocol": facts,
        "classes": CLASSES,
        "phases": phases,
        "distillation": "less_forget",
        "config": {"settings": settings or {}},
        "created": "2024-01-01T00:00:00",
        "analyse": analyse,
    }
    name = "-".join(map(str, [title, seed, *facts.values(), settings])).replace("/", "").replace(" ", "")
    writer = RunWriter.create(Path(folder) / name, info)
    rng = np.random.default_rng(seed)
    for phase, (old, seen) in enumerate(phases):
        writer.phase(phase_line(phase, old, seen, average))
        loss = destruction(rng, 0.5 if "bdr" in title else 1.0) if phase else np.full(STEPS, np.nan)
        writer.steps(phase, 0, loss, loss / 10)
    writer.finish()
    if analyse:
        write_analysis(writer.path, rng, phases, "bdr" in title)
    return Run.open(writer.path)


def phase_line(phase, old, seen, average):
    accuracy = {"cnn": average}
    facts = {
        "phase": phase,
        "old": old,
        "seen": seen,
        "accuracy": accuracy,
        "accuracy_new": accuracy,
        "parameters": 1000,
    }
    return facts | {"accuracy_old": accuracy, "by_phase": {"cnn": [average] * (phase + 1)}, "steps_per_epoch": EPOCH}


def destruction(rng, height):
    time = np.arange(STEPS) / 6
    return 0.3 + height * time * np.exp(1 - time) + 0.05 * rng.random(STEPS)


def write_analysis(path, rng, phases, balanced, images=10):
    series = {}
    for phase, (old, _) in list(enumerate(phases))[1:]:
        folder = path / f"phase-{phase:02d}"
        folder.mkdir(exist_ok=True)
        (folder / "snapshots.npz").write_bytes(to_npz(snapshots(rng, old, images, balanced)))
        noise = rng.lognormal(0, 0.2, (2, STEPS)).astype(np.float32)
        new = noise[0] * (1.5 if balanced else 6)
        new[3] = np.nan  # a batch without images of new classes
        of_phase = {"gradient_old": noise[1], "gradient_new": new, "ce_new": np.ones_like(new)}
        series |= {f"phase-{phase:02d}/{name}": values for name, values in of_phase.items()}
    (path / "analysis.npz").write_bytes(to_npz(series))


def snapshots(rng, old, images, balanced):
    """Old classes apart at first, on top of each other at the peak, half apart at the end."""
    labels = np.repeat(np.arange(old), images)
    centres, noise = rng.normal(size=(old, 8)), rng.normal(size=(len(labels), 8))
    apart = {"start": 6, "peak": 3 if balanced else 1, "end": 5 if balanced else 3}
    features = {f"{m}_features": (a * centres[labels] + noise).astype(np.float16) for m, a in apart.items()}
    steps = {"start_step": 0, "peak_step": 12, "end_step": STEPS}
    exemplar = np.arange(len(labels)) % images < 3
    return features | steps | {"labels": labels, "exemplar": exemplar, "classes": np.arange(old)}
