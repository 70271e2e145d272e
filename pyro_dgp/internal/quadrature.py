"""Nodes and weights of expectations over normal variables, for likelihoods and sigma points alike."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from pyro_dgp.internal.recording import failed, recording

#: Gauss-Hermite nodes of a function, and the standard deviation, in widths of what is integrated, up to which they serve.
NODES, _SMOOTH = 20, 1.5
#: Gauss-Hermite nodes of rules that the others are compared with, for one function and for each of two: odd numbers, for a step near the mean, which two
#: rules of even numbers put between the same two nodes.
_FINER, _FINER_OF_TWO = 33, 25
#: Standard deviation that a recorded function, which cannot look at its own, has nodes for; most nodes of any.
_RECORDED, _MOST = 4.0, 400


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


def normal_trapezoid(width: float, most: int) -> tuple[Tensor, Tensor]:
    """Nodes and log weights ``(K,)`` of E g(z), z ~ N(0, 1), for g no narrower than a normal bump of a width: float64.

    The trapezoidal rule errs by some ``exp(-2 pi^2 / (step^2 (1 + 1 / width^2)))``; the step is chosen for 1e-9.

    :param width: standard deviation of the narrowest bump of g.
    :param most: largest number of nodes.
    """
    step = 0.95 / math.sqrt(1 + 1 / max(width, 1e-9) ** 2)
    count = min(most, 2 * math.ceil(6.5 / step) + 1)
    nodes = torch.linspace(-6.5, 6.5, count, dtype=torch.float64)
    return nodes, -0.5 * nodes.square() - torch.logsumexp(-0.5 * nodes.square(), 0)


def normal_nodes(scale: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes and log weights ``(K,)`` of E g(s z), z ~ N(0, 1), for all of several scales s, and g no narrower than a unit bump: float64.

    They are :data:`NODES` Gauss-Hermite nodes for scales that these serve, to some 1e-7. Wider ones take as many equidistant nodes as they need.
    A recorded function has nodes for scales up to 4, and reports wider ones as a failure.

    :param scale: standard deviations, of any shape.
    """
    if recording():
        failed(scale.detach() > _RECORDED)
        return normal_trapezoid(1 / _RECORDED, _MOST)
    largest = float(scale.detach().max()) if scale.numel() else 0.0
    if largest > _SMOOTH and math.isfinite(largest):
        return normal_trapezoid(1 / largest, _MOST)
    return gauss_hermite(NODES)


def finer_nodes(scale: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes ``(K, F)`` and log weights ``(K,)`` of a finer rule, to compare the usual one with: float64.

    :param scale: standard deviations of one or two functions, ``(..., F)``. Wide functions have a denser rule than :func:`normal_nodes`.
    """
    functions = scale.shape[-1]
    if functions > 1:
        return gauss_hermite_product(_FINER_OF_TWO, functions)
    largest = float(scale.detach().max()) if scale.numel() and not recording() else 0.0
    is_wide = largest > _SMOOTH and math.isfinite(largest)
    nodes, log_weights = normal_trapezoid(1 / (1.6 * largest), _MOST) if is_wide else gauss_hermite(_FINER)
    return nodes.unsqueeze(-1), log_weights
