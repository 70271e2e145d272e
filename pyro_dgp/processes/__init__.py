"""Variational processes q(f), interchangeable at each GP of a model."""

from pyro_dgp.processes.amortized import AmortizedInducingPoints, AmortizedProcess
from pyro_dgp.processes.base import KnownValues, Process
from pyro_dgp.processes.conditioned import ConditionedProcess
from pyro_dgp.processes.families import ProcessFamily
from pyro_dgp.processes.inducing_points import InducingPoints
from pyro_dgp.processes.inducing_process import InducingPointProcess
from pyro_dgp.processes.inference_functions import AffineMaps, AmortizationRecipe, InferenceFunctions, OneNetwork, Sizes
from pyro_dgp.processes.marginal import FunctionMarginal

__all__ = [
    "AffineMaps",
    "AmortizationRecipe",
    "AmortizedInducingPoints",
    "AmortizedProcess",
    "ConditionedProcess",
    "FunctionMarginal",
    "InducingPointProcess",
    "InducingPoints",
    "InferenceFunctions",
    "KnownValues",
    "OneNetwork",
    "Process",
    "ProcessFamily",
    "Sizes",
]
