"""The periodic kernel."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_dgp.kernels.hyperparameters import per_dimension, positive, require_dimensions
from pyro_dgp.kernels.rbf import RBF
from pyro_dgp.kernels.stationary import Stationary


@dataclass(frozen=True)
class _Circle:
    """Map of each input dimension onto a circle, on which two inputs are a chord of ``2 sin(pi |x - z| / period)`` apart."""

    lengthscale: Tensor
    period: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        require_dimensions(x, self.lengthscale)
        angle = 2 * math.pi * x / self.period
        return torch.cat([torch.cos(angle) / self.lengthscale, torch.sin(angle) / self.lengthscale], -1)

    def unwrapped(self, x: Tensor) -> Tensor:
        """Return the lengths of arc from the origin, in lengthscales: what rounding is proportional to."""
        return 2 * math.pi * x / self.period / self.lengthscale


class Periodic(Stationary):
    """Periodic kernel, ``k = variance * exp(-2 sum_d sin^2(pi (x_d - z_d) / period_d) / lengthscale_d^2)``.

    :param period: initial period, in units of the inputs, shape ``(outputs?, ard?)``. The other parameters are those of
        :class:`Stationary`.

    >>> import torch
    >>> from pyro_dgp import Periodic
    >>> x = torch.tensor([[[0.0], [0.5], [1.0]]])  # the period is 1
    >>> Periodic()().matrix(x[:, :1], x).round(decimals=3).tolist()[0][0][::2]
    [1.0, 1.0]
    """

    def __init__(
        self,
        ard: int | None = None,
        outputs: int | None = None,
        *,
        lengthscale: float = 1.0,
        variance: float = 1.0,
        period: float = 1.0,
    ) -> None:
        super().__init__(ard, outputs, lengthscale=lengthscale, variance=variance)
        self.period = positive(period, outputs, ard)

    correlation = RBF.correlation

    def warp(self) -> Callable[[Tensor], Tensor]:
        """The map onto circles; reads ``lengthscale`` and ``period``."""
        return _Circle(per_dimension(self, "lengthscale"), per_dimension(self, "period"))
