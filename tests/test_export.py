"""The model of a run as a file: used without bdr, it says what `bdr predict` says."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from runs import train
from test_cli import typed

import bdr
from bdr.data.pictures import picture
from bdr.data.sets import digits
from bdr.errors import BdrError, UsageError
from bdr.methods import Method
from bdr.nets import LinearHead
from bdr.records import Run
from bdr.trained import exporting

PAGE = Path(__file__).resolve().parents[1] / "docs" / "commands" / "export.md"
COUNT = 8  # pictures: a batch of one, and one of seven
# both formats of each: told by class means, corrected, grown
METHODS = ("ucir+bdr", "icarl", "bic", "der")
ON_PAGE = ("new.png", "other.jpg")
HOW = ("cnn", "nme")

# How a file is opened by those who have no bdr; the blocks of the page come before.
OPENED = {
    ".pt2": """
def opened(file):
    found = {"bdr": ""}
    model = torch.export.load(file, extra_files=found).module()
    return json.loads(found["bdr"]), lambda images: model(torch.from_numpy(images)).numpy()
""",
    ".onnx": """
def opened(file):
    model = onnxruntime.InferenceSession(file)
    about = json.loads(model.get_modelmeta().custom_metadata_map["bdr"])
    return about, lambda images: model.run([about["output"]], {"images": images})[0]
""",
}
SAID = """
import sys
for file in sys.argv[1:]:
    about, model = opened(file)
    images = np.load("images.npy")
    scores = np.concatenate([model(images[:1]), model(images[1:])])
    print(json.dumps({"classes": [about["classes"][best] for best in scores.argmax(1)], "scores": scores.tolist()}))
assert "bdr" not in sys.modules
"""


class Branching(Method):
    """What no exporter can follow: which way it goes depends on the images."""

    def __init__(self, make):
        super().__init__()
        self.net = make(LinearHead)

    def begin(self, phase, pool):
        self.net.head.grow(phase.new)

    def loss(self, batch, phase, classify):
        return {"ce": classify(self.net(batch.x), batch.y).mean()}

    def readouts(self, x):
        return super().readouts(x if x.sum() > 0 else -x)


def short_run(folder, what, **fields):
    settings = [("stage.epochs", 1), ("stage.batch", 32)]
    return train(folder / what, what, **{"net": "small", "phases": 2, "settings": settings} | fields)


def blocks():
    return re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Some test digits as pictures, and the same as an array; two of them as the page has them."""
    folder, images = tmp_path_factory.mktemp("export"), digits().test.pixels[:COUNT]
    (folder / "pictures").mkdir()
    for number, pixels in enumerate(images):
        Image.fromarray(pixels[..., 0]).save(folder / "pictures" / f"{number}.png")
    np.save(folder / "images.npy", images.transpose(0, 3, 1, 2))
    for name, pixels in zip(ON_PAGE, images, strict=False):
        Image.fromarray(pixels[..., 0]).resize((20, 30)).save(folder / name)
    (folder / "pixels.py").write_text(blocks()[0])
    return folder


@pytest.fixture(scope="module")
def runs(folder):
    # Three extractors of DER: what holds several that rest must be opened again, too.
    return {what: short_run(folder, what, phases=3 if what == "der" else 2) for what in METHODS}


def alone(folder, code, *files):
    """What a process says that has the files and no bdr, line by line."""
    words = [sys.executable, "-c", code, *map(str, files)]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def predicted(path, images):
    return [each.classes[0] for each in bdr.predict(path, images, top=1, device="cpu")]


@pytest.mark.parametrize(("suffix", "block"), [(".pt2", 1), (".onnx", 2)])
def test_a_file_alone_says_what_predict_says(runs, folder, suffix, block):
    files = [bdr.export(path, folder / f"{what}{suffix}", probabilities=True) for what, path in runs.items()]
    shutil.copy(files[0], folder / f"model{suffix}")
    on_page, *said = alone(folder, blocks()[block] + OPENED[suffix] + SAID, *files)
    pictures = [folder / name for name in ON_PAGE]
    assert on_page == str([name for name, _ in predicted(runs[METHODS[0]], pictures)])
    for path, found in zip(runs.values(), map(json.loads, said), strict=True):
        names, chances = zip(*predicted(path, folder / "pictures"), strict=True)
        assert found["classes"] == list(names)
        np.testing.assert_allclose(np.max(found["scores"], axis=1), chances, atol=1e-4)


def opened(file):
    found = {exporting.ABOUT: ""}
    program = torch.export.load(file, extra_files=found)
    return program, json.loads(found[exporting.ABOUT])


def test_it_has_the_phase_and_the_readout_that_are_asked_for_and_says_so(folder, runs, tmp_path):
    path = runs["ucir+bdr"]
    run, file = Run.open(path), tmp_path / "model.pt2"
    code, said, _ = typed("export", path, "-o", file, "--readout", "nme")
    assert (code, said) == (0, f"written: {file}\n")
    program, about = opened(file)
    scores = program.module()(torch.from_numpy(np.load(folder / "images.npy")))
    told = {how: [each.classes[0][0] for each in bdr.predict(path, folder / "pictures", readout=how)] for how in HOW}
    assert [about["classes"][best] for best in scores.argmax(1)] == told["nme"] != told["cnn"]
    assert about["classes"] == run.info["classes"][:7]
    assert (about["readout"], about["output"], about["phase"]) == ("nme", "scores", 1)
    assert (about["title"], about["fingerprint"]) == (run.title, run.fingerprint)
    assert about["image"] == {"channels": 1, "height": 8, "width": 8}
    assert about["trained_with"] == run.info["versions"]
    with pytest.raises(UsageError, match="keeps no model of phase 0"):
        bdr.export(path, tmp_path / "other.pt2", phase=0)


def test_pixels_from_0_to_1_are_refused_by_the_file(folder, runs, tmp_path):
    program, _ = opened(bdr.export(runs["bic"], tmp_path / "model.pt2"))
    with pytest.raises(RuntimeError, match="dtype"):
        program.module()(torch.rand(2, 1, 8, 8))


def test_a_run_in_bfloat16_is_exported_in_float32(tmp_path):
    path = short_run(tmp_path, "finetune", precision="bf16", memory="0", phases=1)
    program, _ = opened(bdr.export(path, tmp_path / "model.pt2"))
    model, images = bdr.load(path, device="cpu"), torch.randint(256, (5, 1, 8, 8), dtype=torch.uint8)
    normalised, scores = (images / 255 - model.mean[0]) / model.std[0], program.module()(images)
    assert not torch.allclose(scores, model(normalised), rtol=0, atol=1e-5)
    model.net.precision = None
    torch.testing.assert_close(scores, model(normalised), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["model.pth", "model", "model.PT2.zip"])
def test_another_format_is_refused_with_those_that_there_are(runs, tmp_path, name):
    code, _, said = typed("export", runs["bic"], "-o", tmp_path / name)
    assert (code, "end it in .pt2 or .onnx" in " ".join(said.split())) == (2, True)


def test_a_file_that_is_there_stays_unless_forced(runs, tmp_path):
    file = tmp_path / "model.pt2"
    file.write_text("mine")
    code, _, said = typed("export", runs["bic"], "-o", file)
    assert (code, "exists already: add --force" in said, file.read_text()) == (2, True, "mine")
    assert typed("export", runs["bic"], "-o", file, "--force").code == 0
    assert opened(file)[1]["title"] == "bic"
    code, _, said = typed("export", runs["bic"], "-o", tmp_path / "gone" / "model.pt2")
    assert (code, "there is no folder" in said) == (2, True)


def test_without_onnx_it_says_what_to_type(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(exporting.importlib.util, "find_spec", lambda name: None)
    code, _, said = typed("export", runs["bic"], "-o", tmp_path / "model.onnx")
    assert (code, "needs onnx and onnxscript, not installed here: pip install 'bdr[onnx]'" in said) == (2, True)
    assert typed("export", runs["bic"], "-o", tmp_path / "model.pt2").code == 0


def test_what_cannot_be_exported_is_told_and_leaves_no_file(tmp_path):
    path = train(tmp_path / "run", "test_export:Branching", net="runs:flat", phases=1, settings=[("stage.epochs", 1)])
    with pytest.raises(BdrError, match=r"run cannot be exported as .pt2: "):
        bdr.export(path, tmp_path / "model.pt2")
    assert [file.name for file in tmp_path.iterdir()] == ["run"]


def odd_pictures(folder):
    """Turned by EXIF, transparent, with a palette, wide and high: all that reading a picture has a rule for."""
    chance = np.random.default_rng(0)
    photo = Image.fromarray(chance.integers(0, 256, (23, 40, 3), dtype=np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6
    photo.save(folder / "turned.png", exif=exif)
    Image.fromarray(chance.integers(0, 256, (31, 17, 4), dtype=np.uint8), "RGBA").save(folder / "transparent.png")
    photo.quantize(8).save(folder / "palette.png", transparency=3)
    photo.convert("L").save(folder / "grey.png")
    return sorted(folder.glob("*.png"))


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (3, "RGB")])
def test_the_page_reads_a_picture_as_predict_does(channels, mode, tmp_path):
    values = {}
    exec(compile(blocks()[0], "export.md, a block", "exec"), values)
    for path in odd_pictures(tmp_path):
        read = values["pixels"](path, {"channels": channels, "height": 9, "width": 9})
        assert np.array_equal(read, picture(path, 9, mode).transpose(2, 0, 1)), path.name
