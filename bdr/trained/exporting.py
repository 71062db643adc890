"""The model of a run as one file that needs no bdr: pixels go in, scores come out, and all facts needed are inside."""

from __future__ import annotations

import importlib.util
import io
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from bdr.engine.step import set_precision
from bdr.errors import BdrError, UsageError
from bdr.methods import Method
from bdr.planning.describe import versions
from bdr.records import Run, write_atomically
from bdr.records.files import check_folder_of, to_json
from bdr.types import ImageShape

ABOUT = "bdr"  # the name in the file under which the facts of the model stand, as JSON
IMAGES = "images"  # the name of the input
SHOWN = 4  # images in the batch for tracing: torch would take a size of 1 for a fixed one
COLOURS = {1: "grey", 3: "RGB"}  # by channels


class FromPixels(nn.Module):
    """A model with the steps before and after it: pixels from 0 to 255 go in, scores or probabilities come out."""

    mean: Tensor  # (C, 1, 1)
    std: Tensor

    def __init__(self, method: Method, run: Run, readout: str, probabilities: bool, device: torch.device) -> None:
        super().__init__()
        mean, std = (torch.tensor(values, device=device).view(-1, 1, 1) for values in run.normalisation)
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)
        self.method, self.readout, self.probabilities = method, readout, probabilities

    def forward(self, images: Tensor) -> Tensor:
        """(B, K): scores or probabilities of images (B, C, H, W), uint8."""
        scores = self.method.readouts((images.float() / 255 - self.mean) / self.std)[self.readout].float()
        return scores.softmax(1) if self.probabilities else scores


def check_file(file: Path, force: bool) -> None:
    """Refuse a file that cannot or should not be written, before anything is loaded."""
    if file.suffix.lower() not in WRITERS:
        raise UsageError(f"'{file}' says no format that a model is exported in: end it in {' or '.join(WRITERS)}")
    check_folder_of(file)
    if file.exists() and not force:
        raise UsageError(f"{file} exists already: add --force (force=True in Python) to write over it")
    missing = [name for name in NEEDS.get(file.suffix.lower(), ()) if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"{file.suffix} needs {' and '.join(missing)}, not installed here: pip install 'bdr[onnx]'")


def write_model(
    file: Path, method: Method, run: Run, phase: int, readout: str, probabilities: bool, device: torch.device
) -> None:
    """Export a model to a file, always in float32: not every machine has bfloat16."""
    set_precision(method.float().requires_grad_(False), "fp32", device)
    model = FromPixels(method, run, readout, probabilities, device).eval()
    about = facts(run, phase, readout, probabilities)
    shown = torch.zeros(SHOWN, *run.info["image"], dtype=torch.uint8, device=device)
    try:
        with torch.no_grad(), quiet():
            exported = torch.export.export(model, (shown,), dynamic_shapes=any_batch())
            # Decomposed to be flat: a file with nested autocast, as a grown network has it, could not be opened again.
            content = WRITERS[file.suffix.lower()](exported.run_decompositions({}), about)
    except Exception as problem:  # code in the user's own network that torch cannot follow may raise any error
        why = str(problem).strip().partition("\n")[0] or type(problem).__name__
        raise BdrError(f"{run.path} cannot be exported as {file.suffix}: {why}") from problem
    write_atomically(file, content)


def any_batch() -> tuple[dict[int, Any]]:
    """Say that a batch may have any size. No constant: making it imports sympy, for which only exports should wait."""
    return ({0: Dim("batch")},)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence messages meant for those who write exporters, such as that there is no torchvision."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript")]
    before = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


def facts(run: Run, phase: int, readout: str, probabilities: bool) -> dict[str, Any]:
    """All that a user of the file alone must know."""
    image, (mean, std) = ImageShape(*run.info["image"]), run.normalisation
    return {
        "title": run.title,
        "seed": run.seed,
        "fingerprint": run.fingerprint,
        "phase": phase,
        "classes": run.info["classes"][: run.phases[phase]["seen"]],
        "readout": readout,
        "output": output_name(probabilities),
        "image": image._asdict(),
        "pixels": "uint8 from 0 to 255, (batch, channels, height, width); scaled and normalised inside",
        **({"pictures": as_read(image)} if image.height == image.width and image.channels in COLOURS else {}),
        "mean": mean,
        "std": std,
        "trained_with": run.info["versions"],
        "exported_with": versions(),
    }


def as_read(image: ImageShape) -> str:
    """In words, how `bdr.data.pictures` turns a picture into pixels."""
    return (
        f"upright by EXIF, on white, {COLOURS[image.channels]}, the middle square of each, scaled by Pillow's BILINEAR"
    )


def output_name(probabilities: bool) -> str:
    return "probabilities" if probabilities else "scores"


def as_pt2(exported: ExportedProgram, about: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    torch.export.save(exported, file, extra_files={ABOUT: to_json(about)})
    return file.getvalue()


def as_onnx(exported: ExportedProgram, about: dict[str, Any]) -> bytes:
    program = torch.onnx.export(
        exported,
        dynamo=True,
        verbose=False,
        input_names=[IMAGES],
        output_names=[about["output"]],
        dynamic_shapes=any_batch(),
    )
    assert program is not None  # only the former exporter of torch returns None
    program.model.metadata_props[ABOUT] = to_json(about)
    return program.model_proto.SerializeToString()


WRITERS: dict[str, Callable[[ExportedProgram, dict[str, Any]], bytes]] = {".pt2": as_pt2, ".onnx": as_onnx}
NEEDS = {".onnx": ("onnx", "onnxscript")}
