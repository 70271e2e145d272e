"""Kernel matrices that are functions of the squared distance, with their derivatives written out.

A kernel matrix is most of a training step's elementwise work. Automatic differentiation of a Matern formula makes a dozen
passes over it; the slope, computed beside the value, makes one. The plain formulas are the reference for both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyro_dgp import linalg
from pyro_dgp.kernels.distance import centred_distance, cotangents, plain_squared_distance

Formula = Callable[[Tensor], Tensor]
SlopeFormula = Callable[[Tensor, bool], tuple[Tensor, Tensor | None]]

# The floor keeps the slope of the square root finite at r = 0, where that of exp(-r) is infinite.
_FLOOR = 1e-30


def _root(squared: Tensor, factor: float) -> Tensor:
    return (squared.clamp_min(_FLOOR) * factor).sqrt()


def rbf(squared: Tensor) -> Tensor:
    """``exp(-r^2 / 2)``."""
    return torch.exp(-0.5 * squared.clamp_min(0.0))


def matern12(squared: Tensor) -> Tensor:
    """``exp(-r)``."""
    return torch.exp(-_root(squared, 1.0))


def matern32(squared: Tensor) -> Tensor:
    """``(1 + s) exp(-s)``, ``s = sqrt(3) r``."""
    s = _root(squared, 3.0)
    return (1 + s) * torch.exp(-s)


def matern52(squared: Tensor) -> Tensor:
    """``(1 + s + s^2 / 3) exp(-s)``, ``s = sqrt(5) r``."""
    s = _root(squared, 5.0)
    return (1 + s + s.square() / 3) * torch.exp(-s)


def rbf_slope(squared: Tensor, need: bool) -> tuple[Tensor, Tensor | None]:
    """Value and ``-c / 2``."""
    value = squared.clamp_min_(0.0).mul_(-0.5).exp_()
    return value, value * -0.5 if need else None


def matern12_slope(squared: Tensor, need: bool) -> tuple[Tensor, Tensor | None]:
    """Value and ``-c / (2 r)``; zero at r = 0, where there is none."""
    s = squared.clamp_min_(_FLOOR).sqrt_()
    value = s.neg().exp_()
    if not need:
        return value, None
    return value, (value / s).mul_(-0.5).masked_fill_(s <= _FLOOR**0.5, 0.0)


def matern32_slope(squared: Tensor, need: bool) -> tuple[Tensor, Tensor | None]:
    """Value and ``-3/2 exp(-s)``."""
    s = squared.clamp_min_(_FLOOR).mul_(3.0).sqrt_()
    decay = s.neg().exp_()
    return s.add_(1.0).mul_(decay), decay.mul_(-1.5) if need else None


def matern52_slope(squared: Tensor, need: bool) -> tuple[Tensor, Tensor | None]:
    """Value and ``-5/6 (1 + s) exp(-s)``."""
    s = squared.clamp_min_(_FLOOR).mul_(5.0).sqrt_()
    decay = s.neg().exp_()
    slope = torch.addcmul(decay, s, decay)  # (1 + s) exp(-s)
    value = s.square_().mul_(decay).mul_(1 / 3).add_(slope)
    return value, slope.mul_(-5 / 6) if need else None


class _RadialMatrix(torch.autograd.Function):
    """``variance * c(|x_n - z_m|^2)``; ``variance`` ``(..., 1, 1)``. What is kept for the backward pass are the value and the slope."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, z: Tensor | None, variance: Tensor, plain: Formula, formula: SlopeFormula
    ) -> Tensor:
        squared, a, b = centred_distance(x, z)
        ctx.plain = plain
        value, slope = formula(squared, any(ctx.needs_input_grad[:2]))
        value = value.mul_(variance) if linalg.fits(variance, value) else value * variance
        if slope is not None:
            slope = slope.mul_(variance) if linalg.fits(variance, slope) else slope * variance
        ctx.save_for_backward(x, z, variance, a, b, value, slope)
        return value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, z, variance, a, b, value, slope = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is wanted: differentiate the plain formula

            def formula(x: Tensor, z: Tensor | None, variance: Tensor) -> Tensor:
                result: Tensor = variance * ctx.plain(plain_squared_distance(x, z))
                return result

            return (*linalg.differentiated(formula, (x, z, variance), grad), None, None)
        by_x, by_z, by_variance = None, None, None
        if slope is not None:
            by_x, by_z = cotangents(grad * slope, x, z, a, b, ctx.needs_input_grad)
        if ctx.needs_input_grad[2]:
            totals = torch.linalg.vecdot(grad.flatten(-2), value.flatten(-2))[..., None, None]
            by_variance = totals.sum_to_size(variance.shape) / variance
        return by_x, by_z, by_variance, None, None


@dataclass(frozen=True)
class Radial:
    """A correlation function that carries its own derivative.

    :param plain: the formula, differentiated by autograd where second derivatives are asked for.
    :param formula: value and, on request, slope with respect to the squared distance, whose memory it may take for them.
    """

    plain: Formula
    formula: SlopeFormula

    def __call__(self, x: Tensor, z: Tensor | None, variance: Tensor) -> Tensor:
        """``variance * c(|x_n - z_m|^2)``, within ``x`` or between ``x`` and ``z``; ``variance`` ``(..., 1, 1)``."""
        result: Tensor = _RadialMatrix.apply(x, z, variance, self.plain, self.formula)  # type: ignore[no-untyped-call]
        return result
