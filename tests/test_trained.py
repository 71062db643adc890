"""The model that `bdr.load` hands out: for inference alone, with what is known of its images, fit for torch.export."""

import io
import json

import pytest
import torch
import torch.nn.functional as F
from runs import train
from torch.export import Dim, export

import bdr
from bdr.engine.checkpoint import read_state
from bdr.errors import UsageError
from bdr.methods.base import NearestMeans
from bdr.records import model_folder
from bdr.types import ImageShape

SHORT = {"phases": 2, "keep": "all", "settings": [("stage.epochs", 1)]}
ANY_BATCH = ({0: Dim("batch", min=1, max=1024)},)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train(tmp_path_factory.mktemp("trained") / "run", "icarl", net="runs:flat", **SHORT)


def parameters_told(path):
    return json.loads((path / "phases.jsonl").read_text().splitlines()[-1])["parameters"]


def images(count):
    return torch.randn(count, 1, 8, 8)


def test_nothing_is_left_that_training_alone_needs(run, tmp_path):
    model = bdr.load(run)
    assert model.teacher is None
    assert sum(p.numel() for p in model.parameters()) == model.parameter_count() == parameters_told(run)
    path = train(tmp_path / "run", "rwalk", net="runs:flat", **SHORT)  # three copies of all that moves
    walked = bdr.load(path).state_dict()
    assert {name.partition(".")[0] for name in walked} == {"net", "nearest", "present"}
    assert read_state(model_folder(path, 1)).tensors.keys() == walked.keys()


def test_it_knows_its_classes_and_what_images_it_takes(run):
    info, model = json.loads((run / "run.json").read_text()), bdr.load(run)
    assert list(model.classes) == info["classes"][:7]
    assert model.image == ImageShape(*info["image"]) == (1, 8, 8)
    assert (list(model.mean), list(model.std)) == (info["mean"], info["std"])
    assert list(bdr.load(run, phase=0).classes) == info["classes"][:4]
    assert model(images(2)).shape == (2, len(model.classes))


def test_images_of_another_size_are_refused(run):
    model, other = bdr.load(run), torch.randn(2, 1, 12, 12)
    for scores in (model, model.readouts, model.net):
        with pytest.raises(UsageError, match="images are 2 x 1 x 12 x 12 here, and the model takes N x 1 x 8 x 8 "):
            scores(other)


@pytest.mark.parametrize("kind", [torch.uint8, torch.float64])
def test_numbers_of_another_kind_are_refused_with_what_to_do(run, kind):
    said = rf"images are {kind} here, and the model takes pixels from 0 to 1, .*: \(pixels / 255 - mean\) / std; "
    with pytest.raises(UsageError, match=said):
        bdr.load(run)(torch.ones(2, 1, 8, 8, dtype=kind))


@pytest.mark.parametrize("what", ["icarl", "dytox", "ucir+aanet", "wa+tade"])
def test_it_is_exported_for_batches_of_any_size(what, tmp_path):
    net = {"icarl": "runs:flat", "dytox": "convit-small"}.get(what, "small")
    model = bdr.load(train(tmp_path / "run", what, net=net, **SHORT), device="cpu")
    elsewhere = export(model, (images(40),), dynamic_shapes=ANY_BATCH).module()
    for count in (1, 25, 26, 100):
        x = images(count)
        torch.testing.assert_close(elsewhere(x), model(x), rtol=1e-4, atol=1e-5)


def test_it_can_be_saved_whole(run):
    file, model, x = io.BytesIO(), bdr.load(run), images(3)
    torch.save(model, file)
    file.seek(0)
    again = torch.load(file, weights_only=False)
    assert torch.equal(again(x), model(x))
    assert again.classes == model.classes


@pytest.mark.parametrize("count", [1, 25, 26, 300])
def test_the_nearest_mean_is_as_near_as_it_is(count):
    nearest, features = NearestMeans(), torch.randn(count, 64)
    nearest.means = F.normalize(torch.randn(30, 64))
    exact = (F.normalize(features.double())[:, None] - nearest.means.double()).square().sum(2)
    torch.testing.assert_close(nearest.scores(features).double(), -exact, rtol=0, atol=1e-6)
