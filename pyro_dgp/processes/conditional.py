"""Moments of ``p(f | u) q(u)`` in whitened coordinates: the inner loop of every step with inducing points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from pyro_dgp import linalg
from pyro_dgp.processes.forms import form_of


def conditional_moments(
    k_zz: Float[Tensor, "*h e m m"],
    k_zx: Sequence[Float[Tensor, "*c e2 m _"]],
    mean: Float[Tensor, "k m"],
    scale: Tensor | None,
    jitter: float | None,
    name: str,
) -> tuple[Tensor, Tensor]:
    """``a' mean_d`` and ``a' (S_d - I) a`` for each output and column, with ``a = L_z^-1 k(Z, x)`` ([DSPP] 7 and 8).

    :param k_zz: kernel matrix of the inducing points; E is 1 where the outputs share it.
    :param k_zx: the columns, in one block or more (:func:`column_blocks`).
    :param mean: of q(v).
    :param scale: of q(v): T ``(D_out, M, M)`` with ``S = T T'``, standard deviations ``(D_out, M)``, or nothing for S = 0.
    :returns: both ``(..., D_out or E, n)``, n the columns of all blocks.
    """
    if k_zz.dim() > 3 or k_zx[0].dim() > 3:
        return plain_moments(k_zz, _joined(k_zx), mean, scale, jitter, name)
    loc, change = _Fused.apply(k_zz, mean, scale, jitter, name, *k_zx)  # type: ignore[no-untyped-call]
    return loc, change


#: Numbers in a block of columns: a few megabytes, which the passes over a kernel matrix find in the processor's cache.
_BLOCK = 2**19
#: Columns of a block for each inducing point, at least: what is summed over the blocks is M x M.
_LEAST = 4


def column_blocks(x: Float[Tensor, "e n d"], outputs: int, size: int) -> tuple[Tensor, ...]:
    """Inputs in blocks for which matrices of ``outputs`` x ``size`` numbers for each input fit the processor's cache. There is one block
    where that would be narrow for ``size`` inducing points, off the CPU, and in a program that is recorded.
    """
    width = max(_BLOCK // (outputs * size), _LEAST * size)
    if x.shape[-2] <= width or x.device.type != "cpu" or linalg.recording():
        return (x,)
    return x.split(width, -2)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(tuple(parts), -1)


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


class _Fused(torch.autograd.Function):
    """The same with derivatives written out: three products of M x M x n for forward and backward where autograd takes six (one kernel and
    one output, many columns), one inverse factor for all of them, and no solve in the backward pass.

    With A = L^-1 K_zx and C its cotangent, that of K_zx is ``L^-T C`` and that of K_zz is ``-L^-T phi(C A') L^-1``, phi the lower
    triangle with half the diagonal, made symmetric (the Cholesky derivative, of which the solve's cancels the inner factor). The
    form says which products there are.
    """

    @staticmethod
    def forward(
        ctx: Any, k_zz: Tensor, mean: Tensor, scale: Tensor | None, jitter: float | None, name: str, *k_zx: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.form = form_of(scale, len(k_zz), sum(block.shape[-1] for block in k_zx))
        ctx.rest = jitter, name
        form = ctx.form(linalg.inverse_cholesky(k_zz, jitter, name), mean, scale)
        parts = [form.moments(block) for block in k_zx]
        loc, change, a, b = zip(*parts, strict=True)
        ctx.save_for_backward(k_zz, form.inverse, mean, scale, *k_zx, *a, *b)
        return _joined(loc), _joined(change)

    @staticmethod
    def backward(ctx: Any, by_loc: Tensor, by_change: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        k_zz, inverse, mean, scale, *columns = ctx.saved_tensors
        count = len(columns) // 3
        k_zx, a, b = columns[:count], columns[count : 2 * count], columns[2 * count :]
        if torch.is_grad_enabled():  # a second derivative is wanted: differentiate the plain formula

            def formula(k_zz: Tensor, mean: Tensor, scale: Tensor | None, *k_zx: Tensor) -> tuple[Tensor, Tensor]:
                return plain_moments(k_zz, _joined(k_zx), mean, scale, *ctx.rest)

            by_zz, by_mean, by_scale, *by_zx = linalg.differentiated(
                formula, (k_zz, mean, scale, *k_zx), by_loc, by_change
            )
            return (by_zz, by_mean, by_scale, None, None, *by_zx)
        form = ctx.form(inverse, mean, scale)
        sizes = [block.shape[-1] for block in k_zx]
        by_blocks: list[Tensor] = []
        totals: list[Tensor] = []
        for *parts, g, v in zip(a, b, by_loc.split(sizes, -1), by_change.split(sizes, -1), strict=True):
            by_block, terms = form.cotangent(*parts, g, v.unsqueeze(-2))
            by_blocks.append(by_block)
            totals = [total.add_(term) for total, term in zip(totals, terms, strict=True)] if totals else terms
        by_scale, inner = form.finished(*totals)
        symmetric = inner.tril().add_(inner.tril(-1).mT)
        by_zz = linalg.product(linalg.product(inverse.mT, symmetric), inverse).mul_(-0.5)
        return (by_zz, totals[0], by_scale, None, None, *by_blocks)
