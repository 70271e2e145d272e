"""The one table of named methods: what each is made of, and the paper it comes from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pyro_dgp.extractors import DeepKernel, FeatureExtractor
from pyro_dgp.fit import adam_for_networks
from pyro_dgp.inference import ByGuide, ByMarginalLikelihood, ByMCMC, BySGHMC, ByValidatedGuide, Inference, Settings
from pyro_dgp.losses import ELBO, GammaDivergence, PredictiveLogLikelihood
from pyro_dgp.mcmc import EllipticalSlice, WhitenedNUTS
from pyro_dgp.models import DeepGP
from pyro_dgp.priors import with_priors
from pyro_dgp.processes import AmortizedInducingPoints, InducingPoints, OneNetwork
from pyro_dgp.propagation import MonteCarlo, SigmaPoints, WithMean
from pyro_dgp.validation import Validation


def shallow(x: Tensor, settings: Settings) -> DeepGP:
    """One GP."""
    return DeepGP(x, 1, settings.width, settings.kernel).to(x)


def deep(x: Tensor, settings: Settings) -> DeepGP:
    """``settings.layers`` GPs."""
    return DeepGP(x, settings.layers, settings.width, settings.kernel).to(x)


def deep_with_priors(x: Tensor, settings: Settings) -> DeepGP:
    """``settings.layers`` GPs with priors on every hyperparameter."""
    return with_priors(deep(x, settings))


def nuts(model: nn.Module) -> WhitenedNUTS:
    """The No-U-Turn sampler of the whitened model, trees of at most 31 steps."""
    return WhitenedNUTS(model, max_tree_depth=5, target_accept_prob=0.9)


@dataclass(frozen=True)
class WithFeatures:
    """A model on the features of a network: ``settings.width`` of them."""

    build: Callable[[Tensor, Settings], DeepGP]

    def __call__(self, x: Tensor, settings: Settings) -> DeepKernel:
        """The network, and the model built on what it makes of ``x`` untrained."""
        extractor = FeatureExtractor(x, settings.width)
        with torch.no_grad():
            features = extractor(x)
        return DeepKernel(extractor, self.build(features, settings))


def inducing_points(settings: Settings) -> InducingPoints:
    """M whitened inducing points with full covariance."""
    return InducingPoints(settings.inducing)


def sampled_points(settings: Settings) -> InducingPoints:
    """M inducing points whose values are a point, to be sampled."""
    return InducingPoints(settings.inducing, covariance="delta")


def mean_field(settings: Settings) -> InducingPoints:
    """M whitened inducing points with diagonal covariance, v standard normal at the start in every layer: sigma points that start
    apart overfit less than those that start merged.
    """
    return InducingPoints(settings.inducing, covariance="diagonal", hidden_scale=1.0)


def row_points(settings: Settings) -> dict[str, AmortizedInducingPoints]:
    """Amortised inducing points: M in the first layer, half of that in the others ([AVDGP] C.1)."""
    above = AmortizedInducingPoints(max(1, settings.row_inducing // 2))
    sites = [f"h{number}" for number in range(1, settings.layers)] + ["y"]
    return dict.fromkeys(sites, above) | {sites[0]: AmortizedInducingPoints(settings.row_inducing)}


def full_row_points(settings: Settings) -> AmortizedInducingPoints:
    """The same for one layer, with full covariance."""
    return AmortizedInducingPoints(settings.row_inducing, covariance="full")


def one_network(settings: Settings) -> AmortizedInducingPoints:
    """One layer, one network for points, means and full covariance."""
    return AmortizedInducingPoints(settings.row_inducing, OneNetwork(), "full")


def one_sample(settings: Settings) -> MonteCarlo:
    """One sample in training, whatever S is: each sample costs as much as a row ([AVDGP] Appendix B)."""
    return MonteCarlo(1)


def monte_carlo_with_mean(settings: Settings) -> WithMean:
    """S samples, and the mean for inference functions to look at."""
    return WithMean(monte_carlo(settings))


def sigma_points_with_mean(settings: Settings) -> WithMean:
    """S sigma points of rule QR3, and the mean for inference functions to look at."""
    return WithMean(sigma_points(settings))


def monte_carlo(settings: Settings) -> MonteCarlo:
    """S samples."""
    return MonteCarlo(settings.samples)


def sigma_points(settings: Settings) -> SigmaPoints:
    """S sigma points of rule QR3."""
    return SigmaPoints("qr3", settings.samples)


@dataclass(frozen=True)
class Grid:
    """A grid of sigma points: S of them in each dimension, or as many as ``largest`` components in all allow."""

    rule: str
    largest: int = 256

    def __call__(self, settings: Settings) -> SigmaPoints:
        """The propagation."""
        if settings.layers > 2:
            raise ValueError(
                f"rule {self.rule!r} is a grid over one hidden layer and layers is {settings.layers}: take 2, or method dspp"
            )
        points = self.points(settings)
        if points < min(2, settings.samples):
            raise ValueError(
                f"rule {self.rule!r} with 2 points in each of {settings.width} dimensions has more than {self.largest} "
                "components: lower the width, or take method dspp"
            )
        return SigmaPoints(self.rule, points, self.largest)

    def points(self, settings: Settings) -> int:
        """Points in each dimension."""
        if settings.layers == 1:
            return settings.samples
        return max(s for s in range(1, settings.samples + 1) if s**settings.width <= self.largest)

    def remarks(self, settings: Settings) -> list[str]:
        """What S became."""
        points = self.points(settings)
        if points == settings.samples:
            return []
        return [
            f"{points} points in each of {settings.width} dimensions, {points**settings.width} components, not {settings.samples}"
        ]


def elbo(settings: Settings, rows: int) -> ELBO:
    """The evidence lower bound."""
    return ELBO(rows)


def predictive(settings: Settings, rows: int) -> PredictiveLogLikelihood:
    """The predictive log-likelihood with ``settings.beta``."""
    return PredictiveLogLikelihood(rows) if settings.beta is None else PredictiveLogLikelihood(rows, settings.beta)


def gamma_divergence(settings: Settings, rows: int) -> GammaDivergence:
    """The gamma divergence, gamma 1.03."""
    return GammaDivergence(rows)


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
    model: Callable[[Tensor, Settings], nn.Module]
    inference: Inference
    is_deep: bool

    def layers(self, settings: Settings) -> int:
        """Number of layers of the model."""
        return settings.layers if self.is_deep else 1


DSPP = "Jankowiak, Pleiss, Gardner 2020, Deep Sigma Point Processes"
SVGP = "Hensman, Fusi, Lawrence 2013, Gaussian Processes for Big Data"
PPGPR = "Jankowiak, Pleiss, Gardner 2020, Parametric Gaussian Process Regressors"
DSVI = "Salimbeni, Deisenroth 2017, Doubly Stochastic Variational Inference for Deep Gaussian Processes"
AVDGP = "Meng, Zhang 2024, Amortized Variational Inference for Deep Gaussian Processes"
DKL = "Wilson, Hu, Salakhutdinov, Xing 2016, Stochastic Variational Deep Kernel Learning"


#: Early stopping and the best checkpoint alone.
CHECKED = Validation(betas=(1.0,))
#: An amortised objective is no bound and overfits early: a run of a quarter of the steps, whose learning rate falls by then, stands
#: beside the full one.
AMORTIZED, AMORTIZED_PREDICTIVE = Validation(betas=(1.0,), runs=(0.25, 1.0)), Validation(runs=(0.25, 1.0))

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
            SVGP,
            shallow,
            ByGuide(inducing_points, monte_carlo, elbo),
            is_deep=False,
        ),
        Method(
            "ppgpr",
            "parametric predictive GP regression, one layer, predictive log-likelihood, validated",
            PPGPR,
            shallow,
            ByValidatedGuide(mean_field, monte_carlo, predictive),
            is_deep=False,
        ),
        Method(
            "dsvi",
            "deep GP, doubly stochastic variational inference, ELBO",
            DSVI,
            deep,
            ByGuide(inducing_points, monte_carlo, elbo),
            is_deep=True,
        ),
        Method(
            "dspp",
            "deep sigma point process, S learned points (QR3), predictive log-likelihood, validated",
            DSPP + ", Eq. 23",
            deep,
            ByValidatedGuide(mean_field, sigma_points, predictive),
            is_deep=True,
        ),
        Method(
            "dspp-qr1",
            "deep sigma point process on a learned grid (QR1), predictive log-likelihood, validated",
            DSPP + ", Eq. 22",
            deep,
            ByValidatedGuide(mean_field, Grid("qr1"), predictive),
            is_deep=True,
        ),
        Method(
            "dspp-qr2",
            "deep sigma point process on a symmetric learned grid (QR2), predictive log-likelihood, validated",
            DSPP + ", section 3.2",
            deep,
            ByValidatedGuide(mean_field, Grid("qr2"), predictive),
            is_deep=True,
        ),
        Method(
            "dspp-gh",
            "deep sigma point process on the fixed Gauss-Hermite grid, predictive log-likelihood, validated",
            DSPP + ", Eq. 18",
            deep,
            ByValidatedGuide(mean_field, Grid("gauss-hermite"), predictive),
            is_deep=True,
        ),
        Method(
            "mc-predictive",
            "deep GP, predictive log-likelihood over Monte Carlo samples (biased), validated",
            DSPP + ", footnote 4",
            deep,
            ByValidatedGuide(mean_field, monte_carlo, predictive),
            is_deep=True,
        ),
        Method(
            "gamma-dgp",
            "deep GP, doubly stochastic, gamma divergence in the place of the log-likelihood",
            "Knoblauch 2019, Robust Deep Gaussian Processes",
            deep,
            ByGuide(inducing_points, monte_carlo, gamma_divergence),
            is_deep=True,
        ),
        Method(
            "dkl-svgp",
            "neural features, then svgp",
            DKL,
            WithFeatures(shallow),
            ByGuide(inducing_points, monte_carlo, elbo, optimizer=adam_for_networks),
            is_deep=False,
        ),
        Method(
            "dkl-ppgpr",
            "neural features, then ppgpr, validated",
            DSPP + ", section 5.5",
            WithFeatures(shallow),
            ByValidatedGuide(mean_field, monte_carlo, predictive, optimizer=adam_for_networks),
            is_deep=False,
        ),
        Method(
            "dkl-dsvi",
            "neural features, then dsvi",
            DSPP + ", section 5.5",
            WithFeatures(deep),
            ByGuide(inducing_points, monte_carlo, elbo, optimizer=adam_for_networks),
            is_deep=True,
        ),
        Method(
            "dkl-dspp",
            "neural features, then dspp, validated",
            DSPP + ", section 5.5",
            WithFeatures(deep),
            ByValidatedGuide(mean_field, sigma_points, predictive, optimizer=adam_for_networks),
            is_deep=True,
        ),
        Method(
            "idsgp",
            "sparse GP with amortised inducing points, one network, one layer, validated",
            "Jafrasteh, Villacampa-Calvo, Hernandez-Lobato 2022, Input Dependent Sparse Gaussian Processes",
            shallow,
            ByValidatedGuide(one_network, monte_carlo, elbo, validation=AMORTIZED),
            is_deep=False,
        ),
        Method(
            "sgp-avi",
            "sparse GP with amortised inducing points, affine maps, one layer, validated",
            AVDGP + ", Eq. 3.2",
            shallow,
            ByValidatedGuide(full_row_points, monte_carlo, elbo, validation=AMORTIZED),
            is_deep=False,
        ),
        Method(
            "avdgp-ar1",
            "amortised deep GP, functions look at the one sample of training, validated",
            AVDGP + ", Eq. 4.7",
            deep,
            ByValidatedGuide(row_points, one_sample, elbo, validation=AMORTIZED),
            is_deep=True,
        ),
        Method(
            "avdgp-ar2",
            "amortised deep GP, functions look at the mean of S samples, validated",
            AVDGP + ", Eq. 4.9",
            deep,
            ByValidatedGuide(row_points, monte_carlo_with_mean, elbo, validation=AMORTIZED),
            is_deep=True,
        ),
        Method(
            "avdgp-ar2p",
            "amortised deep GP, functions look at the mean of S learned points (QR3), validated",
            AVDGP + ", Eq. 4.12",
            deep,
            ByValidatedGuide(row_points, sigma_points_with_mean, elbo, validation=AMORTIZED),
            is_deep=True,
        ),
        Method(
            "avdgp-ar2pp",
            "the same with the predictive log-likelihood, validated",
            AVDGP + ", Eq. 4.16",
            deep,
            ByValidatedGuide(row_points, sigma_points_with_mean, predictive, validation=AMORTIZED_PREDICTIVE),
            is_deep=True,
        ),
        Method(
            "nuts",
            "deep GP, No-U-Turn sampling of the whitened exact prior and the hyperparameters",
            "Hoffman, Gelman 2014, The No-U-Turn Sampler",
            deep_with_priors,
            ByMCMC(nuts),
            is_deep=True,
        ),
        Method(
            "ess",
            "deep GP, elliptical slice sampling of the whitened exact prior, slices of the hyperparameters",
            "Murray, Adams, MacKay 2010, Elliptical slice sampling",
            deep_with_priors,
            ByMCMC(EllipticalSlice),
            is_deep=True,
        ),
        Method(
            "sghmc",
            "deep GP, inducing variables by stochastic-gradient HMC, hyperparameters by moving windows",
            "Havasi, Hernandez-Lobato, Murillo-Fuentes 2018, Inference in Deep Gaussian Processes using SGHMC",
            deep,
            BySGHMC(sampled_points),
            is_deep=True,
        ),
    )
}
