"""The score of the gamma divergence for plain distributions."""

from __future__ import annotations

import math
from typing import Any

import torch
from pyro.distributions import MaskedDistribution
from torch import Tensor

from pyro_dgp.likelihoods.units import InUnits


def log_gamma_score(distribution: Any, y: Tensor, gamma: float) -> Tensor:
    """``log [p(y)^c / (int p^gamma)^(c / gamma)]``, ``c = gamma - 1``, for normal and finite discrete p, or independent ones; 0 where p is masked.

    Targets with units are scored as standardised, so that the score does not depend on the units.
    """
    if isinstance(distribution, MaskedDistribution):
        score = log_gamma_score(distribution.base_dist, y, gamma)
        return torch.where(torch.as_tensor(distribution._mask, device=score.device), score, 0.0)
    if isinstance(distribution, InUnits):
        return log_gamma_score(distribution.base_dist, distribution.units(y), gamma)
    if isinstance(distribution, torch.distributions.Independent):
        terms = log_gamma_score(distribution.base_dist, y, gamma)
        return terms.sum(tuple(range(-distribution.reinterpreted_batch_ndims, 0)))
    log_integral = log_power_integral(distribution, gamma)
    log_prob: Tensor = distribution.log_prob(y)
    return (gamma - 1) * (log_prob - log_integral / gamma)


def log_power_integral(distribution: Any, power: float) -> Tensor:
    """``log int p(y)^power dy`` of each element, for normal and finite discrete p."""
    if isinstance(distribution, torch.distributions.Normal):
        return log_normal_power_integral(distribution.variance, power)
    if distribution.has_enumerate_support:
        values = distribution.enumerate_support()
        return torch.logsumexp(power * distribution.log_prob(values), 0)
    raise ValueError(
        f"the gamma divergence needs the integral of {type(distribution).__name__}'s density to the power gamma, known here "
        "for normal and finite discrete distributions: use another loss"
    )


def log_normal_power_integral(variance: Tensor, power: float) -> Tensor:
    """``log int N(y | m, variance)^power dy``."""
    return 0.5 * ((1 - power) * (2 * math.pi * variance).log() - math.log(power))


def log_expected_normal_power(deviation: Tensor, variance: Tensor, noise: Tensor, power: float) -> Tensor:
    """``log E N(r | 0, noise)^power`` for ``r ~ N(deviation, variance)``, elementwise."""
    ratio = power * variance / noise
    squared = power * deviation.square() / (noise * (1 + ratio))
    return -0.5 * (power * (2 * math.pi * noise).log() + torch.log1p(ratio) + squared)
