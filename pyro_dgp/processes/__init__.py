"""Variational processes q(f), interchangeable at each GP of a model."""

from pyro_dgp.processes.base import FunctionMarginal, Process, ProcessFamily
from pyro_dgp.processes.conditioned import ConditionedProcess
from pyro_dgp.processes.inducing import InducingPointProcess, InducingPoints

__all__ = [
    "ConditionedProcess",
    "FunctionMarginal",
    "InducingPointProcess",
    "InducingPoints",
    "Process",
    "ProcessFamily",
]
