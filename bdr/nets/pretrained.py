"""Weights from a file of the user's own: safetensors, checked name by name and shape by shape."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from bdr.errors import BdrError, shortened

NAMED = 3  # how many of the wrong names an error lists


def checksum(path: str, how_to_get: str) -> str:
    """The sha256 of a file; if there is no such file, an error that says how to get it."""
    try:
        with Path(path).expanduser().open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"weights '{path}' do not exist; {how_to_get}") from None
    except IsADirectoryError:
        raise ValueError(f"weights '{path}' is a folder: name the safetensors file in it") from None
    except OSError as error:
        raise ValueError(f"weights '{path}' cannot be read ({error.strerror})") from None


def refuse_another(path: str, found: str, wanted: str | None) -> None:
    """Refuse a file with another sha256: names and shapes are right even if it is damaged or of another release."""
    if wanted is not None and wanted.lower() != found:
        raise ValueError(
            f"weights '{path}' have sha256 {found}, and sha256 = {wanted} is asked for: download the file anew, or ask "
            "for the sum that it has"
        )


def read_weights(path: str, wanted: Mapping[str, Tensor], ignored: str) -> dict[str, Tensor]:
    """The tensors of a file, checked to be those wanted; other names may be there if they begin with `ignored`."""
    try:
        found = {
            name: value for name, value in load_file(Path(path).expanduser()).items() if not name.startswith(ignored)
        }
    except SafetensorError as error:
        raise BdrError(f"weights '{path}' cannot be read: {error}; is it a safetensors file, and whole?") from error
    if missing := [name for name in wanted if name not in found]:
        raise ValueError(f"weights '{path}' are of another network: {shortened(missing, NAMED)} missing in it")
    if strange := [name for name in found if name not in wanted]:
        raise ValueError(
            f"weights '{path}' are of another network: it has {shortened(strange, NAMED)}, which this one has not"
        )
    for name, value in found.items():
        if value.shape != wanted[name].shape:
            sizes = f"{tuple(value.shape)}, and {tuple(wanted[name].shape)} here"
            raise ValueError(f"weights '{path}' are of another network: {name} is {sizes}")
        if not value.is_floating_point():
            raise ValueError(f"weights '{path}' are no weights: {name} is {value.dtype}; use a file in float32 or half")
    return found
