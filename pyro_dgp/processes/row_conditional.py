"""Moments of ``p(f | u_n) q(u_n)`` in whitened coordinates for rows with inducing points of their own."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from pyro_dgp import linalg


def row_moments(
    k_zz: Float[Tensor, "*b n e m m"],
    k_zx: Float[Tensor, "*b n e m s"],
    mean: Float[Tensor, "*b n k m"],
    scale: Tensor,
    jitter: float | None,
    name: str,
) -> tuple[Tensor, Tensor]:
    """``a' mean_nd`` and ``a' (S_nd - I) a`` for each row, output and column, with ``a = L_n^-1 k(Z_n, x)`` ([AVDGP] 4.4).

    :param k_zz: kernel matrices of the inducing points of each row; E is 1 where the outputs share them.
    :param mean: of q(v).
    :param scale: of q(v): standard deviations ``(..., N, D_out, M)``, or lower triangles ``(..., N, D_out, M, M)``.
    :returns: ``(..., N, D_out, S)`` and ``(..., N, D_out or E, S)``.
    """
    if scale.dim() > mean.dim():
        return plain_row_moments(k_zz, k_zx, mean, scale, jitter, name)
    loc, change = _FusedRows.apply(k_zz, k_zx, mean, scale, jitter, name)  # type: ignore[no-untyped-call]
    return loc, change


def plain_row_moments(
    k_zz: Tensor, k_zx: Tensor, mean: Tensor, scale: Tensor, jitter: float | None, name: str
) -> tuple[Tensor, Tensor]:
    """The formulas as they stand, differentiated by autograd: the reference of the fused form, and the form of full scales."""
    a = torch.linalg.solve_triangular(linalg.cholesky(k_zz, jitter, name), k_zx, upper=False)
    loc = (mean.unsqueeze(-2) @ a).squeeze(-2)
    if scale.dim() == mean.dim():
        return loc, ((scale.square() - 1).unsqueeze(-2) @ a.square()).squeeze(-2)
    return loc, linalg.column_squares(scale.mT @ a) - linalg.column_squares(a)


class _FusedRows(torch.autograd.Function):
    """The same for standard deviations, with derivatives written out and one inverse factor for each small matrix.

    With A = L^-1 K_zx, d = s^2 - 1, and cotangents g of the means and v of the changes, that of A is
    ``sum_d mean_d g_d' + 2 d_d A diag(v_d)``; call it C. Those of K_zx and K_zz are ``L^-T C`` and ``-L^-T phi(C A') L^-1``, phi the
    lower triangle with half the diagonal, made symmetric.
    """

    @staticmethod
    def forward(
        ctx: Any, k_zz: Tensor, k_zx: Tensor, mean: Tensor, scale: Tensor, jitter: float | None, name: str
    ) -> tuple[Tensor, Tensor]:
        inverse = linalg.inverse_cholesky(k_zz, jitter, name)
        a = inverse @ k_zx
        d, squares = scale.square().sub_(1), a.square()
        ctx.rest = jitter, name
        ctx.save_for_backward(k_zz, k_zx, mean, scale, inverse, a, squares, d)
        return _by_output(mean, a), _by_output(d, squares)

    @staticmethod
    def backward(ctx: Any, by_loc: Tensor, by_change: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        k_zz, k_zx, mean, scale, inverse, a, squares, d = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is wanted: differentiate the plain formula

            def formula(k_zz: Tensor, k_zx: Tensor, mean: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
                return plain_row_moments(k_zz, k_zx, mean, scale, *ctx.rest)

            return (*linalg.differentiated(formula, (k_zz, k_zx, mean, scale), by_loc, by_change), None, None)
        if a.shape[-3] == 1:
            columns, squared = a.squeeze(-3), squares.squeeze(-3)
            by_mean, by_d = by_loc @ columns.mT, by_change @ squared.mT
            by_a = ((d.mT @ by_change).mul_(2).mul_(columns).add_(mean.mT @ by_loc)).unsqueeze(-3)
        else:
            g, v = by_loc.unsqueeze(-2), by_change.unsqueeze(-2)
            by_mean, by_d = (a @ g.mT).squeeze(-1), (squares @ v.mT).squeeze(-1)
            by_a = (2 * d.unsqueeze(-1) * v).mul_(a).addcmul_(mean.unsqueeze(-1), g)
        inner = by_a @ a.mT
        symmetric = inner.tril().add_(inner.tril(-1).mT)
        by_zz = (inverse.mT @ symmetric @ inverse).mul_(-0.5)
        return by_zz, inverse.mT @ by_a, by_mean, by_d.mul_(scale).mul_(2), None, None


def _by_output(weights: Float[Tensor, "*b k m"], columns: Float[Tensor, "*b e m s"]) -> Float[Tensor, "*b k s"]:
    """``sum_m weights_km columns_ms``, one kernel's columns for all outputs or each its own."""
    if columns.shape[-3] == 1:
        return weights @ columns.squeeze(-3)
    return (weights.unsqueeze(-2) @ columns).squeeze(-2)
