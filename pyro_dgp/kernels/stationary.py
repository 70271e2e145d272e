"""Kernels that depend on the scaled distance r = |(x - z) / lengthscale|, and the periodic one built on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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
        self, ard: int | None = None, outputs: int | None = None, *, lengthscale: float = 1.0, variance: float = 1.0
    ) -> None:
        super().__init__()
        self.ard, self.outputs = ard, outputs
        self.lengthscale = positive(lengthscale, outputs, ard)
        self.variance = positive(variance, outputs)

    @property
    def correlation(self) -> Correlation:
        """``variance * c`` as a function of points that :meth:`warp` has mapped and of the variance, with c(0) = 1; may be a class attribute."""
        raise NotImplementedError

    def warp(self) -> Callable[[Tensor], Tensor]:
        """The map of the inputs before distances are taken."""
        return Scaling(per_dimension(self.lengthscale, self.outputs, self.ard).reciprocal())

    def forward(self) -> Covariance:
        """Read every parameter."""
        return StationaryCovariance(per_output(self.variance, self.outputs), self.correlation, self.warp())
