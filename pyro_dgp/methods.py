"""The one table of named methods: what each is made of, and the paper it comes from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from pyro_dgp.inference import ByGuide, ByMarginalLikelihood, ByNUTS, Inference, Settings
from pyro_dgp.losses import ELBO, PredictiveLogLikelihood
from pyro_dgp.models import DeepGP
from pyro_dgp.priors import with_priors
from pyro_dgp.processes import InducingPoints
from pyro_dgp.propagation import MonteCarlo


def shallow(x: Tensor, settings: Settings) -> DeepGP:
    """One GP."""
    return DeepGP(x, 1, settings.width, settings.kernel).to(x)


def deep(x: Tensor, settings: Settings) -> DeepGP:
    """``settings.layers`` GPs."""
    return DeepGP(x, settings.layers, settings.width, settings.kernel).to(x)


def deep_with_priors(x: Tensor, settings: Settings) -> DeepGP:
    """``settings.layers`` GPs with priors on every hyperparameter."""
    return with_priors(deep(x, settings))


def inducing_points(settings: Settings) -> InducingPoints:
    """M whitened inducing points with full covariance."""
    return InducingPoints(settings.inducing)


def monte_carlo(settings: Settings) -> MonteCarlo:
    """S samples."""
    return MonteCarlo(settings.samples)


def elbo(settings: Settings, rows: int) -> ELBO:
    """The evidence lower bound."""
    return ELBO(rows)


def predictive(settings: Settings, rows: int) -> PredictiveLogLikelihood:
    """The predictive log-likelihood with ``settings.beta``."""
    return PredictiveLogLikelihood(rows, settings.beta)


@dataclass(frozen=True)
class Method:
    """A named method of the zoo.

    :ivar summary: what it is, in one line.
    :ivar paper: where it comes from.
    :ivar model: builds the untrained model from training inputs.
    :ivar inference: fits it.
    :ivar is_deep: whether the model has ``settings.layers`` layers, or one.
    """

    name: str
    summary: str
    paper: str
    model: Callable[[Tensor, Settings], DeepGP]
    inference: Inference
    is_deep: bool

    def layers(self, settings: Settings) -> int:
        """Number of layers of the model."""
        return settings.layers if self.is_deep else 1


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method(
            "exact-gp",
            "exact GP regression, one layer, marginal likelihood: the reference",
            "Rasmussen and Williams 2006, Gaussian Processes for Machine Learning, Eq. 2.30",
            shallow,
            ByMarginalLikelihood(),
            is_deep=False,
        ),
        Method(
            "svgp",
            "sparse variational GP, one layer, ELBO",
            "Hensman, Fusi, Lawrence 2013, Gaussian Processes for Big Data",
            shallow,
            ByGuide(inducing_points, monte_carlo, elbo),
            is_deep=False,
        ),
        Method(
            "ppgpr",
            "parametric predictive GP regression, one layer, predictive log-likelihood",
            "Jankowiak, Pleiss, Gardner 2020, Parametric Gaussian Process Regressors",
            shallow,
            ByGuide(inducing_points, monte_carlo, predictive),
            is_deep=False,
        ),
        Method(
            "dsvi",
            "deep GP, doubly stochastic variational inference, ELBO",
            "Salimbeni, Deisenroth 2017, Doubly Stochastic Variational Inference for Deep Gaussian Processes",
            deep,
            ByGuide(inducing_points, monte_carlo, elbo),
            is_deep=True,
        ),
        Method(
            "nuts",
            "deep GP, No-U-Turn sampling of the whitened exact prior and the hyperparameters",
            "Hoffman, Gelman 2014, The No-U-Turn Sampler",
            deep_with_priors,
            ByNUTS(),
            is_deep=True,
        ),
    )
}
