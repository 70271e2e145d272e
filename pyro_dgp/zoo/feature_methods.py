"""Named methods of features other than inducing points, and of orthogonal parts."""

from __future__ import annotations

from dataclasses import replace

from pyro_dgp.kernels.named import additive_form, zonal_form
from pyro_dgp.zoo.architecture import Architecture
from pyro_dgp.zoo.by_collapsed_elbo import ByCollapsedELBO
from pyro_dgp.zoo.method import BY_ELBO, DEEP_BY_ELBO, DEEP_LEARNED, SHALLOW, Method
from pyro_dgp.zoo.recipes import (
    InForm,
    WithOrthogonal,
    deep_learned,
    deep_noisy,
    fourier,
    harmonics,
    inducing_points,
    points_of_outputs,
    shallow,
    units,
)

ADDITIVE = Architecture(InForm(shallow, additive_form), is_deep=False)
DEEP_ADDITIVE = Architecture(InForm(deep_noisy, additive_form), is_deep=True)
ZONAL = Architecture(InForm(shallow, zonal_form), is_deep=False)
DEEP_ZONAL = Architecture(InForm(deep_learned, zonal_form), is_deep=True)

VFF = "Hensman, Durrande, Solin 2018, Variational Fourier Features for Gaussian Processes"
IDDGP = "Rudner, Sejdinovic 2018, Inter-domain Deep Gaussian Processes"
VISH = "Dutordoir, Durrande, Hensman 2020, Sparse Gaussian Processes with Spherical Harmonic Features"
ACTIVATED = "Dutordoir et al. 2021, Deep Neural Networks as Point Estimates for Deep Gaussian Processes"
SPHERICAL = "Tiao, Dutordoir, Picheny 2023, Spherical Inducing Features for Orthogonally-Decoupled Gaussian Processes"
SOLVE = "Shi, Titsias, Mnih 2020, Sparse Orthogonal Variational Inference for Gaussian Processes"
DECOUPLED = "Salimbeni, Cheng, Boots, Deisenroth 2018, Orthogonally Decoupled Variational Gaussian Processes"

FEATURE_METHODS = (
    Method(
        "vff",
        "sparse GP with an additive kernel, variational Fourier features, one layer, ELBO",
        VFF,
        ADDITIVE,
        replace(BY_ELBO, processes=fourier),
    ),
    Method(
        "vff-collapsed",
        "sparse GP with an additive kernel, Fourier features, best q(v) in closed form: one pass over the data",
        VFF + ", section 3.2",
        ADDITIVE,
        ByCollapsedELBO(fourier),
    ),
    Method(
        "id-dgp",
        "inter-domain deep GP: additive kernels, Fourier features and noise between layers, ELBO",
        IDDGP,
        DEEP_ADDITIVE,
        replace(DEEP_BY_ELBO, processes=fourier),
    ),
    Method(
        "vish",
        "sparse GP with a zonal kernel, spherical harmonics, one layer, ELBO",
        VISH,
        ZONAL,
        replace(BY_ELBO, processes=harmonics),
    ),
    Method(
        "vish-dgp",
        "deep GP with zonal kernels, spherical harmonics, ELBO",
        VISH,
        DEEP_ZONAL,
        replace(DEEP_BY_ELBO, processes=harmonics),
    ),
    Method(
        "activated-svgp",
        "sparse GP with a zonal kernel, units of a network as features, one layer, ELBO",
        ACTIVATED,
        ZONAL,
        replace(BY_ELBO, processes=units),
    ),
    Method(
        "activated-dgp",
        "deep GP with zonal kernels, units of a network as features, ELBO",
        ACTIVATED,
        DEEP_ZONAL,
        replace(DEEP_BY_ELBO, processes=units),
    ),
    Method(
        "solve-gp",
        "sparse GP, inducing points and orthogonal ones, one layer, ELBO",
        SOLVE,
        SHALLOW,
        replace(BY_ELBO, processes=WithOrthogonal(inducing_points)),
    ),
    Method(
        "solve-dgp",
        "deep GP, inducing points and orthogonal ones, ELBO",
        SOLVE + ", section 4",
        DEEP_LEARNED,
        replace(DEEP_BY_ELBO, processes=WithOrthogonal(points_of_outputs)),
    ),
    Method(
        "od-svgp",
        "sparse GP, inducing points and orthogonal ones for the mean alone, one layer, ELBO",
        DECOUPLED,
        SHALLOW,
        replace(BY_ELBO, processes=WithOrthogonal(inducing_points, "prior")),
    ),
    Method(
        "od-dgp",
        "deep GP, inducing points and orthogonal ones for the mean alone, ELBO",
        DECOUPLED,
        DEEP_LEARNED,
        replace(DEEP_BY_ELBO, processes=WithOrthogonal(points_of_outputs, "prior")),
    ),
    Method(
        "activated-solve",
        "sparse GP with a zonal kernel, units of a network and orthogonal inducing points, one layer, ELBO",
        SPHERICAL,
        ZONAL,
        replace(BY_ELBO, processes=WithOrthogonal(units)),
    ),
    Method(
        "activated-solve-dgp",
        "deep GP with zonal kernels, units of a network and orthogonal inducing points, ELBO",
        SPHERICAL,
        DEEP_ZONAL,
        replace(DEEP_BY_ELBO, processes=WithOrthogonal(units)),
    ),
)
