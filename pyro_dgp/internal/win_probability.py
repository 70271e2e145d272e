"""Probability that one of several independent normal variables is the largest."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

#: Most nodes of the rule with equal steps; beyond, pieces between the steps of the integrand are integrated one by one.
MOST_EQUAL = 160
#: Half the range of integration, in standard deviations.
_RANGE = 8.0
#: Where a step of the integrand is cut into pieces, in its own widths.
_CUTS = (-7.0, -2.5, 0.0, 2.5, 7.0)


def win_probability(mean: Tensor, scale: Tensor, which: Tensor) -> Tensor:
    """Return ``P(f_c >= f_j for all j)`` for independent normals, ``int N(z) prod_j Phi((m_c + s_c z - m_j) / s_j) dz``.

    The error is below 1e-9 whatever the ratio of the scales. Rows with a function that is much narrower than that of c are integrated piece by
    piece, which takes longer; all other rows have equal steps.

    :param mean: ``(..., C)``.
    :param scale: standard deviations, ``(..., C)``.
    :param which: classes c, ``(...)``, integers.
    """
    index = which.expand(mean.shape[:-1]).unsqueeze(-1)
    scale = scale.clamp_min(1e-12)
    own, own_scale = mean.gather(-1, index), scale.gather(-1, index)
    others = _without(mean, index), _without(scale, index)
    with torch.no_grad():
        sharpness = (own_scale / others[1]).square().sum(-1)
        steep = ~(2 * _RANGE / _step(sharpness) < MOST_EQUAL)  # NaN too, for which there is no step
    if steep.all():
        return pieces(own, own_scale, *others)
    if not steep.any():
        return equal_steps(own, own_scale, *others, step=float(_step(sharpness.max())))
    parts = own, own_scale, *others
    smooth = equal_steps(*(each[~steep] for each in parts), step=float(_step(sharpness[~steep].max())))
    won = torch.zeros_like(own[..., 0]).masked_scatter(~steep, smooth)
    return won.masked_scatter(steep, pieces(*(each[steep] for each in parts)))


def _step(sharpness: Tensor) -> Tensor:
    """Return the step of the rule with equal steps, by ``sum_j s_c^2 / s_j^2``."""
    return 0.9 / (1 + sharpness).sqrt()


def _without(values: Tensor, index: Tensor) -> Tensor:
    """Return the values of all classes but one."""
    count = values.shape[-1]
    kept = torch.arange(count - 1, device=values.device)
    kept = kept + (kept >= index)
    return values.gather(-1, kept.expand(*index.shape[:-1], count - 1))


def equal_steps(own: Tensor, own_scale: Tensor, mean: Tensor, scale: Tensor, *, step: float) -> Tensor:
    """The integral by the trapezoidal rule, which errs by some ``exp(-2 pi^2 / (step^2 (1 + sum_j s_c^2 / s_j^2)))``.

    :param own: ``(..., 1)``, as ``own_scale``; the others are ``(..., C - 1)``.
    """
    count = 2 * math.ceil(_RANGE / step) + 1
    z = torch.linspace(-_RANGE, _RANGE, count, dtype=torch.float64).to(own)
    log_density = -0.5 * z.square()
    weights = (log_density - torch.logsumexp(log_density, 0)).exp()
    return _products(own + own_scale * z, mean, scale) @ weights


def pieces(own: Tensor, own_scale: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    """The integral by Gauss-Legendre rules between cuts at the steps of the integrand."""
    with torch.no_grad():
        centre, width = (mean - own) / own_scale, scale / own_scale
        cuts = [(centre + width * cut).clamp(-_RANGE, _RANGE) for cut in _CUTS]
        fixed = torch.linspace(-_RANGE, _RANGE, 13, dtype=torch.float64).to(own).expand(*own.shape[:-1], 13)
        edges = torch.cat([*cuts, fixed], -1).sort(-1).values
        nodes, weights = (torch.as_tensor(values).to(own) for values in np.polynomial.legendre.leggauss(16))
        half = (edges[..., 1:] - edges[..., :-1]).unsqueeze(-1) / 2
        z = (edges[..., :-1].unsqueeze(-1) + half * (1 + nodes)).flatten(-2)
        weights = (half * weights).flatten(-2) * (-0.5 * z.square()).exp() / math.sqrt(2 * math.pi)
    return (_products(own + own_scale * z, mean, scale) * weights).sum(-1)


def _products(at: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    """``prod_j Phi((at_k - m_j) / s_j)``, ``(..., K)``."""
    least = -12.0 if at.dtype == torch.float32 else -37.0  # below, the factor is zero in this precision
    total = torch.zeros_like(at)
    for j in range(mean.shape[-1]):
        z = (at - mean[..., j : j + 1]) / scale[..., j : j + 1]
        total = total + torch.special.log_ndtr(z.clamp(least, -least))
    return total.exp()
