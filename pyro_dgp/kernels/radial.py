"""Kernel matrices that are functions of the squared distance, with their derivatives written out.

Kernel matrices take most of the elementwise work of a training step. Automatic differentiation of a Matern formula makes
a dozen passes over such a matrix; a slope that is computed beside the value makes one. Tests compare both with the plain
formulas.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch
from torch import Tensor

from pyro_dgp.internal import linalg
from pyro_dgp.internal.differentiation import Cotangents, FusedFunction
from pyro_dgp.kernels.distance import centred_distance, cotangents, plain_squared_distance

Formula = Callable[[Tensor], Tensor]
SlopeFormula = Callable[[Tensor, bool], tuple[Tensor, Tensor | None]]

#: Draws of s for which ``c(r^2) = E exp(-s r^2 / 2)``, independent, in the shape of a tensor: frequencies are ``sqrt(s)`` times
#: standard normal. Each correlation that serves inputs of any dimension has them (Schoenberg 1938).
Precisions = Callable[[Tensor], Tensor]


class RadialMatrix(FusedFunction):
    """Kernel matrix ``variance * c(|x_n - z_m|^2)``, ``variance`` ``(..., 1, 1)``. Value and slope serve the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, z: Tensor | None, variance: Tensor, correlation: Radial) -> Tensor:
        """The kernel matrix."""
        squared, a, b = centred_distance(x, z, rough=correlation.is_rough)
        ctx.formula = correlation.plain
        value, slope = correlation.formula(squared, any(ctx.needs_input_grad[:2]))
        if value.dtype == torch.float32 and value.device.type == "cpu":
            _without_subnormal_products(value, slope)
        value = value.mul_(variance) if linalg.fits(variance, value) else value * variance
        if slope is not None:
            slope = slope.mul_(variance) if linalg.fits(variance, slope) else slope * variance
        ctx.save_for_backward(x, z, variance, a, b, value, slope)
        return value

    @staticmethod
    def inputs(ctx: Any) -> tuple[Tensor | None, ...]:
        """See :class:`FusedFunction`."""
        return (*ctx.saved_tensors[:3], None)

    @staticmethod
    def plain(ctx: Any, x: Tensor, z: Tensor | None, variance: Tensor, _: None) -> Tensor:
        """See :class:`FusedFunction`."""
        result: Tensor = variance * ctx.formula(plain_squared_distance(x, z))
        return result

    @staticmethod
    def cotangents(ctx: Any, grad: Tensor) -> Cotangents:
        """See :class:`FusedFunction`."""
        x, z, variance, a, b, value, slope = ctx.saved_tensors
        by_x, by_z, by_variance = None, None, None
        if slope is not None:
            by_x, by_z = cotangents(grad * slope, x, z, a, b, ctx.needs_input_grad)
        if ctx.needs_input_grad[2]:
            totals = torch.linalg.vecdot(grad.flatten(-2), value.flatten(-2))[..., None, None]
            by_variance = totals.sum_to_size(variance.shape) / variance
        return by_x, by_z, by_variance, None


def _without_subnormal_products(value: Tensor, slope: Tensor | None) -> None:
    """Set correlations below the square of the machine precision, and their slopes, to zero in place.

    They are nothing beside the jitter. Products of a few of them lie below 1e-38, where a processor takes a hundred times as long for each.
    """
    torch.threshold_(value, torch.finfo(value.dtype).eps ** 2, 0.0)
    if slope is not None:
        slope.masked_fill_(value == 0, 0.0)


@dataclass(frozen=True)
class Radial:
    """A correlation function with its derivative.

    :param plain: the formula, which autograd differentiates where second derivatives are wanted.
    :param formula: gives the value and, on request, the slope with respect to the squared distance. It may write them
        into the memory of the squared distance.
    :param precisions: draws of the scale mixture, from which functions are drawn. Without it, functions are drawn jointly
        at all points that are asked for, which serves few points.
    :param smoothness: nu, for a Matern correlation ``(sqrt(2 nu) r)^nu K_nu(sqrt(2 nu) r) 2^(1 - nu) / Gamma(nu)``; features that are made for
        Matern kernels know them by it.

    >>> import torch
    >>> from pyro_dgp import Radial
    >>> def cauchy(squared, need):
    ...     value = 1 / (1 + squared)
    ...     return value, -value.square() if need else None
    >>> correlation = Radial(lambda squared: 1 / (1 + squared), cauchy)
    >>> correlation(torch.tensor([[0.0], [3.0]]), None, torch.ones(1, 1)).round(decimals=3).tolist()
    [[1.0, 0.1], [0.1, 1.0]]
    """

    plain: Formula
    formula: SlopeFormula
    precisions: Precisions | None = None
    _: KW_ONLY
    smoothness: float | None = None

    @property
    def is_rough(self) -> bool:
        """Whether the slope with respect to the squared distance is infinite at zero, as that of ``exp(-r)``: smoothness below 1."""
        return self.smoothness is not None and self.smoothness < 1

    def __call__(self, x: Tensor, z: Tensor | None, variance: Tensor) -> Tensor:
        """Return ``variance * c(|x_n - z_m|^2)``, within ``x`` or between ``x`` and ``z``; ``variance`` ``(..., 1, 1)``."""
        result: Tensor = RadialMatrix.apply(x, z, variance, self)  # type: ignore[no-untyped-call]
        return result
