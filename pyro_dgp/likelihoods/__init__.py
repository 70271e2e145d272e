"""Likelihoods: p(y | f) and its integrals over the last layer."""

from pyro_dgp.likelihoods.base import (
    CollapsedObservation,
    Conditional,
    GaussHermite,
    Likelihood,
    Observation,
    RowObservation,
    check_target,
    log_gamma_score,
)
from pyro_dgp.likelihoods.bernoulli import Bernoulli
from pyro_dgp.likelihoods.coregionalization import LinearCoregionalization
from pyro_dgp.likelihoods.gaussian import NOISE_FLOOR, Gaussian

__all__ = [
    "NOISE_FLOOR",
    "Bernoulli",
    "CollapsedObservation",
    "Conditional",
    "GaussHermite",
    "Gaussian",
    "Likelihood",
    "LinearCoregionalization",
    "Observation",
    "RowObservation",
    "check_target",
    "log_gamma_score",
]
