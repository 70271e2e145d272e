"""How the covariance of q(v) meets the columns ``A = L^-1 K_zx``: products chosen by its kind and by the number of columns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from pyro_dgp.internal import linalg


def products_for(scale: Tensor | None, kernels: int, columns: int) -> type[MomentProducts]:
    """The form whose products cost least for a scale of q(v), so many kernels and so many columns.

    ``products`` counts them, forward and backward, in units of M x M x M, with columns in units of M.
    """
    if scale is None or scale.dim() == 2:
        return Diagonal
    outputs, size = scale.shape[:2]
    forms: tuple[type[FewColumns | SomeColumns], ...] = (FewColumns, SomeColumns, ManyColumns)
    return min(forms, key=lambda form: form.products(kernels, outputs, columns / size))


@dataclass(frozen=True)
class MomentProducts(ABC):
    """What is computed of the columns, and how cotangents come back: g of the means, v of the changes.

    :ivar inverse: ``L^-1``, ``(E, M, M)``.
    :ivar mean: of q(v), ``(D_out, M)``.
    :ivar scale: of q(v), as :func:`~pyro_dgp.processes.conditional.conditional_moments` takes it.
    """

    inverse: Tensor
    mean: Tensor
    scale: Tensor | None

    def moments(self, k: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """``a' mean_d``, ``a' (S_d - I) a``, A and B of one block."""
        a = linalg.product(self.inverse, k)
        b = self.changed(a)
        return _stacked(self.mean.unsqueeze(-2), a).squeeze(-2), self.change(k, a, b), a, b

    @abstractmethod
    def changed(self, a: Tensor) -> Tensor:
        """B, the columns that the change is made of."""

    def change(self, k: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """``a' (S_d - I) a`` column by column."""
        return torch.linalg.vecdot(a.expand_as(b), b, dim=-2)

    @abstractmethod
    def cotangent(self, a: Tensor, b: Tensor, g: Tensor, v: Tensor) -> tuple[Tensor, list[Tensor]]:
        """That of K_zx, and what is summed over the blocks: that of the mean first."""

    @abstractmethod
    def finished(self, by_mean: Tensor, *totals: Tensor) -> tuple[Tensor | None, Tensor]:
        """The cotangent of the scale, and ``C A'``."""


class Diagonal(MomentProducts):
    """``B_d = D_d A`` with ``D_d = S_d - I`` diagonal, and ``C = sum_d mean_d' g_d + 2 B_d diag(v_d)``."""

    def changed(self, a: Tensor) -> Tensor:
        """``D A``."""
        return -a if self.scale is None else (self.scale.square() - 1).unsqueeze(-1) * a

    def cotangent(self, a: Tensor, b: Tensor, g: Tensor, v: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Sums that of the mean, ``C A'`` and, with a scale, that of S."""
        by_a = _with_means(b * (2 * v), self.mean, g, a.shape[0])
        by_variance = [] if self.scale is None else [(a.square() @ v.mT).squeeze(-1)]
        return linalg.product(self.inverse.mT, by_a), [_by_mean(a, g), linalg.product(by_a, a.mT), *by_variance]

    def finished(self, by_mean: Tensor, *totals: Tensor) -> tuple[Tensor | None, Tensor]:
        """``2 s v``, and the sum."""
        inner, *by_variance = totals
        return None if self.scale is None else by_variance[0].mul_(self.scale).mul_(2), inner


class FewColumns(MomentProducts):
    """For few columns, no products of M x M x M: ``B_d = T_d' A``, of which the change is ``B' B - A' A``, and
    ``C = sum_d mean_d' g_d + 2 (T_d B_d - A) diag(v_d)``; the cotangent of T_d is ``2 A diag(v_d) B_d'``.
    """

    scale: Tensor

    @staticmethod
    def products(kernels: int, outputs: int, columns: float) -> float:
        """Six for each kernel and output."""
        return 3 * (kernels + outputs) * columns

    def changed(self, a: Tensor) -> Tensor:
        """``T' A``."""
        return _stacked(self.scale.mT, a)

    def change(self, k: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """``B' B - A' A`` column by column."""
        return torch.linalg.vecdot(b, b, dim=-2) - torch.linalg.vecdot(a, a, dim=-2)

    def cotangent(self, a: Tensor, b: Tensor, g: Tensor, v: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Sums that of the mean, ``C A'`` and that of T."""
        by_b = b * (2 * v)
        by_a = torch.baddbmm(a * (2 * v), self.scale, by_b, beta=-1)
        by_a = _with_means(by_a, self.mean, g, a.shape[0])
        return linalg.product(self.inverse.mT, by_a), [
            _by_mean(a, g),
            linalg.product(by_a, a.mT),
            linalg.product(a, by_b.mT),
        ]

    def finished(self, by_mean: Tensor, *totals: Tensor) -> tuple[Tensor | None, Tensor]:
        """The sums."""
        inner, by_scale = totals
        return by_scale, inner


class SomeColumns(MomentProducts):
    """``B_d = D_d A`` with ``D_d = S_d - I``, and ``C = sum_d mean_d' g_d + 2 B_d diag(v_d)``. The cotangent of S_d is
    ``P_d = A diag(v_d) A'``, and ``C A' = sum_d mean_d' (A g_d)' + 2 D_d P_d``.
    """

    scale: Tensor

    @staticmethod
    def products(kernels: int, outputs: int, columns: float) -> float:
        """Two for each kernel and output, and three of M x M x M."""
        return 2 * (kernels + outputs) * columns + 3 * outputs

    @cached_property
    def difference(self) -> Tensor:
        """D."""
        identity = torch.eye(self.scale.shape[-1], dtype=self.scale.dtype, device=self.scale.device)
        return torch.baddbmm(identity, self.scale, self.scale.mT, beta=-1)

    def changed(self, a: Tensor) -> Tensor:
        """``D A``."""
        return _stacked(self.difference, a)

    def cotangent(self, a: Tensor, b: Tensor, g: Tensor, v: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Sums that of the mean and P."""
        weighted = a * v
        by_covariance = _stacked(weighted, a.mT)
        return self.pulled(torch.mul(b, 2 * v, out=weighted), g, a.shape[0]), [_by_mean(a, g), by_covariance]

    def pulled(self, weighted: Tensor, g: Tensor, kernels: int) -> Tensor:
        """The cotangent of K_zx, from ``2 B diag(v)``."""
        return linalg.product(self.inverse.mT, _with_means(weighted, self.mean, g, kernels))

    def finished(self, by_mean: Tensor, *totals: Tensor) -> tuple[Tensor | None, Tensor]:
        """``2 P T``, and ``C A'`` from P."""
        (by_covariance,) = totals
        inner = torch.baddbmm(self.mean.unsqueeze(-1) * by_mean.unsqueeze(-2), self.difference, by_covariance, alpha=2)
        inner = inner.sum(0, keepdim=True) if self.inverse.shape[0] == 1 else inner
        return linalg.product(by_covariance, self.scale).mul_(2), inner


class ManyColumns(SomeColumns):
    """For many columns: ``B_d = L^-T D_d A``, of which the change is ``K_zx' B`` and the cotangent of K_zx, with no product,
    ``sum_d L^-T mean_d' g_d + 2 B_d diag(v_d)``. In single precision the change is as
    accurate as by :class:`SomeColumns`: its error is that of A.
    """

    @staticmethod
    def products(kernels: int, outputs: int, columns: float) -> float:
        """One for each kernel, two for each output, and four of M x M x M."""
        return (kernels + 2 * outputs) * columns + 4 * outputs

    @cached_property
    def gain(self) -> Tensor:
        """``L^-T D``."""
        return linalg.product(self.inverse.mT, self.difference)

    @cached_property
    def weights(self) -> Tensor:
        """``L^-T mean``."""
        return linalg.product(self.inverse.mT, self.mean.unsqueeze(-1)).squeeze(-1)

    def changed(self, a: Tensor) -> Tensor:
        """``L^-T D A``."""
        return _stacked(self.gain, a)

    def change(self, k: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """``K_zx' B`` column by column."""
        return torch.linalg.vecdot(k.expand_as(b), b, dim=-2)

    def pulled(self, weighted: Tensor, g: Tensor, kernels: int) -> Tensor:
        """``2 B diag(v)`` is all of it but the means."""
        return _with_means(weighted, self.weights, g, kernels)


def _by_mean(a: Tensor, g: Tensor) -> Tensor:
    """``A g_d``, the cotangent of the mean."""
    return _stacked(g.unsqueeze(-2), a.mT).squeeze(-2)


def _with_means(columns: Tensor, weights: Tensor, g: Tensor, kernels: int) -> Tensor:
    """``columns_d + weights_d' g_d``, in place; summed over the outputs where they share one kernel."""
    if kernels > 1:
        return columns.baddbmm_(weights.unsqueeze(-1), g.unsqueeze(-2))
    total = columns if len(columns) == 1 else columns.sum(0, keepdim=True)
    return total.baddbmm_(weights.mT.unsqueeze(0), g.unsqueeze(0))


def _stacked(matrix: Float[Tensor, "k r m"], columns: Tensor) -> Tensor:
    """``matrix_d @ columns_d``; where all outputs share the columns, one product of stacked matrices."""
    if columns.shape[0] == 1:
        outputs, rows, inner = matrix.shape
        return (matrix.reshape(outputs * rows, inner) @ columns[0]).reshape(outputs, rows, columns.shape[-1])
    return linalg.product(matrix, columns)
