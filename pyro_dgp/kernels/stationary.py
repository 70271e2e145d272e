"""Kernels that depend on the scaled distance r = |(x - z) / lengthscale|, and the periodic one built on it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from pyro_dgp.kernels.base import (
    ConstantDiagonal,
    Covariance,
    Kernel,
    per_dimension,
    per_output,
    positive,
    require_dimensions,
)
from pyro_dgp.kernels.distance import squared_distance
from pyro_dgp.kernels.radial import (
    Radial,
    matern12,
    matern12_slope,
    matern32,
    matern32_slope,
    matern52,
    matern52_slope,
    rbf,
    rbf_slope,
)

#: ``correlation(x, z, variance) -> variance * c(r^2)``, with r the distances within ``x`` or between ``x`` and ``z``.
Correlation = Callable[[Tensor, Tensor | None, Tensor], Tensor]


@dataclass(frozen=True)
class StationaryCovariance(ConstantDiagonal, Covariance):
    """``variance * correlation(r^2)`` on inputs mapped by ``warp`` (division by lengthscales, or a circle)."""

    correlation: Correlation
    warp: Callable[[Tensor], Tensor]

    def matrix(
        self, x: Float[Tensor, "*b e n d"], z: Float[Tensor, "*c o m d"] | None = None
    ) -> Float[Tensor, "*r p n k"]:
        """See :class:`Covariance`."""
        return self.correlation(self.warp(x), None if z is None else self.warp(z), self.variance[..., None, None])


@dataclass(frozen=True)
class Scaling:
    """``x / lengthscale`` as an object (closures do not pickle), by the reciprocal: one for all inputs, and cheaper to differentiate."""

    reciprocal: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Scaled inputs, same shape."""
        require_dimensions(x, self.reciprocal)
        return x * self.reciprocal


class Stationary(Kernel):
    """``k(x, z) = variance * c(r^2)``, ``r^2 = sum_d (x_d - z_d)^2 / lengthscale_d^2``.

    :param ard: number of inputs with a lengthscale each; ``None`` for one lengthscale in all.
    :param outputs: number of outputs with parameters of their own; ``None`` for parameters shared by all.
    :param lengthscale: initial lengthscale, in units of the inputs. Shape ``(outputs?, ard?)``.
    :param variance: initial variance (not its root), in squared units of the function. Shape ``(outputs?,)``.
    """

    def __init__(
        self, ard: int | None = None, outputs: int | None = None, lengthscale: float = 1.0, variance: float = 1.0
    ) -> None:
        super().__init__()
        self.ard, self.outputs = ard, outputs
        self.lengthscale = positive(lengthscale, outputs, ard)
        self.variance = positive(variance, outputs)

    def correlation(self) -> Correlation:
        """``variance * c(r^2)`` as a function of the points, mapped by :meth:`warp`; c(0) = 1."""
        raise NotImplementedError

    def warp(self) -> Callable[[Tensor], Tensor]:
        """The map of the inputs before distances are taken."""
        return Scaling(per_dimension(self.lengthscale, self.outputs, self.ard).reciprocal())

    def forward(self) -> Covariance:
        """Read every parameter."""
        return StationaryCovariance(per_output(self.variance, self.outputs), self.correlation(), self.warp())


class RBF(Stationary):
    """Radial basis function (squared exponential) kernel, ``c = exp(-r^2 / 2)``."""

    def correlation(self) -> Correlation:
        """``exp(-r^2 / 2)``."""
        return Radial(rbf, rbf_slope)


class Matern12(Stationary):
    """Matern kernel of smoothness 1/2, ``c = exp(-r)``."""

    def correlation(self) -> Correlation:
        """``exp(-r)``."""
        return Radial(matern12, matern12_slope)


class Matern32(Stationary):
    """Matern kernel of smoothness 3/2, ``c = (1 + sqrt(3) r) exp(-sqrt(3) r)``."""

    def correlation(self) -> Correlation:
        """``(1 + s) exp(-s)`` with ``s = sqrt(3) r``."""
        return Radial(matern32, matern32_slope)


class Matern52(Stationary):
    """Matern kernel of smoothness 5/2, ``c = (1 + sqrt(5) r + 5 r^2 / 3) exp(-sqrt(5) r)``."""

    def correlation(self) -> Correlation:
        """``(1 + s + s^2 / 3) exp(-s)`` with ``s = sqrt(5) r``."""
        return Radial(matern52, matern52_slope)


@dataclass(frozen=True)
class _RationalQuadraticCorrelation:
    alpha: Tensor

    def __call__(self, x: Tensor, z: Tensor | None, variance: Tensor) -> Tensor:
        alpha = self.alpha[..., None, None]
        return variance * torch.exp(-alpha * torch.log1p(squared_distance(x, z).clamp_min(0.0) / (2 * alpha)))


class RationalQuadratic(Stationary):
    """Rational quadratic kernel, ``c = (1 + r^2 / (2 alpha))^-alpha``; ``alpha`` to infinity gives :class:`RBF`.

    :param alpha: initial shape parameter, shape ``(outputs?,)``; the others as in :class:`Stationary`.
    """

    def __init__(
        self,
        ard: int | None = None,
        outputs: int | None = None,
        lengthscale: float = 1.0,
        variance: float = 1.0,
        alpha: float = 1.0,
    ) -> None:
        super().__init__(ard, outputs, lengthscale, variance)
        self.alpha = positive(alpha, outputs)

    def correlation(self) -> Correlation:
        """``(1 + r^2 / (2 alpha))^-alpha``; reads ``alpha``."""
        return _RationalQuadraticCorrelation(per_output(self.alpha, self.outputs))


@dataclass(frozen=True)
class _Circle:
    """Inputs as points on a circle for each dimension, whose chord is ``2 sin(pi |x - z| / period)``."""

    lengthscale: Tensor
    period: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        require_dimensions(x, self.lengthscale)
        angle = 2 * math.pi * x / self.period
        return torch.cat([torch.cos(angle) / self.lengthscale, torch.sin(angle) / self.lengthscale], -1)


class Periodic(Stationary):
    """Periodic kernel, ``k = variance * exp(-2 sum_d sin^2(pi (x_d - z_d) / period_d) / lengthscale_d^2)``.

    :param period: initial period, in units of the inputs, shape ``(outputs?, ard?)``; the others as in
        :class:`Stationary`.
    """

    def __init__(
        self,
        ard: int | None = None,
        outputs: int | None = None,
        lengthscale: float = 1.0,
        variance: float = 1.0,
        period: float = 1.0,
    ) -> None:
        super().__init__(ard, outputs, lengthscale, variance)
        self.period = positive(period, outputs, ard)

    def correlation(self) -> Correlation:
        """``exp(-chord^2 / 2)``."""
        return Radial(rbf, rbf_slope)

    def warp(self) -> Callable[[Tensor], Tensor]:
        """Onto circles; reads ``lengthscale`` and ``period``."""
        return _Circle(
            per_dimension(self.lengthscale, self.outputs, self.ard), per_dimension(self.period, self.outputs, self.ard)
        )
