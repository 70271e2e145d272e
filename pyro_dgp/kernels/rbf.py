"""The radial basis function kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_dgp.kernels.radial import Radial
from pyro_dgp.kernels.stationary import Stationary


def rbf(squared: Tensor) -> Tensor:
    """Return ``exp(-r^2 / 2)``."""
    return torch.exp(-0.5 * squared.clamp_min(0.0))


def rbf_slope(squared: Tensor, need: bool) -> tuple[Tensor, Tensor | None]:
    """Return the value c and the slope ``-c / 2``."""
    value = squared.clamp_min_(0.0).mul_(-0.5).exp_()
    return value, value * -0.5 if need else None


class RBF(Stationary):
    """Radial basis function (squared exponential) kernel, ``c = exp(-r^2 / 2)``.

    >>> import torch
    >>> from pyro_dgp import RBF
    >>> round(RBF()().matrix(torch.tensor([[[0.0]]]), torch.tensor([[[1.0]]])).item(), 3)
    0.607
    """

    correlation = Radial(rbf, rbf_slope)
