"""Covariance matrices with their Cholesky factors, and what is computed of both, with the derivatives written out.

PyTorch differentiates through the factor: two triangular solves and a product of N^3 operations each, whatever was computed with it. Here
``L eps`` costs the two solves, and a log density one inverse.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from pyro_dgp.internal import linalg


@dataclass(frozen=True)
class Factorised:
    """Positive definite matrices of the outputs of a layer, with their Cholesky factors.

    :ivar matrix: K, jitter included, ``(..., E, N, N)``, with its gradients; E is 1 where the outputs share it.
    :ivar factor: L; without gradients where ``is_written``.
    :ivar is_written: whether the written derivatives serve: those of PyTorch's backward pass are wanted, and no others.
    """

    matrix: Tensor
    factor: Tensor
    is_written: bool

    @property
    def scale_tril(self) -> Tensor:
        """L with gradients."""
        if not self.is_written:
            return self.factor
        result: Tensor = _Factor.apply(self.matrix, self.factor)  # type: ignore[no-untyped-call]
        return result

    def times(self, values: Tensor) -> Tensor:
        """``L v`` for values ``(..., N, D_out)``; see :func:`pyro_dgp.internal.linalg.apply_factor`."""
        columns = self._columns(values)
        if columns is None:
            return linalg.apply_factor(self.scale_tril, values)
        result: Tensor = _Times.apply(self.matrix, self.factor, columns)  # type: ignore[no-untyped-call]
        return self._values(result)

    def log_density(self, values: Tensor) -> Tensor:
        """``sum_d log N(v_d | 0, K_d)``, nats in total over rows and outputs of ``values`` ``(..., N, D_out)``; shape of the batch."""
        columns = self._columns(values)
        constant = 0.5 * values.shape[-1] * values.shape[-2] * math.log(2 * math.pi)
        if columns is not None:
            each: Tensor = _LogDensity.apply(self.matrix, self.factor, columns)  # type: ignore[no-untyped-call]
            return each.sum(-1) - constant
        factor = self.scale_tril
        white = linalg.solve_factor(factor, values)
        return -0.5 * white.square().sum((-2, -1)) - linalg.half_log_determinant(factor, values.shape[-1]) - constant

    def _columns(self, values: Tensor) -> Tensor | None:
        """The values ``(..., E, N, C)`` where the written derivatives serve and the values have the batch and type of the matrix."""
        columns = values.unsqueeze(-3) if self.factor.shape[-3] == 1 else values.mT.unsqueeze(-1)
        fits = columns.shape[:-2] == self.factor.shape[:-2] and columns.dtype == self.factor.dtype
        return columns if fits and self.is_written and not _has_tangent(values) else None

    def _values(self, columns: Tensor) -> Tensor:
        return columns.squeeze(-3) if self.factor.shape[-3] == 1 else columns.squeeze(-1).mT


def factorised(matrix: Tensor, jitter: float | None, name: str) -> Factorised:
    """The matrix with the jitter that :func:`pyro_dgp.internal.linalg.cholesky` adds, and its factor; same arguments and errors."""
    is_written = _can_be_written(matrix)
    factorise = _detached_factor if is_written else torch.linalg.cholesky_ex
    return Factorised(*linalg.jittered_cholesky(matrix, jitter, name, factorise=factorise), is_written)


def noisy_factorised(matrix: Tensor, jitter: float | None, name: str) -> Factorised:
    """A covariance that holds observation noise, with its factor; see :func:`pyro_dgp.internal.linalg.noisy_cholesky`."""
    is_written = _can_be_written(matrix)
    factorise = _detached_factor if is_written else torch.linalg.cholesky_ex
    return Factorised(*linalg.noisy_jittered_cholesky(matrix, jitter, name, factorise=factorise), is_written)


def _detached_factor(matrix: Tensor) -> tuple[Tensor, Tensor]:
    factor, info = torch.linalg.cholesky_ex(matrix.detach())
    return factor, info


def _can_be_written(matrix: Tensor) -> bool:
    """Whether a backward pass alone is asked for: neither forward-mode derivatives nor a transform of ``torch.func``."""
    is_transformed = torch._C._functorch.peek_interpreter_stack() is not None
    return matrix.requires_grad and not is_transformed and not _has_tangent(matrix)


def _has_tangent(value: Tensor) -> bool:
    return forward_ad.unpack_dual(value).tangent is not None


def _differentiable(matrix: Tensor, factor: Tensor) -> Tensor:
    """The factor in a backward pass: with gradients where that pass is itself differentiated."""
    return torch.linalg.cholesky(matrix) if torch.is_grad_enabled() else factor


def _through_factor(factor: Tensor, inner: Tensor) -> Tensor:
    """Cotangent of K from ``L' Lbar``, of which the lower triangle counts: the symmetric part of ``L^-T Phi(inner) L^-1`` (Murray 2016, section 3).

    Phi takes the lower triangle and half of the diagonal.
    """
    lower = inner.tril()
    lower = lower - torch.diag_embed(0.5 * lower.diagonal(dim1=-2, dim2=-1))
    right = linalg.solve_triangular(factor, lower, upper=False, left=False)
    both = linalg.solve_triangular(factor.mT, right, upper=True)
    return 0.5 * (both + both.mT)


class _Factor(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, matrix: Tensor, factor: Tensor) -> Tensor:
        ctx.save_for_backward(matrix, factor)
        return factor.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        factor = _differentiable(*ctx.saved_tensors)
        return _through_factor(factor, factor.mT @ grad), None


class _Times(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, matrix: Tensor, factor: Tensor, columns: Tensor) -> Tensor:
        ctx.save_for_backward(matrix, factor, columns)
        return factor @ columns

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        matrix, factor, columns = ctx.saved_tensors
        factor = _differentiable(matrix, factor)
        to_columns = factor.mT @ grad
        # The lower triangle of L' tril(grad C') is that of (L' grad) C': no product of N^3 operations.
        return _through_factor(factor, to_columns @ columns.mT), None, to_columns


class _LogDensity(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, matrix: Tensor, factor: Tensor, columns: Tensor) -> Tensor:
        ctx.save_for_backward(matrix, factor, columns)
        white = linalg.solve_triangular(factor, columns, upper=False)
        return -0.5 * white.square().sum((-2, -1)) - columns.shape[-1] * linalg.half_log_determinants(factor)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        matrix, factor, columns = ctx.saved_tensors
        factor = _differentiable(matrix, factor)
        inverse = linalg.inverse_of_factorised(factor)
        solved = inverse @ columns
        scale = grad[..., None, None]
        to_matrix = (0.5 * scale) * (solved @ solved.mT - columns.shape[-1] * inverse)
        return to_matrix, None, -scale * solved
