"""The data sets: what they hold, and what they say about files, folders and arrays that are not right."""

from __future__ import annotations

import builtins
import os
import pickle
import shutil
import subprocess
import sys
import unicodedata
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from bdr.data import ABOUT, DATASETS, pictures, sets
from bdr.data.published import PUBLISHED, md5_of
from bdr.errors import BdrError, UsageError

Image = pytest.importorskip("PIL.Image")
pytest.importorskip("sklearn")


def without(monkeypatch, module):
    """Makes `import module` fail, as if it were not installed."""
    real = builtins.__import__

    def importing(name, *rest):
        if name.partition(".")[0] == module:
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", importing)


# The table of contents


def test_every_data_set_has_a_line_about_it():
    assert list(ABOUT) == list(DATASETS) == ["digits", "cifar10", "cifar100", "imagefolder"]


def test_an_unknown_name_in_the_package_is_an_attribute_error():
    import bdr.data

    with pytest.raises(AttributeError, match="nothing_such"):
        _ = bdr.data.nothing_such


@pytest.mark.parametrize(
    ("module", "absent"),
    [("bdr.data.sets", {"sklearn", "PIL"}), ("bdr.data.fetch", {"torch", "numpy", "sklearn", "PIL"})],
)
def test_importing_brings_no_heavy_library_before_it_is_needed(module, absent):
    code = f"import sys, {module}; print(*{absent!r} & set(sys.modules))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert said.stdout.split() == []


# Digits


def test_digits_are_split_by_class_and_always_alike():
    first, second = sets.digits(), sets.digits()
    assert (len(first.train), len(first.test)) == (1346, 451)
    share = np.bincount(first.test.labels) / (np.bincount(first.test.labels) + np.bincount(first.train.labels))
    assert np.all(np.abs(share - 0.25) < 0.01)
    assert np.array_equal(first.test.pixels, second.test.pixels)
    assert first.source == second.source
    assert len(first.source) == 12


def test_digits_do_not_listen_to_the_seed():
    np.random.seed(1)
    first = sets.digits().test.pixels
    np.random.seed(2)
    assert np.array_equal(first, sets.digits().test.pixels)


def test_digits_fill_the_range_of_bytes_and_are_never_mirrored():
    digits = sets.digits()
    assert digits.train.pixels.shape[1:] == (8, 8, 1)
    assert digits.train.pixels.dtype == np.uint8
    assert digits.train.labels.dtype == np.int64
    assert (digits.train.pixels.min(), digits.train.pixels.max()) == (0, 255)
    assert digits.augment.pad == 1
    assert not digits.augment.flip


def test_the_statistics_of_digits_are_those_of_its_training_images():
    digits = sets.digits()
    mean, std = sets.measure(digits.train.pixels)
    assert digits.mean == pytest.approx(mean, abs=1e-4)
    assert digits.std == pytest.approx(std, abs=1e-4)


def test_digits_are_those_of_scikit_learn_which_is_not_imported_for_them():
    from sklearn.datasets import load_digits

    code = "import sys, bdr.data.sets as sets; sets.digits(); print(*{'sklearn', 'scipy'} & set(sys.modules))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert said.stdout.split() == []
    theirs, found = load_digits(return_X_y=True), sets.handwritten()
    assert all(np.array_equal(here, there) for here, there in zip(found, theirs, strict=True))


def test_digits_that_scikit_learn_keeps_elsewhere_are_asked_of_it(monkeypatch, tmp_path):
    known = sets.handwritten()
    moved = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(sets, "find_spec", lambda name: moved)
    assert all(np.array_equal(*both) for both in zip(sets.handwritten(), known, strict=True))


def test_digits_without_scikit_learn_say_what_to_install(monkeypatch):
    monkeypatch.setattr(sets, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'bdr\[digits\]'"):
        sets.digits()


# CIFAR


def cifar_file(key, labels, seed=0):
    rows = np.random.default_rng(seed).integers(0, 256, (len(labels), 3072), dtype=np.uint8)
    return {"data": rows, key: list(labels)}


def write_cifar(root: Path, name: str, contents: dict, monkeypatch) -> Path:
    """Small files in the published form, whose checksums are taken for the published ones."""
    folder = root / PUBLISHED[name].folder
    folder.mkdir(parents=True)
    for file, content in contents.items():
        raw = content if isinstance(content, bytes) else pickle.dumps(content, protocol=4)
        (folder / file).write_bytes(raw)
    trust(name, folder, monkeypatch)
    return folder


def trust(name, folder, monkeypatch):
    checksums = {file: md5_of((folder / file).read_bytes()) for file in PUBLISHED[name].files}
    monkeypatch.setitem(PUBLISHED, name, replace(PUBLISHED[name], files=checksums))


@pytest.fixture
def small100(tmp_path, monkeypatch):
    contents = {
        "train": cifar_file("fine_labels", [0, 1, 2, 0, 1, 2]),
        "test": cifar_file("fine_labels", [2, 1, 0], seed=1),
        "meta": {"fine_label_names": ["apple", "bee", "cup"]},
    }
    return write_cifar(tmp_path, "cifar100", contents, monkeypatch)


@pytest.mark.parametrize("given", ["the folder", "its parent"])
def test_cifar100_is_found_in_its_folder_and_from_the_parent(small100, given):
    loaded = sets.cifar100(small100 if given == "the folder" else small100.parent)
    assert loaded.train.pixels.shape == (6, 32, 32, 3)
    assert loaded.train.labels.tolist() == [0, 1, 2, 0, 1, 2]
    assert loaded.test.labels.dtype == np.int64
    assert loaded.classes == ("apple", "bee", "cup")
    assert (loaded.mean, loaded.std) == sets.CIFAR100
    assert (loaded.augment.pad, loaded.augment.flip) == (4, True)


def test_cifar_pixels_keep_their_place_and_colour(small100):
    row = pickle.loads((small100 / "train").read_bytes())["data"][3]
    image = sets.cifar100(small100).train.pixels[3]
    assert image[5, 7].tolist() == [row[5 * 32 + 7], row[1024 + 5 * 32 + 7], row[2048 + 5 * 32 + 7]]


def test_cifar10_joins_its_five_batches_in_order(tmp_path, monkeypatch):
    contents: dict = {f"data_batch_{i}": cifar_file("labels", [i - 1, 0], seed=i) for i in range(1, 6)}
    contents |= {"test_batch": cifar_file("labels", [0, 4]), "batches.meta": {"label_names": list("abcde")}}
    write_cifar(tmp_path, "cifar10", contents, monkeypatch)
    loaded = sets.cifar10(tmp_path)
    assert loaded.train.labels.tolist() == [0, 0, 1, 0, 2, 0, 3, 0, 4, 0]
    assert (loaded.mean, loaded.std) == sets.CIFAR10


def test_the_source_of_cifar_follows_its_checksums(small100, monkeypatch):
    before = sets.cifar100(small100).source
    (small100 / "test").write_bytes(pickle.dumps(cifar_file("fine_labels", [1]), protocol=4))
    trust("cifar100", small100, monkeypatch)
    assert sets.cifar100(small100).source != before
    assert len(before) == 12


class Attack:
    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


def test_a_pickle_that_tries_to_run_code_is_refused_and_does_not_run(small100, monkeypatch, tmp_path):
    mark = tmp_path / "the-code-ran"
    (small100 / "train").write_bytes(pickle.dumps({"data": Attack(mark)}))
    trust("cifar100", small100, monkeypatch)
    with pytest.raises(BdrError, match=r"train tries to load (posix|nt)\.mkdir and was not read"):
        sets.cifar100(small100)
    assert not mark.exists()


def test_a_wrong_checksum_is_told_before_anything_is_read(small100, tmp_path):
    mark = tmp_path / "the-code-ran"
    (small100 / "train").write_bytes(pickle.dumps(Attack(mark)))
    with pytest.raises(BdrError, match=r"train is damaged: .* md5 .* bdr data fetch cifar100 --root DIR"):
        sets.cifar100(small100)
    assert not mark.exists()


def test_a_truncated_file_is_damaged(small100):
    whole = (small100 / "train").read_bytes()
    (small100 / "train").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BdrError, match=r"train is damaged: its [\d,]+ bytes have md5"):
        sets.cifar100(small100)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "cut short or no pickle"),
        (b"no pickle at all", "cut short or no pickle"),
        (pickle.dumps(cifar_file("fine_labels", [0]), protocol=4)[:900], "cut short or no pickle"),
        ([1, 2], "holds a list, not the dictionary"),
        ({"data": np.zeros((1, 3072), np.uint8)}, "has no 'fine_labels'; it has data"),
        ({"data": np.zeros((1, 99), np.uint8), "fine_labels": [0]}, r"1 labels and uint8 data \(1, 99\)"),
        ({"data": np.zeros((1, 3072)), "fine_labels": [0]}, "float64 data"),
        ({"data": np.zeros((0, 3072), np.uint8), "fine_labels": []}, "0 labels"),
        (cifar_file("fine_labels", [0, 3]), r"labels outside 0\.\.2"),
    ],
)
def test_content_that_is_not_cifar_is_named_even_when_its_checksum_is_trusted(small100, monkeypatch, content, said):
    raw = content if isinstance(content, bytes) else pickle.dumps(content, protocol=4)
    (small100 / "train").write_bytes(raw)
    trust("cifar100", small100, monkeypatch)
    with pytest.raises(BdrError, match=said):
        sets.cifar100(small100)


@pytest.mark.parametrize("file", ["train", "test", "meta"])
def test_a_missing_file_is_named_with_the_command_that_gets_it(small100, file):
    (small100 / file).unlink()
    with pytest.raises(UsageError, match=rf"{file}, which does not exist; .*bdr data fetch cifar100 --root DIR"):
        sets.cifar100(small100)


def test_a_folder_in_the_place_of_a_file_cannot_be_read(small100):
    (small100 / "train").unlink()
    (small100 / "train").mkdir()
    with pytest.raises(BdrError, match="train cannot be read"):
        sets.cifar100(small100)


@pytest.mark.parametrize("load", [sets.cifar10, sets.cifar100])
@pytest.mark.parametrize("below", ["nowhere", "file", "file/below", "x" * 300, "nul\0byte"])
def test_a_root_that_is_no_folder_says_what_to_type(tmp_path, load, below):
    (tmp_path / "file").write_text("a regular file")
    with pytest.raises(UsageError, match=rf"there is no folder cifar-10.* bdr data fetch {load.__name__} --root DIR"):
        load(tmp_path / below)


def test_no_root_says_what_to_type():
    with pytest.raises(UsageError, match="needs the folder that holds cifar-100-python/"):
        sets.cifar100(None)


@pytest.fixture
def cifar100_folder():
    if "BDR_CIFAR100" not in os.environ:
        pytest.skip("BDR_CIFAR100 does not name a folder with CIFAR-100")
    return os.environ["BDR_CIFAR100"]


@pytest.mark.cifar
def test_the_published_cifar100_has_500_and_100_images_a_class(cifar100_folder):
    loaded = sets.cifar100(cifar100_folder)
    assert np.bincount(loaded.train.labels).tolist() == [500] * 100
    assert np.bincount(loaded.test.labels).tolist() == [100] * 100
    assert (loaded.classes[0], loaded.classes[99]) == ("apple", "worm")
    assert loaded.mean == pytest.approx(sets.measure(loaded.train.pixels)[0], abs=1e-3)


# Folders of pictures


def paint(path: Path, colour=(255, 0, 0), size=(20, 10), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour).save(path)


@pytest.fixture
def folder(tmp_path):
    for part, count in (("train", 3), ("test", 2)):
        for colour, name in enumerate(("ant", "bee")):
            for number in range(count):
                paint(tmp_path / part / name / f"{number}.png", (100 * colour, number, 7))
    return tmp_path


def test_pictures_are_read_class_by_class_in_the_order_of_their_names(folder):
    loaded = sets.imagefolder(folder, size=16)
    assert loaded.train.pixels.shape == (6, 16, 16, 3)
    assert loaded.train.pixels[:, 0, 0].tolist() == [[c, n, 7] for c in (0, 100) for n in (0, 1, 2)]
    assert loaded.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert loaded.test.labels.tolist() == [0, 0, 1, 1]
    assert loaded.classes == ("ant", "bee")
    assert (loaded.augment.pad, loaded.augment.flip) == (2, True)
    assert (loaded.mean, loaded.std) == sets.IMAGENET


def test_val_stands_in_for_test(folder):
    (folder / "test").rename(folder / "val")
    assert len(sets.imagefolder(folder).test) == 4


def test_without_a_test_folder_a_fifth_of_every_class_is_held_out(tmp_path):
    for name in ("ant", "bee"):
        for number in range(10):
            paint(tmp_path / name / f"{number}.png", (number, 0, 0))
    loaded, again = sets.imagefolder(tmp_path), sets.imagefolder(tmp_path)
    assert np.bincount(loaded.test.labels).tolist() == [2, 2]
    assert np.bincount(loaded.train.labels).tolist() == [8, 8]
    assert loaded.source == again.source


def test_a_class_may_be_called_train(tmp_path):
    for name in ("plane", "train"):
        for number in range(2):
            paint(tmp_path / name / f"{number}.png")
    assert sets.imagefolder(tmp_path).classes == ("plane", "train")


def test_the_middle_square_of_a_picture_is_taken(tmp_path):
    picture = Image.new("RGB", (30, 10), (0, 0, 0))
    picture.paste((255, 255, 255), (10, 0, 20, 10))
    for number in range(2):
        (tmp_path / "a").mkdir(exist_ok=True)
        picture.save(tmp_path / "a" / f"{number}.png")
    assert sets.imagefolder(tmp_path, size=10).train.pixels.min() == 255


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_a_picture_is_read_as_its_camera_was_held(tmp_path, orientation):
    upright = Image.new("RGB", (8, 8), "black")
    upright.paste((255, 0, 0), (0, 0, 8, 4))
    lying = upright.rotate({1: 0, 3: 180, 6: 90, 8: 270}[orientation])
    exif = Image.Exif()
    exif[274] = orientation
    lying.save(tmp_path / "a.png", exif=exif)
    assert (pictures.picture(tmp_path / "a.png", 8) == np.asarray(upright)).all()


def test_a_note_of_how_a_camera_was_held_that_cannot_be_read_is_none(tmp_path):
    Image.new("RGB", (8, 8), "red").save(tmp_path / "a.png", exif=b"Exif\x00\x00II*\x00\xff\xff\xff\x00broken")
    assert (pictures.picture(tmp_path / "a.png", 8) == (255, 0, 0)).all()


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_what_is_transparent_is_seen_on_white_and_what_is_not_stays_as_it_is(tmp_path, mode):
    picture = Image.new("RGBA", (8, 8), (9, 9, 9, 0))  # a hidden colour
    picture.paste((40, 40, 40, 255), (0, 0, 8, 4))
    picture.convert(mode).save(tmp_path / "a.png")
    read = pictures.picture(tmp_path / "a.png", 8)
    assert (read[:4] == 40).all()
    assert (read[4:] == 255).all()


def test_grey_pictures_and_other_endings_are_read_and_other_files_left_alone(tmp_path):
    paint(tmp_path / "a" / "1.JPG", 9, mode="L")
    paint(tmp_path / "a" / "2.bmp", (1, 2, 3))
    (tmp_path / "a" / "notes.txt").write_text("no picture")
    (tmp_path / "a" / ".hidden.png").write_text("no picture")
    (tmp_path / ".git").mkdir()
    with pytest.warns(UserWarning, match=r"no test/ folder: every fifth picture of a class in .* is for testing"):
        loaded = sets.imagefolder(tmp_path)
    assert (len(loaded.train), len(loaded.test), loaded.classes) == (1, 1, ("a",))


@pytest.mark.parametrize(("side", "size", "told"), [(48, 32, True), (36, 32, False), (48, 40, False), (16, 32, False)])
def test_pictures_that_become_much_smaller_unasked_are_told(tmp_path, side, size, told):
    for number in range(2):
        paint(tmp_path / "train" / "a" / f"{number}.png", (1, 2, 3), size=(2 * side, side))
        paint(tmp_path / "test" / "a" / f"{number}.png", (1, 2, 3))
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        sets.imagefolder(tmp_path, size)
    said = "pictures of about 48 pixels are made 32 x 32: --size 48 keeps more of them, and takes longer"
    assert [str(each.message) for each in heard if "pixel by pixel" not in str(each.message)] == [said] * told


def warned(folder):
    """What reading a folder warns of."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        sets.imagefolder(folder)
    return [str(each.message) for each in heard]


def test_what_is_left_out_of_a_class_is_told_and_what_is_hidden_is_not(folder):
    ant = folder / "train" / "ant"
    paint(ant / "more" / "9.png")
    (ant / "empty").mkdir()
    (ant / "notes.txt").write_text("no picture")
    (ant / "IMG_0001").write_text("perhaps a picture")
    (ant / "._0.png").write_text("what a Mac leaves on other disks")
    assert [each for each in warned(folder) if "left out" in each] == [
        f"{ant}: files ending in .txt and without an ending are left out",
        f"{ant}: pictures in folders below it are left out (more): put them beside the others",
    ]


@pytest.mark.parametrize("part", ["train", "test"])
def test_pictures_without_a_class_are_told(folder, part):
    paint(folder / part / "7.png")
    paint(folder / part / ".hidden.png")
    (said,) = [each for each in warned(folder) if "left out" in each]
    assert said.startswith(
        f"{folder / part}: pictures beside the folders of the classes are left out (7.png): put each"
    )


def test_a_test_picture_that_is_trained_on_too_is_told(folder):
    paint(folder / "test" / "bee" / "new.png", (1, 2, 3))
    for number in range(2):
        (folder / "test" / "bee" / f"{number}.png").unlink()
        paint(folder / "test" / "ant" / f"{number}.png", (9, 9, number))
    assert warned(folder) == []
    shutil.copy(folder / "train" / "bee" / "1.png", folder / "test" / "bee" / "copy.png")
    assert warned(folder) == [
        "1 of 4 test pictures are among the training pictures, pixel by pixel: bee/copy.png = bee/1.png; the accuracy "
        "on them says nothing of new pictures"
    ]


def test_a_training_picture_in_two_classes_is_told(folder):
    shutil.copy(folder / "train" / "bee" / "1.png", folder / "train" / "ant" / "also.png")
    assert [each for each in warned(folder) if "two classes" in each] == [
        "1 training picture stands in two classes, pixel by pixel: ant/also.png = bee/1.png; remove one of each"
    ]


def test_a_name_is_the_same_however_its_accents_are_written(folder):
    """As one letter, or as a letter and an accent: nobody sees the difference, and disks make it."""
    for part, form in (("train", "NFC"), ("test", "NFD")):
        (folder / part / "bee").rename(folder / part / unicodedata.normalize(form, "Bär"))
    paint(folder / "train" / "Bär" / unicodedata.normalize("NFD", "größer.png"))
    loaded = sets.imagefolder(folder)
    assert loaded.classes == ("Bär", "ant")
    assert "größer.png" in loaded.train.names
    assert np.bincount(loaded.test.labels).tolist() == [2, 2]


def test_two_folders_of_a_name_that_reads_the_same_are_refused(folder):
    for form in ("NFC", "NFD"):
        paint(folder / "train" / unicodedata.normalize(form, "Bär") / "0.png")
    with pytest.raises(UsageError, match=r"two folders that read 'Bär'.* put the pictures of both into one"):
        sets.imagefolder(folder)


def test_the_source_follows_the_pixels(folder):
    before = sets.imagefolder(folder).source
    paint(folder / "test" / "ant" / "0.png", (1, 1, 1))
    assert sets.imagefolder(folder).source != before


def test_an_unreadable_picture_is_named(folder):
    (folder / "train" / "bee" / "1.png").write_bytes(b"\x89PNG\r\n\x1a\n and then nothing")
    with pytest.raises(BdrError, match=r"1\.png is no readable picture"):
        sets.imagefolder(folder)


def test_a_picture_that_is_a_link_to_nothing_is_named_and_not_passed_over(folder):
    (folder / "train" / "bee" / "lost.png").symlink_to("/annex/5.png")
    (folder / "train" / "bee" / "found.png").symlink_to(folder / "train" / "bee" / "1.png")
    with pytest.raises(BdrError, match=r"lost\.png is a link to /annex/5\.png, which is not there; put that back"):
        sets.imagefolder(folder)


def test_a_class_that_is_a_link_to_nothing_is_refused(folder):
    (folder / "train" / "cat").symlink_to("/annex/cat")
    with pytest.raises(UsageError, match=r"has links to what is not there \(cat\), which may be folders of classes"):
        sets.imagefolder(folder)


def test_all_unreadable_pictures_are_told_at_once_ten_of_them_by_name(folder):
    for number in range(11):
        (folder / "train" / "bee" / f"broken{number:02d}.png").write_bytes(b"no picture")
    (folder / "test" / "ant" / "broken.png").write_bytes(b"no picture")
    with pytest.raises(BdrError, match=r"^12 of \d+ pictures cannot be used:") as error:
        sets.imagefolder(folder)
    lines = str(error.value).splitlines()
    assert [f"broken{number:02d}.png is no readable picture" in line for number, line in enumerate(lines[1:11])] == [
        True
    ] * 10
    assert lines[11:] == ["  and 2 more"]


def test_a_picture_that_ends_too_early_is_named(folder):
    whole = folder / "train" / "bee" / "1.jpg"
    paint(whole, size=(64, 64))
    whole.write_bytes(whole.read_bytes()[:-300])
    with pytest.raises(BdrError, match=r"1\.jpg is no readable picture"):
        sets.imagefolder(folder)


def test_a_picture_of_sixteen_bits_is_not_clipped_in_silence(folder):
    paint(folder / "train" / "bee" / "1.png", 40000, mode="I;16")
    with pytest.raises(BdrError, match=r"1\.png has more than 8 bits"):
        sets.imagefolder(folder)


@pytest.mark.parametrize(("part", "lacks"), [("train", "test"), ("test", "train")])
def test_classes_that_differ_between_train_and_test_are_named(folder, part, lacks):
    paint(folder / part / "cat" / "0.png")
    with pytest.raises(UsageError, match=rf"the same classes: .*{lacks} lacks cat"):
        sets.imagefolder(folder)


def test_an_empty_class_is_named(folder):
    (folder / "train" / "cat").mkdir()
    with pytest.raises(UsageError, match="cat holds no pictures"):
        sets.imagefolder(folder)


def test_a_class_of_one_picture_cannot_be_split(tmp_path):
    paint(tmp_path / "ant" / "0.png")
    with pytest.raises(UsageError, match=r"class 'ant' .* has one picture"):
        sets.imagefolder(tmp_path)


def test_a_test_folder_without_classes_is_no_reason_to_test_with_training_images(tmp_path):
    for number in range(5):
        paint(tmp_path / "train" / "ant" / f"{number}.png")
    paint(tmp_path / "test" / "0.png")
    with pytest.raises(UsageError, match=r"no classes in .*test"):
        sets.imagefolder(tmp_path)


def test_a_folder_without_classes_says_what_is_expected(tmp_path):
    with pytest.raises(UsageError, match=r"no classes in .* expected is ROOT/train/CLASS"):
        sets.imagefolder(tmp_path)


@pytest.mark.parametrize("below", ["nowhere", "file", "file/below"])
def test_a_root_of_pictures_that_is_no_folder_is_an_error(tmp_path, below):
    (tmp_path / "file").write_text("a regular file")
    with pytest.raises(UsageError, match="which is no folder; expected is ROOT"):
        sets.imagefolder(tmp_path / below)


def test_imagefolder_without_a_root_or_with_no_size_is_an_error(folder):
    with pytest.raises(UsageError, match="was given no root"):
        sets.imagefolder(None)
    with pytest.raises(UsageError, match="0 pixels a side"):
        sets.imagefolder(folder, size=0)


@pytest.mark.parametrize("names", [("Train", "Test"), ("TRAIN", "VAL")])
def test_train_and_test_in_capitals_are_no_classes_and_what_to_call_them_is_said(folder, names):
    for before, after in zip(("train", "test"), names, strict=True):
        (folder / before).rename(folder / f"{before}.moved")
        (folder / f"{before}.moved").rename(folder / after)
    with pytest.raises(UsageError, match=r"\): did you mean train/ and test/ in small letters\? expected is ROOT"):
        sets.imagefolder(folder)


def test_pictures_that_fill_more_than_the_memory_are_refused_before_any_is_read(folder, monkeypatch):
    monkeypatch.setattr(pictures, "memory_there", lambda: 2**30)
    monkeypatch.setattr(pictures, "side_by_side", lambda *_: pytest.fail("is read"))
    told = "10 pictures of 6000 x 6000 pixels need 1.0 GiB of memory, and this machine has 1.0: use a smaller --size, "
    with pytest.raises(UsageError, match=f"^{told}such as 224$"):
        sets.imagefolder(folder, size=6000)


def test_what_fits_into_the_memory_or_cannot_be_compared_with_it_is_read(folder, monkeypatch):
    monkeypatch.setattr(pictures, "memory_there", lambda: 10 * 16 * 16 * 3)
    assert len(sets.imagefolder(folder, size=16).train) == 6
    with pytest.raises(UsageError, match="use a smaller --size, such as 8"):
        sets.imagefolder(folder, size=17)
    monkeypatch.setattr(pictures, "memory_there", lambda: None)
    assert len(sets.imagefolder(folder, size=17).train) == 6


def test_the_memory_of_a_machine_is_told_where_it_can_be(monkeypatch):
    assert pictures.memory_there() > 2**20
    monkeypatch.delattr(os, "sysconf")
    assert pictures.memory_there() is None


def test_pictures_without_pillow_say_what_to_install(folder, monkeypatch):
    without(monkeypatch, "PIL")
    with pytest.raises(UsageError, match=r"pip install 'bdr\[images\]'"):
        sets.imagefolder(folder)


# Arrays


def arrays(shape=(4, 6, 5, 3), dtype=np.uint8):
    x = np.random.default_rng(0).random(shape)
    x = (255 * x).astype(np.uint8) if dtype == np.uint8 else x.astype(dtype)
    return {"train_x": x, "train_y": [0, 1, 0, 1], "test_x": x[:2].copy(), "test_y": [1, 0]}


@pytest.mark.parametrize(
    ("shape", "becomes"),
    [
        ((4, 6, 5), (4, 6, 5, 1)),
        ((4, 6, 5, 3), (4, 6, 5, 3)),
        ((4, 3, 6, 5), (4, 6, 5, 3)),
        ((4, 1, 6, 5), (4, 6, 5, 1)),
    ],
)
def test_arrays_of_every_allowed_shape_become_channels_last(shape, becomes):
    loaded = sets.from_arrays(**arrays(shape))
    assert loaded.train.pixels.shape == becomes
    assert loaded.train.labels.dtype == np.int64
    assert loaded.classes == ("0", "1")
    assert len(loaded.mean) == len(loaded.std) == becomes[3]


def test_channels_first_keeps_every_pixel_in_its_place():
    given = arrays((4, 3, 6, 5))
    assert np.array_equal(sets.from_arrays(**given).train.pixels[2, 4, 1], given["train_x"][2, :, 4, 1])


@pytest.mark.parametrize("shape", [(4, 3, 6, 3), (4, 6, 5, 2), (4, 30), (4, 3, 6, 5, 3)])
def test_shapes_that_cannot_be_told_are_refused(shape):
    with pytest.raises(UsageError, match=r"train_x of shape .* there are 1 or 3 channels"):
        sets.from_arrays(**arrays(shape))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_floats_are_scaled_to_bytes(dtype):
    given = arrays(dtype=dtype)
    given["train_x"][0, 0, 0] = [0, 0.5, 1]
    assert sets.from_arrays(**given).train.pixels[0, 0, 0].tolist() == [0, 128, 255]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, -0.1, 1.1, 255.0])
def test_floats_out_of_range_are_counted_and_the_first_is_shown(bad):
    given = arrays(dtype=np.float64)
    given["train_x"][2, 1, 3, 0] = given["train_x"][3, 0, 0, 0] = bad
    with pytest.raises(UsageError, match=rf"2 of 360 .* the first {bad} at image 2, row 1, column 3, channel 0"):
        sets.from_arrays(**given)


@pytest.mark.parametrize("dtype", [np.int64, bool, complex, object])
def test_pixels_of_another_type_are_refused(dtype):
    given = arrays()
    given["test_x"] = given["test_x"].astype(dtype)
    with pytest.raises(UsageError, match=r"test_x has type .*; use uint8 in 0\.\.255 or floats in 0\.\.1"):
        sets.from_arrays(**given)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"train_y": [0, 1, 0]}, "train has 4 images and 3 labels"),
        ({"train_y": [0, 2, 0, 2]}, "train_y has 2 where 1 is due"),
        ({"train_y": [1, 1, 1, 1]}, "train_y has 1 where 0 is due"),
        ({"train_y": [0, -1, 0, 1]}, "train_y has -1 where 0 is due"),
        ({"train_y": [0, 10**15, 0, 1]}, "train_y has 1000000000000000 where 2 is due"),
        ({"train_y": [0.0, 1.0, 0.0, 1.0]}, "labels are integers"),
        ({"train_y": [[0], [1], [0], [1]]}, r"train_y has shape \(4, 1\)"),
        ({"train_y": ["a", "b", "a", "b"]}, "labels are integers"),
        ({"test_y": [0, 2]}, "test_y has the label 2, which no training image has"),
        ({"test_x": np.zeros((2, 6, 6, 3), np.uint8)}, "differ in shape: 6 x 5 x 3 and 6 x 6 x 3"),
        ({"test_x": np.zeros((0, 6, 5, 3), np.uint8), "test_y": np.zeros(0, int)}, "holds no pixels"),
        ({"test_x": [[[1, 2], [3]]]}, "test_x is no array"),
        ({"classes": ["a"]}, "1 class names"),
        ({"classes": ["a", "a"]}, r"2 class names \(1 different\) for 2 labels"),
        ({"mean": [0.5]}, "mean is .* each of the 3 channels"),
        ({"mean": [0.5, 0.5, np.nan]}, "a finite number"),
        ({"std": [0.2, 0.0, 0.2]}, "a number above 0"),
    ],
)
def test_arrays_that_do_not_fit_together_are_explained(change, said):
    with pytest.raises(UsageError, match=said):
        sets.from_arrays(**(arrays() | change))


def test_the_statistics_of_arrays_are_measured_and_never_zero():
    given = arrays((2000, 6, 5, 3)) | {"train_y": np.arange(2000) % 2}
    given["train_x"][..., 2] = 51
    loaded = sets.from_arrays(**given)
    assert loaded.mean == pytest.approx(given["train_x"].mean((0, 1, 2)) / 255)
    assert loaded.std[:2] == pytest.approx(given["train_x"].std((0, 1, 2))[:2] / 255)
    assert loaded.std[2] == 1.0


def test_what_is_given_with_arrays_is_kept():
    augment = sets.Augment(pad=2, flip=True)
    extra = {"classes": ["a", "b"], "mean": (0.1, 0.2, 0.3), "std": [1, 1, 1], "augment": augment, "name": "mine"}
    loaded = sets.from_arrays(**arrays(), **extra)
    assert (loaded.classes, loaded.mean, loaded.std) == (("a", "b"), (0.1, 0.2, 0.3), (1.0, 1.0, 1.0))
    assert loaded.augment is augment
    assert loaded.name == "mine"


def test_a_bare_number_is_the_statistics_of_grey_images():
    loaded = sets.from_arrays(**arrays((4, 8, 8)), mean=0.5, std=0.25)
    assert (loaded.mean, loaded.std) == ((0.5,), (0.25,))
    with pytest.raises(UsageError, match="give a number above 0 for each of the 3 channels"):
        sets.from_arrays(**arrays(), std=0.25)


def test_the_source_of_arrays_follows_pixels_labels_and_names():
    given = arrays()
    other = arrays()
    other["train_x"] = other["train_x"].copy()
    other["train_x"][0, 0, 0, 0] ^= 1
    loaded = [given, given, other, given | {"test_y": [0, 1]}, given | {"classes": ["a", "b"]}]
    same, again, *rest = [sets.from_arrays(**one).source for one in loaded]
    assert same == again
    assert len({same, *rest}) == 4


def test_tensors_are_arrays_too():
    import torch

    given = arrays((4, 3, 6, 5), np.float32)
    tensors = {key: torch.as_tensor(np.asarray(value)) for key, value in given.items()}
    assert sets.from_arrays(**tensors).source == sets.from_arrays(**given).source
