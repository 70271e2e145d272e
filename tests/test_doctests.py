"""The examples in the docstrings run, and each public name of the rooms that a user works in has one."""

import doctest
import importlib
import inspect
import pkgutil
from pathlib import Path

import pyro
import pytest

import pyro_dgp

ROOT = Path(pyro_dgp.__file__).parent
MODULES = [name for _, name, _ in pkgutil.walk_packages([str(ROOT)], "pyro_dgp.") if not name.endswith("__main__")]
PARSER = doctest.DocTestParser()

# Public names of each room whose docstrings have an example.
WITH_EXAMPLE = {
    "gp": ["FunctionPrior", "GaussianProcess"],
    "likelihoods": [
        "Bernoulli",
        "Conditional",
        "Gaussian",
        "HeteroscedasticGaussian",
        "LinearCoregionalization",
        "MissingOutputs",
        "NegativeBinomial",
        "Ordinal",
        "Poisson",
        "RobustMax",
        "RowObservation",
        "Softmax",
        "StudentT",
    ],
    "means": ["ConstantMean", "FunctionMean", "LinearMean", "Mean", "Projection", "Zero", "concatenate_inputs"],
    "kernels": [
        "RBF",
        "ActiveDims",
        "ArcCosine",
        "Constant",
        "Covariance",
        "FromFunction",
        "FromPyroContrib",
        "Kernel",
        "Linear",
        "Matern12",
        "Matern32",
        "Matern52",
        "Periodic",
        "Product",
        "Radial",
        "RationalQuadratic",
        "Scaled",
        "Spherical",
        "Stationary",
        "Sum",
        "White",
    ],
    "models": ["DeepGP", "DeepKernel", "FeatureExtractor", "Standardizer", "with_priors"],
    "processes": [
        "ActivationFeatures",
        "AffineMaps",
        "AmortizationRecipe",
        "AmortizedInducingPoints",
        "Basis",
        "ConditionedProcess",
        "FourierFeatures",
        "InducingPoints",
        "InferenceFunctions",
        "OneNetwork",
        "Orthogonal",
        "Process",
        "ProcessFamily",
        "SphericalHarmonics",
    ],
    "approximations": ["NeighborSearch", "VecchiaPrior", "nearest_neighbors", "vecchia"],
    "propagation": ["MomentMatching", "MonteCarlo", "Propagation", "SigmaPoints", "WithMean"],
    "guides": ["Variational"],
    "losses": [
        "ELBO",
        "ApproximateEP",
        "CollapsedELBO",
        "CollapsedELBOFromSums",
        "GammaDivergence",
        "HyperparameterPrior",
        "Loss",
        "MarginalLikelihood",
        "PredictiveLogLikelihood",
        "WithPrior",
    ],
    "prediction": [
        "InferenceGap",
        "Mixture",
        "Prediction",
        "calibration_band",
        "coverage",
        "inference_gap",
        "pit",
        "predict",
        "reliability",
        "scores",
    ],
    "diagnosis": ["Diagnosis", "diagnose"],
    "training": [
        "Checkpoints",
        "CompiledObjective",
        "Distributed",
        "FitResult",
        "NaturalGradients",
        "OneLayerStart",
        "Validation",
        "adam",
        "Fallback",
        "AdamWithWeightPrior",
        "adam_for_networks",
        "fit",
        "fit_collapsed",
        "fit_lbfgs",
        "fit_stream",
        "fit_validated",
        "remarks",
        "start_at_means",
        "start_from_one_layer",
    ],
}
# An example of the first needs another library; some are bases, and the others are returned by functions that have an example.
WITHOUT_EXAMPLE = {
    "BasisFamily",
    "Finding",
    "PublishedActivationFeatures",
    "FixedFeatures",
    "FromGPyTorch",
    "Likelihood",
    "NeighborConditionedProcess",
    "Neighbors",
    "Observation",
    "Reliability",
    "RescaledPrediction",
    "SufficientStatistics",
    "ValidatedFit",
    "VecchiaModel",
}


def documented(module):
    """The examples of a module, one for each docstring that has any."""
    found = doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(module))
    return [test for test in found if test.examples]


@pytest.mark.parametrize("module", [name for name in MODULES if documented(name)])
def test_the_examples_of_a_module_run(module):
    for test in documented(module):
        pyro.clear_param_store()
        report = []
        result = doctest.DocTestRunner(verbose=False).run(test, out=report.append)
        assert result.failed == 0, "".join(report)


@pytest.mark.parametrize("room", WITH_EXAMPLE)
def test_each_public_name_of_a_room_has_an_example(room):
    for name in WITH_EXAMPLE[room]:
        assert name in pyro_dgp.__all__, name
        thing = getattr(pyro_dgp, name)
        assert thing.__module__.startswith(f"pyro_dgp.{room}"), name
        assert PARSER.get_examples(inspect.getdoc(thing)), f"{name} has no example"


@pytest.mark.parametrize("room", WITH_EXAMPLE)
def test_no_public_name_of_a_room_is_left_out(room):
    public = {name for name in pyro_dgp.__all__ if _room(getattr(pyro_dgp, name)) == room}
    assert public - WITHOUT_EXAMPLE == set(WITH_EXAMPLE[room])


def _room(thing):
    parts = getattr(thing, "__module__", "").split(".")
    return parts[1] if parts[0] == "pyro_dgp" and len(parts) > 1 else None
