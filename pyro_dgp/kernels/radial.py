"""Correlations as functions of the squared distance, with their derivatives written out.

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
    value = squared.clamp_min(0.0).mul_(-0.5).exp_()
    return value, value * -0.5 if need else None


def matern12_slope(squared: Tensor, need: bool) -> tuple[Tensor, Tensor | None]:
    """Value and ``-c / (2 r)``; zero at r = 0, where there is none."""
    s = squared.clamp_min(_FLOOR).sqrt_()
    value = s.neg().exp_()
    if not need:
        return value, None
    return value, s.reciprocal_().mul_(value).mul_(-0.5).masked_fill_(squared <= _FLOOR, 0.0)


def matern32_slope(squared: Tensor, need: bool) -> tuple[Tensor, Tensor | None]:
    """Value and ``-3/2 exp(-s)``."""
    s = squared.clamp_min(_FLOOR).mul_(3.0).sqrt_()
    decay = s.neg().exp_()
    return s.add_(1.0).mul_(decay), decay.mul_(-1.5) if need else None


def matern52_slope(squared: Tensor, need: bool) -> tuple[Tensor, Tensor | None]:
    """Value and ``-5/6 (1 + s) exp(-s)``."""
    s = squared.clamp_min(_FLOOR).mul_(5.0).sqrt_()
    decay = s.neg().exp_()
    slope = torch.addcmul(decay, s, decay)  # (1 + s) exp(-s)
    value = s.square_().mul_(decay).mul_(1 / 3).add_(slope)
    return value, slope.mul_(-5 / 6) if need else None


class _WithSlope(torch.autograd.Function):
    """``variance * c(squared)``; ``variance`` ``(..., 1, 1)``, what it broadcasts over is summed in one dot product."""

    @staticmethod
    def forward(ctx: Any, squared: Tensor, variance: Tensor, plain: Formula, formula: SlopeFormula) -> Tensor:
        value, slope = formula(squared, ctx.needs_input_grad[0])
        value = value.mul_(variance) if linalg.fits(variance, value) else value * variance
        if slope is not None:
            slope = slope.mul_(variance) if linalg.fits(variance, slope) else slope * variance
        ctx.plain = plain
        ctx.save_for_backward(squared, variance, value, slope)
        return value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:  # type: ignore[override]
        squared, variance, value, slope = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is wanted: differentiate the plain formula
            return (*_plain_gradients(squared, variance, ctx.plain, grad), None, None)
        by_squared = _unbroadcast(grad * slope, squared.shape) if ctx.needs_input_grad[0] else None
        by_variance = None
        if ctx.needs_input_grad[1]:
            totals = torch.linalg.vecdot(grad.flatten(-2), value.flatten(-2))[..., None, None]
            by_variance = _unbroadcast(totals, variance.shape) / variance
        return by_squared, by_variance, None, None


def _unbroadcast(grad: Tensor, shape: torch.Size) -> Tensor:
    return grad if grad.shape == shape else grad.sum_to_size(shape)


def _plain_gradients(
    squared: Tensor, variance: Tensor, plain: Formula, grad: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    inputs = [tensor for tensor in (squared, variance) if tensor.requires_grad]
    results = iter(torch.autograd.grad(variance * plain(squared), inputs, grad, create_graph=True))
    by_squared = next(results) if squared.requires_grad else None
    return by_squared, next(results) if variance.requires_grad else None


@dataclass(frozen=True)
class Radial:
    """A correlation function that carries its own derivative.

    :param plain: the formula, differentiated by autograd where second derivatives are asked for.
    :param formula: value and, on request, slope with respect to the squared distance.
    """

    plain: Formula
    formula: SlopeFormula

    def __call__(self, squared: Tensor, variance: Tensor) -> Tensor:
        """``variance * c(squared)``; ``variance`` ``(..., 1, 1)``."""
        result: Tensor = _WithSlope.apply(squared, variance, self.plain, self.formula)  # type: ignore[no-untyped-call]
        return result
