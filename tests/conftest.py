"""One thread: several cost more than they save on tensors this small, and bits are compared between runs."""

import gc

import torch
from chromium import browser, chromium

__all__ = ["browser", "chromium"]

torch.set_num_threads(1)


def pytest_collection_finish():
    """What is imported by now stays: looking through it for garbage again and again is a sixth of a compiling test."""
    gc.collect()
    gc.freeze()
