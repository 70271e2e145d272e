"""Variational processes q(f), interchangeable at each GP of a model."""

from pyro_dgp.processes.activations import ActivationBasis, ActivationFeatures, PublishedActivationFeatures
from pyro_dgp.processes.amortized import AmortizedInducingPoints, AmortizedProcess
from pyro_dgp.processes.base import KnownValues, Process
from pyro_dgp.processes.basis import Basis
from pyro_dgp.processes.basis_family import BasisFamily
from pyro_dgp.processes.coefficients import Coefficients, GaussianCoefficients
from pyro_dgp.processes.conditioned import ConditionedProcess
from pyro_dgp.processes.families import ProcessFamily
from pyro_dgp.processes.fixed_features import FixedFeatures
from pyro_dgp.processes.fourier_features import FourierBasis, FourierFeatures
from pyro_dgp.processes.inducing_points import InducingPointBasis, InducingPoints
from pyro_dgp.processes.inference_functions import AffineMaps, AmortizationRecipe, InferenceFunctions, OneNetwork, Sizes
from pyro_dgp.processes.marginal import FunctionMarginal
from pyro_dgp.processes.orthogonal import Orthogonal, OrthogonalBasis
from pyro_dgp.processes.spherical_harmonics import HarmonicBasis, SphericalHarmonics
from pyro_dgp.processes.whitened import WhitenedProcess
from pyro_dgp.processes.whitened_gaussian import WhitenedGaussian

__all__ = [
    "ActivationBasis",
    "ActivationFeatures",
    "AffineMaps",
    "AmortizationRecipe",
    "AmortizedInducingPoints",
    "AmortizedProcess",
    "Basis",
    "BasisFamily",
    "Coefficients",
    "ConditionedProcess",
    "FixedFeatures",
    "FourierBasis",
    "FourierFeatures",
    "FunctionMarginal",
    "GaussianCoefficients",
    "HarmonicBasis",
    "InducingPointBasis",
    "InducingPoints",
    "InferenceFunctions",
    "KnownValues",
    "OneNetwork",
    "Orthogonal",
    "OrthogonalBasis",
    "Process",
    "ProcessFamily",
    "PublishedActivationFeatures",
    "Sizes",
    "SphericalHarmonics",
    "WhitenedGaussian",
    "WhitenedProcess",
]
