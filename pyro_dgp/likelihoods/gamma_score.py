"""The score of the gamma divergence for plain distributions."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pyro_dgp.likelihoods.units import InUnits


def log_gamma_score(distribution: Any, y: Tensor, gamma: float) -> Tensor:
    """``log [p(y)^c / (int p^gamma)^(c / gamma)]``, ``c = gamma - 1``, for normal and finite discrete p, or independent ones.

    Targets with units are scored as standardised, so that the score does not depend on the units.
    """
    if isinstance(distribution, InUnits):
        return log_gamma_score(distribution.base_dist, distribution.units(y), gamma)
    if isinstance(distribution, torch.distributions.Independent):
        terms = log_gamma_score(distribution.base_dist, y, gamma)
        return terms.sum(tuple(range(-distribution.reinterpreted_batch_ndims, 0)))
    if isinstance(distribution, torch.distributions.Normal):
        log_integral = 0.5 * ((1 - gamma) * (2 * math.pi * distribution.variance).log() - math.log(gamma))
    elif distribution.has_enumerate_support:
        values = distribution.enumerate_support()
        log_integral = torch.logsumexp(gamma * distribution.log_prob(values), 0)
    else:
        raise ValueError(
            f"the gamma divergence needs the integral of {type(distribution).__name__}'s density to the power gamma, known here "
            "for normal and finite discrete distributions: use another loss"
        )
    log_prob: Tensor = distribution.log_prob(y)
    return (gamma - 1) * (log_prob - log_integral / gamma)
