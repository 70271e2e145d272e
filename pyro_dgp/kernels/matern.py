"""Matern kernels of smoothness 1/2, 3/2 and 5/2."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_dgp.kernels.radial import Radial
from pyro_dgp.kernels.stationary import Stationary

#: Keeps the slope of the square root finite at r = 0, where that of exp(-r) is infinite.
_FLOOR = 1e-30


def _root(squared: Tensor, factor: float) -> Tensor:
    return (squared.clamp_min(_FLOOR) * factor).sqrt()


def _with_slopes_at_zero(value: Tensor, squared: Tensor, slope: float, curvature: float = 0.0) -> Tensor:
    """Return ``value``; below the floor, where its root has no derivatives left, one with those of the correlation in the squared distance at zero.

    :param curvature: half of the second derivative, where there is one.
    """
    change = squared - squared.detach()
    return torch.where(squared > _FLOOR, value, 1 + slope * change + curvature * change.square())


def matern12(squared: Tensor) -> Tensor:
    """Return ``exp(-r)``."""
    return torch.exp(-_root(squared, 1.0))


def matern12_slope(squared: Tensor, need: bool) -> tuple[Tensor, Tensor | None]:
    """Value and slope ``-c / (2 r)``; zero at r = 0, where the slope is infinite."""
    s = squared.clamp_min_(_FLOOR).sqrt_()
    value = s.neg().exp_()
    if not need:
        return value, None
    return value, (value / s).mul_(-0.5).masked_fill_(s <= _FLOOR**0.5, 0.0)


@dataclass(frozen=True)
class _InverseGamma:
    """Draws of ``2 nu / chi^2_{2 nu}``: frequencies of a Matern kernel follow a t distribution of ``2 nu`` degrees of freedom."""

    degrees: int

    def __call__(self, like: Tensor) -> Tensor:
        normal = torch.randn(self.degrees, *like.shape, dtype=like.dtype, device=like.device)
        return self.degrees / normal.square().sum(0)


class Matern12(Stationary):
    """Matern kernel of smoothness 1/2, ``c = exp(-r)``.

    >>> import torch
    >>> from pyro_dgp import Matern12
    >>> round(Matern12()().matrix(torch.tensor([[[0.0]]]), torch.tensor([[[1.0]]])).item(), 3)
    0.368
    """

    correlation = Radial(matern12, matern12_slope, _InverseGamma(1), smoothness=0.5)


def matern32(squared: Tensor) -> Tensor:
    """Return ``(1 + s) exp(-s)``, ``s = sqrt(3) r``."""
    s = _root(squared, 3.0)
    return _with_slopes_at_zero((1 + s) * torch.exp(-s), squared, -3 / 2)


def matern32_slope(squared: Tensor, need: bool) -> tuple[Tensor, Tensor | None]:
    """Value and slope ``-3/2 exp(-s)``."""
    s = squared.clamp_min_(_FLOOR).mul_(3.0).sqrt_()
    decay = s.neg().exp_()
    return s.add_(1.0).mul_(decay), decay.mul_(-1.5) if need else None


class Matern32(Stationary):
    """Matern kernel of smoothness 3/2, ``c = (1 + sqrt(3) r) exp(-sqrt(3) r)``.

    >>> import torch
    >>> from pyro_dgp import Matern32
    >>> round(Matern32()().matrix(torch.tensor([[[0.0]]]), torch.tensor([[[1.0]]])).item(), 3)
    0.483
    """

    correlation = Radial(matern32, matern32_slope, _InverseGamma(3), smoothness=1.5)


def matern52(squared: Tensor) -> Tensor:
    """Return ``(1 + s + s^2 / 3) exp(-s)``, ``s = sqrt(5) r``."""
    s = _root(squared, 5.0)
    return _with_slopes_at_zero((1 + s + s.square() / 3) * torch.exp(-s), squared, -5 / 6, 25 / 24)


def matern52_slope(squared: Tensor, need: bool) -> tuple[Tensor, Tensor | None]:
    """Value and slope ``-5/6 (1 + s) exp(-s)``."""
    s = squared.clamp_min_(_FLOOR).mul_(5.0).sqrt_()
    decay = s.neg().exp_()
    slope = torch.addcmul(decay, s, decay)  # (1 + s) exp(-s)
    value = s.square_().mul_(decay).mul_(1 / 3).add_(slope)
    return value, slope.mul_(-5 / 6) if need else None


class Matern52(Stationary):
    """Matern kernel of smoothness 5/2, ``c = (1 + sqrt(5) r + 5 r^2 / 3) exp(-sqrt(5) r)``.

    >>> import torch
    >>> from pyro_dgp import Matern52
    >>> round(Matern52()().matrix(torch.tensor([[[0.0]]]), torch.tensor([[[1.0]]])).item(), 3)
    0.524
    """

    correlation = Radial(matern52, matern52_slope, _InverseGamma(5), smoothness=2.5)
