"""Losses for stock ``pyro.infer.SVI`` and for plain PyTorch loops."""

from pyro_dgp.losses.approximate_ep import ApproximateEP
from pyro_dgp.losses.base import Loss
from pyro_dgp.losses.collapsed import CollapsedELBO
from pyro_dgp.losses.collapsed_sums import CollapsedELBOFromSums, SufficientStatistics
from pyro_dgp.losses.elbo import ELBO
from pyro_dgp.losses.gamma import GammaDivergence
from pyro_dgp.losses.hyperparameter_prior import HyperparameterPrior, WithPrior
from pyro_dgp.losses.marginal import MarginalLikelihood
from pyro_dgp.losses.predictive import PredictiveLogLikelihood

__all__ = [
    "ELBO",
    "ApproximateEP",
    "CollapsedELBO",
    "CollapsedELBOFromSums",
    "GammaDivergence",
    "HyperparameterPrior",
    "Loss",
    "MarginalLikelihood",
    "PredictiveLogLikelihood",
    "SufficientStatistics",
    "WithPrior",
]
