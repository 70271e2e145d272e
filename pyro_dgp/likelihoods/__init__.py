"""Likelihoods: p(y | f) and its integrals over the last layer."""

from pyro_dgp.likelihoods.base import (
    CollapsedObservation,
    Conditional,
    GaussHermite,
    Likelihood,
    Observation,
    RowObservation,
    check_target,
)
from pyro_dgp.likelihoods.bernoulli import Bernoulli
from pyro_dgp.likelihoods.gaussian import NOISE_FLOOR, Gaussian

__all__ = [
    "NOISE_FLOOR",
    "Bernoulli",
    "CollapsedObservation",
    "Conditional",
    "GaussHermite",
    "Gaussian",
    "Likelihood",
    "Observation",
    "RowObservation",
    "check_target",
]
