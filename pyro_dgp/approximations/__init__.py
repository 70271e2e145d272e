"""Vecchia approximations: the exact prior with each row conditioned on its nearest earlier rows, for samplers on thousands of rows."""

from pyro_dgp.approximations.conditioned import NeighborConditionedProcess
from pyro_dgp.approximations.model import VecchiaModel, vecchia
from pyro_dgp.approximations.neighbors import Neighbors, NeighborSearch, nearest_neighbors
from pyro_dgp.approximations.prior import VecchiaPrior

__all__ = [
    "NeighborConditionedProcess",
    "NeighborSearch",
    "Neighbors",
    "VecchiaModel",
    "VecchiaPrior",
    "nearest_neighbors",
    "vecchia",
]
