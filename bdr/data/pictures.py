"""Pictures in folders, a folder for each class, read with Pillow as RGB squares of one size."""

from __future__ import annotations

import math
import os
import unicodedata
import warnings
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bdr.data.images import Images
from bdr.data.reading import side_by_side
from bdr.errors import BdrError, UsageError, shortened

if TYPE_CHECKING:
    from PIL import Image

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
SOME = 10  # how many unreadable pictures an error names
USUAL, LARGE = 32, 224  # pixels per side of a picture as it is read: by default, and for large networks
LOOKED_AT, SHRUNK = 100, 1.25  # how many pictures are measured, and how much larger than the size read they may be
LEFT_FREE = 4  # an advised size fills a quarter of the memory: training needs the rest
APART = ("test", "val")  # folders that may hold the test classes apart; the first one counts if both do
Labelled = list[tuple[Path, int]]  # files, each with the label of its class
LAYOUT = "expected is ROOT/train/CLASS/*.png and ROOT/test/CLASS/*.png, or ROOT/CLASS/*.png"


class Unreadable(BdrError):
    """The error for a file that should be a picture and cannot be used as one."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path} {why}")
        self.path = path


class EmptyFolder(UsageError):
    """The error for the folder of a class that has no picture."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.lacks = folder, f"class folder {folder} holds no pictures ({', '.join(ENDINGS)})"
        mistyped = folder.name != folder.name.lower() and folder.name.lower() in ("train", *APART)
        instead = "did you mean train/ and test/ in small letters?" if mistyped else "fill or remove it;"
        super().__init__(f"{self.lacks}: {instead} {LAYOUT}")


def folders_of(root: str | os.PathLike[str] | None) -> tuple[Path, Path | None]:
    """The folder of the training classes, and that of the test classes if they have one of their own."""
    if root is None or not os.path.isdir(Path(root)):
        given = "no root" if root is None else f"'{root}', which is no folder"
        raise UsageError(f"imagefolder needs a folder of pictures and was given {given}; {LAYOUT}")
    root = Path(root)
    if not (os.path.isdir(root / "train") and subfolders(root / "train")):  # a class may be called "train"
        return root, None
    return root / "train", next(iter(test_folders(root)), None)


def test_folders(root: str | os.PathLike[str] | None) -> list[Path]:
    """The folders in `root` that may hold the test classes apart."""
    places = [] if root is None else [Path(root) / name for name in APART]
    return [place for place in places if os.path.isdir(place)]


def subfolders(folder: Path) -> list[Path]:
    """The folders in a folder, sorted by name, hidden ones left out."""
    try:
        return sorted(
            (path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")), key=name_of
        )
    except OSError as problem:
        raise BdrError(f"{folder} cannot be read: {problem.strerror}") from problem


def name_of(path: Path) -> str:
    """The name of a file or folder, in the form of Unicode that most keyboards type.

    A Mac may have written the same name with its dots and accents as separate letters, which looks no different.
    """
    return unicodedata.normalize("NFC", path.name)


def class_folders(folder: Path) -> dict[str, Path]:
    """The folder of each class, by its name."""
    found: dict[str, Path] = {}
    refuse_lost_links(folder)
    for path in subfolders(folder):
        if (name := name_of(path)) in found:
            raise UsageError(
                f"{folder} has two folders that read '{name}', the letters of one composed and of the other not: "
                "put the pictures of both into one"
            )
        found[name] = path
    return found


def refuse_lost_links(folder: Path) -> None:
    """Refuse links that lead nowhere where the folders of the classes are: each may be a class."""
    lost = sorted(path.name for path in folder.iterdir() if not path.name.startswith(".") and leads_nowhere(path))
    if lost:
        raise UsageError(
            f"{folder} has links to what is not there ({shortened(lost)}), which may be folders of classes: put back "
            "what they link to, or remove them"
        )


def class_names(folder: Path, only: Collection[str] = ()) -> tuple[str, ...]:
    """The classes of a folder; if `only` names some, those of them alone."""
    classes = tuple(class_folders(folder))
    if not classes:
        raise UsageError(f"no classes in {folder}: it has no folders; {LAYOUT}")
    return tuple(name for name in classes if name in only or not only)


def check_same_classes(train_at: Path, train: Sequence[str], test_at: Path, test: Sequence[str]) -> None:
    lacking = {str(train_at): set(test) - set(train), str(test_at): set(train) - set(test)}
    for folder, names in lacking.items():
        if names:
            some = shortened(sorted(names))
            raise UsageError(f"{train_at} and {test_at} must hold the same classes: {folder} lacks {some}")


def check_counts(folder: Path, train: Images, classes: Sequence[str]) -> None:
    """Refuse a class of one picture, which cannot be split into training and test."""
    for name, count in zip(classes, np.bincount(train.labels), strict=True):
        if count < 2:
            raise UsageError(f"class '{name}' in {folder} has one picture, and some are held out as test; add one")


def pictures(files: Sequence[Labelled], size: int) -> list[Images]:
    """Read the pictures of each list of files, in its order."""
    bounds = np.cumsum([len(mine) for mine in files])[:-1]
    pixels = np.split(read_all([path for mine in files for path, _ in mine], size), bounds)
    names = [np.array([name_of(path) for path, _ in mine], dtype=object) for mine in files]
    labels = [np.array([label for _, label in mine], dtype=np.int64) for mine in files]
    return [Images(*each) for each in zip(pixels, labels, names, strict=True)]


def labelled_files(folder: Path, classes: Sequence[str]) -> Labelled:
    """All pictures of all classes, class by class, sorted by file name."""
    places = class_folders(folder)
    say_what_has_no_class(folder)
    return [(path, label) for label, name in enumerate(classes) for path in picture_files(places[name])]


def read_all(files: Sequence[Path], size: int) -> np.ndarray:
    """(N, size, size, 3): the pixels of all files. One error names all that cannot be read, not one file at a time."""
    check_room(len(files), size)
    pixels, wrong = np.empty((len(files), size, size, 3), dtype=np.uint8), []
    for row, each in enumerate(side_by_side(files, partial(read_or_told, size=size))):
        if isinstance(each, Unreadable):
            wrong.append(each)
        else:
            pixels[row] = each
    if len(wrong) == 1:
        raise wrong[0]
    if wrong:
        more = [f"and {len(wrong) - SOME} more"] if len(wrong) > SOME else []
        lines = [f"{len(wrong)} of {len(files)} pictures cannot be used:", *map(str, wrong[:SOME]), *more]
        raise BdrError("\n  ".join(lines))
    return pixels


def check_room(count: int, size: int) -> None:
    """Refuse pictures that need more memory than the machine has, since all pixels are held at once."""
    need, there = count * size * size * 3, memory_there()
    if there is not None and need > there:
        fitting = min(LARGE, math.isqrt(there // (LEFT_FREE * count * 3)))
        raise UsageError(
            f"{count} pictures of {size} x {size} pixels need {need / 2**30:,.1f} GiB of memory, and this machine has "
            f"{there / 2**30:,.1f}: use a smaller --size, such as {fitting}"
        )


def memory_there() -> int | None:
    """The memory of this machine in bytes; None if it cannot be found out."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def say_if_shrunk(files: Sequence[Path], size: int) -> None:
    """Warn if pictures are made much smaller by the default size, which is quick to train on but perhaps not intended.

    Nobody who has chosen another size is warned.
    """
    some = files[:: max(1, len(files) // LOOKED_AT)]
    side = int(np.median([shorter_side(path) for path in some])) if size == USUAL else 0
    if side > SHRUNK * size:
        warnings.warn(
            f"pictures of about {side} pixels are made {size} x {size}: --size {min(side, LARGE)} keeps more of them, "
            "and takes longer",
            stacklevel=3,
        )


def shorter_side(path: Path) -> int:
    """The shorter side of a picture in pixels; 0 if it cannot be read, which is reported when it is read in full."""
    try:
        from PIL import Image

        with Image.open(path) as image:
            return min(image.size)
    except Exception:  # decoders of broken files raise whatever they stumble over
        return 0


def picture_files(folder: Path) -> list[Path]:
    try:
        files = sorted((path for path in folder.iterdir() if is_picture(path)), key=name_of)
    except OSError as problem:
        raise BdrError(f"{folder} cannot be read: {problem.strerror}") from problem
    say_what_is_left_out(folder)
    if not files:
        raise EmptyFolder(folder)
    return files


def say_what_has_no_class(folder: Path) -> None:
    """Warn of pictures beside the folders of the classes."""
    stray = sorted(name_of(path) for path in folder.iterdir() if is_picture(path))
    if stray:
        warnings.warn(
            f"{folder}: pictures beside the folders of the classes are left out ({shortened(stray)}): put each into "
            "the folder of its class",
            stacklevel=2,
        )


def say_what_is_left_out(folder: Path) -> None:
    """Warn of files of other kinds and of pictures in deeper folders; hidden ones are hidden on purpose."""
    seen = [path for path in folder.iterdir() if not path.name.startswith(".")]
    others = [path for path in seen if path.is_file() and not is_picture(path)]
    kinds = [f"ending in {', '.join(ends)}"] if (ends := sorted({path.suffix for path in others} - {""})) else []
    kinds += ["without an ending"] if any(not path.suffix for path in others) else []
    if kinds:
        warnings.warn(f"{folder}: files {' and '.join(kinds)} are left out", stacklevel=2)
    deeper = sorted(path.name for path in seen if path.is_dir() and holds_pictures(path))
    if deeper:
        warnings.warn(
            f"{folder}: pictures in folders below it are left out ({shortened(deeper)}): put them beside the others",
            stacklevel=2,
        )


def holds_pictures(folder: Path) -> bool:
    with suppress(OSError):  # nothing in it is needed
        return any(map(is_picture, folder.iterdir()))
    return False


def is_picture(path: Path) -> bool:
    """Whether a file is named as a picture; a link that leads nowhere is one that cannot be read."""
    named = path.suffix.lower() in ENDINGS and not path.name.startswith(".")
    return named and (path.is_file() or leads_nowhere(path))


def leads_nowhere(path: Path) -> bool:
    return path.is_symlink() and not path.exists()


def read_or_told(path: Path, size: int, mode: str = "RGB") -> np.ndarray | Unreadable:
    try:
        return picture(path, size, mode)
    except Unreadable as problem:
        return problem


def picture(path: Path, size: int, mode: str = "RGB") -> np.ndarray:
    """The middle square of a picture, (size, size, channels), in one of Pillow's modes."""
    try:
        from PIL import Image
    except ImportError:
        raise UsageError("pictures are read with Pillow, which is missing; type: pip install 'bdr[images]'") from None
    if leads_nowhere(path):
        raise Unreadable(path, f"is a link to {path.readlink()}, which is not there; put that back, or remove the link")
    try:
        with Image.open(path) as image:
            if image.mode[0] in "IF":  # Pillow would clip these to white without a word
                raise Unreadable(path, f"has more than 8 bits a channel (mode {image.mode}); save it with 8 bits")
            seen = on_white(upright(image)).convert(mode)
            square = seen.resize((size, size), Image.Resampling.BILINEAR, middle(*seen.size))
            return np.asarray(square).reshape(size, size, -1)
    except BdrError:
        raise
    except Exception as problem:  # decoders of broken files raise whatever they stumble over
        raise Unreadable(path, f"is no readable picture ({problem}); replace or remove it") from problem


def upright(image: Image.Image) -> Image.Image:
    """An image turned as it was seen: a phone held upright notes that in EXIF and leaves the pixels lying."""
    from PIL import ImageOps

    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # an unreadable note counts as none; unreadable pixels are reported elsewhere
        return image


def on_white(image: Image.Image) -> Image.Image:
    """An image on white if it has transparency: its invisible pixels have whatever colour a program left there."""
    from PIL import Image

    if image.mode not in ("RGBA", "LA", "PA") and "transparency" not in image.info:
        return image
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))


def middle(width: int, height: int) -> tuple[float, float, float, float]:
    """The box of the largest centred square; scaled, it equals the centre crop of the picture scaled to that side."""
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side
