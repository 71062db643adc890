"""One thread: several cost more than they save on tensors this small, and bits are compared between runs."""

import torch
from chromium import browser, chromium

__all__ = ["browser", "chromium"]

torch.set_num_threads(1)
