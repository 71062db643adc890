"""CIFAR-100 itself: its counts and order, and a short run of the whole method on a few of its images."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest

import bdr
from bdr.data import DATASETS
from bdr.data.images import Images
from bdr.planning.loading import store_of
from bdr.records import Run
from bdr.scenario import class_order

ROOT = os.environ.get("BDR_CIFAR100")
pytestmark = [pytest.mark.cifar, pytest.mark.skipif(not ROOT, reason="BDR_CIFAR100 names no folder of CIFAR-100")]


@pytest.fixture(scope="module")
def cifar():
    return DATASETS["cifar100"](ROOT)


def test_every_class_has_five_hundred_and_one_hundred_images(cifar):
    assert len(cifar.classes) == len(set(cifar.classes)) == 100
    assert np.bincount(cifar.train.labels).tolist() == [500] * 100
    assert np.bincount(cifar.test.labels).tolist() == [100] * 100
    assert cifar.train.pixels.shape[1:] == (32, 32, 3)


def test_labels_are_remapped_to_the_order_of_arrival(cifar):
    order = class_order("seed-1993", 100)
    assert order[0] == 68
    store = store_of(cifar.train, cifar, order, "cpu")
    assert store.labels.bincount().tolist() == [500] * 100
    assert np.array_equal(store.of_classes(0, 1).numpy(), np.flatnonzero(cifar.train.labels == 68))
    assert np.array_equal(np.array(order)[store.labels], cifar.train.labels)


def test_the_statistics_are_near_those_of_the_images(cifar):
    pixels = cifar.train.pixels[:5000] / 255
    assert np.allclose(pixels.mean((0, 1, 2)), cifar.mean, atol=0.02)


def few(images: Images, classes: int, each: int) -> Images:
    rows = np.concatenate([np.flatnonzero(images.labels == label)[:each] for label in range(classes)])
    return Images(images.pixels[rows], images.labels[rows])


def test_the_whole_method_goes_through_every_stage(cifar, tmp_path):
    train, test = few(cifar.train, 10, 12), few(cifar.test, 10, 5)
    data = replace(cifar, train=train, test=test, classes=cifar.classes[:10], source="few")
    fields = {"base": 4, "step": 3, "memory": "3/class", "net": "resnet32", "device": "cpu", "keep": "all"}
    changes = {"stage.epochs": 2, "stage.batch": 32, "ucir.eta": 10}
    result = bdr.run("ucir+cwd+bdr", data=data, out=tmp_path / "run", set=changes, **fields)
    run = Run.open(result.path)
    assert run.done
    assert len(result.accuracies) == 3
    terms = [set(line["terms"]) for line in run.epochs]
    assert terms[:2] == [{"ce", "cwd"}] * 2
    assert terms[2:] == [{"ce", "less_forget", "margin", "ce_old"}] * 4
    assert all(np.isfinite(line["loss"]) for line in run.epochs)
    layout = {"old": 4, "new": 3, "dim": 64}
    assert bdr.load(result.path, phase=1, device="cpu").net.head.layout() == layout
