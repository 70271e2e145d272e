"""Vecchia approximations: the exact prior with each row conditioned on its nearest earlier rows, for samplers on thousands of rows."""

from pyro_dgp.vecchia.conditioned import NeighborConditionedProcess
from pyro_dgp.vecchia.model import VecchiaModel, vecchia
from pyro_dgp.vecchia.neighbors import Neighbors, NeighborSearch, nearest_neighbors
from pyro_dgp.vecchia.prior import VecchiaPrior

__all__ = [
    "NeighborConditionedProcess",
    "NeighborSearch",
    "Neighbors",
    "VecchiaModel",
    "VecchiaPrior",
    "nearest_neighbors",
    "vecchia",
]
