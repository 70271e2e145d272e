"""Probabilities that one of several independent normal variables is the largest."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

#: Most nodes of the rule with equal steps; beyond, pieces between the steps of the integrand are integrated one by one.
MOST_EQUAL = 160
#: Most nodes of the rule that all variables share, and rows that it takes at a time.
MOST_SHARED, ROWS_OF_SHARED = 400, 1000
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


def win_probabilities(mean: Tensor, scale: Tensor) -> Tensor:
    """Return :func:`win_probability` of all classes, ``(..., C)``, from nodes that they share, which takes C + 1 and not C (C - 1) functions at each.

    :param mean: ``(..., C)``.
    :param scale: standard deviations, ``(..., C)``.
    """
    classes = mean.shape[-1]
    centred = mean - mean.detach().amax(-1, keepdim=True)  # single precision has its digits around zero
    rows, scales = centred.reshape(-1, classes), scale.clamp_min(1e-12).expand(mean.shape).reshape(-1, classes)
    with torch.no_grad():
        # Outside, all products of a density and distribution functions are zero.
        low, high = ((rows + sign * _RANGE * scales).amax(-1, keepdim=True) for sign in (-1, 1))
        counts = ((high - low).squeeze(-1) / _step(scales.reciprocal().square().sum(-1) - 1)).ceil() + 1
        order = counts.argsort()  # NaN last
        few = int((counts <= MOST_SHARED).sum())
    parts = [
        _shared(rows[part], scales[part], low[part], high[part], count=int(counts[part[-1]]))
        for part in order[:few].split(ROWS_OF_SHARED)
        if len(part)
    ]
    rest = order[few:]
    if len(rest):
        each = torch.arange(classes, device=mean.device).split(1)
        parts.append(torch.stack([win_probability(rows[rest], scales[rest], one) for one in each], -1))
    return torch.cat([*parts, rows[:0]])[order.argsort()].reshape(mean.shape)


def _shared(mean: Tensor, scale: Tensor, low: Tensor, high: Tensor, *, count: int) -> Tensor:
    """Return ``int N(t; m_c, s_c^2) prod_{j != c} Phi((t - m_j) / s_j) dt`` for all c, ``(R, C)``, by the trapezoidal rule from low to high."""
    share = torch.linspace(0, 1, count, dtype=torch.float64).to(mean)
    t = low + (high - low) * share
    z = [(t - mean[:, j : j + 1]) / scale[:, j : j + 1] for j in range(mean.shape[-1])]
    below = [_below(each) for each in z]
    before, after = [torch.ones_like(t)], [torch.ones_like(t)]
    for j in range(len(z) - 1):
        before.append(before[-1] * below[j])
        after.append(after[-1] * below[-1 - j])
    weight = (high - low).squeeze(-1) / ((count - 1) * math.sqrt(2 * math.pi))
    sums = [((-0.5 * z[j].square()).exp() * before[j] * after[-1 - j]).sum(-1) for j in range(len(z))]
    return torch.stack(sums, -1) * weight[:, None] / scale


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
    product = torch.ones_like(at)
    for j in range(mean.shape[-1]):
        product = product * _below((at - mean[..., j : j + 1]) / scale[..., j : j + 1])
    return product


def _below(z: Tensor) -> Tensor:
    """``Phi(z)``, in a tenth of the time of torch's own or of its logarithm."""
    return 0.5 * torch.erfc(z * -math.sqrt(0.5))
