"""Base class of kernels that depend on the scaled distance r = |(x - z) / lengthscale|."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from pyro_dgp.kernels.base import Kernel
from pyro_dgp.kernels.covariance import ConstantDiagonal, Covariance
from pyro_dgp.kernels.hyperparameters import per_dimension, per_output, positive, require_dimensions

#: Function ``correlation(x, z, variance) -> variance * c(r^2)``, with r the distances within ``x`` or between ``x`` and ``z``.
Correlation = Callable[[Tensor, Tensor | None, Tensor], Tensor]


@dataclass(frozen=True)
class StationaryCovariance(ConstantDiagonal, Covariance):
    """Covariance function ``variance * c(r^2)`` of inputs that ``warp`` maps first: by lengthscales, or onto a circle."""

    correlation: Correlation
    warp: Callable[[Tensor], Tensor]

    def matrix(
        self, x: Float[Tensor, "*b e n d"], z: Float[Tensor, "*c o m d"] | None = None
    ) -> Float[Tensor, "*r p n k"]:
        """See :class:`Covariance`."""
        return self.correlation(self.warp(x), None if z is None else self.warp(z), self.variance[..., None, None])


@dataclass(frozen=True)
class Scaling:
    """Map ``x / lengthscale`` of the inputs, as an object, since closures do not pickle.

    It multiplies by the reciprocal, which is taken once and is cheaper to differentiate than a division.
    """

    reciprocal: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Return the scaled inputs, in the shape of ``x``."""
        require_dimensions(x, self.reciprocal)
        return x * self.reciprocal


class Stationary(Kernel):
    """Base of stationary kernels, ``k(x, z) = variance * c(r^2)``, ``r^2 = sum_d (x_d - z_d)^2 / lengthscale_d^2``.

    A subclass gives the function c as its ``correlation``.

    :param ard: number of inputs with a lengthscale each; ``None`` for one lengthscale shared by all inputs.
    :param outputs: number of outputs with parameters of their own; ``None`` for parameters shared by all.
    :param lengthscale: initial lengthscale, in units of the inputs. Shape ``(outputs?, ard?)``.
    :param variance: initial variance (not its root), in squared units of the function. Shape ``(outputs?,)``.

    >>> from pyro_dgp import RBF, Stationary
    >>> kernel = RBF(ard=3, outputs=2)
    >>> isinstance(kernel, Stationary), kernel.lengthscale.shape, kernel.variance.shape
    (True, torch.Size([2, 3]), torch.Size([2]))
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
        """Return the map of the inputs that comes before the distances."""
        return Scaling(per_dimension(self.lengthscale, self.outputs, self.ard).reciprocal())

    def forward(self) -> Covariance:
        """Read every parameter."""
        return StationaryCovariance(per_output(self.variance, self.outputs), self.correlation, self.warp())
