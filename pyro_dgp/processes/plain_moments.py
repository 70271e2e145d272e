"""Moments of ``p(f | u) q(u)`` in whitened coordinates: the formulas as they stand, differentiated by autograd."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_dgp.internal import linalg


def plain_moments(
    k_zz: Tensor, k_zx: Tensor, mean: Tensor, scale: Tensor | None, jitter: float | None, name: str
) -> tuple[Tensor, Tensor]:
    """The formulas as they stand, differentiated by autograd, with any batch axes: the reference of the fused form."""
    projection = linalg.solve_columns(linalg.cholesky(k_zz, jitter, name), k_zx)
    loc = (mean.unsqueeze(-2) @ projection).squeeze(-2)
    change = -linalg.column_squares(projection)
    if scale is None:
        return loc, change
    if scale.dim() == 3:
        return loc, change + linalg.column_squares(scale.mT @ projection)
    return loc, change + (scale.square().unsqueeze(-2) @ projection.square()).squeeze(-2)


def plain_row_moments(
    k_zz: Tensor, k_zx: Tensor, mean: Tensor, scale: Tensor, jitter: float | None, name: str
) -> tuple[Tensor, Tensor]:
    """The formulas as they stand, differentiated by autograd: the reference of the fused form, and the form of full scales."""
    a = torch.linalg.solve_triangular(linalg.cholesky(k_zz, jitter, name), k_zx, upper=False)
    loc = (mean.unsqueeze(-2) @ a).squeeze(-2)
    if scale.dim() == mean.dim():
        return loc, ((scale.square() - 1).unsqueeze(-2) @ a.square()).squeeze(-2)
    return loc, linalg.column_squares(scale.mT @ a) - linalg.column_squares(a)
