"""Moments of inducing points with derivatives written out: the fused form of the plain formula."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pyro_dgp.internal import linalg
from pyro_dgp.internal.blocks import joined
from pyro_dgp.internal.differentiation import Cotangents, FusedFunction
from pyro_dgp.processes.moment_products import products_for
from pyro_dgp.processes.plain_moments import plain_moments


class FusedMoments(FusedFunction):
    """Function :func:`~pyro_dgp.processes.plain_moments.plain_moments` with derivatives written out.

    For one kernel, one output and many columns, forward and backward pass take three products of M x M x n where autograd
    takes six. One inverse factor serves all of them, and the backward pass has no solve.

    With A = L^-1 K_zx and C the cotangent of A, the cotangent of K_zx is ``L^-T C``. That of K_zz is
    ``-L^-T phi(C A') L^-1``, where phi takes the lower triangle with half the diagonal and makes it symmetric, and a multiple of I for the jitter,
    which follows the diagonal. This is the
    derivative of the Cholesky factor, whose inner factor the derivative of the solve cancels. The number of columns
    decides the class of products (:mod:`~pyro_dgp.processes.moment_products`). Without K_zz the columns are whitened already: L is the
    identity.
    """

    @staticmethod
    def forward(
        ctx: Any,
        k_zz: Tensor | None,
        mean: Tensor,
        scale: Tensor | None,
        jitter: float | None,
        name: str,
        *k_zx: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return both moments; the columns come in one block or more."""
        kernels = 0 if k_zz is None else len(k_zz)
        ctx.products = products_for(scale, kernels, sum(block.shape[-1] for block in k_zx))
        ctx.rest = jitter, name
        inverse, ctx.jitter = (None, 0.0) if k_zz is None else linalg.inverse_cholesky(k_zz, jitter, name)
        products = ctx.products(inverse, mean, scale)
        parts = [products.moments(block) for block in k_zx]
        loc, change, a, b = zip(*parts, strict=True)
        ctx.save_for_backward(k_zz, products.inverse, mean, scale, *k_zx, *a, *b)
        return joined(loc), joined(change)

    @staticmethod
    def inputs(ctx: Any) -> tuple[Tensor | None, ...]:
        """See :class:`FusedFunction`."""
        k_zz, _, mean, scale, *columns = ctx.saved_tensors
        return (k_zz, mean, scale, None, None, *columns[: len(columns) // 3])

    @staticmethod
    def plain(
        ctx: Any, k_zz: Tensor | None, mean: Tensor, scale: Tensor | None, _: None, __: None, *k_zx: Tensor
    ) -> tuple[Tensor, Tensor]:
        """See :class:`FusedFunction`."""
        return plain_moments(k_zz, joined(k_zx), mean, scale, *ctx.rest)

    @staticmethod
    def cotangents(ctx: Any, by_loc: Tensor, by_change: Tensor) -> Cotangents:
        """See :class:`FusedFunction`."""
        _, inverse, mean, scale, *columns = ctx.saved_tensors
        count = len(columns) // 3
        k_zx, a, b = columns[:count], columns[count : 2 * count], columns[2 * count :]
        products = ctx.products(inverse, mean, scale)
        sizes = [block.shape[-1] for block in k_zx]
        by_blocks: list[Tensor] = []
        totals: list[Tensor] = []
        for *parts, g, v in zip(a, b, by_loc.split(sizes, -1), by_change.split(sizes, -1), strict=True):
            by_block, terms = products.cotangent(*parts, g, v.unsqueeze(-2))
            by_blocks.append(by_block)
            totals = [total.add_(term) for total, term in zip(totals, terms, strict=True)] if totals else terms
        by_scale, inner = products.finished(*totals)
        if inverse is None:
            return (None, totals[0], by_scale, None, None, *by_blocks)
        lower = inner.tril_()
        symmetric = lower + lower.mT
        symmetric.diagonal(dim1=-2, dim2=-1).mul_(0.5)
        by_zz = linalg.product(linalg.product(inverse.mT, symmetric), inverse).mul_(-0.5)
        linalg.through_jitter_(by_zz, ctx.jitter)
        return (by_zz, totals[0], by_scale, None, None, *by_blocks)
