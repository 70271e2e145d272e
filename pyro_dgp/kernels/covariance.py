"""Covariance functions with fixed parameter values: the base class, and those of the kernel algebra."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import reduce

from jaxtyping import Float
from torch import Tensor


class Covariance(ABC):
    """A covariance function k with fixed parameter values.

    Inputs carry an axis for the outputs of a layer, of size 1 where the outputs share them: ``(..., E, N, D)``.

    | call | result |
    |---|---|
    | ``matrix(x)`` | ``(..., E, N, N)``, k among the points of one set (white noise included) |
    | ``matrix(x, z)`` | ``(..., E, N, M)``, k between two sets of distinct points |
    | ``diagonal(x)`` | ``(..., E, N)``, the variance k(x_n, x_n) |

    >>> import torch
    >>> from pyro_dgp import RBF
    >>> covariance = RBF()()
    >>> x, z = torch.zeros(1, 5, 2), torch.ones(1, 3, 2)
    >>> covariance.matrix(x, z).shape, covariance.diagonal(x).shape
    (torch.Size([1, 5, 3]), torch.Size([1, 5]))
    """

    @abstractmethod
    def matrix(
        self, x: Float[Tensor, "*b e n d"], z: Float[Tensor, "*c o m d"] | None = None
    ) -> Float[Tensor, "*r p n k"]:
        """Covariances within ``x``, or between ``x`` and ``z``."""

    @abstractmethod
    def diagonal(self, x: Float[Tensor, "*b e n d"]) -> Float[Tensor, "*r p n"]:
        """Variances at ``x``."""

    def from_points(self, z: Float[Tensor, "*c o m d"]) -> FromPoints:
        """Return the covariances among points ``z`` and from them to others; a subclass may compute once what these share."""
        return FromPoints(self, z)


@dataclass(frozen=True)
class FromPoints:
    """Covariances among points z, and from them to other points."""

    covariance: Covariance
    z: Tensor

    def within(self) -> Tensor:
        """Return ``k(z, z)``, ``(..., E, M, M)``."""
        return self.covariance.matrix(self.z)

    def to(self, x: Tensor) -> Tensor:
        """Return ``k(z, x)``, ``(..., E, M, N)``."""
        return self.covariance.matrix(self.z, x)


@dataclass(frozen=True)
class ConstantDiagonal:
    """Mixin of covariance functions whose variance is the same everywhere."""

    variance: Tensor

    def diagonal(self, x: Float[Tensor, "*b e n d"]) -> Float[Tensor, "*r p n"]:
        """Return ``variance`` repeated for each point: ``(..., E, N)``."""
        ones = x.new_ones(()).expand(x.shape[:-1])  # broadcasts at no cost; torch.broadcast_shapes is slow
        return self.variance.unsqueeze(-1) * ones


@dataclass(frozen=True)
class ConstantCovariance(ConstantDiagonal, Covariance):
    """Covariance function whose value is ``variance`` between any two points."""

    def matrix(
        self, x: Float[Tensor, "*b e n d"], z: Float[Tensor, "*c o m d"] | None = None
    ) -> Float[Tensor, "*r p n k"]:
        """See :class:`Covariance`."""
        columns = (x if z is None else z).shape[-2]
        diagonal = self.diagonal(x)
        return diagonal.unsqueeze(-1).expand(*diagonal.shape, columns)


@dataclass(frozen=True)
class ScaledCovariance(Covariance):
    """Covariance function ``variance * k``."""

    part: Covariance
    variance: Tensor

    def matrix(
        self, x: Float[Tensor, "*b e n d"], z: Float[Tensor, "*c o m d"] | None = None
    ) -> Float[Tensor, "*r p n k"]:
        """See :class:`Covariance`."""
        return self.variance[..., None, None] * self.part.matrix(x, z)

    def diagonal(self, x: Float[Tensor, "*b e n d"]) -> Float[Tensor, "*r p n"]:
        """See :class:`Covariance`."""
        return self.variance[..., None] * self.part.diagonal(x)


@dataclass(frozen=True)
class CombinedCovariance(Covariance):
    """Base of sums and products of covariance functions."""

    parts: tuple[Covariance, ...]

    @staticmethod
    @abstractmethod
    def combine(first: Tensor, second: Tensor) -> Tensor:
        """Return the values of two parts together."""

    def matrix(
        self, x: Float[Tensor, "*b e n d"], z: Float[Tensor, "*c o m d"] | None = None
    ) -> Float[Tensor, "*r p n k"]:
        """See :class:`Covariance`."""
        return reduce(self.combine, [part.matrix(x, z) for part in self.parts])

    def diagonal(self, x: Float[Tensor, "*b e n d"]) -> Float[Tensor, "*r p n"]:
        """See :class:`Covariance`."""
        return reduce(self.combine, [part.diagonal(x) for part in self.parts])


class SumCovariance(CombinedCovariance):
    """Covariance function ``k_1 + k_2 + ...``."""

    @staticmethod
    def combine(first: Tensor, second: Tensor) -> Tensor:
        """See :class:`CombinedCovariance`."""
        return first + second


class ProductCovariance(CombinedCovariance):
    """Covariance function ``k_1 * k_2 * ...``."""

    @staticmethod
    def combine(first: Tensor, second: Tensor) -> Tensor:
        """See :class:`CombinedCovariance`."""
        return first * second
