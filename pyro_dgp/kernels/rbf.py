"""The radial basis function kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_dgp.internal.differentiation import clamped
from pyro_dgp.kernels.radial import Radial
from pyro_dgp.kernels.stationary import Stationary


def rbf(squared: Tensor) -> Tensor:
    """Return ``exp(-r^2 / 2)``."""
    return torch.exp(-0.5 * clamped(squared, 0.0))


def rbf_slope(squared: Tensor, need: bool) -> tuple[Tensor, Tensor | None]:
    """Value and slope ``-c / 2`` with respect to the squared distance."""
    value = squared.clamp_min_(0.0).mul_(-0.5).exp_()
    return value, value * -0.5 if need else None


class RBF(Stationary):
    """Radial basis function (squared exponential) kernel, ``c = exp(-r^2 / 2)``.

    >>> from pyro_dgp import RBF
    >>> k = RBF(ard=2, variance=4.0)()  # reads the parameters
    >>> k.matrix(torch.zeros(1, 3, 2), torch.zeros(1, 5, 2)).shape
    torch.Size([1, 3, 5])
    """

    correlation = Radial(rbf, rbf_slope, torch.ones_like)
