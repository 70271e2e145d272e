"""Moments of row-wise inducing points with derivatives written out."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor

from pyro_dgp.internal import linalg
from pyro_dgp.internal.differentiation import Cotangents, FusedFunction
from pyro_dgp.processes.plain_moments import plain_row_moments


class FusedRowMoments(FusedFunction):
    """Function :func:`~pyro_dgp.processes.plain_moments.plain_row_moments` of standard deviations, derivatives written out.

    Each small matrix has one inverse factor. Let A = L^-1 K_zx, d = s^2 - 1, g the cotangents of the means and v those of
    the changes. The cotangent of A is ``C = sum_d mean_d g_d' + 2 d_d A diag(v_d)``. The cotangents of K_zx and K_zz are
    ``L^-T C`` and ``-L^-T phi(C A') L^-1``, where phi takes the lower triangle with half the diagonal and makes it
    symmetric.
    """

    @staticmethod
    def forward(
        ctx: Any, k_zz: Tensor, k_zx: Tensor, mean: Tensor, scale: Tensor, jitter: float | None, name: str
    ) -> tuple[Tensor, Tensor]:
        """Return both moments of every row."""
        inverse, ctx.jitter = linalg.inverse_cholesky(k_zz, jitter, name)
        a = inverse @ k_zx
        d, squares = scale.square().sub_(1), a.square()
        ctx.rest = jitter, name
        ctx.save_for_backward(k_zz, k_zx, mean, scale, inverse, a, squares, d)
        return _by_output(mean, a), _by_output(d, squares)

    @staticmethod
    def inputs(ctx: Any) -> tuple[Tensor | None, ...]:
        """See :class:`FusedFunction`."""
        return (*ctx.saved_tensors[:4], None, None)

    @staticmethod
    def plain(
        ctx: Any, k_zz: Tensor, k_zx: Tensor, mean: Tensor, scale: Tensor, _: None, __: None
    ) -> tuple[Tensor, Tensor]:
        """See :class:`FusedFunction`."""
        return plain_row_moments(k_zz, k_zx, mean, scale, *ctx.rest)

    @staticmethod
    def cotangents(ctx: Any, by_loc: Tensor, by_change: Tensor) -> Cotangents:
        """See :class:`FusedFunction`."""
        _, _, mean, scale, inverse, a, squares, d = ctx.saved_tensors
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
        by_zz = linalg.through_jitter_((inverse.mT @ symmetric @ inverse).mul_(-0.5), ctx.jitter)
        return by_zz, inverse.mT @ by_a, by_mean, by_d.mul_(scale).mul_(2), None, None


def _by_output(weights: Float[Tensor, "*b k m"], columns: Float[Tensor, "*b e m s"]) -> Float[Tensor, "*b k s"]:
    """Return ``sum_m weights_km columns_ms``; the outputs share the columns of one kernel, or each has its own."""
    if columns.shape[-3] == 1:
        return weights @ columns.squeeze(-3)
    return (weights.unsqueeze(-2) @ columns).squeeze(-2)
