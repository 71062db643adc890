"""The module where several processes train together: as if one had seen all their images."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bdr import BDR

PAGE = Path(__file__).resolve().parents[1] / "docs" / "the-module.md"
RANKS = 2
CUT = 10  # of the 16 images of a batch, so many are the first rank's
RANK = """
import sys
import warnings
import torch
import torch.distributed as dist
from bdr import BDR

given, found, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
dist.init_process_group("gloo", init_method=f"file://{given}.meeting", rank=rank, world_size=2)
told = torch.load(given)
labels, features = told["shares"][rank]
balance = BDR(formula=told["formula"], across_ranks=True)
balance.begin(labels, features, classes=4)
for features, y in told["batches"]:
    mine = slice(None, told["cut"]) if rank == 0 else slice(told["cut"], None)
    balance(torch.zeros(len(y[mine]), 4), features[mine], y[mine])

said = []
no_images = (labels[:0], torch.zeros(0, 3))
wide = (torch.tensor([0, 1]), torch.zeros(2, 3 + rank))
column = (torch.tensor([[0], [1]]) if rank else torch.tensor([0, 1]), torch.zeros(2, 3))
for refused in (no_images, wide, column):
    try:
        balance.begin(*refused)
    except ValueError as error:
        said.append(str(error))
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    BDR().begin(torch.tensor([0, 1]), torch.zeros(2, 3))
torch.save({"state": balance.state_dict(), "said": said, "warned": [str(one.message) for one in warned]}, found)
dist.destroy_process_group()
"""


def images(count, generator):
    labels = torch.arange(count) % 4
    return labels, torch.randn(count, 3, generator=generator) * (1 + labels[:, None])


def world_of(folder, formula, mixed, shares):
    """What two ranks are told: their shares of a phase, and the batches of which each has a part."""
    generator = torch.Generator().manual_seed(3)
    batches = [images(16, generator)[::-1] for _ in range(5)]
    batches[2][0][CUT - 1, 1] = torch.inf  # on the first rank alone, and moves nothing on any
    if mixed:
        batches = [(x, torch.eye(4)[y] * 0.7 + torch.eye(4)[y.flip(0)] * 0.3) for x, y in batches]
    shares = [images(count, generator) for count in shares]
    told = {"formula": formula, "shares": shares, "batches": batches, "cut": CUT}
    torch.save(told, folder / "given.pt")
    return told


def started_together(script, *arguments):
    """Both ranks, told of each other as torchrun does it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": str(RANKS)}
    crew = []
    for rank in range(RANKS):
        command = [sys.executable, str(script), *(argument.format(rank=rank) for argument in arguments)]
        itself = os.environ | meeting | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        crew.append(subprocess.Popen(command, env=itself, stdout=subprocess.PIPE, text=True))
    said = [process.communicate(timeout=120)[0] for process in crew]
    assert [process.returncode for process in crew] == [0] * RANKS
    return said


def trained_together(folder):
    (folder / "rank.py").write_text(RANK)
    started_together(folder / "rank.py", str(folder / "given.pt"), str(folder / "found{rank}.pt"), "{rank}")
    return [torch.load(folder / f"found{rank}.pt") for rank in range(RANKS)]


@pytest.mark.parametrize(
    ("formula", "mixed", "shares"),
    [("corrected", False, (13, 11)), ("released", False, (24, 0)), ("corrected", True, (13, 11))],
)
def test_ranks_have_the_statistics_of_one_process_that_sees_all_images(tmp_path, formula, mixed, shares):
    told = world_of(tmp_path, formula, mixed, shares)
    alone = BDR(formula=formula)
    labels, features = (torch.cat(parts) for parts in zip(*told["shares"], strict=True))
    alone.begin(labels, features, classes=4)
    for x, y in told["batches"]:
        alone(torch.zeros(len(y), 4), x, y)
    first, second = trained_together(tmp_path)
    for name, value in alone.state_dict().items():
        torch.testing.assert_close(first["state"][name], value)
        assert torch.equal(first["state"][name], second["state"][name])
    assert_refused_alike(first["said"], second["said"])
    assert_drift_is_told_once(first["warned"], second["warned"])


def assert_refused_alike(first, second):
    """By the rank that gave it and by the one that would wait for it."""
    assert first == second
    none, wide, column = first
    assert "there are no labels and features" in none
    assert "rank 0 gives labels (N) of torch.int64 and features (N, 3) of torch.float32; rank 1 gives " in wide
    assert "labels are (2, 1), and ids are (2,)" in column


def assert_drift_is_told_once(first, second):
    assert [("BDR(across_ranks=True)" in said) for said in first] == [True]
    assert second == []


def test_the_program_for_several_processes_runs_as_the_page_has_it(tmp_path):
    (block,) = re.findall(r"^```python\n(# train\.py\n.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "train.py").write_text(block)
    first, second = started_together(tmp_path / "train.py")
    assert re.fullmatch(r"old [\d.]+ %, new [\d.]+ %\n", first)
    assert second == ""


def test_alone_it_is_the_module_as_it_is():
    generator = torch.Generator().manual_seed(3)
    plain, ready = BDR(), BDR(across_ranks=True)
    for balance in (plain, ready):
        balance.begin(*images(24, generator.manual_seed(3)))
        balance(torch.zeros(16, 4), *images(16, generator.manual_seed(4))[::-1])
    assert torch.equal(plain.offset, ready.offset)
