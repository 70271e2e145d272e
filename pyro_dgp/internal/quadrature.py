"""Gauss-Hermite nodes and weights, for likelihoods and sigma points alike."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor


@lru_cache
def gauss_hermite(size: int) -> tuple[Tensor, Tensor]:
    """Nodes and log weights of E f(z), z ~ N(0, 1), exact for polynomials of degree ``2 size - 1``; float64."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(size)
    return torch.as_tensor(nodes), torch.as_tensor(np.log(weights) - 0.5 * math.log(2 * math.pi))


@lru_cache
def gauss_hermite_product(size: int, dimensions: int) -> tuple[Tensor, Tensor]:
    """Nodes ``(K, dimensions)`` and log weights ``(K,)`` of the product of rules, ``K = size^dimensions``; float64."""
    nodes, log_weights = gauss_hermite(size)
    at = torch.cartesian_prod(*[nodes] * dimensions).reshape(-1, dimensions)
    return at, torch.cartesian_prod(*[log_weights] * dimensions).reshape(-1, dimensions).sum(-1)
