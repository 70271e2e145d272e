"""Deep Gaussian processes as ordinary Pyro models, and interchangeable ways to fit them."""

from pyro_dgp.comparison.gap_figure import draw_gap
from pyro_dgp.data.streams import NumpyStream, ParquetStream, Standardized, Stream
from pyro_dgp.gp import FunctionPrior, GaussianProcess
from pyro_dgp.guides.variational import Variational
from pyro_dgp.internal.parameters import module_local_parameters
from pyro_dgp.kernels import (
    RBF,
    ActiveDims,
    ArcCosine,
    Constant,
    FromGPyTorch,
    FromPyroContrib,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    Product,
    RationalQuadratic,
    Scaled,
    Sum,
    White,
)
from pyro_dgp.likelihoods import Bernoulli, Gaussian, LinearCoregionalization
from pyro_dgp.losses import ELBO, GammaDivergence, MarginalLikelihood, PredictiveLogLikelihood
from pyro_dgp.mcmc import (
    Ascent,
    CompiledDensity,
    EllipticalSlice,
    PriorDraw,
    SurrogateScale,
    SurrogateSlice,
    WhitenedNUTS,
    inducing_inputs,
    predict_mcmc,
    run_chains,
    whitened,
)
from pyro_dgp.mcmc.sghmc import StochasticGradientHMC, predict_draws
from pyro_dgp.means import ConstantMean, LinearMean, Projection, Zero, concatenate_inputs
from pyro_dgp.models.deep_kernel import DeepKernel, FeatureExtractor
from pyro_dgp.prediction.from_guide import predict
from pyro_dgp.prediction.gap import InferenceGap, inference_gap
from pyro_dgp.prediction.mixture import Mixture
from pyro_dgp.prediction.prediction import Prediction
from pyro_dgp.processes import (
    AffineMaps,
    AmortizationRecipe,
    AmortizedInducingPoints,
    ConditionedProcess,
    InducingPoints,
    InferenceFunctions,
    OneNetwork,
)
from pyro_dgp.propagation import MonteCarlo, SigmaPoints, WithMean
from pyro_dgp.training.compiled_objective import CompiledObjective
from pyro_dgp.training.loop import fit, fit_stream
from pyro_dgp.training.validation import Validation, fit_validated

__version__ = "0.1.0"

__all__ = [
    "ELBO",
    "RBF",
    "ActiveDims",
    "AffineMaps",
    "AmortizationRecipe",
    "AmortizedInducingPoints",
    "ArcCosine",
    "Ascent",
    "Bernoulli",
    "CompiledDensity",
    "CompiledObjective",
    "ConditionedProcess",
    "Constant",
    "ConstantMean",
    "DeepKernel",
    "EllipticalSlice",
    "FeatureExtractor",
    "FromGPyTorch",
    "FromPyroContrib",
    "FunctionPrior",
    "GammaDivergence",
    "Gaussian",
    "GaussianProcess",
    "InducingPoints",
    "InferenceFunctions",
    "InferenceGap",
    "Linear",
    "LinearCoregionalization",
    "LinearMean",
    "MarginalLikelihood",
    "Matern12",
    "Matern32",
    "Matern52",
    "Mixture",
    "MonteCarlo",
    "NumpyStream",
    "OneNetwork",
    "ParquetStream",
    "Periodic",
    "Prediction",
    "PredictiveLogLikelihood",
    "PriorDraw",
    "Product",
    "Projection",
    "RationalQuadratic",
    "Scaled",
    "SigmaPoints",
    "Standardized",
    "StochasticGradientHMC",
    "Stream",
    "Sum",
    "SurrogateScale",
    "SurrogateSlice",
    "Validation",
    "Variational",
    "White",
    "WhitenedNUTS",
    "WithMean",
    "Zero",
    "concatenate_inputs",
    "draw_gap",
    "fit",
    "fit_stream",
    "fit_validated",
    "inducing_inputs",
    "inference_gap",
    "module_local_parameters",
    "predict",
    "predict_draws",
    "predict_mcmc",
    "run_chains",
    "whitened",
]
