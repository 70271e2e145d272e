"""The one table of named methods: what each is made of, and the paper it comes from. Those of other features stand in ``feature_methods``."""

from __future__ import annotations

from dataclasses import replace

from pyro_dgp.kernels.named import rbf_form
from pyro_dgp.training.validation import Validation
from pyro_dgp.training.weight_prior import AdamWithWeightPrior
from pyro_dgp.zoo.approximations import by_neighbors
from pyro_dgp.zoo.architecture import Architecture
from pyro_dgp.zoo.by_collapsed_elbo import ByCollapsedELBO
from pyro_dgp.zoo.by_guide import ByGuide, ByValidatedGuide
from pyro_dgp.zoo.by_marginal_likelihood import ByMarginalLikelihood
from pyro_dgp.zoo.by_mcmc import ByMCMC
from pyro_dgp.zoo.by_sghmc import BySGHMC
from pyro_dgp.zoo.feature_methods import FEATURE_METHODS
from pyro_dgp.zoo.method import (
    BY_ELBO,
    DEEP,
    DEEP_BY_ELBO,
    DEEP_LEARNED,
    DEEP_ON_FEATURES,
    DEEP_TWO_KERNELS,
    DEEP_WITH_PRIORS,
    SHALLOW,
    SHALLOW_ON_FEATURES,
    SHALLOW_TWO_KERNELS,
    SHALLOW_WITH_PRIORS,
    Method,
)
from pyro_dgp.zoo.recipes import (
    Grid,
    InForm,
    all_rows,
    approximate_ep,
    at_learner,
    deep_for_powers,
    elbo,
    full_row_points,
    gamma_divergence,
    inducing_points,
    matched,
    mean_field,
    mean_field_of_outputs,
    monte_carlo,
    monte_carlo_with_mean,
    nuts,
    one_network,
    one_sample,
    points_of_outputs,
    predictive,
    row_points,
    sampled_points,
    short_nuts,
    sigma_points,
    sigma_points_with_mean,
    slices,
    sparse_nuts,
)
from pyro_dgp.zoo.starts import one_layer_and_its_noise_first, one_layer_first, sparse_gp_first

DSPP = "Jankowiak, Pleiss, Gardner 2020, Deep Sigma Point Processes"
SVGP = "Hensman, Fusi, Lawrence 2013, Gaussian Processes for Big Data"
SGPR = "Titsias 2009, Variational Learning of Inducing Variables in Sparse Gaussian Processes"
PPGPR = "Jankowiak, Pleiss, Gardner 2020, Parametric Gaussian Process Regressors"
DSVI = "Salimbeni, Deisenroth 2017, Doubly Stochastic Variational Inference for Deep Gaussian Processes"
AVDGP = "Meng, Zhang 2024, Amortized Variational Inference for Deep Gaussian Processes"
AEP = "Bui, Hernandez-Lobato, Hernandez-Lobato, Li, Turner 2016, Deep Gaussian Processes for Regression using Approximate EP"
VECCHIA = "Sauer, Cooper, Gramacy 2022, Vecchia-Approximated Deep Gaussian Processes for Computer Experiments"
DKL = "Wilson, Hu, Salakhutdinov, Xing 2016, Stochastic Variational Deep Kernel Learning"


#: Early stopping and the best checkpoint alone, for networks in front of a GP, which overfit where rows are few.
CHECKED = Validation(betas=(1.0,))
#: Networks in front of a GP overfit few rows without a prior of their weights. Its precision was chosen by held-out training rows of six sets.
WITH_WEIGHT_PRIOR = AdamWithWeightPrior()
#: The ELBO with a network in front.
BY_CHECKED_ELBO = ByValidatedGuide(inducing_points, monte_carlo, elbo, validation=CHECKED, optimizer=WITH_WEIGHT_PRIOR)
DEEP_BY_CHECKED_ELBO = replace(BY_CHECKED_ELBO, processes=points_of_outputs, first=one_layer_and_its_noise_first)
#: An amortised objective is no bound and overfits early: a run of a quarter of the steps, whose learning rate falls by then, stands
#: beside the full one.
AMORTIZED, AMORTIZED_PREDICTIVE = Validation(betas=(1.0,), runs=(0.25, 1.0)), Validation(runs=(0.25, 1.0))

#: Named methods: a summary, the paper, a model and an inference of each. ``pyro-dgp methods`` prints them.
METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method(
            "exact-gp",
            "exact GP regression, one layer, marginal likelihood: the reference",
            "Rasmussen and Williams 2006, Gaussian Processes for Machine Learning, Eq. 2.30",
            SHALLOW_TWO_KERNELS,
            ByMarginalLikelihood(),
        ),
        Method(
            "vecchia-gp",
            "GP regression, one layer, marginal likelihood of a Vecchia approximation: any number of rows",
            "Vecchia 1988, Estimation and Model Identification for Continuous Spatial Processes",
            SHALLOW_TWO_KERNELS,
            ByMarginalLikelihood(largest=None, default_steps=300, approximation=by_neighbors, default_terms=1000),
        ),
        Method(
            "svgp",
            "sparse variational GP, one layer, ELBO",
            SVGP,
            SHALLOW_TWO_KERNELS,
            BY_ELBO,
        ),
        Method(
            "sgpr",
            "sparse GP regression, one layer, ELBO with the best q(v) in each step, all rows: quick",
            SGPR,
            SHALLOW_TWO_KERNELS,
            ByCollapsedELBO(inducing_points, default_steps=200),
        ),
        Method(
            "ppgpr",
            "parametric predictive GP regression, one layer, predictive log-likelihood, validated",
            PPGPR,
            SHALLOW_TWO_KERNELS,
            ByValidatedGuide(mean_field, monte_carlo, predictive, fallback=BY_ELBO),
        ),
        Method(
            "dsvi",
            "deep GP, doubly stochastic variational inference, ELBO",
            DSVI,
            DEEP_TWO_KERNELS,
            DEEP_BY_ELBO,
        ),
        Method(
            "dsvi-collapsed",
            "deep GP, ELBO with the best q(v) of the top layer in each step, hyperparameters with a prior: smooth functions, quick",
            DSVI + "; the top layer as in " + SGPR,
            DEEP_TWO_KERNELS,
            ByCollapsedELBO(points_of_outputs, default_steps=500, spread=1.0, first=one_layer_first),
        ),
        Method(
            "dspp",
            "deep sigma point process, S learned points (QR3), predictive log-likelihood, validated",
            DSPP + ", Eq. 23",
            DEEP_TWO_KERNELS,
            ByValidatedGuide(
                mean_field_of_outputs, sigma_points, predictive, fallback=DEEP_BY_ELBO, first=one_layer_first
            ),
        ),
        Method(
            "dspp-qr1",
            "deep sigma point process on a learned grid (QR1), predictive log-likelihood, validated",
            DSPP + ", Eq. 22",
            DEEP_TWO_KERNELS,
            ByValidatedGuide(
                mean_field_of_outputs, Grid("qr1"), predictive, fallback=DEEP_BY_ELBO, first=one_layer_first
            ),
        ),
        Method(
            "dspp-qr2",
            "deep sigma point process on a symmetric learned grid (QR2), predictive log-likelihood, validated",
            DSPP + ", section 3.2",
            DEEP_TWO_KERNELS,
            ByValidatedGuide(
                mean_field_of_outputs, Grid("qr2"), predictive, fallback=DEEP_BY_ELBO, first=one_layer_first
            ),
        ),
        Method(
            "dspp-gh",
            "deep sigma point process on the fixed Gauss-Hermite grid, predictive log-likelihood, validated",
            DSPP + ", Eq. 18",
            DEEP_TWO_KERNELS,
            ByValidatedGuide(
                mean_field_of_outputs, Grid("gauss-hermite"), predictive, fallback=DEEP_BY_ELBO, first=one_layer_first
            ),
        ),
        Method(
            "mc-predictive",
            "deep GP, predictive log-likelihood over Monte Carlo samples (biased), validated",
            DSPP + ", footnote 4",
            DEEP_TWO_KERNELS,
            ByValidatedGuide(
                mean_field_of_outputs, monte_carlo, predictive, fallback=DEEP_BY_ELBO, first=one_layer_first
            ),
        ),
        Method(
            "gamma-dgp",
            "deep GP, doubly stochastic, gamma divergence in the place of the log-likelihood",
            "Knoblauch 2019, Robust Deep Gaussian Processes",
            DEEP_TWO_KERNELS,
            replace(DEEP_BY_ELBO, loss=gamma_divergence),
        ),
        Method(
            "aep",
            "deep GP with RBF kernels, approximate expectation propagation, moments matched layer by layer",
            AEP,
            Architecture(InForm(deep_for_powers, rbf_form), is_deep=True),
            ByGuide(points_of_outputs, matched, approximate_ep, first=one_layer_first),
        ),
        Method(
            "dkl-svgp",
            "neural features, then svgp, validated",
            DKL,
            SHALLOW_ON_FEATURES,
            BY_CHECKED_ELBO,
        ),
        Method(
            "dkl-ppgpr",
            "neural features, then ppgpr, validated",
            DSPP + ", section 5.5",
            SHALLOW_ON_FEATURES,
            ByValidatedGuide(
                mean_field, monte_carlo, predictive, optimizer=WITH_WEIGHT_PRIOR, fallback=BY_CHECKED_ELBO
            ),
        ),
        Method(
            "dkl-dsvi",
            "neural features, then dsvi, validated",
            DSPP + ", section 5.5",
            DEEP_ON_FEATURES,
            DEEP_BY_CHECKED_ELBO,
        ),
        Method(
            "dkl-dspp",
            "neural features, then dspp, validated",
            DSPP + ", section 5.5",
            DEEP_ON_FEATURES,
            ByValidatedGuide(
                mean_field_of_outputs,
                sigma_points,
                predictive,
                optimizer=WITH_WEIGHT_PRIOR,
                fallback=DEEP_BY_CHECKED_ELBO,
            ),
        ),
        Method(
            "idsgp",
            "sparse GP with amortised inducing points, one network, one layer, validated",
            "Jafrasteh, Villacampa-Calvo, Hernandez-Lobato 2022, Input Dependent Sparse Gaussian Processes",
            SHALLOW,
            ByValidatedGuide(one_network, monte_carlo, elbo, validation=AMORTIZED),
        ),
        Method(
            "sgp-avi",
            "sparse GP with amortised inducing points, affine maps, one layer, validated",
            AVDGP + ", Eq. 3.2",
            SHALLOW,
            ByValidatedGuide(full_row_points, monte_carlo, elbo, validation=AMORTIZED, first=sparse_gp_first),
        ),
        Method(
            "avdgp-ar1",
            "amortised deep GP, functions look at the one sample of training, validated",
            AVDGP + ", Eq. 4.7",
            DEEP_LEARNED,
            ByValidatedGuide(row_points, one_sample, elbo, validation=AMORTIZED, first=one_layer_and_its_noise_first),
        ),
        Method(
            "avdgp-ar2",
            "amortised deep GP, functions look at the mean of S samples, validated",
            AVDGP + ", Eq. 4.9",
            DEEP_LEARNED,
            ByValidatedGuide(
                row_points, monte_carlo_with_mean, elbo, validation=AMORTIZED, first=one_layer_and_its_noise_first
            ),
        ),
        Method(
            "avdgp-ar2p",
            "amortised deep GP, functions look at the mean of S learned points (QR3), validated",
            AVDGP + ", Eq. 4.12",
            DEEP_LEARNED,
            ByValidatedGuide(
                row_points, sigma_points_with_mean, elbo, validation=AMORTIZED, first=one_layer_and_its_noise_first
            ),
        ),
        Method(
            "avdgp-ar2pp",
            "the same with the predictive log-likelihood, validated",
            AVDGP + ", Eq. 4.16",
            DEEP_LEARNED,
            ByValidatedGuide(
                row_points,
                sigma_points_with_mean,
                predictive,
                validation=AMORTIZED_PREDICTIVE,
                fallback=DEEP_BY_ELBO,
                first=one_layer_first,
            ),
        ),
        Method(
            "gp-nuts",
            "one layer, No-U-Turn sampling of the hyperparameters; the function is integrated out",
            "Rasmussen and Williams 2006, section 5.2; Hoffman, Gelman 2014, The No-U-Turn Sampler",
            SHALLOW_WITH_PRIORS,
            ByMCMC(short_nuts),
        ),
        Method(
            "nuts",
            "deep GP, No-U-Turn sampling of the whitened exact prior and the hyperparameters",
            "Hoffman, Gelman 2014, The No-U-Turn Sampler",
            DEEP_WITH_PRIORS,
            ByMCMC(nuts),
        ),
        Method(
            "ess",
            "deep GP, elliptical slice sampling of the whitened exact prior, slices of the hyperparameters",
            "Murray, Adams, MacKay 2010, Elliptical slice sampling",
            DEEP_WITH_PRIORS,
            ByMCMC(slices),
        ),
        Method(
            "sparse-nuts",
            "deep GP, No-U-Turn sampling of inducing variables, function values given them, and the hyperparameters",
            "Hoffman, Gelman 2014, The No-U-Turn Sampler; Hensman, Matthews, Filippone, Ghahramani 2015, MCMC for Sparse GPs",
            DEEP_WITH_PRIORS,
            ByMCMC(sparse_nuts, rows=all_rows),
        ),
        Method(
            "vecchia-ess",
            "deep GP of a Vecchia approximation, hyperparameters of dsvi, function values by elliptical slice sampling",
            VECCHIA,
            DEEP_LEARNED,
            ByMCMC(slices, rows=all_rows, approximation=by_neighbors, start=at_learner),
        ),
        Method(
            "sghmc",
            "deep GP, inducing variables by stochastic-gradient HMC, hyperparameters by moving windows",
            "Havasi, Hernandez-Lobato, Murillo-Fuentes 2018, Inference in Deep Gaussian Processes using SGHMC",
            DEEP,
            BySGHMC(sampled_points),
        ),
        *FEATURE_METHODS,
    )
}
