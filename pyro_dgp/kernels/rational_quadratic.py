"""The rational quadratic kernel."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_dgp.internal.differentiation import clamped
from pyro_dgp.kernels.distance import squared_distance
from pyro_dgp.kernels.hyperparameters import per_output, positive
from pyro_dgp.kernels.stationary import Correlation, Stationary


@dataclass(frozen=True)
class _RationalQuadraticCorrelation:
    alpha: Tensor

    def __call__(self, x: Tensor, z: Tensor | None, variance: Tensor) -> Tensor:
        alpha = self.alpha[..., None, None]
        return variance * torch.exp(-alpha * torch.log1p(clamped(squared_distance(x, z), 0.0) / (2 * alpha)))

    def precisions(self, like: Tensor) -> Tensor:
        """Draws of s ~ Gamma(alpha, rate alpha) for which ``c = E exp(-s r^2 / 2)``, in the shape of ``like`` ``(..., E, 1, F)``."""
        alpha = (self.alpha[..., None, None] * torch.ones_like(like)).contiguous()
        draws: Tensor = torch.distributions.Gamma(alpha, alpha, validate_args=False).sample()
        return draws


class RationalQuadratic(Stationary):
    """Rational quadratic kernel, ``c = (1 + r^2 / (2 alpha))^-alpha``; ``alpha`` to infinity gives :class:`RBF`.

    :param alpha: initial shape parameter, shape ``(outputs?,)``. The other parameters are those of :class:`Stationary`.

    >>> import torch
    >>> from pyro_dgp import RationalQuadratic
    >>> round(RationalQuadratic()().matrix(torch.tensor([[[0.0]]]), torch.tensor([[[1.0]]])).item(), 3)
    0.667
    """

    def __init__(
        self,
        ard: int | None = None,
        outputs: int | None = None,
        *,
        lengthscale: float = 1.0,
        variance: float = 1.0,
        alpha: float = 1.0,
    ) -> None:
        super().__init__(ard, outputs, lengthscale=lengthscale, variance=variance)
        self.alpha = positive(alpha, outputs)

    @property
    def correlation(self) -> Correlation:
        """Correlation function ``(1 + r^2 / (2 alpha))^-alpha``; reads ``alpha``."""
        return _RationalQuadraticCorrelation(per_output(self, "alpha"))
