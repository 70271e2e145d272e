"""Moments of ``p(f | u) q(u)`` in whitened coordinates: the inner loop of every step with inducing points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from pyro_dgp import linalg


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


def column_blocks(x: Float[Tensor, "e n d"], height: int) -> tuple[Tensor, ...]:
    """Inputs in blocks for which matrices with ``height`` numbers for each input fit the processor's cache; one block off the CPU."""
    size = max(_BLOCK // height, 1)
    if x.shape[-2] <= size or x.device.type != "cpu" or linalg.recording():
        return (x,)
    return x.split(size, -2)


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
    """The same with derivatives written out: three M x M x n products for forward and backward where autograd takes six, one inverse
    factor for all of them, and no solve in the backward pass.

    With A = L^-1 K_zx and C its cotangent, that of K_zx is ``L^-T C`` and that of K_zz is ``-L^-T phi(C A') L^-1``, phi the lower
    triangle with half the diagonal, made symmetric (the Cholesky derivative, of which the solve's cancels the inner factor).
    """

    @staticmethod
    def forward(
        ctx: Any, k_zz: Tensor, mean: Tensor, scale: Tensor | None, jitter: float | None, name: str, *k_zx: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.form, ctx.rest = _Diagonal, (jitter, name)
        if scale is not None and scale.dim() == 3:
            few = sum(block.shape[-1] for block in k_zx) <= _FEW * mean.shape[-1]
            ctx.form = _Narrow if few else _Wide
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
            by_block, terms = form.pulled(*parts, g, v.unsqueeze(-2))
            by_blocks.append(by_block)
            totals = [total.add_(term) for total, term in zip(totals, terms, strict=True)] if totals else terms
        by_scale, inner = form.finished(*totals)
        symmetric = inner.tril().add_(inner.tril(-1).mT)
        by_zz = linalg.product(linalg.product(inverse.mT, symmetric), inverse).mul_(-0.5)
        return (by_zz, totals[0], by_scale, None, None, *by_blocks)


#: Columns for each inducing point up to which products with T, of M x M x n, cost less than those with S, of M x M x M.
_FEW = 1.5


@dataclass(frozen=True)
class _Form:
    """How the covariance of q(v) meets the columns ``A = L^-1 K_zx``, and how cotangents come back: g of the means, v of the changes."""

    inverse: Tensor
    mean: Tensor
    scale: Tensor | None

    def moments(self, k: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """``a' mean_d``, ``a' (S_d - I) a``, A and B of one block."""
        a = linalg.product(self.inverse, k)
        b = self.changed(a)
        return _stacked(self.mean.unsqueeze(-2), a).squeeze(-2), self.change(k, a, b), a, b

    def changed(self, a: Tensor) -> Tensor:
        """B, the columns that the change is made of."""
        raise NotImplementedError

    def change(self, k: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """``a' (S_d - I) a`` column by column."""
        return torch.linalg.vecdot(a.expand_as(b), b, dim=-2)

    def pulled(self, a: Tensor, b: Tensor, g: Tensor, v: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The cotangent of K_zx, and what is summed over the blocks: that of the mean first."""
        raise NotImplementedError

    def finished(self, by_mean: Tensor, *totals: Tensor) -> tuple[Tensor | None, Tensor]:
        """The cotangent of the scale, and ``C A'``."""
        raise NotImplementedError


class _Diagonal(_Form):
    """``B_d = D_d A`` with ``D_d = S_d - I`` diagonal, and ``C = sum_d mean_d' g_d + 2 B_d diag(v_d)``."""

    def changed(self, a: Tensor) -> Tensor:
        return -a if self.scale is None else (self.scale.square() - 1).unsqueeze(-1) * a

    def pulled(self, a: Tensor, b: Tensor, g: Tensor, v: Tensor) -> tuple[Tensor, list[Tensor]]:
        by_a = _with_means(b * (2 * v), self.mean, g, a.shape[0])
        by_variance = [] if self.scale is None else [(a.square() @ v.mT).squeeze(-1)]
        by_mean = _stacked(g.unsqueeze(-2), a.mT).squeeze(-2)
        return linalg.product(self.inverse.mT, by_a), [by_mean, linalg.product(by_a, a.mT), *by_variance]

    def finished(self, by_mean: Tensor, *totals: Tensor) -> tuple[Tensor | None, Tensor]:
        inner, *by_variance = totals
        return None if self.scale is None else by_variance[0].mul_(self.scale).mul_(2), inner


class _Narrow(_Form):
    """For few columns: ``B_d = T_d' A``, of which the change is ``B' B - A' A``, and ``C = sum_d mean_d' g_d + 2 (T_d B_d - A) diag(v_d)``;
    the cotangent of T_d is ``2 A diag(v_d) B_d'``.
    """

    scale: Tensor

    def changed(self, a: Tensor) -> Tensor:
        return _stacked(self.scale.mT, a)

    def change(self, k: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return torch.linalg.vecdot(b, b, dim=-2) - torch.linalg.vecdot(a, a, dim=-2)

    def pulled(self, a: Tensor, b: Tensor, g: Tensor, v: Tensor) -> tuple[Tensor, list[Tensor]]:
        by_b = b * (2 * v)
        by_a = torch.baddbmm(a * (2 * v), self.scale, by_b, beta=-1)
        by_a = _with_means(by_a, self.mean, g, a.shape[0])
        by_mean = _stacked(g.unsqueeze(-2), a.mT).squeeze(-2)
        return linalg.product(self.inverse.mT, by_a), [by_mean, linalg.product(by_a, a.mT), linalg.product(a, by_b.mT)]

    def finished(self, by_mean: Tensor, *totals: Tensor) -> tuple[Tensor | None, Tensor]:
        inner, by_scale = totals
        return by_scale, inner


class _Wide(_Form):
    """For many columns: ``B_d = L^-T D_d A`` with ``D_d = S_d - I``, of which the change is ``K_zx' B`` and the cotangent of K_zx
    ``sum_d L^-T mean_d' g_d + 2 B_d diag(v_d)``, with no product. The cotangent of S_d is ``P_d = A diag(v_d) A'``, and
    ``C A' = sum_d mean_d' (A g_d)' + 2 D_d P_d``. In single precision the error is that of A, as if B were D A.
    """

    scale: Tensor

    @cached_property
    def difference(self) -> Tensor:
        """D."""
        identity = torch.eye(self.scale.shape[-1], dtype=self.scale.dtype, device=self.scale.device)
        return torch.baddbmm(identity, self.scale, self.scale.mT, beta=-1)

    @cached_property
    def gain(self) -> Tensor:
        """``L^-T D``."""
        return linalg.product(self.inverse.mT, self.difference)

    def changed(self, a: Tensor) -> Tensor:
        return _stacked(self.gain, a)

    def change(self, k: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return torch.linalg.vecdot(k.expand_as(b), b, dim=-2)

    def pulled(self, a: Tensor, b: Tensor, g: Tensor, v: Tensor) -> tuple[Tensor, list[Tensor]]:
        weights = linalg.product(self.inverse.mT, self.mean.unsqueeze(-1)).squeeze(-1)
        by_mean = _stacked(g.unsqueeze(-2), a.mT).squeeze(-2)
        weighted = a * v
        by_covariance = _stacked(weighted, a.mT)
        by_columns = torch.mul(b, 2 * v, out=weighted)
        return _with_means(by_columns, weights, g, a.shape[0]), [by_mean, by_covariance]

    def finished(self, by_mean: Tensor, *totals: Tensor) -> tuple[Tensor | None, Tensor]:
        (by_covariance,) = totals
        inner = torch.baddbmm(self.mean.unsqueeze(-1) * by_mean.unsqueeze(-2), self.difference, by_covariance, alpha=2)
        inner = inner.sum(0, keepdim=True) if self.inverse.shape[0] == 1 else inner
        return linalg.product(by_covariance, self.scale).mul_(2), inner


def _with_means(columns: Tensor, weights: Tensor, g: Tensor, kernels: int) -> Tensor:
    """``columns_d + weights_d' g_d``, in place; summed over the outputs where they share one kernel."""
    if kernels > 1:
        return columns.baddbmm_(weights.unsqueeze(-1), g.unsqueeze(-2))
    total = columns if len(columns) == 1 else columns.sum(0, keepdim=True)
    return total.baddbmm_(weights.mT.unsqueeze(0), g.unsqueeze(0))


def _stacked(matrix: Float[Tensor, "k r m"], columns: Tensor) -> Tensor:
    """``matrix_d @ columns_d``; where all outputs share the columns, one product of stacked matrices."""
    if columns.shape[0] == 1:
        return (matrix.reshape(-1, matrix.shape[-1]) @ columns[0]).reshape(*matrix.shape[:-1], columns.shape[-1])
    return linalg.product(matrix, columns)
