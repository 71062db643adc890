"""The CIFAR files as their authors publish them: where they are, their checksums, and how to read them safely.

They are pickles, and a pickle can run any code: so a file is read only if its checksum is the published one, and even
then by a reader that knows numpy arrays and plain values alone.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bdr.errors import BdrError, UsageError, unknown

HOST = "https://www.cs.toronto.edu/~kriz/"
SAFE = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
}


@dataclass(frozen=True, slots=True)
class Published:
    """One published archive, the files in it by md5, and the keys under which they hold labels and class names."""

    archive: str
    md5: str
    folder: str
    files: Mapping[str, str]
    train: tuple[str, ...]
    test: tuple[str, ...]
    meta: str
    labels: str
    names: str

    @property
    def url(self) -> str:
        return HOST + self.archive


PUBLISHED = {
    "cifar10": Published(
        archive="cifar-10-python.tar.gz",
        md5="c58f30108f718f92721af3d95e74349a",
        folder="cifar-10-batches-py",
        files={
            "data_batch_1": "c99cafc152244af753f735de768cd75f",
            "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "634d18415352ddfa80567beed471001a",
            "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
            "test_batch": "40351d587109b95175f43aff81a1287e",
            "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
        },
        train=("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5"),
        test=("test_batch",),
        meta="batches.meta",
        labels="labels",
        names="label_names",
    ),
    "cifar100": Published(
        archive="cifar-100-python.tar.gz",
        md5="eb9058c3a382ffc7106e4002c42a8d85",
        folder="cifar-100-python",
        files={
            "train": "16019d7e3df5f24257cddd939b257f8d",
            "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
            "meta": "7973b15100ade9c7d40fb424638fde48",
        },
        train=("train",),
        test=("test",),
        meta="meta",
        labels="fine_labels",
        names="fine_label_names",
    ),
}


def published(name: str) -> Published:
    """The published archive of that name."""
    if name not in PUBLISHED:
        raise unknown("published data set", name, PUBLISHED)
    return PUBLISHED[name]


def folder_of(name: str, root: str | os.PathLike[str]) -> Path:
    """The folder of the files, which `root` may hold or may be itself."""
    data, root = published(name), Path(root)
    inner = root / data.folder
    itself = root.absolute().name == data.folder or all(os.path.isfile(root / file) for file in data.files)
    return root if itself and not os.path.isdir(inner) else inner


def md5_of(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def read(name: str, folder: Path, file: str) -> dict[str, Any]:
    """The dictionary in one of the files, once its checksum is verified."""
    path = folder / file
    content = content_of(name, path)
    given, expected = md5_of(content), published(name).files[file]
    if given != expected:
        raise BdrError(
            f"{path} is damaged: its {len(content):,} bytes have md5 {given}, the published file has {expected}; "
            f"{how_to_fetch(name)}"
        )
    return unpickled(content, path)


def content_of(name: str, path: Path) -> bytes:
    """The bytes of a file, or an error that says how to get it."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"{name} needs {path}, which does not exist; {how_to_fetch(name)}") from None
    except (OSError, ValueError) as problem:
        raise BdrError(f"{path} cannot be read ({problem}); {how_to_fetch(name)}") from problem


def how_to_fetch(name: str) -> str:
    return f"to get a good copy, type: bdr data fetch {name} --root DIR"


def unpickled(content: bytes, path: Path) -> dict[str, Any]:
    """The dictionary that a pickle holds, made of arrays and plain values only."""
    try:
        found = SafeUnpickler(content, path).load()
    except BdrError:
        raise
    except Exception as problem:  # a broken pickle may raise anything
        raise BdrError(f"{path} is cut short or no pickle ({problem}); fetch it anew") from problem
    if not isinstance(found, dict):
        raise BdrError(f"{path} holds a {type(found).__name__}, not the dictionary of a CIFAR file; fetch it anew")
    return found


class SafeUnpickler(pickle.Unpickler):
    """Reads numpy arrays and plain values; a file that names anything else is refused."""

    def __init__(self, content: bytes, path: Path) -> None:
        super().__init__(io.BytesIO(content), encoding="latin1")
        self.path = path

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in SAFE:
            raise BdrError(f"{self.path} tries to load {module}.{name} and was not read: CIFAR files hold arrays only")
        return super().find_class(module, name)
