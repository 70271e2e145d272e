"""Moments of ``p(f | u) q(u)`` in whitened coordinates: the inner loop of every step with inducing points."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from pyro_dgp import linalg


def conditional_moments(
    k_zz: Float[Tensor, "*h e m m"],
    k_zx: Float[Tensor, "*c e2 m n"],
    mean: Float[Tensor, "k m"],
    scale: Tensor | None,
    jitter: float | None,
    name: str,
) -> tuple[Tensor, Tensor]:
    """``a' mean_d`` and ``a' (S_d - I) a`` for each output and column, with ``a = L_z^-1 k(Z, x)`` ([DSPP] 7 and 8).

    :param k_zz: kernel matrix of the inducing points; E is 1 where the outputs share it.
    :param mean: of q(v).
    :param scale: of q(v): T ``(D_out, M, M)`` with ``S = T T'``, standard deviations ``(D_out, M)``, or nothing for S = 0.
    :returns: both ``(..., D_out or E, n)``.
    """
    if k_zz.dim() > 3 or k_zx.dim() > 3:
        return plain_moments(k_zz, k_zx, mean, scale, jitter, name)
    loc, change = _Fused.apply(k_zz, k_zx, mean, scale, jitter, name)  # type: ignore[no-untyped-call]
    return loc, change


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
    """The same with derivatives written out: four M x M x n products for forward and backward where autograd takes six,
    one inverse factor for all of them, and no solve in the backward pass.

    With A = L^-1 K_zx, D_d = S_d - I, and cotangents g of the means and v of the changes (columns n), the cotangent of A is
    ``sum_d mean_d' g_d + 2 D_d A diag(v_d)``; call it C. Then that of K_zx is ``L^-T C``, that of S_d is ``P_d = A diag(v_d) A'``,
    and that of K_zz is ``-L^-T phi(C A') L^-1``, phi the lower triangle with half the diagonal, made symmetric (the Cholesky
    derivative, of which the solve's cancels the inner factor).

    For few columns products with T_d cost less than those with S_d: with B_d = T_d' A the change is ``B' B - A' A`` column by column, C has
    ``2 (T_d B_d - A) diag(v_d)``, and the cotangent of T_d is ``2 A diag(v_d) B_d'``.
    """

    @staticmethod
    def forward(
        ctx: Any, k_zz: Tensor, k_zx: Tensor, mean: Tensor, scale: Tensor | None, jitter: float | None, name: str
    ) -> tuple[Tensor, Tensor]:
        inverse = linalg.inverse_cholesky(k_zz, jitter, name)
        a = linalg.product(inverse, k_zx)
        loc = _stacked(mean.unsqueeze(-2), a).squeeze(-2)
        if scale is None:
            d, b = None, -a
        elif scale.dim() == 2:
            d = scale.square() - 1
            b = d.unsqueeze(-1) * a
        elif a.shape[-1] > _FEW * a.shape[-2]:
            identity = torch.eye(scale.shape[-1], dtype=scale.dtype, device=scale.device)
            d = torch.baddbmm(identity, scale, scale.mT, beta=-1)
            b = _stacked(d, a)
        else:
            d, b = None, _stacked(scale.mT, a)
        ctx.rest = jitter, name
        ctx.save_for_backward(k_zz, k_zx, mean, scale, inverse, a, b, d)
        if scale is not None and d is None:
            return loc, torch.linalg.vecdot(b, b, dim=-2) - torch.linalg.vecdot(a, a, dim=-2)
        return loc, torch.linalg.vecdot(a.expand_as(b), b, dim=-2)

    @staticmethod
    def backward(ctx: Any, by_loc: Tensor, by_change: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        k_zz, k_zx, mean, scale, inverse, a, b, d = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is wanted: differentiate the plain formula
            inputs, grads = (k_zz, k_zx, mean, scale), (by_loc, by_change)
            return (*differentiated(plain_moments, inputs, ctx.rest, grads), None, None)
        shared = a.shape[0] == 1
        v = by_change.unsqueeze(-2)
        by_mean = _stacked(by_loc.unsqueeze(-2), a.mT).squeeze(-2)
        by_scale: Tensor | None
        few = scale is not None and d is None  # b is T' a there and D a elsewhere
        by_b = b * (2 * v)
        by_a = torch.baddbmm(a * (2 * v), scale, by_b, beta=-1) if few else by_b
        if shared:
            total = by_a.squeeze(0) if len(by_a) == 1 else by_a.sum(0)
            by_a = torch.addmm(total, mean.mT, by_loc).unsqueeze(0)
        else:
            by_a = torch.baddbmm(by_a, mean.unsqueeze(-1), by_loc.unsqueeze(-2))
        if few:
            by_scale = linalg.product(a, by_b.mT)
            inner = linalg.product(by_a, a.mT)
        elif scale is not None and scale.dim() == 3:
            p = linalg.product(a * v, a.mT)
            by_scale = linalg.product(p, scale).mul_(2)
            inner = linalg.product(d, p)
            inner = 2 * (inner.sum(0, keepdim=True) if shared else inner)
            outer = mean.unsqueeze(-1) * by_mean.unsqueeze(-2)
            inner = inner + (outer.sum(0, keepdim=True) if shared else outer)
        else:
            by_scale = None if scale is None else 2 * scale * (a.square() @ by_change.unsqueeze(-1)).squeeze(-1)
            inner = linalg.product(by_a, a.mT)
        symmetric = inner.tril().add_(inner.tril(-1).mT)
        by_zz = linalg.product(linalg.product(inverse.mT, symmetric), inverse).mul_(-0.5)
        return by_zz, linalg.product(inverse.mT, by_a), by_mean, by_scale, None, None


#: Columns for each inducing point up to which products with T, of M x M x n, cost less than those with S, of M x M x M.
_FEW = 1.5


def _stacked(matrix: Float[Tensor, "k r m"], columns: Tensor) -> Tensor:
    """``matrix_d @ columns_d``; where all outputs share the columns, one product of stacked matrices."""
    if columns.shape[0] == 1:
        return (matrix.reshape(-1, matrix.shape[-1]) @ columns[0]).reshape(*matrix.shape[:-1], columns.shape[-1])
    return linalg.product(matrix, columns)


def differentiated(
    formula: Callable[..., tuple[Tensor, Tensor]],
    inputs: tuple[Tensor | None, ...],
    rest: tuple[float | None, str],
    grads: tuple[Tensor, Tensor],
) -> list[Tensor | None]:
    """Gradients of a plain formula that can be differentiated again: nothing for inputs that need none."""
    outputs = formula(*inputs, *rest)
    wanted = [tensor for tensor in inputs if tensor is not None and tensor.requires_grad]
    pairs = [(o, grad.expand_as(o)) for grad, o in zip(grads, outputs, strict=True) if o.requires_grad]
    results = iter(torch.autograd.grad([o for o, _ in pairs], wanted, [g for _, g in pairs], create_graph=True))
    return [next(results) if tensor is not None and tensor.requires_grad else None for tensor in inputs]
