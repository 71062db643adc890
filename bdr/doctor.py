"""What is installed, what is missing, and what the machine has."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path

from bdr.version import __version__

OK, MISSING = "ok", "--"
OPTIONAL = {
    "scikit-learn": "the digits data set: pip install 'bdr[digits]'",
    "pillow": "folders of images: pip install 'bdr[images]'",
    "matplotlib": "figures: pip install 'bdr[figures]'",
    "fastapi": "bdr watch: pip install 'bdr[watch]'",
    "uvicorn": "bdr watch: pip install 'bdr[watch]'",
    "onnx": "bdr export to .onnx: pip install 'bdr[onnx]'",
    "onnxscript": "bdr export to .onnx: pip install 'bdr[onnx]'",
    "tensorboard": "--log tensorboard: pip install 'bdr[tensorboard]'",
    "wandb": "--log wandb: pip install 'bdr[wandb]'",
    "mlflow-skinny": "--log mlflow: pip install 'bdr[mlflow]'",
}


def findings() -> Iterator[tuple[str, str, str]]:
    """Yield (mark, name, finding) for each thing that is looked at."""
    yield OK, "bdr", __version__
    yield OK, "python", platform.python_version()
    yield OK, "torch", torch_version()
    for name in ("numpy", "pydantic", "safetensors"):
        yield OK, name, importlib.metadata.version(name)
    for name, use in OPTIONAL.items():
        yield optional(name, use)
    yield from bytecode()
    yield from devices()
    yield OK, "cores", f"{os.cpu_count()}; OMP_NUM_THREADS=1 for networks as small as that of digits"
    yield OK, "memory", memory()
    free = shutil.disk_usage(".").free / 2**30
    yield (OK if free > 1 else MISSING), "disk", f"{free:.1f} GiB free here"


def torch_version() -> str:
    """torch's own version, with the CUDA that it was built for: the version of the wheel may leave that out."""
    import torch

    return torch.__version__


def optional(name: str, use: str) -> tuple[str, str, str]:
    try:
        return OK, name, importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return MISSING, name, f"missing; wanted for {use}"


def bytecode() -> Iterator[tuple[str, str, str]]:
    """A finding if torch's bytecode is not kept: each start then compiles thousands of modules, which takes seconds."""
    import torch

    if not Path(importlib.util.cache_from_source(str(torch.__file__))).exists():
        yield (
            MISSING,
            "bytecode",
            "Python keeps none of torch's: every start takes seconds longer; unset PYTHONDONTWRITEBYTECODE, "
            "or export PYTHONPYCACHEPREFIX=~/.cache/pycache where its folder cannot be written",
        )


def devices() -> Iterator[tuple[str, str, str]]:
    import torch

    if not torch.cuda.is_available():
        yield OK, "device", "CPU: good for digits; CIFAR-100 in full wants a CUDA GPU"
        return
    for number in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(number)
        yield OK, f"cuda:{number}", f"{about.name}, {about.total_memory / 2**30:.0f} GiB"
    from torch.utils._triton import has_triton

    yield (OK, "triton", "found") if has_triton() else (MISSING, "triton", "missing: steps are captured, not compiled")


def memory() -> str:
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return f"{pages * size / 2**30:.1f} GiB"
