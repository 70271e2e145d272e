"""Deep Gaussian processes as ordinary Pyro models, and interchangeable ways to fit them."""

# The comparison, each name from the file that defines it.
from pyro_dgp.approximations import (
    NeighborConditionedProcess,
    Neighbors,
    NeighborSearch,
    VecchiaModel,
    VecchiaPrior,
    nearest_neighbors,
    vecchia,
)
from pyro_dgp.comparison.advice import Advice, advise
from pyro_dgp.comparison.gap_figure import draw_gap
from pyro_dgp.comparison.gap_study import GapResult
from pyro_dgp.comparison.keep import load_fit
from pyro_dgp.comparison.method_fit import MethodFit
from pyro_dgp.comparison.results import ComparisonResult
from pyro_dgp.comparison.run import MethodFailedError, compare
from pyro_dgp.comparison.sweep import sweep
from pyro_dgp.data.dataset import Dataset
from pyro_dgp.data.letters import describe_letters, inside_letters, letters
from pyro_dgp.data.named import load_default, load_named
from pyro_dgp.data.published import load_flights, load_mnist, load_rectangles, load_year
from pyro_dgp.data.reading import load
from pyro_dgp.data.splitting import split
from pyro_dgp.data.streams import NumpyStream, ParquetStream, Standardized, Stream
from pyro_dgp.data.tasks import Task
from pyro_dgp.diagnosis.diagnosis import Diagnosis, diagnose
from pyro_dgp.diagnosis.symptoms import Finding
from pyro_dgp.export.arviz_groups import from_groups, import_arviz
from pyro_dgp.export.inference_data import to_arviz
from pyro_dgp.functions.draws import FunctionDraws, draw_functions
from pyro_dgp.functions.joint import JointDistribution
from pyro_dgp.gp import FunctionPrior, GaussianProcess
from pyro_dgp.guides.variational import Variational
from pyro_dgp.internal.parameters import module_local_parameters
from pyro_dgp.kernels import (
    RBF,
    ActiveDims,
    ArcCosine,
    Constant,
    Covariance,
    FromFunction,
    FromGPyTorch,
    FromPyroContrib,
    Kernel,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    Product,
    Radial,
    RationalQuadratic,
    Scaled,
    Spherical,
    Stationary,
    Sum,
    White,
)
from pyro_dgp.likelihoods import (
    NOISE_FLOOR,
    Bernoulli,
    Conditional,
    Gaussian,
    HeteroscedasticGaussian,
    Likelihood,
    LinearCoregionalization,
    MissingOutputs,
    NegativeBinomial,
    Observation,
    Ordinal,
    Poisson,
    RobustMax,
    RowObservation,
    Softmax,
    StudentT,
)
from pyro_dgp.losses import (
    ELBO,
    ApproximateEP,
    CollapsedELBO,
    CollapsedELBOFromSums,
    GammaDivergence,
    HyperparameterPrior,
    Loss,
    MarginalLikelihood,
    PredictiveLogLikelihood,
    SufficientStatistics,
    WithPrior,
)
from pyro_dgp.mcmc import (
    Ascent,
    Chains,
    CompiledDensity,
    EllipticalSlice,
    GuideMean,
    PosteriorDraws,
    PriorDraw,
    SurrogateScale,
    SurrogateSlice,
    WhitenedModel,
    WhitenedNUTS,
    bases_of,
    inducing_inputs,
    run_chains,
    whitened,
)
from pyro_dgp.mcmc.diagnostics import convergence
from pyro_dgp.mcmc.sghmc import InducingDraws, StochasticGradientHMC
from pyro_dgp.means import ConstantMean, FunctionMean, LinearMean, Mean, Projection, Zero, concatenate_inputs
from pyro_dgp.models.deep_gp import DeepGP
from pyro_dgp.models.deep_kernel import DeepKernel, FeatureExtractor
from pyro_dgp.models.priors import with_priors
from pyro_dgp.models.standardizer import Standardizer
from pyro_dgp.prediction.gap import InferenceGap, inference_gap
from pyro_dgp.prediction.mixture import Mixture
from pyro_dgp.prediction.predict import predict
from pyro_dgp.prediction.prediction import Prediction
from pyro_dgp.prediction.reliability import Reliability, calibration_band, reliability
from pyro_dgp.prediction.rescaled import RescaledPrediction
from pyro_dgp.prediction.scores import coverage, pit, scores
from pyro_dgp.processes import (
    ActivationFeatures,
    AffineMaps,
    AmortizationRecipe,
    AmortizedInducingPoints,
    Basis,
    BasisFamily,
    ConditionedProcess,
    FixedFeatures,
    FourierFeatures,
    InducingPoints,
    InferenceFunctions,
    OneNetwork,
    Orthogonal,
    Process,
    ProcessFamily,
    PublishedActivationFeatures,
    SphericalHarmonics,
)
from pyro_dgp.propagation import MomentMatching, MonteCarlo, Propagation, SigmaPoints, WithMean
from pyro_dgp.training.checkpoints import Checkpoints
from pyro_dgp.training.collapsed_fit import fit_collapsed
from pyro_dgp.training.compiled_objective import CompiledObjective
from pyro_dgp.training.distributed import Distributed
from pyro_dgp.training.fallback import Fallback
from pyro_dgp.training.lbfgs import fit_lbfgs
from pyro_dgp.training.loop import fit, fit_stream
from pyro_dgp.training.means_start import start_at_means
from pyro_dgp.training.natural_gradients import NaturalGradients
from pyro_dgp.training.one_layer_start import OneLayerStart, start_from_one_layer
from pyro_dgp.training.optimising import FitResult, adam, adam_for_networks
from pyro_dgp.training.remarks import remarks
from pyro_dgp.training.validated_fit import ValidatedFit, fit_validated
from pyro_dgp.training.validation import Validation
from pyro_dgp.training.weight_prior import AdamWithWeightPrior
from pyro_dgp.zoo.by_collapsed_elbo import ByCollapsedELBO
from pyro_dgp.zoo.by_guide import ByGuide, ByValidatedGuide
from pyro_dgp.zoo.by_layer import ByLayer
from pyro_dgp.zoo.by_marginal_likelihood import ByMarginalLikelihood
from pyro_dgp.zoo.by_mcmc import ByMCMC
from pyro_dgp.zoo.by_sghmc import BySGHMC
from pyro_dgp.zoo.inference import Fitted, Inference
from pyro_dgp.zoo.methods import METHODS
from pyro_dgp.zoo.presets import PRESETS
from pyro_dgp.zoo.settings import Settings

__version__ = "0.2.0"

__all__ = [
    "ELBO",
    "METHODS",
    "NOISE_FLOOR",
    "PRESETS",
    "RBF",
    "ActivationFeatures",
    "ActiveDims",
    "AdamWithWeightPrior",
    "Advice",
    "AffineMaps",
    "AmortizationRecipe",
    "AmortizedInducingPoints",
    "ApproximateEP",
    "ArcCosine",
    "Ascent",
    "Basis",
    "BasisFamily",
    "Bernoulli",
    "ByCollapsedELBO",
    "ByGuide",
    "ByLayer",
    "ByMCMC",
    "ByMarginalLikelihood",
    "BySGHMC",
    "ByValidatedGuide",
    "Chains",
    "Checkpoints",
    "CollapsedELBO",
    "CollapsedELBOFromSums",
    "ComparisonResult",
    "CompiledDensity",
    "CompiledObjective",
    "Conditional",
    "ConditionedProcess",
    "Constant",
    "ConstantMean",
    "Covariance",
    "Dataset",
    "DeepGP",
    "DeepKernel",
    "Diagnosis",
    "Distributed",
    "EllipticalSlice",
    "Fallback",
    "FeatureExtractor",
    "Finding",
    "FitResult",
    "Fitted",
    "FixedFeatures",
    "FourierFeatures",
    "FromFunction",
    "FromGPyTorch",
    "FromPyroContrib",
    "FunctionDraws",
    "FunctionMean",
    "FunctionPrior",
    "GammaDivergence",
    "GapResult",
    "Gaussian",
    "GaussianProcess",
    "GuideMean",
    "HeteroscedasticGaussian",
    "HyperparameterPrior",
    "InducingDraws",
    "InducingPoints",
    "Inference",
    "InferenceFunctions",
    "InferenceGap",
    "JointDistribution",
    "Kernel",
    "Likelihood",
    "Linear",
    "LinearCoregionalization",
    "LinearMean",
    "Loss",
    "MarginalLikelihood",
    "Matern12",
    "Matern32",
    "Matern52",
    "Mean",
    "MethodFailedError",
    "MethodFit",
    "MissingOutputs",
    "Mixture",
    "MomentMatching",
    "MonteCarlo",
    "NaturalGradients",
    "NegativeBinomial",
    "NeighborConditionedProcess",
    "NeighborSearch",
    "Neighbors",
    "NumpyStream",
    "Observation",
    "OneLayerStart",
    "OneNetwork",
    "Ordinal",
    "Orthogonal",
    "ParquetStream",
    "Periodic",
    "Poisson",
    "PosteriorDraws",
    "Prediction",
    "PredictiveLogLikelihood",
    "PriorDraw",
    "Process",
    "ProcessFamily",
    "Product",
    "Projection",
    "Propagation",
    "PublishedActivationFeatures",
    "Radial",
    "RationalQuadratic",
    "Reliability",
    "RescaledPrediction",
    "RobustMax",
    "RowObservation",
    "Scaled",
    "Settings",
    "SigmaPoints",
    "Softmax",
    "Spherical",
    "SphericalHarmonics",
    "Standardized",
    "Standardizer",
    "Stationary",
    "StochasticGradientHMC",
    "Stream",
    "StudentT",
    "SufficientStatistics",
    "Sum",
    "SurrogateScale",
    "SurrogateSlice",
    "Task",
    "ValidatedFit",
    "Validation",
    "Variational",
    "VecchiaModel",
    "VecchiaPrior",
    "White",
    "WhitenedModel",
    "WhitenedNUTS",
    "WithMean",
    "WithPrior",
    "Zero",
    "adam",
    "adam_for_networks",
    "advise",
    "bases_of",
    "calibration_band",
    "compare",
    "concatenate_inputs",
    "convergence",
    "coverage",
    "describe_letters",
    "diagnose",
    "draw_functions",
    "draw_gap",
    "fit",
    "fit_collapsed",
    "fit_lbfgs",
    "fit_stream",
    "fit_validated",
    "from_groups",
    "import_arviz",
    "inducing_inputs",
    "inference_gap",
    "inside_letters",
    "letters",
    "load",
    "load_default",
    "load_fit",
    "load_flights",
    "load_mnist",
    "load_named",
    "load_rectangles",
    "load_year",
    "module_local_parameters",
    "nearest_neighbors",
    "pit",
    "predict",
    "reliability",
    "remarks",
    "run_chains",
    "scores",
    "split",
    "start_at_means",
    "start_from_one_layer",
    "sweep",
    "to_arviz",
    "vecchia",
    "whitened",
    "with_priors",
]
