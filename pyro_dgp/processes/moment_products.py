"""Products of the covariance of q(v) with the columns ``A = L^-1 K_zx``, chosen by its kind and the number of columns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from pyro_dgp.internal import linalg


def products_for(scale: Tensor | None, kernels: int, columns: int) -> type[MomentProducts]:
    """Return the class whose products cost least for a scale of q(v) and given numbers of kernels and columns.

    The method ``products`` of a class counts products, forward and backward, in units of M x M x M, with columns in units
    of M.

    :param kernels: number of kernel matrices, 0 where the columns are whitened already.
    """
    if scale is None or scale.dim() == 2:
        return Diagonal
    outputs, size = scale.shape[:2]
    forms: tuple[type[FewColumns | SomeColumns], ...] = (FewColumns, SomeColumns, ManyColumns)
    forms = forms if kernels else forms[:2]
    return min(forms, key=lambda form: form.products(kernels, outputs, columns / size))


@dataclass(frozen=True)
class MomentProducts(ABC):
    """Moments of blocks of columns, and the cotangents of their inputs.

    The cotangents g are those of the means ``a' mean_d``, v those of the changes ``a' (S_d - I) a``; C is the cotangent
    of A.

    :ivar inverse: ``L^-1``, ``(E, M, M)``, or ``None`` for the identity: K_zx is A then, and there is no K_zz.
    :ivar mean: mean of q(v), ``(D_out, M)``.
    :ivar scale: scale of q(v), in a form of :func:`~pyro_dgp.processes.conditional_moments.conditional_moments`.
    """

    inverse: Tensor | None
    mean: Tensor
    scale: Tensor | None

    def moments(self, k: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return ``a' mean_d``, ``a' (S_d - I) a``, A and B (:meth:`changed`) of one block."""
        a = k if self.inverse is None else linalg.product(self.inverse, k)
        b = self.changed(a)
        return _stacked(self.mean.unsqueeze(-2), a).squeeze(-2), self.change(k, a, b), a, b

    @abstractmethod
    def changed(self, a: Tensor) -> Tensor:
        """Return B, the columns from which :meth:`change` computes the change."""

    def change(self, k: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """Return ``a' (S_d - I) a`` for each column."""
        return torch.linalg.vecdot(a.expand_as(b), b, dim=-2)

    @abstractmethod
    def cotangent(self, a: Tensor, b: Tensor, g: Tensor, v: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return the cotangent of K_zx, and the terms that are summed over the blocks: the cotangent of the mean first."""

    def by_columns(self, by_a: Tensor) -> Tensor:
        """Return ``L^-T C``, the cotangent of K_zx."""
        return by_a if self.inverse is None else linalg.product(self.inverse.mT, by_a)

    def inner(self, by_a: Tensor, a: Tensor) -> Tensor:
        """Return ``C A'``, from which the cotangent of K_zz is computed; 0 where there is none."""
        return a.new_zeros(()) if self.inverse is None else linalg.product(by_a, a.mT)

    @abstractmethod
    def finished(self, by_mean: Tensor, *totals: Tensor) -> tuple[Tensor | None, Tensor]:
        """Return the cotangent of the scale, and ``C A'``, from the summed terms."""


class Diagonal(MomentProducts):
    """Products for diagonal S: ``B_d = D_d A`` with ``D_d = S_d - I``, and ``C = sum_d mean_d' g_d + 2 B_d diag(v_d)``."""

    def changed(self, a: Tensor) -> Tensor:
        """Return ``D A``."""
        return -a if self.scale is None else (self.scale.square() - 1).unsqueeze(-1) * a

    def cotangent(self, a: Tensor, b: Tensor, g: Tensor, v: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return the cotangent of K_zx, and those of the mean and, with a scale, of S, with ``C A'`` between them."""
        by_a = _with_means(b * (2 * v), self.mean, g, a.shape[0])
        by_variance = [] if self.scale is None else [(a.square() @ v.mT).squeeze(-1)]
        return self.by_columns(by_a), [_by_mean(a, g), self.inner(by_a, a), *by_variance]

    def finished(self, by_mean: Tensor, *totals: Tensor) -> tuple[Tensor | None, Tensor]:
        """Return the cotangent ``2 s v`` of the scale, with v that of S, and ``C A'``."""
        inner, *by_variance = totals
        return None if self.scale is None else by_variance[0].mul_(self.scale).mul_(2), inner


class FewColumns(MomentProducts):
    """Products for few columns: none of M x M x M.

    With ``B_d = T_d' A`` the change is ``B' B - A' A``, and ``C = sum_d mean_d' g_d + 2 (T_d B_d - A) diag(v_d)``. The
    cotangent of T_d is ``2 A diag(v_d) B_d'``.
    """

    scale: Tensor

    @staticmethod
    def products(kernels: int, outputs: int, columns: float) -> float:
        """Count three products for each kernel and each output."""
        return 3 * (kernels + outputs) * columns

    def changed(self, a: Tensor) -> Tensor:
        """Return ``T' A``."""
        return _stacked(self.scale.mT, a)

    def change(self, k: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """Return ``B' B - A' A`` for each column."""
        return torch.linalg.vecdot(b, b, dim=-2) - torch.linalg.vecdot(a, a, dim=-2)

    def cotangent(self, a: Tensor, b: Tensor, g: Tensor, v: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return the cotangent of K_zx, and those of the mean and of T, with ``C A'`` between them."""
        by_b = b * (2 * v)
        by_a = torch.baddbmm(a * (2 * v), self.scale, by_b, beta=-1)
        by_a = _with_means(by_a, self.mean, g, a.shape[0])
        return self.by_columns(by_a), [_by_mean(a, g), self.inner(by_a, a), linalg.product(a, by_b.mT)]

    def finished(self, by_mean: Tensor, *totals: Tensor) -> tuple[Tensor | None, Tensor]:
        """Return the cotangent of T, and ``C A'``."""
        inner, by_scale = totals
        return by_scale, inner


class SomeColumns(MomentProducts):
    """Products for some columns: ``B_d = D_d A`` with ``D_d = S_d - I``, and ``C = sum_d mean_d' g_d + 2 B_d diag(v_d)``.

    The cotangent of S_d is ``P_d = A diag(v_d) A'``, and ``C A' = sum_d mean_d' (A g_d)' + 2 D_d P_d``.
    """

    scale: Tensor

    @staticmethod
    def products(kernels: int, outputs: int, columns: float) -> float:
        """Count two products for each kernel and each output, and three of M x M x M for each output."""
        return 2 * (kernels + outputs) * columns + 3 * outputs

    @cached_property
    def difference(self) -> Tensor:
        """The difference ``D = S - I``."""
        identity = torch.eye(self.scale.shape[-1], dtype=self.scale.dtype, device=self.scale.device)
        return torch.baddbmm(identity, self.scale, self.scale.mT, beta=-1)

    def changed(self, a: Tensor) -> Tensor:
        """Return ``D A``."""
        return _stacked(self.difference, a)

    def cotangent(self, a: Tensor, b: Tensor, g: Tensor, v: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return the cotangent of K_zx, and those of the mean and of S, which is P."""
        weighted = a * v
        by_covariance = _stacked(weighted, a.mT)
        return self.pulled(torch.mul(b, 2 * v, out=weighted), g, a.shape[0]), [_by_mean(a, g), by_covariance]

    def pulled(self, weighted: Tensor, g: Tensor, kernels: int) -> Tensor:
        """Return the cotangent of K_zx, from ``2 B diag(v)``."""
        return self.by_columns(_with_means(weighted, self.mean, g, kernels))

    def finished(self, by_mean: Tensor, *totals: Tensor) -> tuple[Tensor | None, Tensor]:
        """Return the cotangent ``2 P T`` of the scale, and ``C A'`` from P."""
        (by_covariance,) = totals
        by_scale = linalg.product(by_covariance, self.scale).mul_(2)
        if self.inverse is None:
            return by_scale, by_scale.new_zeros(())
        inner = torch.baddbmm(self.mean.unsqueeze(-1) * by_mean.unsqueeze(-2), self.difference, by_covariance, alpha=2)
        inner = inner.sum(0, keepdim=True) if self.inverse.shape[0] == 1 else inner
        return by_scale, inner


class ManyColumns(SomeColumns):
    """Products for many columns: ``B_d = L^-T D_d A``.

    The change is ``K_zx' B``. The cotangent of K_zx needs no product: it is ``sum_d L^-T mean_d' g_d + 2 B_d diag(v_d)``.
    In single precision the change is as accurate as that of :class:`SomeColumns`, since its error is that of A.
    """

    inverse: Tensor

    @staticmethod
    def products(kernels: int, outputs: int, columns: float) -> float:
        """Count one product for each kernel, two for each output, and four of M x M x M for each output."""
        return (kernels + 2 * outputs) * columns + 4 * outputs

    @cached_property
    def gain(self) -> Tensor:
        """The matrix ``L^-T D``."""
        return linalg.product(self.inverse.mT, self.difference)

    @cached_property
    def weights(self) -> Tensor:
        """The vector ``L^-T mean`` of each output."""
        return linalg.product(self.inverse.mT, self.mean.unsqueeze(-1)).squeeze(-1)

    def changed(self, a: Tensor) -> Tensor:
        """Return ``L^-T D A``."""
        return _stacked(self.gain, a)

    def change(self, k: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """Return ``K_zx' B`` for each column."""
        return torch.linalg.vecdot(k.expand_as(b), b, dim=-2)

    def pulled(self, weighted: Tensor, g: Tensor, kernels: int) -> Tensor:
        """Return the cotangent of K_zx: ``2 B diag(v)``, and the term of the means."""
        return _with_means(weighted, self.weights, g, kernels)


def _by_mean(a: Tensor, g: Tensor) -> Tensor:
    """Return ``A g_d``, the cotangent of the mean."""
    return _stacked(g.unsqueeze(-2), a.mT).squeeze(-2)


def _with_means(columns: Tensor, weights: Tensor, g: Tensor, kernels: int) -> Tensor:
    """Add ``weights_d' g_d`` to ``columns_d`` in place, and sum over the outputs where they share one kernel."""
    if kernels > 1:
        return columns.baddbmm_(weights.unsqueeze(-1), g.unsqueeze(-2))
    total = columns if len(columns) == 1 else columns.sum(0, keepdim=True)
    return total.baddbmm_(weights.mT.unsqueeze(0), g.unsqueeze(0))


def _stacked(matrix: Float[Tensor, "k r m"], columns: Tensor) -> Tensor:
    """Return ``matrix_d @ columns_d``: one product of stacked matrices where all outputs share the columns."""
    if columns.shape[0] == 1:
        outputs, rows, inner = matrix.shape
        return (matrix.reshape(outputs * rows, inner) @ columns[0]).reshape(outputs, rows, columns.shape[-1])
    return linalg.product(matrix, columns)
