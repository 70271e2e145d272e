"""Moments of ``p(f | u) q(u)`` in whitened coordinates: the innermost computation of every step with inducing points."""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from pyro_dgp.internal.blocks import joined
from pyro_dgp.processes.fused_moments import FusedMoments
from pyro_dgp.processes.plain_moments import plain_moments


def conditional_moments(
    k_zz: Float[Tensor, "*h e m m"],
    k_zx: Sequence[Float[Tensor, "*c e2 m _"]],
    mean: Float[Tensor, "k m"],
    scale: Tensor | None,
    jitter: float | None,
    name: str,
) -> tuple[Tensor, Tensor]:
    """Return ``a' mean_d`` and ``a' (S_d - I) a`` for each output and column, with ``a = L_z^-1 k(Z, x)`` ([DSPP] 7 and 8).

    :param k_zz: kernel matrix of the inducing points; E is 1 where the outputs share it.
    :param k_zx: the columns, in one block or more (:func:`column_blocks`).
    :param mean: mean of q(v).
    :param scale: scale of q(v): T ``(D_out, M, M)`` with ``S = T T'``, standard deviations ``(D_out, M)``, or ``None``
        for S = 0.
    :returns: both ``(..., D_out or E, n)``, with n the columns of all blocks.
    """
    if k_zz.dim() > 3 or k_zx[0].dim() > 3:
        return plain_moments(k_zz, joined(k_zx), mean, scale, jitter, name)
    loc, change = FusedMoments.apply(k_zz, mean, scale, jitter, name, *k_zx)  # type: ignore[no-untyped-call]
    return loc, change
