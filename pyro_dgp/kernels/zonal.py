"""Zonal kernels: inputs are lifted with a bias, and the kernel is a function of norms and of the angle between them."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from pyro_dgp.kernels.base import Kernel, Wrapper
from pyro_dgp.kernels.covariance import Covariance
from pyro_dgp.kernels.hyperparameters import per_dimension, per_output, positive, require_dimensions
from pyro_dgp.kernels.radial import Radial
from pyro_dgp.kernels.stationary import Scaling, Stationary, StationaryCovariance


@dataclass(frozen=True)
class ZonalCovariance(Covariance):
    """Base of covariance functions ``(|x| |z|)^n kappa(cos angle)`` of lifted inputs, ``x = (scale * x, sqrt(bias))``.

    :ivar scale: roots of the weight variances, ``(..., E, 1, D or 1)``.
    :ivar bias: variance of the bias, ``(..., E)``.
    """

    scale: Tensor
    bias: Tensor

    @property
    @abstractmethod
    def degree(self) -> int:
        """The power n of the norms."""

    @abstractmethod
    def shape(self, cosine: Tensor) -> Tensor:
        """Return kappa, the variance of the function included, at cosines ``(Q,)`` inside (-1, 1): ``(..., E, Q)``."""

    def lift(self, x: Tensor) -> Tensor:
        """Return the weighted inputs with the root of the bias behind them, ``(..., E, N, D + 1)``."""
        require_dimensions(x, self.scale)
        x = x * self.scale
        bias = self.bias.sqrt()[..., None, None]
        shape = torch.broadcast_shapes(x.shape[:-1], (*bias.shape[:-2], x.shape[-2]))
        return torch.cat([x.expand(*shape, x.shape[-1]), bias.expand(*shape, 1)], -1)


@dataclass(frozen=True)
class SphericalCovariance(ZonalCovariance):
    """Covariance function ``|x| |z| c(|x / |x| - z / |z||)`` of lifted inputs, with a stationary c on the sphere.

    :ivar part: the stationary covariance function c of points on the sphere.
    """

    part: StationaryCovariance

    @property
    def degree(self) -> int:
        """One."""
        return 1

    def shape(self, cosine: Tensor) -> Tensor:
        """Return ``c`` at the distances ``sqrt(2 - 2 cosine)``."""
        correlation, warp = self.part.correlation, self.part.warp
        assert isinstance(correlation, Radial) and isinstance(warp, Scaling)
        squared = 2 * (1 - cosine) * warp.reciprocal[..., 0].square()
        return self.part.variance.unsqueeze(-1) * correlation.plain(squared)

    def matrix(
        self, x: Float[Tensor, "*b e n d"], z: Float[Tensor, "*c o m d"] | None = None
    ) -> Float[Tensor, "*r p n k"]:
        """See :class:`~pyro_dgp.kernels.covariance.Covariance`."""
        x, norms = _on_sphere(self.lift(x))
        if z is None:
            return norms * norms.mT * self.part.matrix(x)
        z, others = _on_sphere(self.lift(z))
        return norms * others.mT * self.part.matrix(x, z)

    def diagonal(self, x: Float[Tensor, "*b e n d"]) -> Float[Tensor, "*r p n"]:
        """``variance |x|^2``."""
        return self.part.variance.unsqueeze(-1) * self.lift(x).square().sum(-1)


def _on_sphere(lifted: Tensor) -> tuple[Tensor, Tensor]:
    """Return directions and norms."""
    norms = lifted.norm(dim=-1, keepdim=True)
    return lifted / norms, norms


class Spherical(Wrapper):
    """Stationary kernel on the sphere, ``k(x, z) = |x| |z| c(x / |x|, z / |z|)`` of inputs with a bias behind them (Dutordoir et al. 2020).

    Functions grow linearly along a ray, as those of the arc-cosine kernel of order 1 do. The lengthscale of c is a distance on the unit
    sphere. The norm is ``x' diag(weight_variance) x + bias_variance``.

    :param part: an isotropic stationary kernel, such as ``Matern52()``.
    :param ard: number of inputs with a weight variance each; ``None`` for one weight variance shared by all inputs.
    :param outputs: number of outputs with weight variances of their own; ``None`` for parameters shared by all.

    >>> import torch
    >>> from pyro_dgp import Matern52, Spherical
    >>> Spherical(Matern52())().diagonal(torch.tensor([[[1.0, 2.0]]])).round().tolist()  # 1 + 4, and a bias of 1
    [[6.0]]
    """

    def __init__(self, part: Kernel, ard: int | None = None, outputs: int | None = None) -> None:
        super().__init__(part)
        self.ard, self.outputs = ard, outputs
        self.weight_variance = positive(1.0, outputs, ard)
        self.bias_variance = positive(1.0, outputs)

    def admit(self, name: str, value: Any) -> Any:
        """Take an isotropic stationary kernel as ``part``."""
        value = super().admit(name, value)
        if name != "part":
            return value
        if not (isinstance(value, Stationary) and isinstance(value.correlation, Radial)) or value.ard is not None:
            raise ValueError(
                "Spherical takes a stationary kernel of one lengthscale, such as Matern52(): the inputs have weight variances, ard="
            )
        return value

    def forward(self) -> Covariance:
        """Read every parameter."""
        part = self.part()
        assert isinstance(part, StationaryCovariance)
        scale = per_dimension(self, "weight_variance").sqrt()
        return SphericalCovariance(scale, per_output(self, "bias_variance"), part)
