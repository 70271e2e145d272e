"""The sparse factor of a Vecchia approximation: each row regressed on its neighbours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from pyro_dgp.approximations.neighbors import Neighbors
from pyro_dgp.gp import too_many_values_message
from pyro_dgp.internal import linalg
from pyro_dgp.kernels import Covariance

#: Entries of local covariance matrices that are computed at once, which a processor's cache holds, and that are kept for gradients: 160 MB in double
#: precision for each of some five tensors. Where there are more, parts are computed again.
_AT_ONCE, _MOST_KEPT = 500_000, 20_000_000


@dataclass(frozen=True)
class LocalFactors:
    """``p(f) = prod_i N(f_i | m_i + b_i' (f_c(i) - m_c(i)), s_i^2)``, with c(i) the neighbours of row i.

    All values are in the order of the neighbours. E is the number of kernels, 1 where the outputs share one.

    :ivar weights: ``b_i = K_cc^-1 k_ci``, ``(N, m, E)``, zero where there is no neighbour.
    :ivar scales: ``s_i = (k_ii - k_ic b_i)^(1/2)``, ``(N, E)``.
    :ivar terms: places of the rows that are regressed, whose number N is then; all if not given.
    """

    neighbors: Neighbors
    weights: Tensor
    scales: Tensor
    terms: Tensor | None = None

    @classmethod
    def of_tensor(cls, neighbors: Neighbors, packed: Tensor) -> LocalFactors:
        """Return the factors that :meth:`tensor` holds."""
        return cls(neighbors, packed[:, :-1], packed[:, -1])

    def tensor(self) -> Tensor:
        """Weights and scales side by side, ``(N, m + 1, E)``."""
        return torch.cat([self.weights, self.scales.unsqueeze(1)], 1)

    def whiten(self, residual: Tensor) -> Tensor:
        """``(r_i - b_i' r_c(i)) / s_i`` of residuals ``(N, ..., D_out)`` of all rows, for those that are regressed."""
        weights, scales = self._like(self.weights, residual), self._like(self.scales, residual)
        own = _taken(residual, self.terms)
        near = residual[_taken(self.neighbors.places, self.terms)]  # (N, m, ..., D_out)
        return (own - (weights * near).sum(1)) / scales

    def unwhiten(self, white: Tensor) -> Tensor:
        """Residuals from whitened values ``(N, ..., D_out)``, level by level: the inverse of :meth:`whiten`."""
        values: Tensor = _Solve.apply(
            self._like(self.weights, white), self._like(self.scales, white) * white, self.neighbors
        )  # type: ignore[no-untyped-call]
        return values

    def half_log_determinant(self, outputs: int) -> Tensor:
        """``sum_d sum_i log s_id``: half the log determinant of the covariance of all outputs, ``()``."""
        return self.scales.log().sum() * (outputs if self.scales.shape[-1] == 1 else 1)

    @staticmethod
    def _like(values: Tensor, like: Tensor) -> Tensor:
        """Values ``(N, ..., E)`` with axes for what stands between the rows and the outputs of ``like``."""
        between = (1,) * (like.dim() - 2)
        return values.reshape(*values.shape[:-1], *between, values.shape[-1])


def local_factors(
    covariance: Covariance,
    x: Tensor,
    neighbors: Neighbors,
    *,
    jitter: float | None,
    name: str,
    noise_variance: Tensor | None = None,
    terms: Tensor | None = None,
) -> LocalFactors:
    """Regress each row on its neighbours.

    :param x: inputs ``(N, D)``, in the order of the data.
    :param jitter: relative jitter of the local covariances, as for a Cholesky factor of all rows.
    :param noise_variance: variance of noise that is added to the function values, ``(D_out,)``.
    :param terms: places of the rows that are regressed; all if not given.
    """

    def rows(own: Tensor, places: Tensor, is_there: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor]:
        points = torch.cat([ordered[places], own.unsqueeze(1)], 1)
        return _regress(covariance, points, is_there, jitter=jitter, name=name, noise=noise)

    ordered = x[neighbors.order]
    entries = (neighbors.num_neighbors + 1) ** 2
    part = max(1, _AT_ONCE // entries)
    own, places, is_there = (_taken(each, terms) for each in (ordered, neighbors.places, neighbors.is_there))
    pieces = zip(own.split(part), places.split(part), is_there.split(part), strict=True)
    if len(own) * entries <= _MOST_KEPT:
        found = [rows(*piece, noise_variance) for piece in pieces]
    else:
        found = [
            checkpoint(rows, *piece, noise_variance, use_reentrant=False, preserve_rng_state=False) for piece in pieces
        ]
    weights, scales = (torch.cat(parts) for parts in zip(*found, strict=True))
    return LocalFactors(neighbors, weights, scales, terms)


def _taken(values: Tensor, places: Tensor | None) -> Tensor:
    return values if places is None else values[places]


def require_shapes(covariance: Covariance, x: Tensor, outputs: int, name: str, noise: Tensor | None) -> None:
    """Raise for hyperparameters with more values than there are parameters: they would broadcast with the axis of the rows."""
    for found in (covariance.matrix(x[:1].unsqueeze(-3)).shape[:-2], () if noise is None else noise.shape):
        if tuple(found) not in ((), (1,), (outputs,)):
            raise ValueError(too_many_values_message(name, tuple(found), (outputs,)))


def _regress(
    covariance: Covariance,
    x: Tensor,
    is_there: Tensor,
    *,
    jitter: float | None,
    name: str,
    noise: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Weights ``(R, m, E)`` and scales ``(R, E)`` of the last of each row's points, ``(R, m + 1, D)``."""
    matrix = covariance.matrix(x.unsqueeze(-3))
    if noise is not None:
        matrix = linalg.add_noise(matrix, noise)
    factorise = linalg.cholesky if noise is None else linalg.noisy_cholesky
    weights, scales = _Regress.apply(matrix, is_there, lambda each: factorise(each, jitter, name))  # type: ignore[no-untyped-call]
    return weights.mT, scales


class _Regress(torch.autograd.Function):
    """``b = K_cc^-1 k`` and ``s = (k_ii - k' b)^(1/2)`` of local covariances ``(R, E, m + 1, m + 1)``, the row itself last.

    For cotangents of b and ``v = s^2``, and ``l = K_cc^-1 b_``, those of the covariances are ``v_`` of k_ii, ``l - 2 v_ b`` of k and ``v_ b b' - l b'``
    of K_cc. The jitter counts as a constant.
    """

    @staticmethod
    def forward(
        ctx: Any, matrix: Tensor, is_there: Tensor, factorise: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        few = (~is_there.all(-1)).nonzero().squeeze(-1)
        if len(few):
            matrix = matrix.clone()
            matrix[few] = _without(matrix[few], is_there[few])
        factor = factorise(matrix)
        corner, last, scales = factor[..., :-1, :-1], factor[..., -1:, :-1], factor[..., -1, -1]
        weights = linalg.solve_triangular(corner.mT, last.mT, upper=True).squeeze(-1)
        ctx.save_for_backward(corner, weights, scales, is_there)
        return weights, scales

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_weights: Tensor, of_scales: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        corner, weights, scales, is_there = ctx.saved_tensors
        of_weights = of_weights.masked_fill(~is_there.unsqueeze(1), 0.0)
        of_variance = (of_scales / (2 * scales)).unsqueeze(-1)
        inner = linalg.solve_triangular(corner, of_weights.unsqueeze(-1), upper=False)
        shares = linalg.solve_triangular(corner.mT, inner, upper=True).squeeze(-1)
        found = corner.new_empty((*scales.shape, corner.shape[-1] + 1, corner.shape[-1] + 1))
        left = of_variance * weights - shares
        torch.mul(left.unsqueeze(-1), weights.unsqueeze(-2), out=found[..., :-1, :-1])
        found[..., -1, :-1] = shares - 2 * of_variance * weights
        found[..., :-1, -1] = 0.0
        found[..., -1, -1] = of_variance.squeeze(-1)
        return found, None, None


def _without(matrix: Tensor, is_there: Tensor) -> Tensor:
    """Local covariances in which a neighbour that is not there has unit correlation with itself and none with others, so that its weight is zero."""
    kept = torch.cat([is_there, is_there.new_ones(len(is_there), 1)], -1)
    both = (kept.unsqueeze(-1) & kept.unsqueeze(-2)).unsqueeze(-3)
    level = matrix.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
    return torch.where(both, matrix, level * linalg.identity(matrix))


class _Solve(torch.autograd.Function):
    """``f_i = r_i + sum_j b_ij f_c(i,j)`` for ``r`` ``(N, ...)`` and ``b`` ``(N, m, ...)``, level by level."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, right: Tensor, neighbors: Neighbors) -> Tensor:
        values = right.clone()
        for level in neighbors.levels[1:]:  # rows of the first level have no neighbours
            values[level] += (weights[level] * values[neighbors.places[level]]).sum(1)
        ctx.neighbors = neighbors
        ctx.save_for_backward(weights, values)
        return values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        weights, values = ctx.saved_tensors
        neighbors: Neighbors = ctx.neighbors
        right = cotangent.clone()
        for level in reversed(neighbors.levels[1:]):
            shares = weights[level] * right[level].unsqueeze(1)
            right.index_add_(0, neighbors.places[level].flatten(), shares.flatten(0, 1))
        products = right.unsqueeze(1) * values[neighbors.places]
        shared = [axis for axis, size in enumerate(weights.shape) if size == 1 and products.shape[axis] > 1]
        return products.sum(shared, keepdim=True) if shared else products, right, None
