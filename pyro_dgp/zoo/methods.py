"""The one table of named methods: what each is made of, and the paper it comes from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from pyro_dgp.training.loop import adam_for_networks
from pyro_dgp.training.validation import Validation
from pyro_dgp.zoo.inference import ByGuide, ByMarginalLikelihood, ByMCMC, BySGHMC, ByValidatedGuide, Inference
from pyro_dgp.zoo.recipes import (
    Grid,
    WithFeatures,
    all_rows,
    deep,
    deep_with_priors,
    elbo,
    full_row_points,
    gamma_divergence,
    inducing_points,
    mean_field,
    monte_carlo,
    monte_carlo_with_mean,
    nuts,
    one_network,
    one_sample,
    predictive,
    row_points,
    sampled_points,
    shallow,
    sigma_points,
    sigma_points_with_mean,
    slices,
    sparse_nuts,
)
from pyro_dgp.zoo.settings import Settings


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
            ByMCMC(slices),
            is_deep=True,
        ),
        Method(
            "sparse-nuts",
            "deep GP, No-U-Turn sampling of inducing variables, function values given them, and the hyperparameters",
            "Hoffman, Gelman 2014, The No-U-Turn Sampler; Hensman, Matthews, Filippone, Ghahramani 2015, MCMC for Sparse GPs",
            deep_with_priors,
            ByMCMC(sparse_nuts, all_rows),
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
