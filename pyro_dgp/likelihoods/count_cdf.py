"""The distribution function of counts whose log mean is normal, by nodes at the scales of both the counts and the log mean."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

#: Gauss-Legendre nodes of a panel.
_NODES = 24
#: Standard deviations of the log mean beyond which its distribution function counts as 0 or 1.
_FAR = 6.5
#: Nats below its mode that a density of log mean is integrated down to.
_DEPTH = 30.0
#: Distances from its mode within which such a density bends; its tails are exponential beyond.
_BENDS = (5.0, 24.0)
#: Least standard deviation of the log mean: lower ones differ from it in no digit of the result.
_LEAST = 1e-9
#: Shape from which on the series of Stirling's remainder serves.
_LARGE = 20.0


def count_cdf(count: Tensor, mean: Tensor, variance: Tensor, size: Tensor | None = None) -> Tensor:
    """Return ``P(y <= k)`` for Poisson or negative binomial y with log mean ``t ~ N(mean, variance)``, elementwise.

    Given t, ``P(y <= k | t) = P(T > t)`` for a random T with the density of :class:`_Threshold`. For a Poisson y the threshold T is the log of a
    Gamma(k + 1) variable; for a negative binomial y, a Poisson variable whose mean is multiplied by a Gamma(r, r) variable, it is that
    less the log of the latter. So

        P(y <= k) = E_T Phi((T - mean) / sd).

    The integral over T takes panels between the points where either factor bends: those within 6.5 sd of the mean, and those near the mode
    ``log(k + 1)`` of T. Its error is below 1e-9, whichever of the two is narrow. The sum is taken in double precision.

    :param count: k, of any real value.
    :param mean: means of the log mean of y.
    :param variance: variances of the log mean of y.
    :param size: r, the number by which the variance of y given its mean mu is ``mu + mu^2 / r``; nothing for a Poisson y.
    """
    at_least = count.double().floor().clamp_min(0.0) + 1
    threshold = _Threshold(at_least, None if size is None else size.double())
    scale = variance.double().sqrt().clamp_min(_LEAST)
    centre = mean.double() - at_least.log()
    with torch.no_grad():
        points = threshold.points(centre, scale)
        rule = (torch.as_tensor(each).to(centre) for each in np.polynomial.legendre.leggauss(_NODES))
        nodes, weights = (each.reshape(-1, *[1] * centre.dim()) for each in rule)
        nodes, weights = (1 + nodes) / 2, weights / 2
    result = torch.zeros_like(centre)
    for low, high in pairwise(points):
        if bool((high > low).any()):
            at = low + (high - low) * nodes
            terms = threshold.log_density(at).exp() * torch.special.ndtr((at - centre) / scale)
            result = result + (high - low) * (weights * terms).sum(0)
    result = torch.where(count < 0, 0.0, torch.where(count == math.inf, 1.0, result))
    return torch.where(mean.isnan() | variance.isnan() | count.isnan(), math.nan, result).clamp(0.0, 1.0).to(mean)


class _Threshold:
    """The random log mean T with ``P(y <= k | t) = P(T > t)``, by its distance u from its mode ``log a``, ``a = k + 1``.

    With the negative binomial's r its log density is ``a u - (a + r) log(1 + a (exp(u) - 1) / (a + r))``, which stays the same where a and r change
    places and u its sign: the smaller of a and r is the factor, so that no large numbers cancel. The limit of large r, for Poisson, is
    ``a (u - exp(u) + 1)``. Both have a constant added: ``log sqrt(w / 2 pi)``, with w the curvature at the mode, less remainders of Stirling's formula.

    :param a: ``k + 1``.
    :param r: see :func:`count_cdf`.
    """

    def __init__(self, a: Tensor, r: Tensor | None) -> None:
        self.a, self.r = a, r
        if r is None:
            self._constant = 0.5 * (a / (2 * math.pi)).log() - _stirling_remainder(a)
        else:
            remainder = _stirling_remainder(a) + _stirling_remainder(r) - _stirling_remainder(a + r)
            self._constant = 0.5 * (a * r / (a + r) / (2 * math.pi)).log() - remainder

    def log_density(self, u: Tensor) -> Tensor:
        """Return the log density of T at distances from its mode."""
        if self.r is None:
            return self.a * (u - torch.expm1(u)) + self._constant
        rate, total = torch.minimum(self.a, self.r), self.a + self.r
        v = torch.where(self.a < self.r, u, -u)
        return rate * v - total * torch.log1p(rate / total * torch.expm1(v)) + self._constant

    def points(self, centre: Tensor, scale: Tensor) -> Tensor:
        """Return the ends of panels in ascending order, ``(points, ...)``, from where the integrand of :func:`count_cdf` begins to where it ends."""
        left, right = _reach(self.a)
        if self.r is not None:
            down, up = _reach(self.r)
            left, right = left + up, right + down
        inner = [torch.minimum(side / 2, torch.full_like(side, _BENDS[0])) for side in (left, right)]
        bends = [-inner[0], torch.zeros_like(left), inner[1], torch.minimum(right, torch.full_like(right, _BENDS[1]))]
        ends = [centre - _FAR * scale, centre + _FAR * scale]
        low = torch.maximum(ends[0], -left)
        points = torch.stack(torch.broadcast_tensors(*ends, *bends, right))
        return torch.minimum(torch.maximum(points, low), right).sort(0).values


def _reach(shape: Tensor) -> tuple[Tensor, Tensor]:
    """Return distances below and above its mode at which the log of a gamma variable has lost :data:`_DEPTH` nats of density.

    They are bounds: with ``c = depth / shape``, ``exp(u) - 1 - u >= c`` for ``u >= log(1 + c + sqrt(2 c))`` and for ``-u >= c + min(1, sqrt(2 c))``.
    """
    ratio = _DEPTH / shape
    root = (2 * ratio).sqrt()
    return ratio + root.clamp_max(1.0), torch.log1p(ratio + root)


def _stirling_remainder(a: Tensor) -> Tensor:
    """Return ``log Gamma(a) - ((a - 1/2) log a - a + log(2 pi) / 2)``."""
    small, inverse = a.clamp_max(_LARGE), 1 / a.clamp_min(_LARGE)
    direct = torch.lgamma(small) - (small - 0.5) * small.log() + small - 0.5 * math.log(2 * math.pi)
    series = inverse / 12 * (1 - inverse.square() / 30 * (1 - 2 / 7 * inverse.square()))
    return torch.where(a < _LARGE, direct, series)
