"""Variational processes q(f), interchangeable at each GP of a model."""

from pyro_dgp.processes.amortization import AffineMaps, AmortizationRecipe, InferenceFunctions, OneNetwork, Sizes
from pyro_dgp.processes.amortized import AmortizedInducingPoints, AmortizedProcess
from pyro_dgp.processes.base import FunctionMarginal, Process, ProcessFamily
from pyro_dgp.processes.conditioned import ConditionedProcess
from pyro_dgp.processes.inducing import InducingPointProcess, InducingPoints

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
    "OneNetwork",
    "Process",
    "ProcessFamily",
    "Sizes",
]
