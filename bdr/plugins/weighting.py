"""Weights of classes by how many images they have, and what they come to for a batch."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def inverse_frequency(counts: Tensor) -> Tensor:
    """(K,) 1 / N_k, with mean 1 over the classes."""
    return mean_one(1 / counts)


def effective_number(counts: Tensor, beta: float) -> Tensor:
    """(K,) (1 - beta) / (1 - beta^N_k) (Cui et al., CVPR 2019), with mean 1 over the classes."""
    return mean_one(-1 / torch.expm1(counts * math.log(beta)))


def mean_one(weight: Tensor) -> Tensor:
    return weight / weight.mean()


def expected(weight: Tensor, y: Tensor) -> Tensor:
    """(B,) the weight of each sample's class; for a mixture, the average over its classes."""
    return y.to(weight.dtype) @ weight if y.dim() == 2 else weight[y]


def weighed(losses: Tensor, weight: Tensor, y: Tensor) -> Tensor:
    """(B,) each loss times the weight of its class, divided by the mean weight of the batch.

    The mean of these is the weighted mean, as in torch's cross-entropy with weights. Without the division, the whole
    classification loss would count less beside the other terms of a method, the rarer old classes are.
    """
    of_sample = expected(weight, y)
    return of_sample / of_sample.mean() * losses


def check_beta(beta: float) -> None:
    if not 0 < beta < 1:
        raise ValueError(f"beta = {beta} is not allowed: it is between 0 and 1")
