"""The bounds: plain cross-entropy on what is kept of earlier classes, and the refusal of memories that fit none."""

from __future__ import annotations

import pytest
import torch
from references import slow_cross_entropy
from small import make_batch, make_flat, make_pool

from bdr import api
from bdr.data.memory import Memory, Quota
from bdr.data.sets import digits
from bdr.errors import UsageError
from bdr.losses import cross_entropy
from bdr.methods import Finetune, Joint, Method, Replay
from bdr.records import Run
from bdr.types import Phase


class ToldByMeans(Finetune):
    """A method of one's own that says nothing of memories, and is told by the means of its exemplars."""

    keeps = Method.keeps
    readout = "nme"


def all_of(pool):
    return make_batch(pool.store.plain(pool.rows), pool.store.labels[pool.rows])


@pytest.mark.parametrize("kind", [Finetune, Replay, Joint])
def test_the_only_term_is_cross_entropy(kind):
    pool = make_pool([4, 5, 6], old=0)
    method = kind(make_flat)
    method.begin(pool.phase, pool)
    batch = all_of(pool)
    terms = method.double().loss(batch._replace(x=batch.x.double()), pool.phase, cross_entropy)
    logits = method.net(batch.x.double()).logits.tolist()
    expected = slow_cross_entropy(logits, batch.y.tolist())
    assert list(terms) == ["ce"]
    assert terms["ce"].item() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("kind", [Finetune, Replay])
def test_what_was_learned_is_where_the_next_phase_begins(kind):
    pool, method = make_pool([4, 5, 6, 4], old=2), kind(make_flat)
    method.begin(Phase(0, 0, 2), pool)
    before = {name: value.clone() for name, value in method.state_dict().items()}
    method.begin(Phase(1, 2, 4), pool)
    assert torch.equal(method.net.backbone.matrix.weight, before["net.backbone.matrix.weight"])
    assert torch.equal(method.net.head.weight[:2], before["net.head.weight"])
    assert method.net.head.classes == 4


def test_a_joint_phase_begins_from_fresh_weights():
    pool, method = make_pool([4, 5, 6, 4], old=2), Joint(make_flat)
    method.begin(Phase(0, 0, 2), pool)
    backbone, before = method.net.backbone, method.net.backbone.matrix.weight.clone()
    method.begin(Phase(1, 2, 4), pool)
    assert method.net.backbone is backbone
    assert not torch.equal(method.net.backbone.matrix.weight, before)
    assert method.net.head.classes == 4


def test_everything_is_kept_in_the_order_of_the_data():
    pool = make_pool([4, 7, 5])
    memory = Memory(Quota.parse("all"), "distance")
    memory.select(pool.phase, pool, None)
    assert [len(mine) for mine in memory.exemplars] == [4, 7, 5]
    assert sorted(row for mine in memory.exemplars for row in mine) == list(range(16))
    assert str(memory.quota) == "all"


@pytest.mark.parametrize(
    ("method", "memory", "instead"),
    [
        ("finetune", "2/class", "use --memory 0"),
        ("replay", "0", "use --memory 20/class or --memory all"),
        ("joint", "2/class", "use --memory all"),
        ("icarl", "0", "use --memory 20/class or --memory all"),
        ("test_plain:ToldByMeans", "0", "use --memory 20/class or --memory all"),
    ],
)
def test_a_memory_that_a_method_cannot_mean_is_refused(method, memory, instead, tmp_path):
    with pytest.raises(UsageError, match=f"'{method}' does not go with --memory {memory}: {instead}"):
        api.run(method, data="digits", runs=tmp_path, memory=memory, set={"stage.epochs": 1})


def test_the_frames_keep_what_the_methods_mean():
    from bdr.configuration.frames import FRAMES

    kept = {name: FRAMES["digits"](name).memory for name in ("finetune", "replay", "joint", "lwf", "ucir")}
    assert kept == {"finetune": "0", "replay": "2/class", "joint": "all", "lwf": "0", "ucir": "2/class"}


def test_a_joint_run_trains_on_all_images_of_all_seen_classes(tmp_path):
    fields = {"base": 4, "step": 3, "phases": 2, "share": False}
    result = api.run("joint", data="digits", runs=tmp_path, set={"stage.epochs": 1, "stage.batch": 128}, **fields)
    run, data = Run.open(result.path), digits(None)
    there = [sum(int((data.train.labels == label).sum()) for label in run.info["order"][:seen]) for seen in (4, 7)]
    assert [line["images"] for line in run.phases] == there
