"""The module where several processes train together: as if one had seen all their images."""

import subprocess
import sys

import pytest
import torch

from bdr import BDR

RANKS = 2
SHARES = (13, 11)  # images of each rank at the start of a phase
RANK = """
import sys
import torch
import torch.distributed as dist
from bdr import BDR

meeting, rank, given, found = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
told = torch.load(given)
balance = BDR(formula=told["formula"], across_ranks=True)
balance.begin(*told["shares"][rank], classes=4)
for features, y in told["batches"]:
    mine = slice(rank * len(y) // 2, (rank + 1) * len(y) // 2)
    balance(torch.zeros(len(y[mine]), 4), features[mine], y[mine])
torch.save(balance.state_dict(), found)
dist.destroy_process_group()
"""


def images(count, generator):
    labels = torch.arange(count) % 4
    return labels, torch.randn(count, 3, generator=generator) * (1 + labels[:, None])


def world_of(folder, formula, mixed):
    """What two ranks are told: their shares of a phase, and the batches that they halve."""
    generator = torch.Generator().manual_seed(3)
    batches = [images(16, generator)[::-1] for _ in range(5)]
    if mixed:
        batches = [(x, torch.eye(4)[y] * 0.7 + torch.eye(4)[y.flip(0)] * 0.3) for x, y in batches]
    told = {"formula": formula, "shares": [images(count, generator) for count in SHARES], "batches": batches}
    torch.save(told, folder / "given.pt")
    return told


def trained_together(folder):
    (folder / "rank.py").write_text(RANK)
    paths = [str(folder / name) for name in ("rank.py", "meeting", "given.pt")]
    script, meeting, given = paths
    found = [folder / f"found{rank}.pt" for rank in range(RANKS)]
    crew = [
        subprocess.Popen([sys.executable, script, meeting, str(rank), given, str(found[rank])]) for rank in range(RANKS)
    ]
    assert [process.wait(timeout=120) for process in crew] == [0, 0]
    return [torch.load(path) for path in found]


@pytest.mark.parametrize(("formula", "mixed"), [("corrected", False), ("released", False), ("corrected", True)])
def test_ranks_have_the_statistics_of_one_process_that_sees_all_images(tmp_path, formula, mixed):
    told = world_of(tmp_path, formula, mixed)
    alone = BDR(formula=formula)
    labels, features = (torch.cat(parts) for parts in zip(*told["shares"], strict=True))
    alone.begin(labels, features, classes=4)
    for x, y in told["batches"]:
        alone(torch.zeros(len(y), 4), x, y)
    first, second = trained_together(tmp_path)
    for name, value in alone.state_dict().items():
        torch.testing.assert_close(first[name], value)
        assert torch.equal(first[name], second[name])


def test_alone_it_is_the_module_as_it_is():
    generator = torch.Generator().manual_seed(3)
    plain, ready = BDR(), BDR(across_ranks=True)
    for balance in (plain, ready):
        balance.begin(*images(24, generator.manual_seed(3)))
        balance(torch.zeros(16, 4), *images(16, generator.manual_seed(4))[::-1])
    assert torch.equal(plain.offset, ready.offset)
