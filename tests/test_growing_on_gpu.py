"""Networks that grow, trained from one phase into the next: the captured step of a GPU does what the eager one does."""

import pytest
import torch
from runs import lines, train

GROWING = ("der", "simple-der", "rpsnet", "dytox", "l2p", "dualprompt", "ucir+aanet", "ucir+cwd+tade")
SETTINGS = {"rpsnet": [("rpsnet.jump", 1)]}  # else its second path would come with the third phase
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def trained(folder, what, engine):
    """Two phases of an epoch or two: what its terms came to, stage by stage, and how large the network became."""
    torch._dynamo.reset()
    fields = {"phases": 2, "device": "cuda", "engine": engine, "precision": "fp32", "checkpoint_every": 1e9}
    path = train(folder / engine, what, settings=SETTINGS.get(what, ()), **fields)
    epochs, phases = lines(path / "epochs.jsonl"), lines(path / "phases.jsonl")
    terms = {
        (line["phase"], line["stage"], line["epoch"], name): value
        for line in epochs
        for name, value in line["terms"].items()
    }
    return terms, [line["parameters"] for line in phases]


def assert_alike(ours, theirs):
    (terms, sizes), (wanted, wanted_sizes) = ours, theirs
    assert terms.keys() == wanted.keys()
    assert {phase for phase, *_ in terms} == {0, 1}
    assert sizes == pytest.approx(wanted_sizes, rel=0.05)  # a channel more or less where some are pruned
    for place, value in wanted.items():
        assert terms[place] == pytest.approx(value, rel=0.05, abs=0.05, nan_ok=True), place


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("what", GROWING)
def test_a_network_that_grows_is_captured_anew_and_trains_as_eagerly(what, tmp_path):
    assert_alike(trained(tmp_path, what, "graph"), trained(tmp_path, what, "eager"))
