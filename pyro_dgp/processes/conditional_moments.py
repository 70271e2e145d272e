"""Moments of ``p(f | u) q(u)`` in whitened coordinates: the innermost computation of every step with inducing points."""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from pyro_dgp.internal import linalg
from pyro_dgp.internal.blocks import joined
from pyro_dgp.processes.fused_moments import FusedMoments
from pyro_dgp.processes.whitened_gaussian import WhitenedGaussian


def conditional_moments(
    k_zz: Float[Tensor, "*h e m m"],
    k_zx: Sequence[Float[Tensor, "*c e2 m _"]],
    q: WhitenedGaussian,
    jitter: float | None,
    name: str,
) -> tuple[Tensor, Tensor]:
    """Return ``a' mean_d`` and ``a' (S_d - I) a`` for each output and column, with ``a = L_z^-1 k(Z, x)`` ([DSPP] 7 and 8).

    :param k_zz: kernel matrix of the inducing points; E is 1 where the outputs share it.
    :param k_zx: the columns, in one block or more (:func:`column_blocks`).
    :param q: q(v); the fused form takes one without groups.
    :returns: both ``(..., D_out or E, n)``, with n the columns of all blocks.
    """
    if k_zz.dim() > 3 or k_zx[0].dim() > 3 or q.mean.dim() > 2 or q.kind == "prior":
        return q.moments(linalg.solve_columns(linalg.cholesky(k_zz, jitter, name), joined(k_zx)))
    loc, change = FusedMoments.apply(k_zz, q.mean, q.scale, jitter, name, *k_zx)  # type: ignore[no-untyped-call]
    return loc, change
