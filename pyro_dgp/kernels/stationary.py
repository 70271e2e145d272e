"""Base class of kernels that depend on the scaled distance r = |(x - z) / lengthscale|."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from pyro_dgp.internal import linalg
from pyro_dgp.internal.recording import is_at_most
from pyro_dgp.kernels.base import Kernel
from pyro_dgp.kernels.covariance import ConstantDiagonal, Covariance, FromPoints
from pyro_dgp.kernels.hyperparameters import per_dimension, per_output, positive, require_dimensions

#: Largest coordinate of inputs, in lengthscales, that single precision holds to 6e-6 lengthscales.
LARGEST_COORDINATE = 50.0

#: Function ``correlation(x, z, variance) -> variance * c(r^2)``, with r the distances within ``x`` or between ``x`` and ``z``.
Correlation = Callable[[Tensor, Tensor | None, Tensor], Tensor]


@dataclass(frozen=True)
class StationaryCovariance(ConstantDiagonal, Covariance):
    """Covariance function ``variance * c(r^2)`` of inputs that ``warp`` maps first: by lengthscales, or onto a circle.

    Inputs in single precision that lie many lengthscales from the origin are mapped in double precision, since the map rounds them, and so are
    all inputs of a rough correlation (:attr:`Radial.is_rough`).
    """

    correlation: Correlation
    warp: Callable[[Tensor], Tensor]

    def matrix(
        self, x: Float[Tensor, "*b e n d"], z: Float[Tensor, "*c o m d"] | None = None
    ) -> Float[Tensor, "*r p n k"]:
        """See :class:`Covariance`."""
        variance = self.variance[..., None, None]
        points, others = self.warp(x), None if z is None else self.warp(z)
        if self.rounds_little(x, points) and (z is None or others is None or self.rounds_little(z, others)):
            return self.correlation(points, others, variance)
        return self._in_double_precision(x, z).to(variance.dtype)

    def from_points(self, z: Float[Tensor, "*c o m d"]) -> FromPoints:
        """See :class:`Covariance`. The points are mapped once."""
        points = self.warp(z)
        return FromNearPoints(self, z, points) if self.rounds_little(z, points) else super().from_points(z)

    def rounds_little(self, x: Tensor, points: Tensor) -> bool:
        """Tell whether the rounding of inputs ``x`` by the map, which gives ``points``, changes distances little: always in double precision."""
        if points.dtype != torch.float32 or not points.numel():
            return True
        if getattr(self.correlation, "is_rough", False):
            return False
        unwrapped = getattr(self.warp, "unwrapped", None)
        reach = points if unwrapped is None else unwrapped(x)
        return is_at_most(reach.detach().abs().amax(), LARGEST_COORDINATE)

    def _in_double_precision(self, x: Tensor, z: Tensor | None) -> Tensor:
        variance = self.variance.double()[..., None, None]
        if z is None:
            return self.correlation(self.warp(x.double()), None, variance)
        # One map of all points: the gradients of its parameters at x and at z cancel, and are added before they are rounded.
        points = self.warp(linalg.stacked(x.double(), z.double()))
        return self.correlation(points[..., : x.shape[-2], :], points[..., x.shape[-2] :, :], variance)


@dataclass(frozen=True)
class FromNearPoints(FromPoints):
    """Covariances from points whose rounding changes little, see :class:`StationaryCovariance`.

    :ivar points: what the map makes of z.
    """

    covariance: StationaryCovariance
    points: Tensor

    def within(self) -> Tensor:
        """See :class:`FromPoints`."""
        own = self.covariance
        return own.correlation(self.points, None, own.variance[..., None, None])

    def to(self, x: Tensor) -> Tensor:
        """See :class:`FromPoints`."""
        own = self.covariance
        others = own.warp(x)
        if not own.rounds_little(x, others):
            return super().to(x)
        return own.correlation(self.points, others, own.variance[..., None, None])


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
        """Return the map of the inputs that comes before the distances.

        The map takes single and double precision, and returns the same. One whose result is not as large as its rounding has a method
        ``unwrapped``, from inputs to numbers that are, in lengthscales.
        """
        return Scaling(per_dimension(self, "lengthscale").reciprocal())

    def forward(self) -> Covariance:
        """Read every parameter."""
        return StationaryCovariance(per_output(self, "variance"), self.correlation, self.warp())
