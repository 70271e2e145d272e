"""Zonal functions on the sphere in d dimensions: Gegenbauer polynomials, and coefficients by quadrature (Dai and Xu 2013)."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from pyro_dgp.internal import linalg

#: Nodes on each half of the sphere. Functions that are smooth in the angle on each half, such as a rectifier, are integrated to machine
#: precision up to some 60 levels.
_NODES = 128


def gegenbauer(cosine: Tensor, levels: int, dimension: int) -> Float[Tensor, "levels ..."]:
    """Return ``P_l(t)`` for l below ``levels``: Gegenbauer polynomials ``C_l^alpha``, ``alpha = d / 2 - 1``, over their value at 1."""
    alpha = dimension / 2 - 1
    values = [torch.ones_like(cosine), cosine]
    for level in range(1, levels - 1):
        following = (2 * (level + alpha) * cosine * values[-1] - level * values[-2]) / (level + 2 * alpha)
        values.append(following)
    return torch.stack(values[:levels])


@lru_cache
def multiplicity(dimension: int, level: int) -> int:
    """Return ``N(d, l)``, the number of independent spherical harmonics of a level."""
    if level == 0:
        return 1
    if dimension == 2:
        return 2
    return (2 * level + dimension - 2) * math.comb(level + dimension - 3, level - 1) // level


@lru_cache
def _angles(dimension: int) -> tuple[Tensor, Tensor]:
    """Return cosines and weights for the mean over the sphere of a function of one angle, by Gauss-Legendre in the angle on each half."""
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    angles = np.concatenate([(nodes + 1) * math.pi / 4, (nodes + 3) * math.pi / 4])
    density = np.concatenate([weights, weights]) * np.sin(angles) ** (dimension - 2)
    return torch.as_tensor(np.cos(angles)), torch.as_tensor(density / density.sum())


def nodes(dimension: int, like: Tensor) -> Tensor:
    """Return the cosines at which :func:`coefficients` wants a function, in the dtype and on the device of ``like``."""
    return _angles(dimension)[0].to(like)


def coefficients(values: Float[Tensor, "*b q"], levels: int, dimension: int) -> Float[Tensor, "*b levels"]:
    """Return the coefficients ``c_l = E s(t) P_l(t)`` of ``s(t) = sum_l c_l N(d, l) P_l(t)`` (Funk-Hecke).

    The expectation is over the cosine t of a point that is uniform on the sphere.

    :param values: s at :func:`nodes`.
    """
    cosines, weights = (each.to(values) for each in _angles(dimension))
    return values @ (gegenbauer(cosines, levels, dimension) * weights).mT


@lru_cache
def fundamental_set(dimension: int, level: int) -> tuple[Tensor, Tensor]:
    """Return points V on the sphere, ``(N(d, l), d)``, and G with ``Y(x) = G P_l(V x)`` orthonormal harmonics of the level; float64.

    The points are pivots of the zonal kernel ``P_l`` among random ones, so that its matrix is well-conditioned. Harmonics are orthonormal
    under the uniform distribution on the sphere: ``sum_j Y_j(x) Y_j(z) = N(d, l) P_l(x z)``, the addition theorem.
    """
    number = multiplicity(dimension, level)
    generator = torch.Generator().manual_seed(level)
    points = torch.randn(max(4 * number, 16), dimension, dtype=torch.float64, generator=generator)
    points = points / points.norm(dim=-1, keepdim=True)
    matrix = gegenbauer((points @ points.mT).clamp(-1, 1), level + 1, dimension)[level]
    left, columns, chosen = matrix.diagonal().clone(), matrix.new_zeros(0, len(matrix)), []
    for _ in range(number):
        row = int(left.argmax())
        chosen.append(row)
        column = (matrix[row] - columns.mT @ columns[:, row]) / left[row].sqrt()
        columns = torch.cat([columns, column[None]])
        left = left - column.square()
    factor = columns[:, chosen].mT  # lower triangular, by the order of the pivots
    gain = linalg.solve_triangular(factor, torch.eye(number, dtype=torch.float64), upper=False)
    return points[chosen], math.sqrt(number) * gain
