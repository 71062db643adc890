"""One thread: several cost more than they save on tensors this small, and bits are compared between runs."""

import torch

torch.set_num_threads(1)
