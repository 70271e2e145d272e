"""Likelihoods: p(y | f) and its integrals over the last layer."""

from pyro_dgp.likelihoods.base import Likelihood
from pyro_dgp.likelihoods.bernoulli import Bernoulli
from pyro_dgp.likelihoods.conditional import Conditional, RowObservation
from pyro_dgp.likelihoods.coregionalization import LinearCoregionalization
from pyro_dgp.likelihoods.gamma_score import log_gamma_score
from pyro_dgp.likelihoods.gaussian import NOISE_FLOOR, Gaussian
from pyro_dgp.likelihoods.observation import CollapsedObservation, Observation
from pyro_dgp.likelihoods.targets import check_target

__all__ = [
    "NOISE_FLOOR",
    "Bernoulli",
    "CollapsedObservation",
    "Conditional",
    "Gaussian",
    "Likelihood",
    "LinearCoregionalization",
    "Observation",
    "RowObservation",
    "check_target",
    "log_gamma_score",
]
