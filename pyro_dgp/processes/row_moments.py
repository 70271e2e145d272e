"""Moments of ``p(f | u_n) q(u_n)`` in whitened coordinates for rows with inducing points of their own."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from pyro_dgp.processes.fused_row_moments import FusedRowMoments
from pyro_dgp.processes.plain_moments import plain_row_moments


def row_moments(
    k_zz: Float[Tensor, "*b n e m m"],
    k_zx: Float[Tensor, "*b n e m s"],
    mean: Float[Tensor, "*b n k m"],
    scale: Tensor,
    jitter: float | None,
    name: str,
) -> tuple[Tensor, Tensor]:
    """Return ``a' mean_nd`` and ``a' (S_nd - I) a`` for each row, output and column.

    The columns are ``a = L_n^-1 k(Z_n, x)`` ([AVDGP] 4.4).

    :param k_zz: kernel matrices of the inducing points of each row; E is 1 where the outputs share them.
    :param mean: mean of q(v).
    :param scale: scale of q(v): standard deviations ``(..., N, D_out, M)``, or lower triangles
        ``(..., N, D_out, M, M)``.
    :returns: ``(..., N, D_out, S)`` and ``(..., N, D_out or E, S)``.
    """
    if scale.dim() > mean.dim():
        return plain_row_moments(k_zz, k_zx, mean, scale, jitter, name)
    loc, change = FusedRowMoments.apply(k_zz, k_zx, mean, scale, jitter, name)  # type: ignore[no-untyped-call]
    return loc, change
