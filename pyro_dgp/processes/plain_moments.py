"""Moments of ``p(f | u) q(u)`` in whitened coordinates by the plain formulas, differentiated by autograd."""

from __future__ import annotations

from torch import Tensor

from pyro_dgp.internal import linalg
from pyro_dgp.processes.whitened_gaussian import WhitenedGaussian


def plain_moments(
    k_zz: Tensor | None, k_zx: Tensor, mean: Tensor, scale: Tensor | None, jitter: float | None, name: str
) -> tuple[Tensor, Tensor]:
    """Return both moments by the plain formulas, with any batch axes. The fused form is tested against them.

    :param k_zz: ``None`` where the columns ``k_zx`` are whitened already.
    """
    columns = k_zx if k_zz is None else linalg.solve_columns(linalg.cholesky(k_zz, jitter, name), k_zx)
    kind = "delta" if scale is None else "full" if scale.dim() > mean.dim() else "diagonal"
    return WhitenedGaussian(mean, scale, kind).moments(columns)


def plain_row_moments(
    k_zz: Tensor, k_zx: Tensor, mean: Tensor, scale: Tensor, jitter: float | None, name: str
) -> tuple[Tensor, Tensor]:
    """Return both moments of each row by the plain formulas, which serve full scales.

    The fused form of standard deviations is tested against them.
    """
    a = linalg.solve_triangular(linalg.cholesky(k_zz, jitter, name), k_zx, upper=False)
    loc = (mean.unsqueeze(-2) @ a).squeeze(-2)
    if scale.dim() == mean.dim():
        return loc, ((scale.square() - 1).unsqueeze(-2) @ a.square()).squeeze(-2)
    return loc, linalg.column_squares(scale.mT @ a) - linalg.column_squares(a)
