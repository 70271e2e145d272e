"""Likelihoods: p(y | f) and its integrals over the last layer."""

from pyro_dgp.likelihoods.base import Likelihood
from pyro_dgp.likelihoods.bernoulli import Bernoulli
from pyro_dgp.likelihoods.conditional import Conditional, RowObservation
from pyro_dgp.likelihoods.coregionalization import LinearCoregionalization
from pyro_dgp.likelihoods.counts import NegativeBinomial, Poisson
from pyro_dgp.likelihoods.gamma_score import log_gamma_score
from pyro_dgp.likelihoods.gaussian import NOISE_FLOOR, Gaussian
from pyro_dgp.likelihoods.heteroscedastic import HeteroscedasticGaussian
from pyro_dgp.likelihoods.missing import MissingOutputs
from pyro_dgp.likelihoods.observation import CollapsedObservation, Observation
from pyro_dgp.likelihoods.ordinal import Ordinal
from pyro_dgp.likelihoods.robust_max import RobustMax
from pyro_dgp.likelihoods.softmax import Softmax
from pyro_dgp.likelihoods.student_t import StudentT
from pyro_dgp.likelihoods.targets import check_target

__all__ = [
    "NOISE_FLOOR",
    "Bernoulli",
    "CollapsedObservation",
    "Conditional",
    "Gaussian",
    "HeteroscedasticGaussian",
    "Likelihood",
    "LinearCoregionalization",
    "MissingOutputs",
    "NegativeBinomial",
    "Observation",
    "Ordinal",
    "Poisson",
    "RobustMax",
    "RowObservation",
    "Softmax",
    "StudentT",
    "check_target",
    "log_gamma_score",
]
