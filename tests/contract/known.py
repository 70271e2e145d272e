"""Known answers of small models, by means that share no code with the library: draws of the prior, weighted by the likelihood.

With S draws of all that is random, ``f_s`` from the prior and weights ``w_s = p(y | f_s)``, the evidence is ``mean(w)`` and the posterior mean
of any quantity ``g`` is ``sum(w g) / sum(w)`` (self-normalised importance sampling). Models have a handful of rows, so that thousands of
draws have weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


def numbers(*values: float) -> Tensor:
    """A vector in double precision, also where the default is another when this file is read."""
    return torch.tensor(values, dtype=torch.float64)


#: Draws of models of one layer, and of deeper ones, which factorise a matrix for each draw.
SHALLOW, DEEP = 400_000, 60_000
#: Training inputs and test inputs of most models.
X = numbers(-1.5, -0.8, 0.0, 0.7, 1.4)[:, None]
NEW = numbers(-1.1, 0.3, 2.2)[:, None]
ALL = torch.cat([X, NEW])
#: Targets and noise variance of most models.
Y = numbers(-0.9, -0.7, 0.3, 1.0, 0.6)
NOISE = 0.2


@dataclass(frozen=True)
class Known:
    """The exact answer for one quantity at the test rows.

    :ivar mean, variance: posterior moments; for classes the mean is the probability of each.
    """

    mean: Tensor
    variance: Tensor


@dataclass(frozen=True)
class Answers:
    """The exact answers of a model.

    :ivar log_evidence: log p(y), nats in total.
    :ivar by_site: posterior moments by site.
    :ivar effective: effective number of draws behind them.
    """

    log_evidence: float
    by_site: Mapping[str, Known]
    effective: float


def rbf(a: Tensor, b: Tensor, lengthscale: float | Tensor = 1.0, variance: float | Tensor = 1.0) -> Tensor:
    """Squared-exponential covariance of inputs ``(..., n, d)`` and ``(..., m, d)``."""
    scaled_a, scaled_b = a / lengthscale, b / lengthscale
    distance = (scaled_a.unsqueeze(-2) - scaled_b.unsqueeze(-3)).square().sum(-1)
    return variance * torch.exp(-0.5 * distance)


def normal_draws(covariance: Tensor, draws: int) -> Tensor:
    """Draws ``(S, n)`` of a normal with mean zero and a covariance ``(n, n)`` or ``(S, n, n)``."""
    rows = covariance.shape[-1]
    root = torch.linalg.cholesky(covariance + 1e-8 * torch.eye(rows, dtype=covariance.dtype))
    return (root @ torch.randn(draws, rows, 1, dtype=covariance.dtype))[..., 0]


def function(x: Tensor, draws: int, kernel: Callable[[Tensor, Tensor], Tensor] = rbf) -> Tensor:
    """Draws ``(S, n)`` of a function from its prior, at inputs ``(n, d)`` or at inputs of each draw, ``(S, n, d)``."""
    return normal_draws(kernel(x, x), draws)


def answers(draws: Mapping[str, Tensor], log_weight: Tensor) -> Answers:
    """Weigh draws ``(S, ...)`` of each site by their log likelihoods ``(S,)``."""
    log_total = torch.logsumexp(log_weight, 0)
    weight = torch.exp(log_weight - log_total)
    known = {}
    for site, values in draws.items():
        own = weight.reshape(-1, *[1] * (values.dim() - 1))
        mean = (own * values).sum(0)
        known[site] = Known(mean, (own * (values - mean).square()).sum(0))
    return Answers(float(log_total) - math.log(len(log_weight)), known, float(1 / weight.square().sum()))


def distance(known: Known, mean: Tensor, variance: Tensor) -> float:
    """Largest divergence over rows, nats: KL(exact || approximate) between normals of the given moments."""
    ratio = known.variance / variance
    each = 0.5 * (ratio - 1 - ratio.log() + (known.mean - mean).square() / variance)
    return float(each.max())


def distance_of_means(known: Known, mean: Tensor, variance: Tensor) -> float:
    """Largest divergence over rows, nats, between normals of the exact variance: half the squared distance in standard deviations."""
    return float((0.5 * (known.mean - mean).square() / known.variance).max())


def distance_of_classes(known: Known, probabilities: Tensor) -> float:
    """Largest divergence over rows, nats: KL(exact || approximate) between probabilities of classes."""
    assert probabilities.shape == known.mean.shape
    exact = known.mean.clamp_min(1e-9)
    return float((exact * (exact / probabilities).log()).sum(-1).max())
